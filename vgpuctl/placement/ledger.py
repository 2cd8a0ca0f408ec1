# SPDX-License-Identifier: Apache-2.0
"""What a fleet's framebuffer does over time: allocated, stranded, or free on GPUs locked to another size.

Stranded is what stays free on a GPU that is filled up with profiles of the demand as well as can be: none of them can
use it while what is on the GPU stays. A GPU is locked when something else on it keeps a profile of the demand away that
its free framebuffer would hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.placement.fleet import Fleet, Group
from vgpuctl.value import Value

MOMENTS = 240
"""How many points the line over time has."""
OTHERS = ""
"""Stands for the profiles of vGPUs that were on a GPU before."""


class Totals(Value):
    """Sums over the fleet at one time, or their averages over time; `busy_gpus` have a vGPU."""

    allocated_mib: float
    stranded_mib: float
    locked_gpus: float
    busy_gpus: float


class Moment(Value):
    """The totals at a time in seconds."""

    seconds: float
    totals: Totals


class Ledger:
    """Sums that follow a fleet: told of every vGPU that comes or goes, and of the time before each."""

    def __init__(self, fleet: Fleet, used_mib: Sequence[int], begin: float, end: float) -> None:
        """`used_mib`: the framebuffer of what is on each GPU already."""
        self._fleet = fleet
        self._free = [fleet.kind(fleet.group_of(n)).framebuffer_mib - mib for n, mib in enumerate(used_mib)]
        self._on: list[dict[str, int]] = [{OTHERS: fleet.vgpus(n)} if fleet.vgpus(n) else {} for n in range(len(fleet))]
        self._share = [(0, 0, 0)] * len(fleet)
        self._fillings = [kind.filling({p: float(mib) for p, mib in kind.sizes.items()}) for kind in fleet.kinds]
        self._locked: dict[tuple[Group, int, frozenset[str]], int] = {}
        self._now = [sum(used_mib), 0, 0, 0]
        self._sums = [0.0, 0.0, 0.0, 0.0]
        self.peak_mib = self._now[0]
        self._time = begin
        self._length = end - begin
        step = self._length / (MOMENTS - 1)
        self._due = [begin + step * n for n in range(MOMENTS - 1)] + [end] if step else [end]
        self.moments: list[Moment] = []
        for gpu in range(len(fleet)):
            self._count(gpu)

    def until(self, seconds: float) -> None:
        """Let time pass; everything before this instant was told."""
        while len(self.moments) < len(self._due) and self._due[len(self.moments)] < seconds:
            self._note()
        passed = seconds - self._time
        if passed > 0:
            self._sums = [total + value * passed for total, value in zip(self._sums, self._now, strict=True)]
            self._time = seconds

    def close(self, end: float) -> None:
        """Let time pass until the end, and note how it stands then."""
        self.until(end)
        while len(self.moments) < len(self._due):
            self._note()

    def mean(self) -> Totals:
        """Return the averages over the time that passed; of none, how it stands."""
        return Totals(*(total / self._length for total in self._sums)) if self._length else Totals(*self._now)

    def came(self, gpu: int, profile: str, mib: int) -> None:
        """Count a vGPU that was put on a GPU."""
        self._on[gpu][profile] = self._on[gpu].get(profile, 0) + 1
        self._changed(gpu, mib)
        self.peak_mib = max(self.peak_mib, self._now[0])

    def went(self, gpu: int, profile: str, mib: int) -> None:
        """Count a vGPU that was taken from a GPU."""
        self._on[gpu][profile] -= 1
        if not self._on[gpu][profile]:
            del self._on[gpu][profile]
        self._changed(gpu, -mib)

    def held_back(self, profile: str) -> bool:
        """Say whether a GPU that offers the profile has the framebuffer for it free."""
        kinds = self._fleet.kinds
        need = [kind.sizes.get(profile) for kind in kinds]
        for gpu, free in enumerate(self._free):
            mib = need[self._fleet.group_of(gpu).kind]
            if mib is not None and free >= mib:
                return True
        return False

    def _note(self) -> None:
        self.moments.append(Moment(self._due[len(self.moments)], Totals(*self._now)))

    def _changed(self, gpu: int, mib: int) -> None:
        self._free[gpu] -= mib
        self._now[0] += mib
        self._count(gpu)

    def _count(self, gpu: int) -> None:
        group, free, on = self._fleet.group_of(gpu), self._free[gpu], self._on[gpu]
        stranded = max(0, free - round(self._fillings[group.kind].worth(group.state)))
        new = (stranded, self._lock(group, free, frozenset(on)) if on else 0, 1 if on else 0)
        for number, (before, after) in enumerate(zip(self._share[gpu], new, strict=True), 1):
            self._now[number] += after - before
        self._share[gpu] = new

    def _lock(self, group: Group, free: int, on: frozenset[str]) -> int:
        key = (group, free, on)
        known = self._locked.get(key)
        if known is None:
            kind = self._fleet.kind(group)
            away = [p for p, mib in kind.sizes.items() if mib <= free and on != {p} and not kind.moves(group.state, p)]
            known = self._locked[key] = 1 if away else 0
        return known
