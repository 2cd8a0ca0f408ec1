# SPDX-License-Identifier: Apache-2.0
"""What happens to libvirt's domains, as it happens; implements `ports.DomainEvents`.

Two threads work together. libvirt's event loop (`connection.py`, one for the process) runs the callbacks, which only
put what they get into a queue. The watch's own thread takes it out and calls its receiver, so a receiver that takes
long delays nobody else. libvirt's objects are asked for their name, uuid and id alone, which they hold themselves: a
callback that called libvirt would wait for an answer that its own thread has to read.

libvirt notices a daemon that died at once, and by its keepalive one that hangs: after 2 seconds of silence it asks, and
after 3 requests without an answer it closes the connection, 8 seconds in all (virConnectSetKeepAlive). Callbacks are
registered with a connection, so a new connection needs them again, and then everything is listed: what happened
meanwhile sent no event.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import VgpuctlError
from vgpuctl.host.virt import constants
from vgpuctl.host.virt.connection import LibvirtConnection, event_loop_answers
from vgpuctl.model.port_values import DomainEvent, DomainEventKind, DomainStatus
from vgpuctl.model.vm import VmState
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.host.virt.connection import virConnect, virDomain

KEEPALIVE_SECONDS, KEEPALIVE_COUNT = 2, 3
MAX_PAUSE_SECONDS = 15.0
_CLOSE_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
_REGISTER_CALL = "virConnectDomainEventRegisterAny"
_FAILURE = "cannot watch the events of VMs"
_ENDING = "the watch ends"
_TOO_FAST = "events of VMs came faster than they were read"
_CHANGES = (
    constants.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE,
    constants.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
    constants.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
)
"""Events that change what a look at the domain shows, without a change of its lifecycle."""
_UNSUPPORTED = frozenset({constants.VIR_ERR_NO_SUPPORT})


class WatchSettings(Value):
    """How a watch waits.

    `first_pause_seconds`: the pause before another attempt to connect, doubled after each failure up to 15 seconds.
    `recheck_seconds`: how long after a connection all domains are listed once more. A daemon that has just started may
    still list a domain as running whose QEMU died in the meantime, and sends no event when it notices
    (qemuProcessReconnect). `max_waiting`: so many events may wait for the receiver; more are a loss, after which all
    domains are listed.
    """

    first_pause_seconds: float = 0.5
    recheck_seconds: float = 10.0
    max_waiting: int = 10_000


class LibvirtDomainEvents:
    """The events of all domains of one libvirt. Each watch has a connection of its own."""

    def __init__(self, connection: LibvirtConnection, settings: WatchSettings | None = None) -> None:
        self._connection = connection
        self._settings = settings or WatchSettings()

    def watch(
        self,
        *,
        on_event: Callable[[DomainEvent], None],
        on_lost: Callable[[str], None],
        on_back: Callable[[tuple[DomainStatus, ...]], None],
    ) -> LibvirtWatch:
        """Watch all domains in a thread of its own, until `close`."""
        return LibvirtWatch(self._connection, self._settings, on_event, on_lost, on_back)


class NoEvent(Enum):
    """Why there is no event: some were lost, or none came in time."""

    LOST = "lost"
    LATE = "late"


class EventInbox:
    """What one connection's callbacks handed over. Handing over never waits: events that do not fit are lost."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = Condition()
        self._events: deque[DomainEvent] = deque()
        self._lost_events = False
        self._end: str | None = None

    def put(self, event: DomainEvent) -> None:
        """Hand over an event."""
        with self._changed:
            if len(self._events) < self._size:
                self._events.append(event)
            else:
                self._lost_events = True
            self._changed.notify()

    def close(self, reason: str) -> None:
        """Hand over that no more events come, and why. The first reason counts."""
        with self._changed:
            self._end = self._end or reason
            self._changed.notify()

    def get(self, timeout_seconds: float | None = None) -> DomainEvent | NoEvent | str:
        """Wait for the next event and return it, or why there is none; after the last one, why no more come."""
        with self._changed:
            is_in_time = self._changed.wait_for(self._has_something, timeout_seconds)
            if not is_in_time:
                return NoEvent.LATE
            if self._lost_events:
                self._lost_events = False
                self._events.clear()
                return NoEvent.LOST
            return self._events.popleft() if self._events else str(self._end)

    def _has_something(self) -> bool:
        return bool(self._events) or self._lost_events or self._end is not None


