# SPDX-License-Identifier: Apache-2.0
"""One operation of the agent: its state, what it reports while it runs, and its cancellation."""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from threading import Lock

from vgpuctl.agent.operation_store import StoredOperation
from vgpuctl.agent.protocol import RESULT_EVENT
from vgpuctl.agent.request import CallRequest
from vgpuctl.errors import Interrupted, Stale, Temporary
from vgpuctl.model.outcome import NoProgress

MAX_PROGRESS = 2000
"""So many lines of progress of an operation are kept for who reads them later; a plan has a few hundred at most."""


class AgentOperation:
    """One operation. `events`: what happened so far, in order; the last one, when it has ended, is its document."""

    def __init__(self, stored: StoredOperation, loop: asyncio.AbstractEventLoop, request: CallRequest | None) -> None:
        self.stored = stored
        self.events: deque[tuple[int, str, object]] = deque(maxlen=MAX_PROGRESS)
        self._request = request
        self._loop = loop
        self._lock = Lock()
        self._next_number = 1
        self._readers: set[asyncio.Event] = set()
        self.signals = self.noticed = 0
        """How often it was cancelled: once undoes it, twice stops that too."""

    @property
    def has_ended(self) -> bool:
        """Whether it has its document; an old one has it on disk alone."""
        return self.stored.finished is not None

    def take_request(self) -> CallRequest:
        """Return its request, and forget it: it may have passwords in it."""
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError(f"operation {self.stored.id} has begun already")
        return request

    def cancel(self) -> None:
        """Stop it before its next step and undo it, as Ctrl-C does; the second time stop the undo."""
        self.signals += 1

    def is_cancelled(self) -> bool:
        """Return whether it is to stop."""
        self.noticed = max(self.noticed, min(self.signals, 1))
        return self.signals > 0

    def add(self, kind: str, data: object, *, replaces_same: bool = False) -> None:
        """Add an event, from any thread, and wake its readers. `replaces_same`: it takes the place of one like it."""
        with self._lock:
            if replaces_same and self.events and self.events[-1][1] == kind:
                self.events.pop()
            self.events.append((self._next_number, kind, data))
            self._next_number += 1
        self._loop.call_soon_threadsafe(self._wake)

    def end(self, stored: StoredOperation) -> None:
        """Take the operation as it is when it has ended; the last event is its document."""
        self.stored = stored
        self.add(RESULT_EVENT, stored.document, replaces_same=True)

    def _wake(self) -> None:
        for reader in self._readers:
            reader.set()

    async def read(self, after: int = 0, beat_seconds: float | None = None) -> AsyncIterator[tuple[int, str, object]]:
        """Yield the events with a number greater than `after`, to the last one.

        `beat_seconds`: yield an event without a kind whenever nothing happened for so long.
        """
        woken = asyncio.Event()
        self._readers.add(woken)
        try:
            while True:
                woken.clear()
                with self._lock:
                    new = [event for event in self.events if event[0] > after]
                    if not new and self.events and self.events[-1][1] == RESULT_EVENT:
                        new = [self.events[-1]]
                for event in new:
                    after = event[0]
                    yield event
                    if event[1] == RESULT_EVENT:
                        return
                if new:
                    continue
                if self.has_ended and not self.events:  # it has become an old one
                    return
                try:
                    await asyncio.wait_for(woken.wait(), beat_seconds)
                except TimeoutError:
                    yield (after, "", None)
        finally:
            self._readers.discard(woken)


class OperationProgress(NoProgress):
    """Progress of a library's call, as events of its operation."""

    def __init__(self, operation: AgentOperation) -> None:
        self.operation = operation

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Record the plan."""
        self.operation.add("plan", {"steps": steps})

    def on_step_start(self, number: int, text: str) -> None:
        """Record the beginning of a step."""
        self.operation.add("step-start", {"number": number, "text": text})

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Record how far a step is; only the newest is kept."""
        self.operation.add("step-progress", {"number": number, "text": text, "percent": percent}, replaces_same=True)

    def on_step_finish(self, number: int, text: str) -> None:
        """Record the end of a step."""
        self.operation.add("step-finish", {"number": number, "text": text})

    def on_step_undo(self, text: str) -> None:
        """Record that a step is undone."""
        self.operation.add("step-undo", {"text": text})
        if self.operation.signals > 1:
            raise KeyboardInterrupt

    def on_vm_finish(self, done: int, total: int, failed: int, text: str) -> None:
        """Record that one of several VMs is finished."""
        self.operation.add("vm-finish", {"done": done, "total": total, "failed": failed, "text": text})


def stop_waits_of(operation: AgentOperation) -> Callable[[], None]:
    """Return what ends a wait of an operation, once when it is cancelled and once when its undo is stopped."""

    def stop() -> None:
        if operation.signals > operation.noticed:
            operation.noticed = operation.signals
            if operation.signals > 1:
                raise KeyboardInterrupt
            raise Interrupted("the caller cancelled it", signal_number=signal.SIGINT)

    return stop


def failure_text(document: Mapping[str, object] | None) -> str | None:
    """Return why an operation that has ended failed, from its document; None if it did not."""
    if document is not None and document.get("ok"):
        return None
    error = (document or {}).get("error")
    return str(error.get("message")) if isinstance(error, dict) else "it failed"


def may_succeed_later(document: Mapping[str, object] | None) -> bool:
    """Return whether an operation failed only for now, or because its VM was changed meanwhile, from its document."""
    error = (document or {}).get("error")
    return isinstance(error, dict) and (error.get("exit_status") == Temporary.status or error.get("code") == Stale.code)


async def wait_for_end(operation: AgentOperation) -> None:
    """Return when an operation has ended."""
    async for _ in operation.read(operation.events[-1][0] - 1 if operation.events else 0):
        pass
