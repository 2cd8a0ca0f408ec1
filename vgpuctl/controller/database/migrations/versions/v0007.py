# SPDX-License-Identifier: Apache-2.0
"""Desktops whose restart is wanted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("desktop", sa.Column("restart_at", sa.Float()))
    op.add_column("desktop", sa.Column("restart_at_once", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("desktop", sa.Column("restart_error", sa.Text()))
