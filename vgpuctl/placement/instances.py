# SPDX-License-Identifier: Apache-2.0
"""GPUs with MIG whose GPU instances (GIs) take several vGPUs each, all of one framebuffer size in one GI (GB20x).

Where a GI takes one vGPU, `Slots` with a pool for each GI profile says the same and is quicker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from vgpuctl.placement.kind import Filling, Move, State


class InGi(NamedTuple):
    """What a profile needs: an instance of this GI profile, which takes so many of it."""

    gi_profile_id: int
    most: int


class Instances:
    """A kind whose state is (vGPUs in all, (size in MiB, vGPUs) of each instance). A place is an instance's number."""

    def __init__(
        self,
        name: str,
        framebuffer_mib: int,
        sizes: Mapping[str, int],
        needs: Mapping[str, InGi],
        *,
        instances: Sequence[int],
        carriers: int,
    ) -> None:
        """`instances`: the GI profile of each; `carriers`: the VFs of the GPU."""
        self.name = name
        self.framebuffer_mib = framebuffer_mib
        self.sizes = dict(sizes)
        self.empty: State = (0, tuple((0, 0) for _ in instances))
        self._needs = dict(needs)
        self._instances = tuple(instances)
        self._carriers = carriers

    def takes(self, profile: str) -> Hashable:
        """See `Kind.takes`."""
        return (self._needs[profile], self.sizes[profile]) if profile in self._needs else None

    def moves(self, state: State, profile: str) -> tuple[Move, ...]:
        """See `Kind.moves`. Of instances that are alike the first one stands for all."""
        _, inside = state
        found: dict[tuple[int, int, int], Move] = {}
        for move in self.everywhere(state, profile):
            found.setdefault((self._instances[move.place], *inside[move.place]), move)
        return tuple(found.values())

    def everywhere(self, state: State, profile: str) -> tuple[Move, ...]:
        """See `Kind.everywhere`."""
        return tuple(Move(place, self._with(state, profile, place)) for place in self._open(state, profile))

    def at(self, state: State, profile: str, place: int) -> State | None:
        """See `Kind.at`."""
        return self._with(state, profile, place) if place in self._open(state, profile) else None

    def _with(self, state: State, profile: str, place: int) -> State:
        number, inside = state
        now = (self.sizes[profile], inside[place][1] + 1)
        return (number + 1, (*inside[:place], now, *inside[place + 1 :]))

    def _open(self, state: State, profile: str) -> list[int]:
        number, inside = state
        need = self._needs.get(profile)
        if need is None or number >= self._carriers:
            return []
        return [n for n, gi in enumerate(self._instances) if gi == need.gi_profile_id and self._in(inside[n], profile)]

    def _in(self, inside: tuple[int, int], profile: str) -> int:
        """Return how many more of a profile go into an instance of its GI profile."""
        size, number = inside
        return max(0, self._needs[profile].most - number) if size in (0, self.sizes[profile]) else 0

    def without(self, state: State, profile: str, place: int) -> State:
        """See `Kind.without`."""
        number, inside = state
        size, count = inside[place]
        now = (size, count - 1) if count > 1 else (0, 0)
        return (number - 1, (*inside[:place], now, *inside[place + 1 :]))

    def left(self, state: State, profile: str) -> int:
        """See `Kind.left`."""
        number, inside = state
        free = sum(self._in(inside[place], profile) for place in self._open(state, profile))
        return int(min(free, self._carriers - number)) if free else 0

    def fits(self, state: State, wanted: Mapping[str, int]) -> bool:
        """See `Kind.fits`. Each size has the instances in which it is, and needs some of those that are free."""
        number, inside = state
        some = {p: n for p, n in wanted.items() if n}
        if not some:
            return True
        if not all(p in self._needs for p in some) or sum(some.values()) > self._carriers - number:
            return False
        sizes: dict[tuple[int, int], Counter[int]] = {}
        for profile, count in some.items():
            need = self._needs[profile]
            sizes.setdefault((need.gi_profile_id, self.sizes[profile]), Counter())[need.most] += count
        free = Counter(gi for gi, (size, _) in zip(self._instances, inside, strict=True) if not size)
        for (gi, size), counts in sizes.items():
            there = [n for one, (own, n) in zip(self._instances, inside, strict=True) if (one, own) == (gi, size)]
            free[gi] -= _more_instances(counts, there)
        return all(left >= 0 for left in free.values())

    def filling(self, worth: Mapping[str, float]) -> Filling:
        """See `Kind.filling`."""
        return _Filling(self, {p: w for p, w in worth.items() if p in self._needs and w > 0})

    def fillings(self, place: int, inside: tuple[int, int], worth: Mapping[str, float]) -> list[list[str]]:
        """Return what an instance may take more, for each size: at each number the profile that is worth most."""
        mine = [p for p in worth if self._needs[p].gi_profile_id == self._instances[place]]
        found = []
        for size in sorted({self.sizes[p] for p in mine if inside[0] in (0, self.sizes[p])}):
            row: list[str] = []
            while able := [p for p in mine if self.sizes[p] == size and self._needs[p].most > inside[1] + len(row)]:
                row.append(max(able, key=lambda p: worth[p]))
            found.append(row)
        return found

    def carriers_left(self, state: State) -> int:
        """Return how many vGPUs more the VFs of the GPU carry."""
        return self._carriers - int(state[0])


def _more_instances(counts: Mapping[int, int], there: Sequence[int]) -> int:
    """Return how many instances more so many vGPUs of one size need, by the most that may be in one with them.

    `there`: how many are in each instance of that size. Those that allow fewer go first: of them and of all that
    allow fewer still, each instance takes as many as they allow less what is there.
    """
    more = waiting = 0
    for most, count in sorted(counts.items()):
        waiting += count
        lacking = waiting - sum(max(0, most - number) for number in there)
        more = max(more, -(-lacking // most))
    return more


class _Filling:
    """Instance by instance, with the best for each number of VFs so far."""

    def __init__(self, kind: Instances, worth: Mapping[str, float]) -> None:
        self._kind = kind
        self._worth_of = worth

    def worth(self, state: State) -> float:
        """See `Filling.worth`."""
        return self._best(state)[0]

    def counts(self, state: State) -> Mapping[str, int]:
        """See `Filling.counts`."""
        return Counter(self._best(state)[1])

    def _best(self, state: State) -> tuple[float, tuple[str, ...]]:
        best: list[tuple[float, tuple[str, ...]]] = [(0.0, ())] * (self._kind.carriers_left(state) + 1)
        for place, inside in enumerate(state[1]):
            before = list(best)
            for row in self._kind.fillings(place, inside, self._worth_of):
                gained = 0.0
                for number, profile in enumerate(row[: len(best) - 1], 1):
                    gained += self._worth_of[profile]
                    for used in range(number, len(best)):
                        if before[used - number][0] + gained > best[used][0]:
                            best[used] = (before[used - number][0] + gained, (*before[used - number][1], *row[:number]))
        return best[-1]
