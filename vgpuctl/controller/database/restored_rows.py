# SPDX-License-Identifier: Apache-2.0
"""Whether the database was restored or imported, and whether an admin has confirmed that."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, inspect, select, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.journal_rows import last_event
from vgpuctl.controller.database.rows import (
    About,
    Rows,
    columns_of,
    desktop_of,
    pool_of,
    read_text,
    row_of_desktop,
    text_of,
)
from vgpuctl.controller.model import CallerKind, FleetCaller, Restored, Role
from vgpuctl.controller.planning.import_plan import ImportPlan
from vgpuctl.controller.planning.restored import RESTORED, doubted
from vgpuctl.controller.times import time_text
from vgpuctl.errors import Refused
from vgpuctl.value import Value, replace

INCARNATION, RESTORED_KEY = "incarnation", "restored"
"""The keys in the table `meta`."""


class RestoreOrigin(Value):
    """What a database is restored from, and who does that.

    `source`: for people. `taken_at`: the time of the backup, or of the last entry of a copy; None: not known.
    `last_event`: the id of the last entry of the journal that was saved.
    """

    source: str
    actor: str
    last_event: int
    taken_at: float | None = None


class RestoredRows(Rows):
    """What is known of a restore or an import."""

    def renew(self, connection: Connection, former: str, origin: RestoreOrigin, event: int) -> str:
        """Give a database a new incarnation, which waits for an admin; return it. `event`: the id of its next entry.

        Nothing opens it that may have been deleted since: a copy by other means still has tokens and sessions.
        """
        meta, new = schema.meta, uuid.uuid4().hex
        before, now = read_restored(connection), self._database.now(connection)
        connection.execute(delete(meta).where(meta.c.key == RESTORED_KEY))
        self._database.insert_or_update(connection, meta, ("key",), {"key": INCARNATION, "value": new})
        doubt_all(connection)
        for table in (schema.personal_token, schema.token, schema.web_session, schema.one_time_secret):
            connection.execute(delete(table))
        all_former = tuple(sorted({*before.former, former}))
        restored = Restored(all_former, now, origin.source, before.imported_pools, origin.taken_at)
        begin_restored(self._database, connection, restored)
        connection.execute(update(schema.host).values(seen_at=None, problem=None))
        taken = "" if origin.taken_at is None else f" of {time_text(origin.taken_at)}"
        text = f"from {origin.source}{taken}, whose last event has the id {origin.last_event}"
        with self._changes.made_by(FleetCaller(origin.actor, Role.ADMIN, CallerKind.LOCAL)):
            self._note(connection, "restored", text, origin.actor, About(), number=event)
        self._database.count_on(connection, schema.event, event)
        return new

    def state(self) -> Restored:
        """Return where the database's content came from."""
        with self._database.read() as connection:
            return read_restored(connection)

    def confirm(self, actor: str) -> Restored:
        """Let the fleet go on after a restore or an import.

        Raises:
            Refused: nothing waits for that.
        """
        with self._write() as connection:
            before = read_restored(connection, lock=True)
            if before.begun_at is None:
                raise Refused(
                    "the database was not restored, or that is confirmed already", hint="vgpuctl controller list-events"
                )
            after = replace(before, begun_at=None)
            write_restored(self._database, connection, after)
            held = schema.host.c.held == RESTORED
            for host_id in _lock_hosts(connection):
                self._changes.touch(host_id)
            connection.execute(update(schema.host).where(held).values(held=None))
            self._note(connection, "restore-confirmed", before.source, actor, About())
            return after

    def add_import(self, plan: ImportPlan, actor: str) -> Restored:
        """Add what hosts' records say of desktops, and wait until an admin confirms it."""
        with self._write() as connection:
            now = self._database.now(connection)
            for image in plan.images:
                connection.execute(insert(schema.image).values(**columns_of(image)))
            for pool in plan.pools:
                row = {**columns_of(pool), "spec": text_of(pool.spec), "state": pool.state.value}
                connection.execute(insert(schema.pool).values(**row))
            for desktop in plan.desktops:
                new = replace(desktop, created_at=now, assigned_at=None if desktop.user is None else now)
                connection.execute(insert(schema.desktop).values(**row_of_desktop(new)))
            before = read_restored(connection, lock=True)
            after = Restored(
                tuple(sorted({*before.former, *plan.former})),
                now,
                f"{len(plan.desktops)} desktops from the records of their VMs",
                (*before.imported_pools, *(pool.id for pool in plan.pools)),
                before.taken_at,
            )
            begin_restored(self._database, connection, after)
            self._note(connection, "desktops-imported", after.source, actor, About())
            return after


def read_restored(connection: Connection, *, lock: bool = False) -> Restored:
    """Return what the database says of its restore."""
    statement = select(schema.meta.c.value).where(schema.meta.c.key == RESTORED_KEY)
    text = connection.execute(statement.with_for_update(key_share=True) if lock else statement).scalar()
    restored: Restored = Restored() if text is None else read_text(Restored, text)
    return restored


def events_since(connection: Connection, incarnation: str) -> int | None:
    """Return the highest id in the journal of the database of which this is an incarnation; None: it is another one."""
    if not {"meta", "event"} <= set(inspect(connection).get_table_names()):
        return None
    known = select(schema.meta.c.value).where(schema.meta.c.key == INCARNATION)
    if incarnation not in (connection.execute(known).scalar(), *read_restored(connection).former):
        return None
    return last_event(connection)


def write_restored(database: Database, connection: Connection, restored: Restored) -> None:
    """Store where the database's content came from."""
    row = {"key": RESTORED_KEY, "value": text_of(restored)}
    database.insert_or_update(connection, schema.meta, ("key",), row)


def begin_restored(database: Database, connection: Connection, restored: Restored) -> None:
    """Have all hosts held until the restore is confirmed; those held for another reason stay so afterwards."""
    write_restored(database, connection, restored)
    _lock_hosts(connection)
    connection.execute(update(schema.host).where(schema.host.c.held.is_(None)).values(held=RESTORED))


def _lock_hosts(connection: Connection) -> Sequence[str]:
    """Lock all hosts in the order that every transaction has; return their ids."""
    ids = select(schema.host.c.id).order_by(schema.host.c.id)
    return connection.execute(ids.with_for_update(key_share=True)).scalars().all()


def doubt_all(connection: Connection) -> None:
    """Have nothing count that hosts said before the restore: their desktops, their leases, their room."""
    pools = {row["id"]: pool_of(row) for row in connection.execute(select(schema.pool)).mappings()}
    for desktop in map(desktop_of, connection.execute(select(schema.desktop)).mappings().all()):
        row = row_of_desktop(doubted(desktop, pools[desktop.pool_id]))
        connection.execute(update(schema.desktop).where(schema.desktop.c.id == desktop.id).values(**row))
    for table in (schema.controller, schema.host_lease, schema.host_room, schema.answer):
        connection.execute(delete(table))
