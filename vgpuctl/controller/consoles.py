# SPDX-License-Identifier: Apache-2.0
"""The calls about the consoles of desktops; `FleetService` has them with all others.

A console is the screen of a VM from its firmware on, for who operates its pool, and for its user where the pool's spec
has `console: true`. A ticket opens it: a secret that is good once, soon, and with the session or token that asked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from vgpuctl.controller.database.rows import About
from vgpuctl.controller.desktop_ports import DesktopStream
from vgpuctl.controller.model import CallerKind, Desktop, FleetCaller, FleetHost, Pool
from vgpuctl.controller.planning.phase import is_running
from vgpuctl.controller.policy import no_desktop, operates_pool, sees_pool
from vgpuctl.errors import Busy, NotAllowed, Refused
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results.people import ConsoleTicketResult, DesktopConsoleResult

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.hosts.link import HostLink

TICKET = "vgpuctl-ticket."
"""Before a ticket, in the subprotocol of the WebSocket."""
TICKET_SECONDS = 30
_KIND = "console"


class _Fleet(Protocol):
    """What `FleetService` has besides."""

    _store: Store
    _connect: Callable[[FleetHost], HostLink]

    def find_screen(self, caller: FleetCaller, name: str) -> DesktopStream: ...

    def show_text(self, desktop: Desktop, text: str) -> str | None: ...

    def _announce(self, caller: FleetCaller, stream: DesktopStream, text: str) -> None: ...


class ConsoleCalls:
    """The calls, and what it takes to show somebody a screen."""

    def show_console(self: _Fleet, caller: FleetCaller, name: str) -> QueryResult[DesktopConsoleResult]:
        """Return whose screen it is, if the caller may see it now."""
        stream = self.find_screen(caller, name)
        desktop = stream.desktop
        return QueryResult(
            DesktopConsoleResult(desktop.name, stream.pool, desktop.user, desktop.profile, is_watched(caller, desktop))
        )

    def open_console(self: _Fleet, caller: FleetCaller, name: str) -> Outcome[ConsoleTicketResult]:
        """Return a ticket for a desktop's console; it is good once."""
        stream = self.find_screen(caller, name)
        ticket = self._store.secrets.give_out(_KIND, _state(caller, stream.desktop), TICKET_SECONDS)
        return Outcome(True, ConsoleTicketResult(name, ticket, TICKET_SECONDS))

    def find_screen(self: _Fleet, caller: FleetCaller, name: str) -> DesktopStream:
        """Return where the screen of a desktop is.

        Raises:
            NotFound: it was taken from the caller meanwhile. Busy: its host has not confirmed its user.
            Refused: it does not run, or its pool gives users no console.
        """
        desktop = self._store.desktops.find(name)
        pool = next((one for one in self._store.pools.list() if one.id == desktop.pool_id), None)
        if pool is None or (not _has(caller, desktop) and not sees_pool(caller, pool.name)):
            raise no_desktop(name)
        host = next((one for one in self._store.hosts.list() if one.id == desktop.host_id), None)
        if not operates_pool(caller, pool.name):
            _refuse_user(desktop, pool)
        if host is None or desktop.report is None or not is_running(desktop.report.state):
            raise Refused(f"{name} does not run", hint=f"vgpuctl controller start-desktop {name}", desktop=name)
        return DesktopStream(desktop, pool.name, host, None, None, sees_pool(caller, pool.name))

    def take_ticket(self: _Fleet, caller: FleetCaller, desktop: Desktop, ticket: str) -> None:
        """Take a ticket for a desktop's console.

        Raises:
            NotAllowed: it is another one's, or for another desktop, or too old, or was used.
        """
        if self._store.secrets.take(_KIND, ticket) != _state(caller, desktop):
            raise NotAllowed(
                f"this does not open the console of {desktop.name}: a ticket is good once, for {TICKET_SECONDS} s",
                hint="open the console again",
                rule="ticket",
            )

    def begin_console(self: _Fleet, caller: FleetCaller, stream: DesktopStream) -> float:
        """Note that a console is open, and show it to the desktop's user; return when that was."""
        desktop, watched = stream.desktop, is_watched(caller, stream.desktop)
        with self._store.changes.made_by(caller):
            opened_at = self._store.consoles.open(desktop, stream.pool, caller.name, is_watched=watched)
        if watched and not _is_empty(desktop):
            self._announce(caller, stream, f"{caller.name} opened the screen of this desktop at {_clock(opened_at)}")
        return opened_at

    def follow_console(self: _Fleet, caller: FleetCaller, before: DesktopStream, now: DesktopStream) -> None:
        """Show to who has logged on in a desktop meanwhile that somebody else has its screen open."""
        old, new = before.desktop.report, now.desktop.report
        if is_watched(caller, now.desktop) and new and new.guest_users and new.guest_users != (old and old.guest_users):
            self._announce(caller, now, f"{caller.name} has the screen of this desktop open")

    def end_console(self: _Fleet, caller: FleetCaller, stream: DesktopStream, opened_at: float) -> None:
        """Note that a console has ended, and show it to the desktop's user; what he reads has the time of each."""
        with self._store.changes.made_by(caller):
            closed_at = self._store.consoles.close(stream.desktop, stream.pool, caller.name, opened_at)
        desktop = self._store.desktops.find(stream.desktop.name)
        if is_watched(caller, desktop) and not _is_empty(desktop) and desktop.generation == stream.desktop.generation:
            self._announce(caller, stream, f"{caller.name} closed the screen of this desktop at {_clock(closed_at)}")

    def _announce(self: _Fleet, caller: FleetCaller, stream: DesktopStream, text: str) -> None:
        """Show a text in a desktop; that it could not be shown is in the journal."""
        problem = self.show_text(stream.desktop, text)
        if problem is not None:
            about = About(pool=stream.pool, desktop=stream.desktop.name, user=stream.desktop.user)
            with self._store.changes.made_by(caller):
                self._store.journal.add("console-unannounced", f"{text}: {problem}"[:1000], caller.name, about)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime(seconds))


def is_watched(caller: FleetCaller, desktop: Desktop) -> bool:
    """Return whether a desktop's screen is somebody else's than who sees it."""
    return desktop.user is not None and not _has(caller, desktop)


def _is_empty(desktop: Desktop) -> bool:
    """Return whether nobody is logged on in a desktop, as far as its guest says."""
    return desktop.report is not None and desktop.report.guest_users == ()


def _has(caller: FleetCaller, desktop: Desktop) -> bool:
    return caller.kind is CallerKind.PERSON and desktop.user == caller.name


def _refuse_user(desktop: Desktop, pool: Pool) -> None:
    if not pool.spec.console:
        raise Refused(
            f"the pool {pool.name} gives its users no console",
            hint=f"an operator of the fleet sets console: true in its spec: vgpuctl controller "
            f"ensure-pool {pool.name} -f FILE",
            desktop=desktop.name,
        )
    if not desktop.handed_out:
        raise Busy(f"the host of {desktop.name} has not confirmed that it is yours", hint="try again in a minute")


def _state(caller: FleetCaller, desktop: Desktop) -> str:
    """Return what a ticket is bound to."""
    return json.dumps([caller.key, caller.session, desktop.id, desktop.generation, desktop.user])
