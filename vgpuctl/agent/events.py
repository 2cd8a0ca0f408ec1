# SPDX-License-Identifier: Apache-2.0
"""The agent's events: the last 1,000, merged where they come fast, for readers that follow or come back.

Any thread publishes, and never waits. A reader has a place in the log and no queue of its own, so it costs the same
however slow it is; one that falls out of the log gets `gap` and is closed. The server uses it like this:

    log = EventLog(host.clock)
    log.start()
    log.publish(EventType.OPERATION_BEGIN, operation=identifier, vm=name)
    with log.subscribe(after=last_event_id) as reader:      # Busy when there are 64 readers already
        async for events in reader:                         # or `await reader.read()`, which may be cancelled
            send(events)
    log.close()                                             # ends all readers

A VM that starts, stops and starts again within a moment would flood everyone. So the first event of a VM is published
at once, and those of the next 250 ms together, at the end of that time: every start and every crash, and of several
others in a row only the last, with the number of steps that it stands for. So the last event of a VM is always its
state.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from itertools import islice
from threading import Condition, Thread
from types import TracebackType
from typing import TYPE_CHECKING

from vgpuctl.agent.event_counts import EventCounts
from vgpuctl.agent.gpu_losses import GpuLosses
from vgpuctl.errors import Busy
from vgpuctl.model.event import SEVERITIES, VM_STATE_TYPES, Event, EventType, Severity
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.system import Clock

KEPT_EVENTS = 1000
MAX_READERS = 64
COLLAPSE_SECONDS = 0.25
_CLOSE_SECONDS = 5.0
_MAX_REASON_CHARACTERS = 200
_ALWAYS_PUBLISHED = frozenset({EventType.VM_STARTED, EventType.VM_CRASHED})
"""Each of these events is published; of several others in a row only the last."""
_TOO_OLD = "events after the last one that this reader had are lost: list again"


class EventLog:
    """The last events of this run of the agent. `boot`: the run's name in the events' ids; by default a random one.

    `gpu_losses`: the lost GPUs that it has reported, for the sources that find them. `counts`: for the metrics.
    """

    def __init__(self, clock: Clock, *, boot: str | None = None, kept: int = KEPT_EVENTS) -> None:
        self.boot = boot or secrets.token_hex(4)
        self.gpu_losses = GpuLosses(clock)
        self.counts = EventCounts(clock)
        self._clock = clock
        self._kept = kept
        self._changed = Condition()
        self._events: deque[Event] = deque(maxlen=kept)
        self._last_number = 0
        self._held: dict[str, _HeldEvents] = {}
        self._readers: set[EventReader] = set()
        self._is_closed = False
        self._thread: Thread | None = None

    # ---------------------------------------------------------------- writing

    def publish(
        self,
        event_type: EventType,
        *,
        severity: Severity | None = None,
        vm: str | None = None,
        vm_uuid: str | None = None,
        gpu: str | None = None,
        vgpu: str | None = None,
        reason: str | None = None,
        operation: str | None = None,
        collapse: str | None = None,
    ) -> None:
        """Publish an event that happens now.

        `collapse`: what it is about, for merging it with others of the same; by default the VM, for the events of its
        life, and nothing for others, which are published at once.
        """
        event = Event(
            id="",
            type=event_type,
            severity=severity or SEVERITIES.get(event_type, Severity.INFO),
            time=_utc(self._clock.now()),
            vm=vm,
            vm_uuid=vm_uuid,
            gpu=gpu,
            vgpu=vgpu,
            reason=reason,
            operation=operation,
        )
        key = collapse or (vm_uuid or vm if event_type in VM_STATE_TYPES else None)
        with self._changed:
            if key is None:
                self._append(event)
            elif key in self._held:
                self._held[key].add(event)
            else:
                self._held[key] = _HeldEvents(self._clock.monotonic() + COLLAPSE_SECONDS)
                self._append(event)

    def release(self, *, everything: bool = False) -> float | None:
        """Publish the merged events whose time is over, or all; return in how many seconds the next ones are due.

        None: no event is held. The log's own thread calls it.
        """
        with self._changed:
            now = self._clock.monotonic()
            for key, held in list(self._held.items()):
                if not everything and held.due > now:
                    continue
                if held.events:
                    for event in held.events:
                        self._append(event)
                    self._held[key] = _HeldEvents(now + COLLAPSE_SECONDS)
                else:
                    del self._held[key]
            return min((held.due for held in self._held.values()), default=now) - now if self._held else None

    def _append(self, event: Event) -> None:
        """Give an event its id and tell the readers."""
        self._last_number += 1
        self._events.append(replace(event, id=self._id_of(self._last_number)))
        self._changed.notify_all()
        for reader in list(self._readers):
            reader._wake()

    # ---------------------------------------------------------------- reading

    @property
    def last_id(self) -> str:
        """The id of the newest event; a reader that continues after it gets what happens from now on."""
        with self._changed:
            return self._id_of(self._last_number)

    def since(self, event_id: str | None) -> tuple[Event, ...]:
        """Return the events after the one with this id; all that are kept for None.

        When the id is not of this run or its next event is no longer kept, a `gap` comes first, then all that are kept.
        Its id is in order, so a reader may continue after it.
        """
        with self._changed:
            number = self._oldest - 1 if event_id is None else self._number_of(event_id)
            if number is None or number < self._oldest - 1:
                return (self._gap(self._oldest - 1, _TOO_OLD), *self._events)
            return self._after(number)

    def wait_after(self, event_id: str, timeout_seconds: float) -> tuple[Event, ...]:
        """Return the same as `since`, for a thread: after an event came, the time is over, or the log is closed."""
        with self._changed:
            number = self._number_of(event_id)
            self._changed.wait_for(
                lambda: self._is_closed or number is None or self._last_number > number, timeout_seconds
            )
        return self.since(event_id)

    def subscribe(self, after: str | None = None) -> EventReader:
        """Return a reader for the running asyncio loop: of the events after the one with this id, or from now on.

        Raises:
            Busy: 64 readers follow already.
        """
        with self._changed:
            if len(self._readers) >= MAX_READERS:
                raise Busy(
                    f"{MAX_READERS} readers follow the events of this host already",
                    hint="close one of them, or read the events without following them",
                    readers=len(self._readers),
                )
            number = self._last_number if after is None else self._number_of(after)
            reader = EventReader(self, asyncio.get_running_loop(), number)
            self._readers.add(reader)
            return reader

    @property
    def is_closed(self) -> bool:
        """Whether no more events come."""
        return self._is_closed

    @property
    def reader_count(self) -> int:
        """How many readers follow."""
        with self._changed:
            return len(self._readers)

    # ------------------------------------------------------------ life, parts

    def start(self) -> None:
        """Start the thread that publishes merged events when their time is over."""
        self._thread = Thread(target=self._release_held, name="event-log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Publish what is held, end the thread and all readers. Events that are published later reach nobody."""
        self.release(everything=True)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            for reader in list(self._readers):
                reader._wake()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _release_held(self) -> None:
        while True:
            due_seconds = self.release()
            with self._changed:
                if self._is_closed:
                    return
                if due_seconds is not None:
                    self._changed.wait_for(lambda: self._is_closed, due_seconds)
                elif not self._held:
                    self._changed.wait_for(lambda: self._is_closed or self._held)

    @property
    def _oldest(self) -> int:
        """The number of the oldest event that is kept, or of the next one if there is none."""
        return self._last_number - len(self._events) + 1

    def _id_of(self, number: int) -> str:
        return f"{self.boot}-{number}"

    def _number_of(self, event_id: str) -> int | None:
        """Return the number of an event of this run; None for any other text."""
        boot, _, number = event_id.rpartition("-")
        if boot != self.boot or not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        return int(number) if int(number) <= self._last_number else None

    def _after(self, number: int) -> tuple[Event, ...]:
        return tuple(islice(self._events, max(0, number - self._oldest + 1), None))

    def _gap(self, number: int, reason: str) -> Event:
        time = _utc(self._clock.now())
        return Event(self._id_of(number), EventType.GAP, SEVERITIES[EventType.GAP], time, reason=reason)


