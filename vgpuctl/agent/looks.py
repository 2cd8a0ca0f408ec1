# SPDX-License-Identifier: Apache-2.0
"""The agent's looks at the host: what it read a moment ago serves the next reader, until something changed.

A look is dropped when an event came (`drop`), when an operation of any vgpuctl on this host began or ended, and after a
minute. While an operation works, a look serves for a second only. Operations never use these looks: they read anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock, local
from typing import NamedTuple

from vgpuctl.model.snapshot import Snapshot
from vgpuctl.ports.run_directory import OperationsState
from vgpuctl.ports.system import Clock

MAX_AGE_SECONDS = 60.0
MAX_AGE_DURING_OPERATION_SECONDS = 1.0
MAX_LOOKS = 16
"""So many looks of different scope are kept; a call has one scope, or one for each VM or GPU that it names."""


class _Look(NamedTuple):
    snapshot: Snapshot
    time: float
    generation: int
    state: OperationsState


class _Reader(local):
    """What the reader in this thread has used. `oldest`: the time of the oldest look, None if it used none."""

    oldest: float | None = None
    is_fresh: bool = False


class Looks:
    """Looks at one host, for reader threads. Implements `ports.host.Looks`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._generation = 0
        self._looks: dict[Hashable, _Look] = {}
        self._reader = _Reader()

    def drop(self) -> None:
        """Use no look any more that began before now; from any thread."""
        with self._lock:
            self._generation += 1

    def begin_read(self, *, fresh: bool = False) -> None:
        """Begin a read in this thread. `fresh`: it looks again."""
        self._reader.oldest, self._reader.is_fresh = None, fresh

    @property
    def age_seconds(self) -> float:
        """The age of the oldest look that the read in this thread used; 0 without one."""
        return 0.0 if self._reader.oldest is None else max(0.0, self._clock.monotonic() - self._reader.oldest)

    def look(self, scope: Hashable, state: OperationsState, observe: Callable[[], Snapshot]) -> Snapshot:
        """Return a snapshot of this scope: one of before, if nothing has changed, or a new one.

        Readers of the same scope at once look once each: a slow host must not hold up all of them.
        """
        now = self._clock.monotonic()
        with self._lock:
            generation, known = self._generation, self._looks.get(scope)
        if known is not None and not self._reader.is_fresh and known[2:] == (generation, state):
            limit = MAX_AGE_DURING_OPERATION_SECONDS if state.running else MAX_AGE_SECONDS
            if now - known.time <= limit:
                return self._used(known)
        look = _Look(observe(), now, generation, state)
        with self._lock:
            self._looks.pop(scope, None)
            self._looks[scope] = look
            while len(self._looks) > MAX_LOOKS:
                del self._looks[next(iter(self._looks))]
        return self._used(look)

    def _used(self, look: _Look) -> Snapshot:
        oldest = self._reader.oldest
        self._reader.oldest = look.time if oldest is None else min(oldest, look.time)
        return look.snapshot
