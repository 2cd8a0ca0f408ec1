# SPDX-License-Identifier: Apache-2.0
"""The use of a fleet's framebuffer over time: allocated, stranded, or free on GPUs locked to another size.

Stranded framebuffer stays free on a GPU after it is filled up with requested profiles as well as possible: none of them
can use it while the existing vGPUs stay. A GPU is locked when an existing vGPU keeps out a requested profile that would
fit into its free framebuffer.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.value import Value

SAMPLE_COUNT = 240
"""The number of points in the timeline."""
EXISTING_VGPUS = ""
"""Used as the profile of vGPUs that are on a GPU at the beginning."""


class Totals(Value):
    """Sums over the fleet at one time, or their averages over time; `busy_gpus` have a vGPU."""

    allocated_mib: float
    stranded_mib: float
    locked_gpus: float
    busy_gpus: float


class Sample(Value):
    """The totals at a time in seconds."""

    seconds: float
    totals: Totals


class UsageLedger:
    """Sums over a fleet; the caller reports every arriving or departing vGPU, and the time before each."""

    def __init__(self, fleet: Fleet, used_mib: Sequence[int], begin: float, end: float) -> None:
        """`used_mib`: the framebuffer of the existing vGPUs on each GPU."""
        self._fleet = fleet
        self._free = [fleet.kind_of(fleet.group_of(n)).framebuffer_mib - mib for n, mib in enumerate(used_mib)]
        self._profiles_on_gpu: list[dict[str, int]] = [
            {EXISTING_VGPUS: fleet.vgpu_count(n)} if fleet.vgpu_count(n) else {} for n in range(len(fleet))
        ]
        self._share = [(0, 0, 0)] * len(fleet)
        self._fillings = [kind.best_filling({p: float(mib) for p, mib in kind.sizes.items()}) for kind in fleet.kinds]
        self._locked: dict[tuple[GpuGroup, int, frozenset[str]], int] = {}
        self._current = [sum(used_mib), 0, 0, 0]
        self._sums = [0.0, 0.0, 0.0, 0.0]
        self.peak_mib = self._current[0]
        self._time = begin
        self._length = end - begin
        step = self._length / (SAMPLE_COUNT - 1)
        self._sample_times = [begin + step * n for n in range(SAMPLE_COUNT - 1)] + [end] if step else [end]
        self.samples: list[Sample] = []
        for gpu in range(len(fleet)):
            self._recount_gpu(gpu)

    def advance_to(self, seconds: float) -> None:
        """Advance the time; everything before this instant has been reported."""
        while len(self.samples) < len(self._sample_times) and self._sample_times[len(self.samples)] < seconds:
            self._add_sample()
        passed = seconds - self._time
        if passed > 0:
            self._sums = [total + value * passed for total, value in zip(self._sums, self._current, strict=True)]
            self._time = seconds

    def close(self, end: float) -> None:
        """Advance the time to the end, and record the remaining samples."""
        self.advance_to(end)
        while len(self.samples) < len(self._sample_times):
            self._add_sample()

    def average(self) -> Totals:
        """Return the averages over the elapsed time; if no time has passed, the current values."""
        return Totals(*(total / self._length for total in self._sums)) if self._length else Totals(*self._current)

    def record_arrival(self, gpu: int, profile: str, mib: int) -> None:
        """Count a vGPU placed on a GPU."""
        self._profiles_on_gpu[gpu][profile] = self._profiles_on_gpu[gpu].get(profile, 0) + 1
        self._change_usage(gpu, mib)
        self.peak_mib = max(self.peak_mib, self._current[0])

    def record_departure(self, gpu: int, profile: str, mib: int) -> None:
        """Count a vGPU removed from a GPU."""
        self._profiles_on_gpu[gpu][profile] -= 1
        if not self._profiles_on_gpu[gpu][profile]:
            del self._profiles_on_gpu[gpu][profile]
        self._change_usage(gpu, -mib)

    def has_free_framebuffer(self, profile: str) -> bool:
        """Return whether a GPU that offers the profile has enough free framebuffer for it."""
        kinds = self._fleet.kinds
        needed_mib = [kind.sizes.get(profile) for kind in kinds]
        for gpu, free in enumerate(self._free):
            mib = needed_mib[self._fleet.group_of(gpu).kind_index]
            if mib is not None and free >= mib:
                return True
        return False

    def _add_sample(self) -> None:
        self.samples.append(Sample(self._sample_times[len(self.samples)], Totals(*self._current)))

    def _change_usage(self, gpu: int, mib: int) -> None:
        self._free[gpu] -= mib
        self._current[0] += mib
        self._recount_gpu(gpu)

    def _recount_gpu(self, gpu: int) -> None:
        group, free, profiles = self._fleet.group_of(gpu), self._free[gpu], self._profiles_on_gpu[gpu]
        stranded = max(0, free - round(self._fillings[group.kind_index].value(group.state)))
        shares = (stranded, self._is_locked(group, free, frozenset(profiles)) if profiles else 0, 1 if profiles else 0)
        for index, (before, after) in enumerate(zip(self._share[gpu], shares, strict=True), 1):
            self._current[index] += after - before
        self._share[gpu] = shares

    def _is_locked(self, group: GpuGroup, free: int, profiles: frozenset[str]) -> int:
        key = (group, free, profiles)
        cached = self._locked.get(key)
        if cached is None:
            kind = self._fleet.kind_of(group)
            kept_out = [
                p
                for p, mib in kind.sizes.items()
                if mib <= free and profiles != {p} and not kind.placements(group.state, p)
            ]
            cached = self._locked[key] = 1 if kept_out else 0
        return cached
