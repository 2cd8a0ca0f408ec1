# SPDX-License-Identifier: Apache-2.0
"""The agent's snapshots of its host: what was read a moment ago serves the next reader, until something changed.

A snapshot is not used any more after an event or an operation of this agent (`drop`), after an operation of any vgpuctl
on this host began or ended, and after a minute. While an operation runs, it is used for a second only. Operations never
use these snapshots.
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
MAX_SNAPSHOTS = 16
"""So many snapshots of different scope are kept; a call has one scope, or one for each VM or GPU that it names."""


class _Entry(NamedTuple):
    snapshot: Snapshot
    time: float
    generation: int
    state: OperationsState


class _Reader(local):
    """What the reader in this thread has used. `oldest`: the time of its oldest snapshot, None if it used none."""

    oldest: float | None = None
    is_fresh: bool = False


class SnapshotCache:
    """Snapshots of one host, for reader threads. Implements `ports.host.Snapshots`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._generation = 0
        self._entries: dict[Hashable, _Entry] = {}
        self._reader = _Reader()

    def drop(self) -> None:
        """Use no snapshot any more that was begun before now; from any thread."""
        with self._lock:
            self._generation += 1

    def begin_read(self, *, fresh: bool = False) -> None:
        """Begin a read in this thread. `fresh`: it uses no earlier snapshot."""
        self._reader.oldest, self._reader.is_fresh = None, fresh

    @property
    def age_seconds(self) -> float:
        """The age of the oldest snapshot that the read in this thread used; 0 without one."""
        return 0.0 if self._reader.oldest is None else max(0.0, self._clock.monotonic() - self._reader.oldest)

    def get(self, scope: Hashable, state: OperationsState, observe: Callable[[], Snapshot]) -> Snapshot:
        """Return a snapshot of this scope: an earlier one, if nothing has changed, or a new one.

        Readers of the same scope at once observe once each: a slow host must not hold up all of them.
        """
        now = self._clock.monotonic()
        with self._lock:
            generation, known = self._generation, self._entries.get(scope)
        if known is not None and not self._reader.is_fresh and known[2:] == (generation, state):
            limit = MAX_AGE_DURING_OPERATION_SECONDS if state.running else MAX_AGE_SECONDS
            if now - known.time <= limit:
                return self._use(known)
        entry = _Entry(observe(), now, generation, state)
        with self._lock:
            self._entries.pop(scope, None)
            self._entries[scope] = entry
            while len(self._entries) > MAX_SNAPSHOTS:
                del self._entries[next(iter(self._entries))]
        return self._use(entry)

    def _use(self, entry: _Entry) -> Snapshot:
        oldest = self._reader.oldest
        self._reader.oldest = entry.time if oldest is None else min(oldest, entry.time)
        return entry.snapshot
