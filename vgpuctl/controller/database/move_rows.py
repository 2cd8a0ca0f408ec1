# SPDX-License-Identifier: Apache-2.0
"""Desktops that are moved from a lost host to another one, which gets them with the files of their disks."""

from __future__ import annotations

from sqlalchemy import select, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.rows import (
    About,
    Rows,
    desktop_of,
    host_of,
    pool_of,
    row_of_desktop,
)
from vgpuctl.controller.database.use_rows import follow_use
from vgpuctl.controller.model import Desktop, DesktopReport, FleetHost
from vgpuctl.controller.planning.moves import why_not_move
from vgpuctl.controller.policy import no_desktop
from vgpuctl.errors import Refused
from vgpuctl.value import replace


class MoveRows(Rows):
    """The moves of desktops."""

    def move(self, name: str, evidence: str, actor: str, target: FleetHost | None = None) -> Desktop:
        """Take a desktop away from its lost host, so that another one gets it with its disks.

        Its generation grows: where the lost host comes back, what it has is older, and is stopped there. `target`: it
        was moving to this host as it was, and its VM is there: then it stays as it is.

        Raises:
            NotFound: there is none of this name. Refused: it cannot be moved.
        """
        table = schema.desktop
        with self._write() as connection:
            wanted = select(table).where(table.c.name == name).with_for_update(key_share=True)
            row = connection.execute(wanted).mappings().first()
            if row is None:
                raise no_desktop(name)
            before = desktop_of(row)
            pool = connection.execute(select(schema.pool).where(schema.pool.c.id == before.pool_id)).mappings().one()
            on_host = select(schema.host).where(schema.host.c.id == before.host_id)
            host_row = connection.execute(on_host).mappings().first()
            lost = None if host_row is None else host_of(host_row)
            has_come = target is not None and before.moving_to == target.id
            refusal = why_not_move(before, pool_of(pool), lost, self._database.now(connection), has_come=has_come)
            if refusal is not None or lost is None or before.report is None:
                text, hint = refusal or ("it is on no host", "vgpuctl controller list-desktops")
                raise Refused(text, hint=hint, desktop=name)
            after = _arrived_on(before, target) if target is not None and has_come else _without_host(before)
            moved = update(table).where(table.c.id == before.id)
            connection.execute(moved.values(**row_of_desktop(after)))
            follow_use(self._database, connection, before, after)
            self._changes.touch(lost.id)
            self._changes.touch(after.host_id)
            about = About(desktop=name, host=lost.name, user=before.user)
            where = f" to {target.name}, where it had come" if target is not None and has_come else ""
            text = f"{name} from {lost.name}{where}, fenced: {evidence}"
            self._note(connection, "desktop-moved", text, actor, about)
            return after

    def of_ids(self, ids: tuple[str, ...]) -> tuple[Desktop, ...]:
        """Return the desktops with these ids, wherever they are."""
        with self._database.read() as connection:
            rows = connection.execute(select(schema.desktop).where(schema.desktop.c.id.in_(ids))).mappings()
            return tuple(map(desktop_of, rows))


def _without_host(desktop: Desktop) -> Desktop:
    """Return a desktop of a lost host, to be made with its disks elsewhere."""
    disks = () if desktop.report is None else desktop.report.disks
    return replace(
        desktop, host_id=None, moving_to=None, profile=None, handed_out=False, errors=0, not_before=0.0,
        generation=desktop.generation + 1, report=DesktopReport(exists=False, disks=disks, moved=True),
    )  # fmt: skip


def _arrived_on(desktop: Desktop, host: FleetHost) -> Desktop:
    """Return a desktop that came to a host before its former one was lost."""
    report = None if desktop.report is None else replace(desktop.report, boot_id=host.boot_id, refused_by=())
    return replace(desktop, host_id=host.id, moving_to=None, errors=0, not_before=0.0, report=report)
