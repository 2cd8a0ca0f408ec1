# SPDX-License-Identifier: Apache-2.0
"""How often things happened since the agent started, for the metrics: Xids, crashes, libvirt's returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING

from vgpuctl.value import EMPTY_MAPPING, Value

if TYPE_CHECKING:
    from vgpuctl.ports.system import Clock


MAX_XIDS = 500
"""So many kinds of Xids, by GPU and number, are counted: each is two series. NVIDIA's list has some 150 numbers."""


class Count(Value):
    """How often something happened, and when the last time, in seconds since 1970."""

    number: int
    last: float


class CountsResult(Value):
    """What was counted. `xids` by GPU and Xid, `crashes` by the VM's uuid; `started`: when each VM started last."""

    xids: Mapping[tuple[str, int], Count] = EMPTY_MAPPING
    crashes: Mapping[str, Count] = EMPTY_MAPPING
    started: Mapping[str, float] = EMPTY_MAPPING
    libvirt_reconnects: int = 0
    dropped_events: int = 0


class EventCounts:
    """Counts what the agent reports. Its methods may be called from any thread, and never wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._xids: dict[tuple[str, int], Count] = {}
        self._crashes: dict[str, Count] = {}
        self._started: dict[str, float] = {}
        self._totals: Counter[str] = Counter()

    def note_xid(self, gpu: str, number: int) -> None:
        """Count an error that NVIDIA's driver logged."""
        with self._lock:
            if (gpu, number) in self._xids or len(self._xids) < MAX_XIDS:
                self._xids[gpu, number] = self._next(self._xids.get((gpu, number)))

    def note_crash(self, vm_uuid: str) -> None:
        """Count a crash of a VM."""
        with self._lock:
            self._crashes[vm_uuid] = self._next(self._crashes.get(vm_uuid))

    def note_start(self, vm_uuid: str) -> None:
        """Note that a VM starts now."""
        with self._lock:
            self._started[vm_uuid] = self._clock.now()

    def note_reconnect(self) -> None:
        """Count that libvirt came back."""
        with self._lock:
            self._totals["libvirt"] += 1

    def note_dropped(self, number: int) -> None:
        """Count events that a reader lost because it was too slow."""
        with self._lock:
            self._totals["dropped"] += number

    def forget_vms(self, kept: frozenset[str]) -> None:
        """Forget what was counted of VMs that do not exist any more; `kept`: the uuids of those that do."""
        with self._lock:
            for counts in (self._crashes, self._started):
                for uuid in counts.keys() - kept:
                    del counts[uuid]

    def read(self) -> CountsResult:
        """Return what was counted until now."""
        with self._lock:
            totals = self._totals
            return CountsResult(
                dict(self._xids), dict(self._crashes), dict(self._started), totals["libvirt"], totals["dropped"]
            )

    def _next(self, count: Count | None) -> Count:
        return Count(1 if count is None else count.number + 1, self._clock.now())