class EventReader:
    """A place in the log, for one asyncio task. A context manager and an iterator over batches of events.

    `EventLog.subscribe` makes it, with the log's lock held.
    """

    def __init__(self, log: EventLog, loop: asyncio.AbstractEventLoop, number: int | None) -> None:
        self._log = log
        self._loop = loop
        self._missed_events = number is None or number < log._oldest - 1
        self._number = number or 0
        self._arrived = asyncio.Event()
        self._is_awake = False

    async def read(self) -> tuple[Event, ...]:
        """Wait for events and return them; empty at the end. A `gap` is returned alone: the reader is then closed.

        The first read of a reader whose id is unknown or too old returns a `gap` and what is kept, and goes on.
        """
        while True:
            self._arrived.clear()
            with self._log._changed:
                self._is_awake = False
                if self not in self._log._readers:
                    return ()
                events = self._take()
                if events:
                    return events
                if self._log._is_closed:
                    self.close()
                    return ()
            await self._arrived.wait()

    def _take(self) -> tuple[Event, ...]:
        """Return the new events and go past them. Only with the log's lock held."""
        log = self._log
        if self._missed_events:
            self._missed_events = False
            events = (log._gap(log._oldest - 1, _TOO_OLD), *log._events)
        elif self._number < log._oldest - 1:
            self.close()
            log.counts.note_dropped(log._last_number - self._number)
            return (log._gap(log._last_number, _TOO_OLD),)
        else:
            events = log._after(self._number)
        self._number = log._last_number
        return events

    def close(self) -> None:
        """Stop following; a second time does nothing."""
        with self._log._changed:
            self._log._readers.discard(self)

    def _wake(self) -> None:
        """Wake the task, from any thread, once until it reads again. Only with the log's lock held."""
        if not self._is_awake:
            self._is_awake = True
            try:
                self._loop.call_soon_threadsafe(self._arrived.set)
            except RuntimeError:  # the loop is closed: its task does not read any more
                self._log._readers.discard(self)

    async def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        while events := await self.read():
            yield events

    def __enter__(self) -> EventReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _HeldEvents:
    """The events of one VM that wait until `due`, merged."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        """Add an event. It replaces the last one, unless each event of one of their types is published."""
        if self.events and _ALWAYS_PUBLISHED.isdisjoint((event.type, self.events[-1].type)):
            event = replace(event, count=self.events.pop().count + event.count)
        self.events.append(event)


def shorten_reason(text: str) -> str:
    """Return a text of any length, such as a driver's, as the reason of an event."""
    if len(text) <= _MAX_REASON_CHARACTERS:
        return text
    return f"{text[: _MAX_REASON_CHARACTERS - 1]}\N{HORIZONTAL ELLIPSIS}"


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
