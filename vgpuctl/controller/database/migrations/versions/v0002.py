# SPDX-License-Identifier: Apache-2.0
"""Images that the controller brings to hosts, and which host has which."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add what an image comes from, and the images of hosts."""
    with op.batch_alter_table("image") as image:
        image.add_column(sa.Column("file", sa.Text(), nullable=True))
        image.add_column(sa.Column("url", sa.Text(), nullable=True))
    op.create_table(
        "host_image",
        sa.Column("host_id", sa.String(length=36), nullable=False),
        sa.Column("image_id", sa.String(length=36), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("copied", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=255), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=True),
        sa.Column("have", sa.BigInteger(), nullable=False),
        sa.Column("code", sa.String(length=255), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("hint", sa.Text(), nullable=True),
        sa.Column("errors", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["host_id"], ["host.id"], name=op.f("fk_host_image_host_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("host_id", "image_id", name=op.f("pk_host_image")),
    )
