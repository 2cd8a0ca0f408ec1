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
    report_columns,
    row_of_desktop,
)
from vgpuctl.controller.database.use_rows import follow_use
from vgpuctl.controller.model import Desktop, DesktopReport
from vgpuctl.controller.planning.moves import why_not_move
from vgpuctl.controller.policy import no_desktop
from vgpuctl.errors import Refused
from vgpuctl.value import replace


class MoveRows(Rows):
    """The moves of desktops."""

    def move(self, name: str, evidence: str, actor: str) -> Desktop:
        """Take a desktop away from its lost host, so that another one gets it with its disks.

        Its generation grows: where the lost host comes back, what it has is older, and is stopped there.

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
            refusal = why_not_move(before, pool_of(pool), lost, self._database.now(connection))
            if refusal is not None or lost is None or before.report is None:
                text, hint = refusal or ("it is on no host", "vgpuctl controller list-desktops")
                raise Refused(text, hint=hint, desktop=name)
            after = replace(
                before, host_id=None, profile=None, handed_out=False, errors=0, not_before=0.0,
                generation=before.generation + 1,
            )  # fmt: skip
            report = DesktopReport(exists=False, disks=before.report.disks, moved=True)
            moved = update(table).where(table.c.id == before.id)
            connection.execute(moved.values(**{**row_of_desktop(after), **report_columns(report)}))
            follow_use(self._database, connection, before, replace(after, report=report))
            self._changes.touch(lost.id)
            about = About(desktop=name, host=lost.name, user=before.user)
            self._note(connection, "desktop-moved", f"{name} from {lost.name}, fenced: {evidence}", actor, about)
            return replace(after, report=report)

    def of_ids(self, ids: tuple[str, ...]) -> tuple[Desktop, ...]:
        """Return the desktops with these ids, wherever they are."""
        with self._database.read() as connection:
            rows = connection.execute(select(schema.desktop).where(schema.desktop.c.id.in_(ids))).mappings()
            return tuple(map(desktop_of, rows))
