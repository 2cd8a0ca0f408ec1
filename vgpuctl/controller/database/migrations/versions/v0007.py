# SPDX-License-Identifier: Apache-2.0
"""One table for all secrets that are good once; what the former one had was good for ten minutes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Put the new table in the place of the former one."""
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
