# SPDX-License-Identifier: Apache-2.0
"""GPUs on which each vGPU covers adjacent slices, or takes units of pools, or both.

MIG's GPU instances and mixed-size vGPUs cover slices and may start only where the driver allows. Pools are: the only
set of media engines, the VFs of a GPU, and the units of an mdev parent. A state is one number: a bit for each covered
slice, and above them a count for each pool. Placing a vGPU adds its value to the state; removing it subtracts the
value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from vgpuctl.gpu.gpu_kind import AlikeKind, Columns, Placement, State

if TYPE_CHECKING:
    from vgpuctl.solver import Program

COUNT_BITS = 16
MAX_UNITS = (1 << COUNT_BITS) - 1
"""The most units of a pool."""


class Footprint(NamedTuple):
    """What one vGPU of a profile takes: `size` slices from one of `starts`, and units of pools by pool number."""

    starts: tuple[int, ...] = ()
    size: int = 0
    units: tuple[tuple[int, int], ...] = ()


class SliceKind(AlikeKind):
    """A kind whose state is the covered slices and the used units of each pool."""

    def __init__(
        self,
        name: str,
        framebuffer_mib: int,
        sizes: Mapping[str, int],
        footprints: Mapping[str, Footprint],
        *,
        slices: int = 0,
        pools: Sequence[int] = (),
    ) -> None:
        """`slices`: how many the GPU has; `pools`: the units of each pool."""
        super().__init__(name, framebuffer_mib, tuple(sizes.items()), tuple(footprints.items()), slices, tuple(pools))
        self.name = name
        self.framebuffer_mib = framebuffer_mib
        self.sizes = dict(sizes)
        self.empty: State = 0
        self.slices = slices
        self.pools = tuple(pools)
        self._places = {profile: self._places_of(footprint) for profile, footprint in footprints.items()}
        self._place_set = {profile: frozenset(places) for profile, places in self._places.items()}
        self._units = {profile: footprint.units for profile, footprint in footprints.items()}
        self._shapes = {
            p: (footprint.size, tuple(sorted(footprint.starts)))
            for p, footprint in footprints.items()
            if footprint.starts
        }
        self.footprints = dict(footprints)
        self._placements_cache: dict[tuple[State, str], tuple[Placement, ...]] = {}
        self._remaining_cache: dict[tuple[State, str], int] = {}
        self._run_cache: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        self._together: dict[int, Together] = {}

    def _places_of(self, footprint: Footprint) -> tuple[int, ...]:
        """Return the value that each place adds to a state, the lowest first."""
        units = sum(count << self._shift(pool) for pool, count in footprint.units)
        covered = [((1 << footprint.size) - 1) << start for start in sorted(footprint.starts)] or [0]
        return tuple(mask + units for mask in covered)

    def _shift(self, pool: int) -> int:
        return self.slices + pool * COUNT_BITS

    def footprint(self, profile: str) -> Hashable:
        """See `GpuKind.footprint`."""
        return self.footprints.get(profile)

    def units_in_use(self, state: State, pool: int) -> int:
        """Return how many units of a pool are in use."""
        used: int = (state >> self._shift(pool)) & ((1 << COUNT_BITS) - 1)
        return used

    def placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """See `GpuKind.placements`."""
        key = (state, profile)
        cached = self._placements_cache.get(key)
        if cached is None:
            cached = self._placements_cache[key] = self._find_placements(state, profile)
        return cached

    def _find_placements(self, state: int, profile: str) -> tuple[Placement, ...]:
        places = self._places.get(profile, ())
        if not self._count_by_pools(state, profile):
            return ()
        covered = state & ((1 << self.slices) - 1)
        return tuple(Placement(place, state + place) for place in places if not covered & place)

    def all_placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """See `GpuKind.all_placements`."""
        return self.placements(state, profile)

    def add(self, state: State, profile: str, place: int) -> State | None:
        """See `GpuKind.add`."""
        if state & place & ((1 << self.slices) - 1):
            return None
        return (
            state + place
            if place in self._place_set.get(profile, ()) and self._count_by_pools(state, profile)
            else None
        )

    def remove(self, state: State, profile: str, place: int) -> State:
        """See `GpuKind.remove`."""
        return state - place

    def count_remaining(self, state: State, profile: str) -> int:
        """See `GpuKind.count_remaining`. Places of one size: always taking the lowest free place fits the most."""
        key = (state, profile)
        cached = self._remaining_cache.get(key)
        if cached is None:
            counts = self.count_each(state, (profile,)) if profile in self._units else [0]
            cached = self._remaining_cache[key] = counts[0]
        return cached

    def count_each(self, state: State, profiles: tuple[str, ...]) -> list[int]:
        """See `GpuKind.count_each`. Free slices come in runs, and states of one GPU share most of their runs."""
        counts = [0] * len(profiles)
        free = ~state & ((1 << self.slices) - 1)
        while free:
            run = free & ~(free + (free & -free))
            counts = list(map(add, counts, self._count_in_run(run, profiles)))
            free ^= run
        limits: dict[object, int] = {}
        for number, profile in enumerate(profiles):
            units = self._units[profile]
            limit = limits.get(units)
            if limit is None:
                limit = limits[units] = self._count_by_pools(state, profile)
            counts[number] = min(counts[number], limit) if profile in self._shapes else limit
        return counts

    def _count_in_run(self, run: int, profiles: tuple[str, ...]) -> list[int]:
        """Return how many places of each profile can be taken at once where only these slices are free."""
        counts = self._run_cache.get((run, profiles))
        if counts is None:
            begin, end = (run & -run).bit_length() - 1, run.bit_length()
            shapes = [self._shapes.get(profile) for profile in profiles]
            counts = [0 if shape is None else _count_in_interval(shape, begin, end) for shape in shapes]
            self._run_cache[run, profiles] = counts
        return counts

    def _count_by_pools(self, state: int, profile: str) -> int:
        """Return for how many more vGPUs of a profile the pools have units."""
        if profile not in self._units:
            return 0
        counts = [(self.pools[pool] - self.units_in_use(state, pool)) // n for pool, n in self._units[profile]]
        return max(0, min(counts)) if counts else self.slices

    def fits(self, state: State, requested: Mapping[str, int]) -> bool:
        """See `GpuKind.fits`. The used units of the pools do not depend on the places."""
        counts = {p: n for p, n in requested.items() if n}
        if any(self.count_remaining(state, p) < n for p, n in counts.items()):
            return False
        units: Counter[int] = Counter()
        shapes: Counter[Shape] = Counter()
        for profile, count in counts.items():
            units.update({pool: n * count for pool, n in self._units[profile]})
            if profile in self._shapes:
                shapes[self._shapes[profile]] += count
        if any(self.units_in_use(state, pool) + n > self.pools[pool] for pool, n in units.items()):
            return False
        free = ~state & ((1 << self.slices) - 1)
        together = self._together.get(free) or self._together.setdefault(free, Together(free))
        return together.fit(shapes)

    def add_rows(self, program: Program, state: State, columns: Columns, number: int) -> None:
        """See `GpuKind.add_rows`: a slice is covered once, and no pool has more units in use than it has."""
        covering: dict[int, dict[int, float]] = {}
        used: list[dict[int, float]] = [{} for _ in self.pools]
        for (profile, place), same in columns.items():
            footprint = self.footprints[profile]
            covered = place & ((1 << self.slices) - 1)
            lowest = (covered & -covered).bit_length() - 1
            for column in same:
                for covered_slice in range(lowest, lowest + footprint.size) if covered else ():
                    covering.setdefault(covered_slice, {})[column] = 1
                for pool, units in footprint.units:
                    used[pool][column] = units
        for row in covering.values():
            program.add_row(row, upper=number)
        for pool, row in enumerate(used):
            program.add_row(row, upper=number * max(0, self.pools[pool] - self.units_in_use(state, pool)))


def count_disjoint(places: Iterable[int], covered: int = 0) -> int:
    """Return how many of these places of one size can be taken at once: always the lowest that is free fits the most.

    `places`: a bit for each slice, the lowest first. `covered`: the slices that are taken.
    """
    count = 0
    for place in places:
        if not covered & place:
            count, covered = count + 1, covered | place
    return count


def _count_in_interval(shape: Shape, begin: int, end: int) -> int:
    """Return how many places of a shape can be taken at once in an interval of slices: the lowest, then the next."""
    size, starts = shape
    count, index = 0, bisect_left(starts, begin)
    while index < len(starts) and starts[index] + size <= end:
        count, index = count + 1, bisect_left(starts, starts[index] + size, index + 1)
    return count


Shape = tuple[int, tuple[int, ...]]
"""What a vGPU covers: so many slices, from one of these on, the lowest first."""

_Numbers = tuple[tuple[int, int], ...]
"""So many of each shape, by its number."""


class Together:
    """What fits in the free slices of one state; it remembers what was asked.

    Filled from left to right, vGPUs in whatever order, only where the last one ends counts for those to come. So there
    is one answer for each number of each shape: how few slices they need. All that are asked for at once cover no
    more slices than are free, which keeps these few.
    """

    def __init__(self, free: int) -> None:
        """`free`: a bit for each slice that is free."""
        self._free = free
        self._shapes: dict[Shape, int] = {}
        self._sizes: list[int] = []
        self._starts: list[list[int]] = []
        self._ends: dict[_Numbers, int | None] = {(): 0}

    def fit(self, wanted: Mapping[Shape, int]) -> bool:
        """Say whether so many of each shape fit together, exactly."""
        if sum(number * size for (size, _), number in wanted.items()) > self._free.bit_count():
            return False
        return self._end(tuple(sorted((self._number(shape), n) for shape, n in wanted.items() if n))) is not None

    def _number(self, shape: Shape) -> int:
        """Return the number of a shape, with the free places that it has."""
        known = self._shapes.get(shape)
        if known is None:
            known = self._shapes[shape] = len(self._shapes)
            size, starts = shape
            mask = (1 << size) - 1
            self._sizes.append(size)
            self._starts.append([start for start in starts if (self._free >> start) & mask == mask])
        return known

    def _end(self, numbers: _Numbers) -> int | None:
        """Return the lowest slice behind all of these when they are packed to the left; None: they do not fit."""
        if numbers not in self._ends:
            ends = [self._with_last(numbers, n) for n in range(len(numbers))]
            self._ends[numbers] = min((end for end in ends if end is not None), default=None)
        return self._ends[numbers]

    def _with_last(self, numbers: _Numbers, last: int) -> int | None:
        """Return the same when one of this shape is the last."""
        shape, number = numbers[last]
        before = self._end((*numbers[:last], *(((shape, number - 1),) if number > 1 else ()), *numbers[last + 1 :]))
        if before is None:
            return None
        starts = self._starts[shape]
        at = bisect_left(starts, before)
        return starts[at] + self._sizes[shape] if at < len(starts) else None
