# SPDX-License-Identifier: Apache-2.0
"""The calls of one host, in threads of their own: what its loop has begun there, and what came of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from vgpuctl.agent.protocol import Fenced, Stopping, TooMany
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.hosts.actions import carry_out
from vgpuctl.controller.hosts.desktop_moves import DesktopMoves
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.model import Desktop, FleetHost, Image, Pool
from vgpuctl.controller.planning.host_plan import AllowLogon, HostAction, MakeVm, MoveVm, RefreshVm, RestartVm
from vgpuctl.controller.planning.logons import LOGON_CODE
from vgpuctl.errors import (
    Busy,
    Locked,
    NeedsBlob,
    NoCapacity,
    NotRebooted,
    ResultUnknown,
    Temporary,
    Unreachable,
    VgpuctlError,
    explain_exception,
)
from vgpuctl.model.desktop import Fence

log = logging.getLogger("vgpuctl.controller")

MAX_CALLS = 4
"""So many calls of one host run at a time."""


class DesktopCalls:
    """The calls of a host. `on_end`: is called after each; the argument says whether the host refused its fence."""

    def __init__(self, store: Store, host: FleetHost, moves: DesktopMoves, on_end: Callable[[bool], None]) -> None:
        self._store = store
        self._moves = moves
        self._host_id, self._name = host.id, host.name
        self._on_end = on_end
        self._threads = ThreadPoolExecutor(MAX_CALLS, f"call-{host.name}", initializer=store.database.wait_in_line)
        self._running: set[str] = set()
        self._lock = threading.Lock()

    @property
    def running(self) -> frozenset[str]:
        """The ids of the desktops that calls run about."""
        with self._lock:
            return frozenset(self._running)

    def begin(self, link: HostLink, fence: Fence, action: HostAction, pool: Pool, image: Image) -> None:
        """Begin what was planned."""
        with self._lock:
            self._running.add(action.desktop.id)
        self._threads.submit(self._perform, link, fence, action, pool, image)

    def stop(self) -> None:
        """Begin nothing more, and wait until no call runs."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _perform(self, link: HostLink, fence: Fence, action: HostAction, pool: Pool, image: Image) -> None:
        """Carry an action out; an error is stored, and tried again later."""
        desktop, name, is_fenced = action.desktop, type(action).__name__, False
        try:
            if isinstance(action, MoveVm):
                self._moves.move(link, fence, action)
                return
            carry_out(link, fence, action, pool, image)
            if isinstance(action, AllowLogon | RefreshVm):
                self._store.desktops.note_let_in(desktop.id, action.let_in if isinstance(action, AllowLogon) else None)
            if isinstance(action, RestartVm):
                self._store.restarts.end(desktop)
            if desktop.host_id == self._host_id:
                self._store.desktops.note_success(desktop.id)
        except Exception as exc:
            error = explain_exception(exc)
            if not isinstance(error, VgpuctlError):
                log.exception("%s of %s failed with a bug", name, desktop.name, exc_info=exc)
                error = VgpuctlError(f"unexpected {type(exc).__name__}: {exc}")
            with suppress(VgpuctlError):
                is_fenced = self._note_error(link, fence, action, error)
        finally:
            with self._lock:
                self._running.discard(desktop.id)
            self._on_end(is_fenced)

    def _note_error(self, link: HostLink, fence: Fence, action: HostAction, error: VgpuctlError) -> bool:
        """Store why a call failed; return whether the host obeys another controller."""
        desktop = action.desktop
        if isinstance(action, MoveVm):
            self._moves.note_failure(link, fence, action, error)
            return isinstance(error, Fenced)
        if desktop.host_id != self._host_id:  # a copy of a desktop of another host; it is tried again at each look
            log.warning("%s: the copy of %s was not stopped: %s", self._name, desktop.name, error.message)
            return False
        if isinstance(error, NoCapacity) and isinstance(action, MakeVm):
            if desktop.profile is not None:
                self._store.rooms.refuse(self._host_id, desktop.profile, error.message)
            self._store.desktops.unplace(desktop.id)
            return False
        if isinstance(error, Fenced):
            return True
        text = f"{self._name}: {error.message}"
        if isinstance(action, RestartVm):
            self._note_restart_error(desktop, error, text)
            return False
        counts = not isinstance(error, Temporary | NeedsBlob)
        code = LOGON_CODE if isinstance(action, AllowLogon) and counts else error.code
        self._store.desktops.note_error(desktop.id, code, text, error.hint, counts=counts)
        return False

    def _note_restart_error(self, desktop: Desktop, error: VgpuctlError, text: str) -> None:
        """Have a restart tried again where the host did nothing, or its answer is not known; else it has failed."""
        if isinstance(error, Unreachable | ResultUnknown | TooMany | Stopping):
            self._store.restarts.postpone(desktop, is_new_request=False)
        elif isinstance(error, Busy | Locked) and not isinstance(error, NotRebooted):
            self._store.restarts.postpone(desktop, is_new_request=True)
        else:
            self._store.restarts.end(desktop, text)
