# SPDX-License-Identifier: Apache-2.0
"""Whether vGPUs of several profiles fit on many GPUs together, how, and which of them are too many when they do not.

Exact: each GPU in turn takes one of the largest sets that it can take of what is still to be placed; what is left over
and how many GPUs are left is tried once, for all profiles that take the same of every GPU. Above a number of tries the
answer is that it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from vgpuctl.placement.fleet import Fleet, GpuGroup

TRIES = 50_000
"""The most that one answer tries, of sets on one GPU and of (GPU, what is left): a second or two."""

Numbers = tuple[int, ...]


class Joint(NamedTuple):
    """`fits`: None when it is not known. `where`: of each GPU that is needed, what it takes."""

    fits: bool | None
    where: Mapping[int, Mapping[str, int]]


class TooMany(NamedTuple):
    """`few`: some of what was wanted, that does not fit. `fewest`: whether it is known that no fewer are too many."""

    few: Mapping[str, int]
    fewest: bool


def joint(fleet: Fleet, wanted: Mapping[str, int], tries: int = TRIES) -> Joint:
    """Say whether so many of each profile fit on the GPUs together."""
    search = _Search(fleet, wanted)
    search.tries = tries
    fits = search.fits(wanted)
    return Joint(fits, search.where(wanted) if fits else {})


def too_many(fleet: Fleet, wanted: Mapping[str, int], tries: int = TRIES) -> TooMany:
    """Return the fewest of what is wanted that do not fit, where not all of it does; the first by name of several.

    Where that would take more than so many tries, it is only a set of which each one less fits.
    """
    search = _Search(fleet, wanted)
    search.tries = tries
    alone = {p: total_left(fleet, p) + 1 for p in wanted if total_left(fleet, p) < wanted[p]}
    most = min(alone.values(), default=sum(wanted.values()))
    looked = 0
    for number in range(2, most):
        for few in _some_of(sorted(p for p in wanted if wanted[p]), wanted, number):
            looked += 1
            answer = search.fits(few) if looked <= tries // 100 else None
            if answer is None:
                search.tries = tries
                return _shrunk(search, wanted)
            if not answer:
                return TooMany(few, fewest=True)
    if alone:
        first = min(alone, key=lambda p: (alone[p], p))
        return TooMany({first: alone[first]}, fewest=True)
    return TooMany({p: n for p, n in wanted.items() if n}, fewest=True)


def total_left(fleet: Fleet, profile: str) -> int:
    """Return how many more of one profile fit on all GPUs together."""
    return sum(count * fleet.kind_of(group).count_remaining(group.state, profile) for group, count in fleet.groups())


def none_beside(fleet: Fleet, profile: str, others: Sequence[str]) -> tuple[str, ...]:
    """Return of which other profiles not one fits once as many of a profile are there as fit."""
    full = {group: fleet.kind_of(group).count_remaining(group.state, profile) for group, _ in fleet.groups()}

    def fits(other: str) -> bool:
        return any(fleet.kind_of(group).fits(group.state, {profile: n, other: 1}) for group, n in full.items())

    return tuple(other for other in others if other != profile and not fits(other))


def _some_of(profiles: list[str], wanted: Mapping[str, int], number: int) -> Iterator[dict[str, int]]:
    """Yield every choice of so many of what is wanted, the most of the first profile first."""
    if not number:
        yield {}
    if not number or not profiles:
        return
    first, rest = profiles[0], profiles[1:]
    for count in range(min(wanted[first], number), -1, -1):
        for others in _some_of(rest, wanted, number - count):
            yield {first: count, **others} if count else others


def _shrunk(search: _Search, wanted: Mapping[str, int]) -> TooMany:
    """Take away of one profile after the other as many as can go while what remains still does not fit."""
    few = {p: n for p, n in wanted.items() if n}
    for profile in sorted(few):
        least, most = 0, few[profile]
        while least < most:
            half = (least + most) // 2
            least, most = (least, half) if search.fits({**few, profile: half}) is False else (half + 1, most)
        few[profile] = most
    return TooMany({p: n for p, n in few.items() if n}, fewest=False)


class _Search:
    """What searches for some or all of these profiles know together.

    `tries`: how many more there may be. `_sorts`: the profiles by what they take; a set is so many of each sort.
    `_gpus`: in the order in which they are filled, those that are alike together.
    """

    def __init__(self, fleet: Fleet, profiles: Iterable[str]) -> None:
        self.tries = TRIES
        self._fleet = fleet
        self._profiles = tuple(sorted(profiles))
        sorts: dict[object, list[int]] = {}
        for n, profile in enumerate(self._profiles):
            alike = tuple((kind.footprint(profile), kind.sizes.get(profile)) for kind in fleet.kinds)
            sorts.setdefault(alike, []).append(n)
        self._sorts = tuple(sorts.values())
        self._sizes = [
            max((kind.sizes.get(self._profiles[sort[0]], 0) for kind in fleet.kinds), default=0) for sort in self._sorts
        ]
        self._gpus = sorted(range(len(fleet)), key=lambda gpu: (fleet.first_gpu(fleet.group_of(gpu)), gpu))
        self._failed: set[tuple[int, Numbers]] = set()
        self._sets: dict[tuple[GpuGroup, Numbers], list[Numbers]] = {}
        self._later = self._sums()

    def _sums(self) -> list[tuple[Numbers, float]]:
        """Return for each GPU how many of each sort it and all after it take, one sort at a time, and how many MiB."""
        worth = {
            self._profiles[n]: float(mib) for sort, mib in zip(self._sorts, self._sizes, strict=True) for n in sort
        }
        fillings = [kind.best_filling(worth) for kind in self._fleet.kinds]
        sums: list[tuple[Numbers, float]] = [((0,) * len(self._sorts), 0.0)]
        for gpu in reversed(self._gpus):
            group = self._fleet.group_of(gpu)
            numbers, mib = sums[-1]
            most = tuple(a + b for a, b in zip(numbers, self._left(group), strict=True))
            sums.append((most, mib + fillings[group.kind_index].value(group.state)))
        return sums[::-1]

    def _left(self, group: GpuGroup) -> Numbers:
        kind = self._fleet.kind_of(group)
        return tuple(kind.count_remaining(group.state, self._profiles[sort[0]]) for sort in self._sorts)

    def fits(self, wanted: Mapping[str, int]) -> bool | None:
        """Say whether so many of each fit on all GPUs together; None when there were no tries left to know."""
        if self._place(0, self._counts(wanted)) is not None:
            return True
        return None if self.tries < 0 else False

    def where(self, wanted: Mapping[str, int]) -> dict[int, dict[str, int]]:
        """Return of each GPU that is needed what it takes, where all fits."""
        found = self._place(0, self._counts(wanted)) or ()
        taken = ({p: n for p, n in zip(self._profiles, some, strict=True) if n} for some in found)
        return {gpu: some for gpu, some in zip(self._gpus, taken, strict=False) if some}

    def _counts(self, wanted: Mapping[str, int]) -> Numbers:
        return tuple(wanted.get(profile, 0) for profile in self._profiles)

    def _place(self, number: int, waiting: Numbers) -> list[Numbers] | None:
        """Return what each GPU from this one on takes so that all that wait are placed; None when they cannot be."""
        if not any(waiting):
            return []
        totals = tuple(sum(waiting[n] for n in sort) for sort in self._sorts)
        most, mib = self._later[number]
        if any(map(int.__lt__, most, totals)) or sum(map(int.__mul__, totals, self._sizes)) > mib:
            return None
        if (number, totals) in self._failed:
            return None
        for some in self._most_of(number, totals, waiting):
            rest = self._place(number + 1, tuple(map(int.__sub__, waiting, some)))
            if rest is not None:
                return [some, *rest]
            if self.tries < 0:
                return None
        self.tries -= 1
        if self.tries >= 0:
            self._failed.add((number, totals))
        return None

    def _most_of(self, number: int, totals: Numbers, waiting: Numbers) -> list[Numbers]:
        """Return the sets that a GPU can take and to which nothing that waits can be added, the largest first.

        They are told by profile: of a sort the last ones go first.
        """
        group = self._fleet.group_of(self._gpus[number])
        if self._fits(group, totals):
            return [waiting]
        if number + 1 == len(self._gpus):
            return []
        key = (group, tuple(map(min, totals, self._left(group))))
        sets = self._sets.get(key)
        if sets is None:
            sets = [some for some in self._takes(*key, ()) if not self._more(group, some, key[1])]
            if self.tries < 0:
                return []
            self._sets[key] = sets
        told = [(-sum(map(int.__mul__, some, self._sizes)), self._told(some, waiting)) for some in sets]
        return [some for _, some in sorted(told)]

    def _told(self, some: Numbers, waiting: Numbers) -> Numbers:
        """Return a set by profile."""
        told = [0] * len(waiting)
        for count, sort in zip(some, self._sorts, strict=True):
            rest = count
            for n in reversed(sort):
                told[n] = min(rest, waiting[n])
                rest -= told[n]
        return tuple(told)

    def _takes(self, group: GpuGroup, most: Numbers, some: Numbers) -> Iterator[Numbers]:
        if len(some) == len(most):
            self.tries -= 1
            yield some
            return
        for count in range(most[len(some)], -1, -1):
            if self.tries >= 0 and (not count or self._fits(group, (*some, count))):
                yield from self._takes(group, most, (*some, count))

    def _more(self, group: GpuGroup, some: Numbers, most: Numbers) -> bool:
        """Say whether one more of anything that waits could be added."""
        return any(
            count < most[n] and self._fits(group, (*some[:n], count + 1, *some[n + 1 :]))
            for n, count in enumerate(some)
        )

    def _fits(self, group: GpuGroup, some: Numbers) -> bool:
        wanted = {self._profiles[sort[0]]: count for sort, count in zip(self._sorts, some, strict=False)}
        return self._fleet.kind_of(group).fits(group.state, wanted)