class LibvirtWatch:
    """A thread that keeps a connection for events; implements `ports.Watch`."""

    def __init__(
        self,
        connection: LibvirtConnection,
        settings: WatchSettings,
        on_event: Callable[[DomainEvent], None],
        on_lost: Callable[[str], None],
        on_back: Callable[[tuple[DomainStatus, ...]], None],
    ) -> None:
        self._connection, self._settings = connection, settings
        self._on_event, self._on_lost, self._on_back = on_event, on_lost, on_back
        self._ending = Event()
        self._has_connected = self._is_lost = False
        self._pause = settings.first_pause_seconds
        self._inbox = EventInbox(settings.max_waiting)
        self._thread = Thread(target=self._run, name="vm-events", daemon=True)
        self._thread.start()

    def answers(self) -> bool:
        """Return whether the watch's thread lives, and libvirt's event loop, if it runs, answers within 5 seconds.

        Without libvirt's library, or before the first connection, nothing could hang but the thread.
        """
        return self._thread.is_alive() and (not self._has_connected or event_loop_answers(_ANSWER_SECONDS))

    def close(self) -> None:
        """End the thread. It is a daemon thread: one that waits for a libvirt that hangs is left behind."""
        self._ending.set()
        self._inbox.close(_ENDING)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                reason = self._follow()
            except (VgpuctlError, ImportError) as error:
                reason = str(error)
            if not self._ending.is_set() and not self._is_lost:
                self._is_lost = True
                self._on_lost(reason)
            self._ending.wait(self._pause)
            self._pause = min(self._pause * 2, MAX_PAUSE_SECONDS)

    def _follow(self) -> str:
        """Connect, list, and pass events on until the connection is closed; return why it was."""
        self._inbox = inbox = EventInbox(self._settings.max_waiting)
        if self._ending.is_set():  # `close` may have closed the former inbox
            return _ENDING
        with self._connection.listen(_REGISTER_CALL, _FAILURE) as connect, self._registered(connect, inbox):
            self._report_all(connect)
            recheck: float | None = time.monotonic() + self._settings.recheck_seconds
            while not self._ending.is_set():
                item = inbox.get(None if recheck is None else max(0.0, recheck - time.monotonic()))
                if isinstance(item, DomainEvent):
                    self._on_event(item)
                elif isinstance(item, str):
                    return item
                else:
                    if item is NoEvent.LOST:
                        self._on_lost(_TOO_FAST)
                    self._report_all(connect)
                    recheck = None
        return _ENDING

    def _report_all(self, connect: virConnect) -> None:
        missing, look_up = constants.VIR_ERR_NO_DOMAIN, self._connection.look_up
        statuses = [look_up(missing, partial(_read_status, domain)) for domain in connect.listAllDomains(0)]
        self._has_connected, self._is_lost, self._pause = True, False, self._settings.first_pause_seconds
        self._on_back(tuple(sorted((s for s in statuses if s is not None), key=lambda status: status.name)))

    @contextmanager
    def _registered(self, connect: virConnect, inbox: EventInbox) -> Iterator[None]:
        """Have the connection hand over its events and its end; libvirt's test driver has neither keepalive nor end.

        All is deregistered at the end, also of a dead connection: a callback holds its connection, whose descriptor
        would stay open.
        """
        attempt = self._connection.attempt
        attempt(_UNSUPPORTED, lambda: connect.setKeepAlive(KEEPALIVE_SECONDS, KEEPALIVE_COUNT))
        attempt(_UNSUPPORTED, lambda: connect.registerCloseCallback(partial(_hand_over_end, inbox), None))
        ids: list[int] = []
        try:
            lifecycle = partial(_hand_over_lifecycle, inbox)
            ids.append(connect.domainEventRegisterAny(None, constants.VIR_DOMAIN_EVENT_ID_LIFECYCLE, lifecycle, None))
            changed = partial(_hand_over_change, inbox, DomainEventKind.CHANGED)
            for event in _CHANGES:
                attempt(_UNSUPPORTED, partial(_register, connect, event, changed, ids))
            rebooted = partial(_hand_over_change, inbox, DomainEventKind.REBOOTED)
            attempt(_UNSUPPORTED, partial(_register, connect, constants.VIR_DOMAIN_EVENT_ID_REBOOT, rebooted, ids))
            yield
        finally:
            for callback_id in ids:
                attempt(None, partial(connect.domainEventDeregisterAny, callback_id))
            attempt(None, connect.unregisterCloseCallback)


def _register(connect: virConnect, event: int, callback: Callable[..., None], ids: list[int]) -> None:
    ids.append(connect.domainEventRegisterAny(None, event, callback, None))


def _hand_over_lifecycle(
    inbox: EventInbox, _connect: object, domain: virDomain, event: int, detail: int, _opaque: object
) -> None:
    inbox.put(read_event(domain.name(), domain.UUIDString(), domain.ID(), event, detail))


def _hand_over_change(
    inbox: EventInbox, kind: DomainEventKind, _connect: object, domain: virDomain, *_more: Any
) -> None:
    inbox.put(DomainEvent(kind, domain.name(), domain.UUIDString()))


def _hand_over_end(inbox: EventInbox, _connect: object, reason: int, _opaque: object) -> None:
    inbox.close(constants.CLOSE_REASONS.get(reason, f"libvirt closed the connection, reason {reason}"))


def read_event(name: str, uuid: str, number: int, event: int, detail: int) -> DomainEvent:
    """Return a lifecycle event from libvirt's numbers. A kind that a newer libvirt has is a change like any other."""
    kind = constants.EVENT_KINDS.get(event, DomainEventKind.CHANGED)
    reasons = constants.EVENT_REASONS.get(kind, ())
    run_id = number if kind is DomainEventKind.STARTED and number >= 0 else None
    return DomainEvent(kind, name, uuid, reasons[detail] if 0 <= detail < len(reasons) else None, run_id)


def _read_status(domain: virDomain) -> DomainStatus:
    number, detail = domain.state(0)
    state = constants.VM_STATES.get(number, VmState.UNKNOWN)
    is_off = state is VmState.STOPPED
    reason = constants.stop_reason(number, detail)
    run_id = domain.ID()
    return DomainStatus(domain.name(), domain.UUIDString(), state, None if is_off or run_id < 0 else run_id, reason)
