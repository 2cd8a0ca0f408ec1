# SPDX-License-Identifier: Apache-2.0
"""Restarts of desktops: a wanted one is in the desktop's row until its host has done it, or failed."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from vgpuctl.controller.database import schema
from vgpuctl.controller.database.rows import (
    CONTROLLER,
    About,
    Rows,
    check_generation,
    desktop_of,
    host_of,
    pool_of,
    report_columns,
)
from vgpuctl.controller.database.use_rows import follow_use
from vgpuctl.controller.model import Desktop, DesktopReport
from vgpuctl.controller.planning.back_off import next_try
from vgpuctl.controller.planning.phase import phase_of
from vgpuctl.controller.planning.restarts import WITHOUT_RESTART, wants_restart, why_not_restart
from vgpuctl.controller.policy import no_desktop
from vgpuctl.errors import Refused
from vgpuctl.value import replace

NEW_REQUEST_SECONDS = 0.001
"""So much later counts a restart that is asked for with another key: its time is in the key (`restart_key`)."""


class RestartRows(Rows):
    """The restarts."""

    def want(
        self, name: str, actor: str, user: str | None = None, if_generation: int | None = None, *, at_once: bool
    ) -> tuple[Desktop, bool]:
        """Have a desktop restarted; return it, and whether that is new. `user`: whose it still must be.

        Raises:
            NotFound: there is none of this name, or it is not his. Stale: its generation is another one.
            Refused: it does not run, or is not ready.
        """
        table = schema.desktop
        with self._write() as connection:
            statement = select(table).where(table.c.name == name).with_for_update(key_share=True)
            row = connection.execute(statement).mappings().first()
            if row is None or user not in (None, row["user"]):
                raise no_desktop(name)
            check_generation(f"desktop {name}", row["generation"], if_generation)
            desktop, now = desktop_of(row), self._database.now(connection)
            if wants_restart(desktop, now) and (desktop.restart_at_once or not at_once):
                return desktop, False
            if not wants_restart(desktop, now):
                self._refuse_unready(connection, desktop, now)
                desktop = replace(desktop, restart_at=now)
            desktop = replace(desktop, restart_at_once=at_once, restart_error=None)
            values = {key: getattr(desktop, key) for key in WITHOUT_RESTART}
            connection.execute(update(table).where(table.c.id == desktop.id).values(**values))
            self._changes.touch(desktop.host_id)
            text = f"{name} is restarted{', its guest is not asked' if at_once else ''}"
            self._note(connection, "restart", text, actor, About(desktop=name, user=desktop.user))
            return desktop, True

    def end(self, desktop: Desktop, error: str | None = None) -> None:
        """Note that a restart is done, or why it failed; `desktop`: as it was when that began.

        What was known of the guest before is forgotten: it boots. One that failed may have switched the VM off, which
        is no log-off: it is started again.
        """
        table = schema.desktop
        with self._write() as connection:
            same = (table.c.id == desktop.id) & (table.c.restart_at == desktop.restart_at)
            row = connection.execute(select(table).where(same).with_for_update(key_share=True)).mappings().first()
            if row is None:
                return
            before = desktop_of(row)
            after = replace(before, report=_booting(before.report))
            ended = WITHOUT_RESTART if error is None else {"restart_error": error[:1000]}
            values = {**ended, **report_columns(after.report)}
            connection.execute(update(table).where(table.c.id == desktop.id).values(**values))
            follow_use(self._database, connection, before, after)
            self._changes.touch(desktop.host_id)
            if error is not None:
                about = About(desktop=desktop.name, user=row["user"])
                self._note(connection, "restart-failed", f"{desktop.name}: {error}"[:1000], CONTROLLER, about)

    def postpone(self, desktop: Desktop, *, is_new_request: bool) -> None:
        """Have a restart that its host did not begin tried again in a few seconds; `desktop`: as when that began.

        `is_new_request`: the host has answered, and would answer a request with the same key in the same way.
        """
        table = schema.desktop
        with self._write() as connection:
            now = self._database.now(connection)
            asked_at = table.c.restart_at + (NEW_REQUEST_SECONDS if is_new_request else 0.0)
            same = (table.c.id == desktop.id) & (table.c.restart_at == desktop.restart_at)
            later = next_try(max(1, desktop.errors), now)
            connection.execute(update(table).where(same).values(not_before=later, restart_at=asked_at))

    @staticmethod
    def _refuse_unready(connection: Connection, desktop: Desktop, now: float) -> None:
        pool = connection.execute(select(schema.pool).where(schema.pool.c.id == desktop.pool_id)).mappings().one()
        on_host = select(schema.host).where(schema.host.c.id == desktop.host_id)
        row = connection.execute(on_host).mappings().first()
        host = None if row is None else host_of(row)
        why = why_not_restart(phase_of(desktop, pool_of(pool), host, now).word, host, desktop.user)
        if why is not None:
            raise Refused(
                f"{desktop.name} cannot be restarted: {why}",
                hint=f"vgpuctl controller show-desktop {desktop.name}",
                desktop=desktop.name,
            )


def _booting(report: DesktopReport | None) -> DesktopReport | None:
    if report is None:
        return None
    is_used = report.user is not None
    return replace(report, ready=False, running_since=None, guest_users=None, empty_since=None, after_silence=is_used)
