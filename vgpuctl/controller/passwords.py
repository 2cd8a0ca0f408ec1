# SPDX-License-Identifier: Apache-2.0
"""One-time passwords of desktops whose users have an account in their guest (`logon: local`).

A password is made here, goes through the agent and the helper into the guest, and is answered once. Nothing stores it:
not the database, not the agent's operations, no journal and no log. A lost one is replaced by another.
"""

from __future__ import annotations

from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from vgpuctl.controller.host_voice import Connect, speaking_to
from vgpuctl.controller.model import Desktop
from vgpuctl.controller.planning.logons import LOGON_CODES
from vgpuctl.errors import Busy, Refused
from vgpuctl.model.guest_logon import new_password

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store

CONFIRM_SECONDS = 20.0
"""So long an answer waits for a host to confirm a user and his account."""
LOOK_SECONDS = 1.0
MOST_WAITING = 8
"""So many answers wait at a time: the others of the API's threads go on."""


class OneTimePasswords:
    """Makes passwords, and brings them into guests. `connect`: makes the link to a host's agent."""

    def __init__(self, store: Store, connect: Connect) -> None:
        self._store = store
        self._connect = connect
        self._waiting = BoundedSemaphore(MOST_WAITING)

    def give(self, desktop: Desktop, actor: str) -> tuple[Desktop, str]:
        """Give the account of a desktop's user a new password; return the row as it is then, and the password.

        Raises:
            Refused: the desktop is not his any more, or his guest does not let him in.
            Busy: its host, or its guest, has not confirmed him in time.
            VgpuctlError: as the agent's call.
        """
        if not self._waiting.acquire(blocking=False):
            raise Busy(f"{MOST_WAITING} others wait for passwords")
        try:
            row = self._until_handed_out(desktop)
        finally:
            self._waiting.release()
        password = new_password()
        self._bring(row, password)
        self._store.desktops.note_password(row, actor)
        return row, password

    def _until_handed_out(self, desktop: Desktop) -> Desktop:
        """Return the row of a desktop, once its host has confirmed its user."""
        end, number = self._store.clock.monotonic() + CONFIRM_SECONDS, -1
        while True:
            row = self._store.desktops.find(desktop.name)
            if (row.id, row.user, row.generation) != (desktop.id, desktop.user, desktop.generation):
                raise Refused(f"{desktop.name} is not {desktop.user}'s any more", desktop=desktop.name)
            report = row.report
            if row.handed_out and report is not None and report.ready:
                return row
            if report is not None and report.logon_due and report.code in LOGON_CODES:
                raise Refused(f"{row.name}: {report.error or report.code}", hint=report.hint, desktop=row.name)
            left = end - self._store.clock.monotonic()
            if left <= 0:
                raise Busy(f"{row.name} is not ready for {row.user} yet", desktop=row.name)
            number = self._store.changes.wait(number, min(LOOK_SECONDS, left))

    def _bring(self, row: Desktop, password: str) -> None:
        """Have the helper in a desktop's guest set a password.

        The helper takes one only for the account that is let in.
        """
        if row.user is None:
            raise Refused(f"{row.name} is nobody's any more", desktop=row.name)
        with speaking_to(self._store, self._connect, row.host_id or "", row.name) as host:
            host.set_password(row.id, row.user, password)
