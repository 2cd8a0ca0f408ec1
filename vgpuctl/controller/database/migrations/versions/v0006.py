# SPDX-License-Identifier: Apache-2.0
"""A journal that says more and is only added to; places of sign-ins, quotas, use of desktops."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

NAME = sa.String(length=255)
DAYS = 7
"""`model.LEAST_EVENT_DAYS`, as it was when these triggers were written."""
_REFUSAL = "journal entries cannot be changed, nor deleted while they are young"
SQLITE_TRIGGERS = (
    f"""
    CREATE TRIGGER event_no_update BEFORE UPDATE ON event
    BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END
    """,
    f"""
    CREATE TRIGGER event_no_delete BEFORE DELETE ON event
    WHEN OLD.at > strftime('%s', 'now') - {DAYS} * 86400
    BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END
    """,
    f"""
    CREATE TRIGGER event_no_replace BEFORE INSERT ON event WHEN EXISTS (SELECT 1 FROM event WHERE id = NEW.id)
    BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END
    """,  # noqa: S608 - constants
)
_POSTGRESQL = (
    f"""
    CREATE OR REPLACE FUNCTION vgpuctl_keep_event() RETURNS trigger LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            IF OLD.at <= extract(epoch FROM clock_timestamp()) - {DAYS} * 86400 THEN RETURN OLD; END IF;
        END IF;
        RAISE EXCEPTION '{_REFUSAL}';
    END $$
    """,
    """
    CREATE TRIGGER event_no_change BEFORE UPDATE OR DELETE ON event
    FOR EACH ROW EXECUTE FUNCTION vgpuctl_keep_event()
    """,
    "CREATE TRIGGER event_no_truncate BEFORE TRUNCATE ON event EXECUTE FUNCTION vgpuctl_keep_event()",
)


def upgrade() -> None:
    """Add the columns and tables, and the triggers."""
    _change_journal()
    _add_of_people()
    _add_use()


def _add_of_people() -> None:
    op.create_table(
        "known_place",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("person", NAME, nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.Column("noted_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["person"], ["person.name"], name=op.f("fk_known_place_person"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_known_place")),
    )
    op.create_index(op.f("ix_known_place_person"), "known_place", ["person"])
    op.create_table(
        "quota",
        sa.Column("who", NAME, nullable=False),
        sa.Column("desktops", sa.Integer()),
        sa.Column("running", sa.Integer()),
        sa.Column("gpu_mib", sa.BigInteger()),
        sa.Column("set_by", NAME, nullable=False),
        sa.PrimaryKeyConstraint("who", name=op.f("pk_quota")),
    )


def _change_journal() -> None:
    for name, kind in (("actor_kind", NAME), ("address", NAME), ("changed", sa.Text())):
        op.add_column("event", sa.Column(name, kind))
    for statement in SQLITE_TRIGGERS if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL:
        op.execute(statement)


def _add_use() -> None:
    op.create_table(
        "use_span",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("desktop_id", sa.String(length=36), nullable=False),
        sa.Column("desktop", NAME, nullable=False),
        sa.Column("pool", NAME, nullable=False),
        sa.Column("person", NAME, nullable=False),
        sa.Column("began_at", sa.Float(), nullable=False),
        sa.Column("until_at", sa.Float()),
        sa.Column("is_on", sa.Boolean(), nullable=False),
        sa.Column("logged_on", sa.Boolean()),
        sa.Column("gpu_mib", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_use_span")),
    )
    op.create_index(op.f("ix_use_span_began_at"), "use_span", ["began_at"])
    op.create_index(op.f("ix_use_span_until_at"), "use_span", ["until_at"])
    op.create_index("ix_use_span_open", "use_span", ["desktop_id", "until_at"])
    op.create_table(
        "refusal",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("pool", NAME, nullable=False),
        sa.Column("person", NAME, nullable=False),
        sa.Column("reason", NAME, nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("day", "pool", "person", "reason", name=op.f("pk_refusal")),
    )
