# SPDX-License-Identifier: Apache-2.0
"""People: who signs in, their groups, what they may do, their sessions; tokens with a right on some pools."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

NAME = sa.String(length=255)
ID = sa.String(length=36)


def upgrade() -> None:
    """Add the columns and tables."""
    with op.batch_alter_table("person") as person:
        person.add_column(sa.Column("realm", NAME))
        person.add_column(sa.Column("password", sa.Text()))
        person.add_column(sa.Column("disabled", sa.Boolean(), nullable=False, server_default=sa.false()))
        person.add_column(sa.Column("shown", NAME))
        person.add_column(sa.Column("signed_in_at", sa.Float()))
        person.add_column(sa.Column("generation", sa.Integer(), nullable=False, server_default="1"))
    with op.batch_alter_table("token") as token:
        token.alter_column("role", existing_type=NAME, nullable=True)
        token.add_column(sa.Column("right", NAME))
    _add_of_people()
    _add_of_pools()
    _move_users()


def _add_of_people() -> None:
    op.create_table(
        "membership",
        sa.Column("person", NAME, nullable=False),
        sa.Column("group_name", NAME, nullable=False),
        sa.ForeignKeyConstraint(["person"], ["person.name"], name=op.f("fk_membership_person"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("person", "group_name", name=op.f("pk_membership")),
    )
    op.create_index(op.f("ix_membership_group_name"), "membership", ["group_name"])
    op.create_table(
        "web_session",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("person", NAME, nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("address", NAME, nullable=False),
        sa.ForeignKeyConstraint(["person"], ["person.name"], name=op.f("fk_web_session_person"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_web_session")),
    )
    op.create_index(op.f("ix_web_session_person"), "web_session", ["person"])
    op.create_table(
        "begun_sign_in",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_begun_sign_in")),
    )
    op.create_index(op.f("ix_begun_sign_in_expires_at"), "begun_sign_in", ["expires_at"])


def _add_of_pools() -> None:
    op.create_table(
        "entitlement",
        sa.Column("who", NAME, nullable=False),
        sa.Column("scope", ID, nullable=False),
        sa.Column("pool_id", ID),
        sa.Column("right", NAME, nullable=False),
        sa.ForeignKeyConstraint(["pool_id"], ["pool.id"], name=op.f("fk_entitlement_pool_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("who", "scope", name=op.f("pk_entitlement")),
    )
    op.create_index(op.f("ix_entitlement_pool_id"), "entitlement", ["pool_id"])
    op.create_table(
        "token_pool",
        sa.Column("token", NAME, nullable=False),
        sa.Column("pool_id", ID, nullable=False),
        sa.ForeignKeyConstraint(["token"], ["token.name"], name=op.f("fk_token_pool_token"), ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["pool_id"], ["pool.id"], name=op.f("fk_token_pool_pool_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("token", "pool_id", name=op.f("pk_token_pool")),
    )


def _move_users() -> None:
    """Make what pools' specs said of users entitlements.

    Without `users` an operator could give desktops to anybody, and still can: that does not mean that each person who
    signs in may take one.
    """
    connection = op.get_bind()
    pool = sa.table("pool", sa.column("id"), sa.column("spec"))
    entitlement = sa.table("entitlement", *map(sa.column, ("who", "scope", "pool_id", "right")))
    for pool_id, text in connection.execute(sa.select(pool.c.id, pool.c.spec)).all():
        spec = json.loads(text)
        users = spec.pop("users", [])
        connection.execute(sa.update(pool).where(pool.c.id == pool_id).values(spec=json.dumps(spec)))
        for who in users:
            row = {"who": who, "scope": pool_id, "pool_id": pool_id, "right": "use"}
            connection.execute(sa.insert(entitlement).values(row))
