# SPDX-License-Identifier: Apache-2.0
"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    _make_access()
    _make_hosts()
    _make_pools()
    _make_desktops()


def _make_access() -> None:
    op.create_table(
        "answer",
        sa.Column("token", sa.String(length=255), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("token", "key", name=op.f("pk_answer")),
    )
    op.create_table(
        "event",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(length=255), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(length=255), nullable=False),
        sa.Column("pool", sa.String(length=255), nullable=True),
        sa.Column("desktop", sa.String(length=255), nullable=True),
        sa.Column("host", sa.String(length=255), nullable=True),
        sa.Column("user", sa.String(length=255), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
    )
    op.create_table(
        "meta",
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_meta")),
    )
    op.create_table(
        "person",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_person")),
    )
    op.create_table(
        "token",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("role", sa.String(length=255), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_token_digest")),
    )


def _make_hosts() -> None:
    op.create_table(
        "host",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("host_key", sa.Text(), nullable=True),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=255), nullable=False),
        sa.Column("machine_id", sa.String(length=255), nullable=True),
        sa.Column("boot_id", sa.String(length=255), nullable=True),
        sa.Column("driver", sa.String(length=255), nullable=True),
        sa.Column("agent_version", sa.String(length=255), nullable=True),
        sa.Column("held", sa.Text(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("seen_at", sa.Float(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_host")),
        sa.UniqueConstraint("name", name=op.f("uq_host_name")),
    )
    op.create_table(
        "host_lease",
        sa.Column("host_id", sa.String(length=36), nullable=False),
        sa.Column("holder", sa.String(length=255), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_host_lease_host_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("host_id", name=op.f("pk_host_lease")),
    )
    op.create_table(
        "host_offer",
        sa.Column("host_id", sa.String(length=36), nullable=False),
        sa.Column("profile", sa.String(length=255), nullable=False),
        sa.Column("free", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_host_offer_host_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("host_id", "profile", name=op.f("pk_host_offer")),
    )


def _make_pools() -> None:
    op.create_table(
        "image",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("version", sa.String(length=255), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("os", sa.String(length=255), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("retired", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_image")),
        sa.UniqueConstraint("name", name=op.f("uq_image_name")),
    )
    op.create_table(
        "pool",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("image_id", sa.String(length=36), nullable=False),
        sa.Column("state", sa.String(length=255), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("paused_by_errors", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["image_id"], ["image.id"], name=op.f("fk_pool_image_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pool")),
        sa.UniqueConstraint("name", name=op.f("uq_pool_name")),
    )


def _make_desktops() -> None:
    op.create_table(
        "desktop",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("pool_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("mac", sa.String(length=17), nullable=False),
        sa.Column("image_id", sa.String(length=36), nullable=False),
        sa.Column("host_id", sa.String(length=36), nullable=True),
        sa.Column("profile", sa.String(length=255), nullable=True),
        sa.Column("power_on", sa.Boolean(), nullable=False),
        sa.Column("absent", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("user", sa.String(length=255), nullable=True),
        sa.Column("assigned_at", sa.Float(), nullable=True),
        sa.Column("handed_out", sa.Boolean(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("not_before", sa.Float(), nullable=False),
        sa.Column("errors", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("report", sa.Text(), nullable=True),
        sa.Column("can_take", sa.Boolean(), nullable=False),
        sa.Column("reported_generation", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_desktop_host_id")),
        sa.ForeignKeyConstraint(["image_id"], ["image.id"], name=op.f("fk_desktop_image_id")),
        sa.ForeignKeyConstraint(["pool_id"], ["pool.id"], name=op.f("fk_desktop_pool_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_desktop")),
        sa.UniqueConstraint("mac", name=op.f("uq_desktop_mac")),
        sa.UniqueConstraint("name", name=op.f("uq_desktop_name")),
    )
    op.create_index(op.f("ix_desktop_host_id"), "desktop", ["host_id"], unique=False)
    op.create_index(op.f("ix_desktop_pool_id"), "desktop", ["pool_id"], unique=False)
    op.create_index("ix_desktop_takeable", "desktop", ["pool_id", "can_take", "user"], unique=False)
    op.create_index(op.f("ix_desktop_user"), "desktop", ["user"], unique=False)
