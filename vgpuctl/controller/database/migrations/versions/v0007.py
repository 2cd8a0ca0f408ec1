# SPDX-License-Identifier: Apache-2.0
"""Desktops whose restart is wanted; personal tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

NAME = sa.String(length=255)


def upgrade() -> None:
    """Add the columns, and the table."""
    op.add_column("desktop", sa.Column("restart_at", sa.Float()))
    op.add_column("desktop", sa.Column("restart_at_once", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("desktop", sa.Column("restart_error", sa.Text()))
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
