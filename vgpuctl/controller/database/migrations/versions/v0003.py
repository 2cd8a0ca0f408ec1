# SPDX-License-Identifier: Apache-2.0
"""What hosts have room for, instead of their offers of each profile; hosts say it again within seconds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Replace the table of offers."""
    op.drop_table("host_offer")
    op.create_table(
        "host_room",
        sa.Column("host_id", sa.String(length=36), nullable=False),
        sa.Column("room", sa.Text(), nullable=False),
        sa.Column("refused", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_host_room_host_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("host_id", name=op.f("pk_host_room")),
    )
