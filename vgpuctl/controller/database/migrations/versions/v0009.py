# SPDX-License-Identifier: Apache-2.0
"""What desktops really used of GPUs, and a number that each change of a quota raises."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0006"


def upgrade() -> None:
    """Make the columns; of what is over nobody knows what was used."""
    for name in ("busy_known_seconds", "busy_seconds", "memory_known_seconds", "memory_mib_seconds"):
        op.add_column("use_span", sa.Column(name, sa.Float(), nullable=False, server_default="0"))
    op.add_column("use_span", sa.Column("memory_peak_mib", sa.BigInteger()))
    op.add_column("quota", sa.Column("generation", sa.Integer(), nullable=False, server_default="1"))
