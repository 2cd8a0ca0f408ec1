# SPDX-License-Identifier: Apache-2.0
"""Desktops that move to another host as they are: from the choice of the host until they are there, or stay.

Only who has the lease of the host from which a desktop moves says how that ended: another controller may move it now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, func, select, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.room_rows import count_placed
from vgpuctl.controller.database.rows import CONTROLLER, About, Rows, desktop_of, host_of, report_columns
from vgpuctl.controller.database.use_rows import follow_use
from vgpuctl.controller.model import Desktop, DesktopReport, FleetHost, FleetHostState
from vgpuctl.controller.planning.back_off import next_try
from vgpuctl.controller.planning.moves import MOST_MOVES
from vgpuctl.controller.planning.phase import MOVE_CODE
from vgpuctl.model.desktop import Fence
from vgpuctl.value import replace


class LiveMoveRows(Rows):
    """The moves of desktops that go on meanwhile."""

    def begin(self, desktop: Desktop, target_id: str, version: int) -> bool:
        """Have a desktop move to a host; False: its host is not to lose it now, or the target's room is another one.

        `version`: of the target's room. At most `MOST_MOVES` of a host move at a time, whoever chooses.
        """
        table, host = schema.desktop, schema.host
        with self._write() as connection:
            drained = (host.c.id == desktop.host_id) & (host.c.state == FleetHostState.DRAINING.value)
            locked = select(host.c.id).where(drained & host.c.moves_live).with_for_update(key_share=True)
            if connection.execute(locked).first() is None:
                return False
            own = table.c.host_id == desktop.host_id
            begun = select(func.count()).select_from(table).where(own & table.c.moving_to.is_not(None))
            if connection.execute(begun).scalar_one() >= MOST_MOVES:
                return False
            waiting = own & (table.c.id == desktop.id) & table.c.moving_to.is_(None) & table.c.absent.is_(False)
            if connection.execute(select(table.c.id).where(waiting).with_for_update(key_share=True)).first() is None:
                return False
            if not count_placed(connection, target_id, version):
                return False
            connection.execute(update(table).where(table.c.id == desktop.id).values(moving_to=target_id))
            self._changes.touch(desktop.host_id)
            return True

    def is_open(self, desktop: Desktop) -> bool:
        """Return whether a move that was planned has not ended since."""
        table = schema.desktop
        with self._database.read() as connection:
            return connection.execute(select(table.c.id).where(_is_same(desktop))).first() is not None

    def note_unmovable(self, desktops: Iterable[Desktop], reason: str) -> None:
        """Note why no host takes desktops that should move; nothing is written of those that have this reason already.

        An error of another kind is worth more.
        """
        reason, table = reason[:1000], schema.desktop
        news = [one for one in desktops if one.report is not None and _says(one.report, reason) is not one.report]
        for desktop in sorted(news, key=lambda one: one.id):
            with self._database.write() as connection:
                own = (table.c.id == desktop.id) & (table.c.host_id == desktop.host_id) & table.c.moving_to.is_(None)
                row = connection.execute(select(table).where(own).with_for_update(key_share=True)).mappings().first()
                report = None if row is None else desktop_of(row).report
                if report is not None:
                    values = report_columns(_says(report, reason))
                    connection.execute(update(table).where(own).values(**values))

    def arrive(self, desktop: Desktop, fence: Fence, target: FleetHost, how: str) -> None:
        """Note that a desktop is on the host to which it moved. `how`: for the journal.

        Its report stays: the host where it is says the same at the next look.
        """
        with self._write() as connection:
            before = self._find(connection, desktop, fence)
            if before is None:
                return
            report = None
            if before.report is not None:
                report = replace(_without_error(before.report), refused_by=(), boot_id=target.boot_id)
            after = replace(before, host_id=target.id, moving_to=None, errors=0, not_before=0.0, report=report)
            values = {"host_id": target.id, "moving_to": None, "errors": 0, "not_before": 0.0}
            self._store(connection, after, {**values, **report_columns(report)})
            follow_use(self._database, connection, before, after)
            self._changes.touch(target.id)
            source = select(schema.host).where(schema.host.c.id == before.host_id)
            former = host_of(connection.execute(source).mappings().one())
            about = About(desktop=before.name, host=target.name, user=before.user)
            text = f"{before.name} from {former.name} to {target.name}, {how}"
            self._note(connection, "desktop-moved", text, CONTROLLER, about)

    def stay(self, desktop: Desktop, fence: Fence) -> None:
        """Note that a desktop is where it was, and does not move any more."""
        with self._write() as connection:
            before = self._find(connection, desktop, fence)
            if before is not None:
                self._store(connection, before, {"moving_to": None})

    def fail(self, desktop: Desktop, fence: Fence, error: str, hint: str | None, *, stays: bool) -> None:
        """Note why a move failed. `stays`: the desktop is where it was, and another host is chosen later.

        Else the move goes on soon: only both hosts together know where the desktop is.
        """
        with self._write() as connection:
            before = self._find(connection, desktop, fence)
            if before is None or before.report is None:
                return
            refused = before.report.refused_by
            report = replace(
                before.report, code=MOVE_CODE, error=error[:1000], hint=None if hint is None else hint[:1000]
            )
            values: dict[str, Any] = {}
            if stays and before.moving_to is not None:
                report = replace(
                    report, refused_by=(*(one for one in refused if one != before.moving_to), before.moving_to)
                )
                values = {"moving_to": None}
            now = self._database.now(connection)
            values |= {**report_columns(report), "not_before": next_try(1, now, MOVE_CODE if stays else "")}
            self._store(connection, before, values)
            if before.report.code != MOVE_CODE:
                about = About(desktop=before.name, user=before.user)
                self._note(connection, "desktop-delayed", f"{before.name}: {error}"[:1000], CONTROLLER, about)

    def _find(self, connection: Connection, desktop: Desktop, fence: Fence) -> Desktop | None:
        """Return the row of a desktop that moves, locked; None: the move has ended, or is another controller's."""
        table, lease = schema.desktop, schema.host_lease
        own = (lease.c.host_id == desktop.host_id) & (lease.c.holder == fence.holder) & (lease.c.epoch == fence.epoch)
        if connection.execute(select(lease.c.host_id).where(own).with_for_update(key_share=True)).first() is None:
            return None
        locked = select(table).where(_is_same(desktop)).with_for_update(key_share=True)
        row = connection.execute(locked).mappings().first()
        return None if row is None else desktop_of(row)

    def _store(self, connection: Connection, desktop: Desktop, values: Mapping[str, Any]) -> None:
        connection.execute(update(schema.desktop).where(schema.desktop.c.id == desktop.id).values(**values))
        self._changes.touch(desktop.host_id)


def _is_same(desktop: Desktop) -> Any:
    """Return the condition of the row of which a move was planned."""
    table = schema.desktop
    own = (table.c.id == desktop.id) & (table.c.host_id == desktop.host_id)
    return own & (table.c.moving_to == desktop.moving_to)


def _says(report: DesktopReport, reason: str) -> DesktopReport:
    """Return a report that says why the desktop cannot move, unless it has another error; the same if it does."""
    if report.code not in (None, MOVE_CODE) or report.error == reason:
        return report
    return replace(report, code=MOVE_CODE, error=reason, hint="vgpuctl controller list-hosts")


def _without_error(report: DesktopReport) -> DesktopReport:
    return replace(report, code=None, error=None, hint=None) if report.code == MOVE_CODE else report
