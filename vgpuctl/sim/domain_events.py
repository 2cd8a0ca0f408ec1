# SPDX-License-Identifier: Apache-2.0
"""The events of a simulated libvirt: read from the journal's lines, whichever process wrote them.

A thread looks at the journal every half a second, and at once when this process writes. The lines have every step in
its order, so no start and no crash is lost, however short the time between two of them.

A reboot or reset of the host, and a journal that is read from its beginning, end what was: like a libvirt that came
back, the watch lists all domains.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Event, Thread

from vgpuctl.errors import VgpuctlError
from vgpuctl.model.port_values import DomainEvent, DomainEventKind, DomainStatus
from vgpuctl.model.vm import VmState
from vgpuctl.sim.core import Core
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.refusals import unavailable_reason
from vgpuctl.sim.state import State

LOOK_SECONDS = 0.5
_CLOSE_SECONDS = 5.0
_REBOOT = "the host was rebooted"
_CHANGES = frozenset({"splice", "splice_live", "plug", "unplug"})
"""Records that change what a look at a domain shows, without a change of its lifecycle."""


class SimDomainEvents:
    """The events of all domains; implements `ports.DomainEvents`."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def watch(
        self,
        *,
        on_event: Callable[[DomainEvent], None],
        on_lost: Callable[[str], None],
        on_back: Callable[[tuple[DomainStatus, ...]], None],
    ) -> SimWatch:
        """Watch all domains in a thread of its own, until `close`."""
        return SimWatch(self._core, on_event, on_lost, on_back)


class SimWatch:
    """A thread that reads the journal; implements `ports.Watch`."""

    def __init__(
        self,
        core: Core,
        on_event: Callable[[DomainEvent], None],
        on_lost: Callable[[str], None],
        on_back: Callable[[tuple[DomainStatus, ...]], None],
    ) -> None:
        self._core = core
        self._on_event, self._on_lost, self._on_back = on_event, on_lost, on_back
        self._lines: deque[list[JournalRecord]] = deque()
        self._history: DomainHistory | None = None
        self._is_lost = False
        self._must_list = True
        self._wake, self._ending = Event(), Event()
        with core.call_lock:
            core.readers.append(self._take)
        self._thread = Thread(target=self._run, name="sim-events", daemon=True)
        self._thread.start()

    def answers(self) -> bool:
        """Return whether the thread lives."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)
        with self._core.call_lock:
            if self._take in self._core.readers:
                self._core.readers.remove(self._take)

    def _take(self, records: list[JournalRecord] | None) -> None:
        """Take a line over. After the journal's beginning (None), the lines until the next list are history."""
        if records is None:
            self._must_list = True
        elif not self._must_list:
            self._lines.append(records)
        self._wake.set()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._wake.clear()
            try:
                statuses, lines, reason = self._look()
            except (VgpuctlError, OSError) as error:
                statuses, lines, reason = None, [], str(error)
            self._report(statuses, lines, reason)
            self._wake.wait(LOOK_SECONDS)

    def _look(self) -> tuple[tuple[DomainStatus, ...] | None, list[list[JournalRecord]], str | None]:
        """Return a list of all domains if one is needed, the new lines, and why libvirt does not answer."""
        with self._core.call_lock:
            state = self._core.read_state()
            reason = unavailable_reason(self._core)
            if reason is not None or self._must_list or self._is_lost:
                self._must_list = reason is not None
                self._lines.clear()
                return list_domains(state), [], reason
            lines = list(self._lines)
            self._lines.clear()
            is_rebooted = any(record[0] == "boot" for records in lines for record in records)
            return (list_domains(state), [], _REBOOT) if is_rebooted else (None, lines, None)

    def _report(
        self, statuses: tuple[DomainStatus, ...] | None, lines: list[list[JournalRecord]], reason: str | None
    ) -> None:
        if reason is not None and not self._is_lost:
            self._is_lost = True
            self._on_lost(reason)
        if statuses is not None and reason in (None, _REBOOT):
            self._is_lost = False
            self._history = DomainHistory(statuses)
            self._on_back(statuses)
        for records in lines:
            for event in self._history.read(records) if self._history else ():
                self._on_event(event)


class DomainHistory:
    """What happened to the domains, line by line from a list of them."""

    def __init__(self, statuses: tuple[DomainStatus, ...]) -> None:
        self._names = {status.uuid: status.name for status in statuses}
        self._running = {status.uuid for status in statuses if status.run_id is not None}
        self._transient: set[str] = set()

    def read(self, records: list[JournalRecord]) -> list[DomainEvent]:
        """Return the events of one line's records."""
        events = []
        for name, *values in records:
            uuid = str(values[0]) if values else ""
            known_name = self._names.get(uuid)
            kind, reason = self._read_record(str(name), uuid, *values[1:])
            if kind is not None:
                run_id = int(str(values[1])) if kind is DomainEventKind.STARTED else None
                events.append(DomainEvent(kind, known_name or self._names.get(uuid, uuid), uuid, reason, run_id))
        return events

    def _read_record(self, name: str, uuid: str, *values: object) -> tuple[DomainEventKind | None, str | None]:
        match name:
            case "domain" if values[2:] == (False,):
                self._transient.add(uuid)
                self._names[uuid] = str(values[0])
                return None, None
            case "domain":
                is_new = uuid not in self._names or uuid in self._transient
                self._transient.discard(uuid)
                self._names[uuid] = str(values[0])
                return DomainEventKind.DEFINED, "added" if is_new else "updated"
            case "undefine" if uuid in self._names:
                del self._names[uuid]
                return DomainEventKind.UNDEFINED, "removed"
            case "transient":
                self._transient.add(uuid)
                return DomainEventKind.UNDEFINED, "removed"
            case "run":
                self._running.add(uuid)
                return DomainEventKind.STARTED, str(values[4]) if len(values) > 4 else "booted"
            case "off" if uuid in self._running:
                self._stop(uuid)
                return DomainEventKind.STOPPED, str(values[0]) if values and values[0] else "shutdown"
            case "halt":
                return _read_halt(str(values[0]), values[1] if len(values) > 1 else None)
            case "resets":
                return DomainEventKind.REBOOTED, None
            case _ if name in _CHANGES:
                return DomainEventKind.CHANGED, None
        return None, None

    def _stop(self, uuid: str) -> None:
        self._running.discard(uuid)
        if uuid in self._transient:
            self._transient.discard(uuid)
            self._names.pop(uuid, None)


def _read_halt(state: str, reason: object) -> tuple[DomainEventKind, str]:
    """Return the event of a guest that stops, or goes on, without its domain being off."""
    if state == VmState.CRASHED:
        return DomainEventKind.CRASHED, "panicked"
    if state == VmState.RUNNING:
        return DomainEventKind.RESUMED, "unpaused"
    return DomainEventKind.SUSPENDED, "I/O error" if reason is None else str(reason)


def list_domains(state: State) -> tuple[DomainStatus, ...]:
    """Return all domains, sorted by name. A running one's id is its process id: each start has another one."""
    statuses = []
    for name, uuid in sorted(state.uuids_by_name.items()):
        running = state.running.get(uuid)
        power = VmState(running.state) if running else VmState.STOPPED
        statuses.append(DomainStatus(name, uuid, power, running.pid if running else None))
    return tuple(statuses)
