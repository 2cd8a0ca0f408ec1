# SPDX-License-Identifier: Apache-2.0
"""Hosts whose desktops leave alive, and where a desktop moves to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the columns. The key of `desktop` is added as text: for alembic, SQLite would make that table again."""
    op.add_column("host", sa.Column("moves_live", sa.Boolean(), nullable=False, server_default=sa.false()))
    key = op.f("fk_desktop_moving_to")
    op.execute(f"ALTER TABLE desktop ADD COLUMN moving_to VARCHAR(36) CONSTRAINT {key} REFERENCES host (id)")
