# SPDX-License-Identifier: Apache-2.0
"""The best filling of a GPU of slices: vGPUs that cover neighbouring slices, each worth something.

Free slices come in runs, and a run is filled without regard to the others: weighted interval scheduling, from left to
right. Where that would take more of a pool than is left, the pools are counted along; then, too, the answer is exact.
Where all take one unit of one pool, as of a GPU's virtual functions, that is one number to count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vgpuctl.gpu.few import Few, Place
from vgpuctl.gpu.gpu_kind import State


class Piece(NamedTuple):
    """A profile that is worth something: its size in slices, where it may start, units of each pool, and its worth."""

    profile: str
    size: int
    starts: tuple[int, ...]
    units: tuple[int, ...]
    worth: float


class _Best(NamedTuple):
    worth: float
    profiles: tuple[str, ...]


class _Row(NamedTuple):
    """The best fillings of the slices from one on up to each end from that slice on, as far as needed.

    `lasts`: what ends there; None: the slice before that end stays free. `numbers`: how many vGPUs such a filling has.
    """

    worths: list[float]
    lasts: list[Place | None]
    numbers: list[int]

    def profiles(self, start: int, end: int) -> tuple[str, ...]:
        """Return the profiles of the best filling, from the slice on with which the row begins."""
        found: list[str] = []
        while end > start:
            last = self.lasts[end - start]
            if last is None:
                end -= 1
            else:
                end, _, profile = last
                found.append(profile)
        return tuple(found)


_NOTHING = _Best(0.0, ())


class Intervals:
    """See `Filling`. A state is read as `Slots` writes it: covered slices, then what is used of each pool."""

    def __init__(self, pieces: Sequence[Piece], slices: int, pools: Sequence[int], count_bits: int) -> None:
        self._pieces = {piece.profile: piece for piece in pieces}
        self._all = tuple(self._pieces)
        self._slices = slices
        self._pools = tuple(pools)
        self._count_bits = count_bits
        self._rows: dict[tuple[str, ...], dict[int, _Row]] = {}
        self._ends: dict[tuple[str, ...], list[list[Place]]] = {}
        self._starts: dict[tuple[str, ...], list[list[tuple[int, Piece]]]] = {}
        self._counted: dict[State, _Best] = {}
        self._one_each = len(self._pools) == 1 and all(p.size and p.units == (1,) for p in pieces)
        self._few: Few | None = None

    def value(self, state: State) -> float:
        """See `Filling.worth`."""
        if self._pools and not self._one_each:
            return self._best(state).worth
        rows = self._rows.setdefault(self._all, {})
        worth, number, free = 0.0, 0, ~state & ((1 << self._slices) - 1)
        while free:
            low = free & -free
            carried = free + low
            start, end = low.bit_length() - 1, (carried & -carried).bit_length() - 1
            row = rows.get(start)
            if row is None or len(row.worths) <= end - start:
                row = self._row(start, end, self._all)
            worth, number, free = worth + row.worths[end - start], number + row.numbers[end - start], free & carried
        if self._pools and number > (left := self._pools[0] - (state >> self._slices)):
            return self._at_most(left, ~state & ((1 << self._slices) - 1))
        return worth

    def _at_most(self, most: int, free: int) -> float:
        """Return what free slices are worth with at most so many vGPUs."""
        if self._few is None:
            self._few = Few(self._ends[self._all])
        return self._few.worth(_runs(free), max(0, most))

    def counts(self, state: State) -> Mapping[str, int]:
        """See `Filling.counts`."""
        return Counter(self._best(state).profiles)

    def _best(self, state: int) -> _Best:
        free = ~state & ((1 << self._slices) - 1)
        if not self._pools:
            return self._by_runs(free, self._all)
        used, mask = state >> self._slices, (1 << self._count_bits) - 1
        left = tuple(most - ((used >> (i * self._count_bits)) & mask) for i, most in enumerate(self._pools))
        able = tuple(p for p, piece in self._pieces.items() if all(map(int.__le__, piece.units, left)))
        if all(self._pieces[p].size for p in able):
            found = self._by_runs(free, able)
            if all(map(int.__le__, self._units(found.profiles), left)):
                return found
        known = self._counted.get(state)
        if known is None:
            known = self._counted[state] = self._by_pools(free, able, left)
        return known

    def _units(self, profiles: Sequence[str]) -> tuple[int, ...]:
        """Return how many units of each pool these take."""
        taken = [self._pieces[p].units for p in profiles]
        return tuple(sum(units[pool] for units in taken) for pool in range(len(self._pools)))

    def _by_runs(self, free: int, able: tuple[str, ...]) -> _Best:
        """Fill each run by itself, as if no pool had an end."""
        worth, profiles = _NOTHING
        for start, end in _runs(free):
            row = self._row(start, end, able)
            worth, profiles = worth + row.worths[end - start], profiles + row.profiles(start, end)
        return _Best(worth, profiles)

    def _row(self, start: int, end: int, able: tuple[str, ...]) -> _Row:
        """Return the row that begins at a slice, up to an end at least."""
        ending = self._ends.get(able) or self._ends.setdefault(able, self._ending(able))
        row = self._rows.setdefault(able, {}).setdefault(start, _Row([0.0], [None], [0]))
        worths, lasts, numbers = row
        for places in ending[start + len(worths) : end + 1]:
            best, last, number = worths[-1], None, numbers[-1]
            for place in places:
                begin, worth, _ = place
                if begin >= start and worths[begin - start] + worth > best:
                    best, last, number = worths[begin - start] + worth, place, numbers[begin - start] + 1
            worths.append(best)
            lasts.append(last)
            numbers.append(number)
        return row

    def _ending(self, able: tuple[str, ...]) -> list[list[Place]]:
        """Return for each slice the places that end before it, and the profile that is worth most there."""
        most: dict[tuple[int, int], Piece] = {}
        for piece in (self._pieces[p] for p in able):
            for begin in piece.starts:
                place = (begin, begin + piece.size)
                if place not in most or piece.worth > most[place].worth:
                    most[place] = piece
        ending: list[list[Place]] = [[] for _ in range(self._slices + 1)]
        for (begin, end), piece in most.items():
            ending[end].append((begin, piece.worth, piece.profile))
        return ending

    def _by_pools(self, free: int, able: tuple[str, ...], left: tuple[int, ...]) -> _Best:
        """Fill from left to right, and count what is left of each pool; profiles without slices come at the end."""
        starting = self._starts.get(able) or self._starts.setdefault(able, self._starting(able))
        afterwards: list[dict[tuple[int, ...], _Best]] = [{} for _ in range(self._slices + 1)]

        def best(start: int, left: tuple[int, ...]) -> _Best:
            known = afterwards[start].get(left)
            if known is None:
                known = best(start + 1, left) if start < self._slices else _NOTHING
                for covers, piece in starting[start]:
                    if not covers & ~free and all(map(int.__le__, piece.units, left)):
                        rest = best(start + piece.size, tuple(map(int.__sub__, left, piece.units)))
                        if rest.worth + piece.worth > known.worth:
                            known = _Best(rest.worth + piece.worth, (piece.profile, *rest.profiles))
                afterwards[start][left] = known
            return known

        return best(0, left)

    def _starting(self, able: tuple[str, ...]) -> list[list[tuple[int, Piece]]]:
        """Return for each slice the pieces that may start there and what they cover; behind the last those without."""
        starting: list[list[tuple[int, Piece]]] = [[] for _ in range(self._slices + 1)]
        for piece in (self._pieces[p] for p in able):
            for start in piece.starts if piece.size else (self._slices,):
                starting[start].append((((1 << piece.size) - 1) << start, piece))
        return starting


def _runs(free: int) -> Iterator[tuple[int, int]]:
    """Yield each run of free slices: its first, and the one after its last."""
    while free:
        low = free & -free
        carried = free + low
        yield low.bit_length() - 1, (carried & -carried).bit_length() - 1
        free &= carried
