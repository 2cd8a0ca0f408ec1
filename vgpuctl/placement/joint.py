# SPDX-License-Identifier: Apache-2.0
"""Whether vGPUs of several profiles fit on many GPUs together, how, and which of them are too many when they do not.

Exact: each GPU in turn takes one of the largest sets that it can take of what is still to be placed; what is left over
and how many GPUs are left is tried once. Above a number of tries the answer is that it is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vgpuctl.placement.fleet import Fleet, Group

TRIES = 50_000
"""The most (GPU, what is left) that one answer tries: a second or two. Hosts of 16 GPUs are far below it."""

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
    search = _Search(fleet, tuple(sorted(p for p in wanted if wanted[p])), tries)
    chosen = search.place(0, tuple(wanted[p] for p in search.profiles))
    if chosen is None:
        return Joint(None if search.gave_up else False, {})
    where = zip(search.gpus, chosen, strict=False)
    return Joint(
        True, {gpu: {p: n for p, n in zip(search.profiles, some, strict=True) if n} for gpu, some in where if any(some)}
    )


def too_many(fleet: Fleet, wanted: Mapping[str, int], tries: int = TRIES) -> TooMany:
    """Return the fewest of what is wanted that do not fit, where not all of it does; the first by name of several.

    Above `tries` sets that would have to be tried it is only a set of which each one less fits.
    """
    alone = {p: total_left(fleet, p) + 1 for p in wanted if total_left(fleet, p) < wanted[p]}
    most = min(alone.values(), default=sum(wanted.values()))
    looked = 0
    for number in range(2, most):
        for few in _some_of(sorted(p for p in wanted if wanted[p]), wanted, number):
            looked += 1
            answer = joint(fleet, few, tries).fits if looked <= tries // 100 else None
            if answer is None:
                return _shrunk(fleet, wanted, tries)
            if not answer:
                return TooMany(few, fewest=True)
    if alone:
        first = min(alone, key=lambda p: (alone[p], p))
        return TooMany({first: alone[first]}, fewest=True)
    return TooMany({p: n for p, n in wanted.items() if n}, fewest=True)


def total_left(fleet: Fleet, profile: str) -> int:
    """Return how many more of one profile fit on all GPUs together."""
    return sum(count * fleet.kind(group).left(group.state, profile) for group, count in fleet.groups())


def none_beside(fleet: Fleet, profile: str, others: Sequence[str]) -> tuple[str, ...]:
    """Return of which other profiles not one fits once as many of a profile are there as fit."""
    full = {group: fleet.kind(group).left(group.state, profile) for group, _ in fleet.groups()}

    def fits(other: str) -> bool:
        return any(fleet.kind(group).fits(group.state, {profile: n, other: 1}) for group, n in full.items())

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


def _shrunk(fleet: Fleet, wanted: Mapping[str, int], tries: int) -> TooMany:
    """Take one away after the other as long as what remains still does not fit."""
    few = Counter({p: n for p, n in wanted.items() if n})
    for profile in sorted(few):
        while few[profile]:
            less = few - Counter([profile])
            if joint(fleet, less, tries // 10).fits is not False:
                break
            few = less
    return TooMany(dict(few), fewest=False)


class _Search:
    """What a search knows. `gpus`: in the order in which they are filled, those that are alike together."""

    def __init__(self, fleet: Fleet, profiles: tuple[str, ...], tries: int) -> None:
        self._fleet = fleet
        self.profiles = profiles
        self.gpus = sorted(range(len(fleet)), key=lambda gpu: (fleet.first(fleet.group_of(gpu)), gpu))
        self.gave_up = False
        self._tries = tries
        self._failed: set[tuple[int, Numbers]] = set()
        self._sets: dict[tuple[Group, Numbers], list[Numbers]] = {}
        self._weights = [max((k.sizes.get(p, 0) for k in fleet.kinds), default=0) for p in profiles]
        self._later = self._sums()

    def _sums(self) -> list[Numbers]:
        """Return for each GPU how many of each profile it and all after it take, one profile at a time."""
        sums: list[Numbers] = [(0,) * len(self.profiles)]
        for gpu in reversed(self.gpus):
            group = self._fleet.group_of(gpu)
            left = (self._fleet.kind(group).left(group.state, p) for p in self.profiles)
            sums.append(tuple(a + b for a, b in zip(sums[-1], left, strict=True)))
        return sums[::-1]

    def place(self, number: int, waiting: Numbers) -> list[Numbers] | None:
        """Return what each GPU from this one on takes so that all that wait are placed; None when they cannot be."""
        if not any(waiting):
            return []
        if (number, waiting) in self._failed or any(a < b for a, b in zip(self._later[number], waiting, strict=True)):
            return None
        if len(self._failed) >= self._tries:
            self.gave_up = True
            return None
        for some in self._most_of(self._fleet.group_of(self.gpus[number]), waiting):
            rest = self.place(number + 1, tuple(a - b for a, b in zip(waiting, some, strict=True)))
            if rest is not None:
                return [some, *rest]
        self._failed.add((number, waiting))
        return None

    def _most_of(self, group: Group, waiting: Numbers) -> list[Numbers]:
        """Return the sets that a GPU can take and to which nothing that waits can be added, the largest first."""
        key = (group, waiting)
        known = self._sets.get(key)
        if known is None:
            sets = [some for some in self._takes(group, waiting, ()) if not self._more(group, some, waiting)]
            known = sorted(sets, key=lambda some: (-sum(map(int.__mul__, some, self._weights)), some))
            self._sets[key] = known
        return known

    def _takes(self, group: Group, waiting: Numbers, some: Numbers) -> Iterator[Numbers]:
        if len(some) == len(waiting):
            yield some
            return
        left = self._fleet.kind(group).left(group.state, self.profiles[len(some)])
        for count in range(min(left, waiting[len(some)]), -1, -1):
            if not count or self._fits(group, (*some, count)):
                yield from self._takes(group, waiting, (*some, count))

    def _more(self, group: Group, some: Numbers, waiting: Numbers) -> bool:
        """Say whether one more of anything that waits could be added."""
        return any(
            count < waiting[n] and self._fits(group, (*some[:n], count + 1, *some[n + 1 :]))
            for n, count in enumerate(some)
        )

    def _fits(self, group: Group, some: Numbers) -> bool:
        return self._fleet.kind(group).fits(group.state, dict(zip(self.profiles, some, strict=False)))
