# SPDX-License-Identifier: Apache-2.0
"""GPUs on which each vGPU covers neighbouring slices, or takes units of pools, or both.

MIG's GPU instances and mixed-size vGPUs cover slices and may start only where the driver says; the only set of media
engines, the VFs of a GPU and the units of an mdev parent are pools. A state is one number: a bit for each slice that is
covered, and above them a count for each pool. What a vGPU takes is added to it, and subtracted when it goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from vgpuctl.placement.intervals import Intervals, Piece
from vgpuctl.placement.kind import Filling, Move, State
from vgpuctl.placement.together import Shape, Together

_COUNT_BITS = 16


class Takes(NamedTuple):
    """What one vGPU of a profile takes: `size` slices from one of `starts` on, and units of pools by their number."""

    starts: tuple[int, ...] = ()
    size: int = 0
    units: tuple[tuple[int, int], ...] = ()


class Slots:
    """A kind whose state is the slices that are covered and what is used of each pool."""

    def __init__(
        self,
        name: str,
        framebuffer_mib: int,
        sizes: Mapping[str, int],
        takes: Mapping[str, Takes],
        *,
        slices: int = 0,
        pools: Sequence[int] = (),
    ) -> None:
        """`slices`: how many the GPU has; `pools`: the units of each pool."""
        self.name = name
        self.framebuffer_mib = framebuffer_mib
        self.sizes = dict(sizes)
        self.empty: State = 0
        self._slices = slices
        self._pools = tuple(pools)
        self._places = {profile: self._places_of(what) for profile, what in takes.items()}
        self._known_places = {profile: frozenset(places) for profile, places in self._places.items()}
        self._units = {profile: what.units for profile, what in takes.items()}
        self._shapes = {p: (what.size, tuple(sorted(what.starts))) for p, what in takes.items() if what.starts}
        self._takes = dict(takes)
        self._moves: dict[tuple[State, str], tuple[Move, ...]] = {}
        self._left: dict[tuple[State, str], int] = {}
        self._together: dict[int, Together] = {}

    def _places_of(self, what: Takes) -> tuple[int, ...]:
        """Return what is added to a state for each place, the lowest first."""
        units = sum(number << self._shift(pool) for pool, number in what.units)
        covered = [((1 << what.size) - 1) << start for start in sorted(what.starts)] or [0]
        return tuple(mask + units for mask in covered)

    def _shift(self, pool: int) -> int:
        return self._slices + pool * _COUNT_BITS

    def takes(self, profile: str) -> Hashable:
        """See `Kind.takes`."""
        return self._takes.get(profile)

    def used(self, state: State, pool: int) -> int:
        """Return how many units of a pool are in use."""
        used: int = (state >> self._shift(pool)) & ((1 << _COUNT_BITS) - 1)
        return used

    def moves(self, state: State, profile: str) -> tuple[Move, ...]:
        """See `Kind.moves`."""
        key = (state, profile)
        known = self._moves.get(key)
        if known is None:
            known = self._moves[key] = self._find_moves(state, profile)
        return known

    def _find_moves(self, state: int, profile: str) -> tuple[Move, ...]:
        places = self._places.get(profile, ())
        if not self._most(state, profile):
            return ()
        covered = state & ((1 << self._slices) - 1)
        return tuple(Move(place, state + place) for place in places if not covered & place)

    def everywhere(self, state: State, profile: str) -> tuple[Move, ...]:
        """See `Kind.everywhere`."""
        return self.moves(state, profile)

    def at(self, state: State, profile: str, place: int) -> State | None:
        """See `Kind.at`."""
        if state & place & ((1 << self._slices) - 1):
            return None
        return state + place if place in self._known_places.get(profile, ()) and self._most(state, profile) else None

    def without(self, state: State, profile: str, place: int) -> State:
        """See `Kind.without`."""
        return state - place

    def left(self, state: State, profile: str) -> int:
        """See `Kind.left`. Places of one size: the lowest that is free, always, leaves the most."""
        key = (state, profile)
        known = self._left.get(key)
        if known is None:
            most = self._most(state, profile)
            known = self._left[key] = min(most, self._apart(state, profile)) if profile in self._shapes else most
        return known

    def _most(self, state: int, profile: str) -> int:
        """Return for how many more of a profile there are units in the pools."""
        if profile not in self._units:
            return 0
        left = [(self._pools[pool] - self.used(state, pool)) // n for pool, n in self._units[profile]]
        return max(0, min(left)) if left else self._slices

    def _apart(self, state: int, profile: str) -> int:
        """Return how many of the free places of a profile can be had at once."""
        number, covered, all_of = 0, state, (1 << self._slices) - 1
        for place in self._places[profile]:
            mask = place & all_of
            if not covered & mask:
                number, covered = number + 1, covered | mask
        return number

    def fits(self, state: State, wanted: Mapping[str, int]) -> bool:
        """See `Kind.fits`. What is used of the pools does not depend on the places."""
        some = {p: n for p, n in wanted.items() if n}
        if any(self.left(state, p) < n for p, n in some.items()):
            return False
        units: Counter[int] = Counter()
        shapes: Counter[Shape] = Counter()
        for profile, number in some.items():
            units.update({pool: n * number for pool, n in self._units[profile]})
            if profile in self._shapes:
                shapes[self._shapes[profile]] += number
        if any(self.used(state, pool) + n > self._pools[pool] for pool, n in units.items()):
            return False
        free = ~state & ((1 << self._slices) - 1)
        together = self._together.get(free) or self._together.setdefault(free, Together(free))
        return together.fit(shapes)

    def filling(self, worth: Mapping[str, float]) -> Filling:
        """See `Kind.filling`."""
        pieces = [self._piece(p, what, worth[p]) for p, what in self._takes.items() if worth.get(p, 0) > 0]
        return Intervals(pieces, self._slices, self._pools, _COUNT_BITS)

    def _piece(self, profile: str, what: Takes, worth: float) -> Piece:
        units = dict(what.units)
        counts = tuple(units.get(pool, 0) for pool in range(len(self._pools)))
        return Piece(profile, what.size if what.starts else 0, what.starts, counts, worth)
