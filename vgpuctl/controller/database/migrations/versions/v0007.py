# SPDX-License-Identifier: Apache-2.0
"""Wanted restarts, personal tokens, use of GPUs, generations of quotas; one table for secrets that are good once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

NAME = sa.String(length=255)


def upgrade() -> None:
    """Add the columns and tables. Of the table that goes no row was valid for more than ten minutes."""
    op.add_column("desktop", sa.Column("restart_at", sa.Float()))
    op.add_column("desktop", sa.Column("restart_at_once", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("desktop", sa.Column("restart_error", sa.Text()))
    for name in ("busy_known_seconds", "busy_seconds", "memory_known_seconds", "memory_mib_seconds"):
        op.add_column("use_span", sa.Column(name, sa.Float(), nullable=False, server_default="0"))
    op.add_column("use_span", sa.Column("memory_peak_mib", sa.BigInteger()))
    op.add_column("quota", sa.Column("generation", sa.Integer(), nullable=False, server_default="1"))
    op.drop_index(op.f("ix_begun_sign_in_expires_at"), table_name="begun_sign_in")
    op.drop_table("begun_sign_in")
    op.create_table(
        "one_time_secret",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=255), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_one_time_secret")),
    )
    op.create_index(op.f("ix_one_time_secret_expires_at"), "one_time_secret", ["expires_at"])
    op.create_table(
        "watched_screen",
        sa.Column("desktop_id", sa.String(length=36), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("person", NAME, nullable=False),
        sa.Column("opened_at", sa.Float(), nullable=False),
        sa.Column("closed_at", sa.Float()),
        sa.ForeignKeyConstraint(
            ["desktop_id"], ["desktop.id"], name=op.f("fk_watched_screen_desktop_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("desktop_id", name=op.f("pk_watched_screen")),
    )
    op.create_table(
        "personal_token",
        sa.Column("person", NAME, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["person"], ["person.name"], name=op.f("fk_personal_token_person"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("person", "name", name=op.f("pk_personal_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_personal_token_digest")),
    )
