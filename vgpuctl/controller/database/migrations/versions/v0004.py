# SPDX-License-Identifier: Apache-2.0
"""The controllers that live, which share the hosts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the table of controllers."""
    op.create_table(
        "controller",
        sa.Column("holder", sa.String(length=255), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("holder", name=op.f("pk_controller")),
    )
