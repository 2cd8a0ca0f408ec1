# SPDX-License-Identifier: Apache-2.0
"""The fewest moves where every GPU has one size at a time: which GPUs are cleared, and what they take after that.

There it does not matter where on a GPU a vGPU is, nor which of its size goes. To move some of a GPU's vGPUs to others
of their size wins nothing; only a GPU that is cleared altogether can take another size. So what is tried are sets of
GPUs to clear, those with the fewest vGPUs on them first: thirty moves cost hardly more tries than two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.one_size import OneSize
from vgpuctl.placement.shifts import Placed, Room, Shift

PLACE = 0
"""What `OneSize.moves` calls every place."""

Takes = tuple[int, int]
"""An empty GPU of a kind takes vGPUs of a size: both by number."""


class TooManyError(Exception):
    """There is more to try than was allowed."""


class Sizes(NamedTuple):
    """Profiles by size: any of a size can be where another of it is. `of`: the size of each profile, by number.

    For each kind, `locks`: which size the vGPUs on a GPU are by what they lock it to; `most`: of each size on a GPU.
    """

    of: Mapping[str, int]
    locks: tuple[Mapping[object, int], ...]
    most: tuple[Mapping[int, int], ...]


class _Gpu(NamedTuple):
    """A GPU with vGPUs of a size: how many, how many more it takes, and which of them may be moved."""

    number: int
    kind: int
    size: int
    there: int
    free: int
    movable: tuple[int, ...]

    @property
    def alike(self) -> tuple[int, int, int]:
        return self.there, self.kind, self.size


def sizes_of(fleet: Fleet, profiles: Iterable[str]) -> Sizes | None:
    """Return the sizes of these profiles; None where GPUs are divided otherwise, or two of a size differ in number."""
    kinds = [kind for kind in fleet.kinds if isinstance(kind, OneSize)]
    if len(kinds) < len(fleet.kinds):
        return None
    of: dict[str, int] = {}
    numbers: dict[tuple[object, ...], int] = {}
    locks: list[dict[object, int]] = [{} for _ in kinds]
    most: list[dict[int, int]] = [{} for _ in kinds]
    for profile in sorted(set(profiles)):
        takes = [kind.left(kind.empty, profile) for kind in kinds]
        offered = tuple(kind.lock(profile) if n else None for kind, n in zip(kinds, takes, strict=True))
        size = of[profile] = numbers.setdefault(offered, len(numbers))
        for k, (lock, number) in enumerate(zip(offered, takes, strict=True)):
            if number and (locks[k].setdefault(lock, size), most[k].setdefault(size, number)) != (size, number):
                return None
    return Sizes(of, tuple(locks), tuple(most))


def room_by_clearing(
    fleet: Fleet, sizes: Sizes, placed: Sequence[Placed], wanted: Sequence[str], most: int, tries: int
) -> Room | None:
    """Return the fewest moves after which all that is wanted fits together; None: there are none within `most`.

    Raises:
        TooManyError: that would take more than so many tries.
    """
    search = _Search(fleet, sizes, placed, [sizes.of[profile] for profile in wanted], tries)
    everything = search.clearable
    if not any(True for _ in search.covers(everything)):
        return None
    for cleared in _cheapest_first(everything, most):
        search.count()
        enough = search.covers(cleared)
        first = next(enough, None)
        for takes in chain((first,), enough, (None,)) if first is not None else ():
            order = search.order(cleared, takes)
            if order is not None:
                return search.room(order, wanted)
    return None


def _cheapest_first(gpus: Sequence[_Gpu], most: int) -> Iterator[tuple[_Gpu, ...]]:
    """Yield sets of GPUs, those with the fewest vGPUs first, none with more than `most`; of those alike the first."""
    yield ()
    following = [
        next((j for j in range(i + 1, len(gpus)) if gpus[j].alike != gpus[i].alike), len(gpus))
        for i in range(len(gpus))
    ]
    waiting: list[tuple[int, tuple[int, ...]]] = [(gpus[0].there, (0,))] if gpus else []
    while waiting:
        moves, chosen = heappop(waiting)
        if moves > most:
            return
        yield tuple(gpus[n] for n in chosen)
        last = chosen[-1]
        if last + 1 < len(gpus):
            heappush(waiting, (moves + gpus[last + 1].there, (*chosen, last + 1)))
        other = following[last]
        if other < len(gpus):
            heappush(waiting, (moves - gpus[last].there + gpus[other].there, (*chosen[:-1], other)))


class _Search:
    """What is the same for all sets of GPUs that are tried."""

    def __init__(self, fleet: Fleet, sizes: Sizes, placed: Sequence[Placed], wanted: Sequence[int], tries: int) -> None:
        self._sizes = sizes
        self._placed = placed
        self._wanted = Counter(wanted)
        self._left = tries
        mine: dict[int, list[int]] = {}
        for which, vgpu in enumerate(placed):
            mine.setdefault(vgpu.gpu, []).append(which)
        groups = [fleet.group_of(number) for number in range(len(fleet))]
        self._empty = [
            [n for n, group in enumerate(groups) if group.kind == kind and not group.state[1]]
            for kind in range(len(fleet.kinds))
        ]
        self._gpus = []
        for number, (kind, (lock, there)) in enumerate(groups):
            size = sizes.locks[kind].get(lock) if there else None
            if size is not None:
                free = max(0, sizes.most[kind][size] - there)
                self._gpus.append(_Gpu(number, kind, size, there, free, tuple(mine.get(number, ()))))
        self.clearable = sorted((g for g in self._gpus if len(g.movable) == g.there), key=lambda g: (g.alike, g.number))

    def count(self) -> None:
        """Count a try."""
        self._left -= 1
        if self._left < 0:
            raise TooManyError

    def covers(self, cleared: Sequence[_Gpu]) -> Iterator[Counter[Takes]]:
        """Yield what empty and cleared GPUs may take so that there is room for all in the end."""
        lacking = Counter({size: -n for size, n in self._room(cleared).items()})
        for gpu in cleared:
            lacking[gpu.size] += gpu.there
        open_ones = [len(empty) for empty in self._empty]
        for gpu in cleared:
            open_ones[gpu.kind] += 1
        yield from self._covered([(size, n) for size, n in sorted(lacking.items()) if n > 0], open_ones)

    def _covered(self, lacking: Sequence[tuple[int, int]], open_ones: Sequence[int]) -> Iterator[Counter[Takes]]:
        if not lacking:
            yield Counter()
            return
        (size, number), *others = lacking
        for taken in self._counts(size, number, open_ones, 0):
            self.count()
            left = [n - t for n, t in zip(open_ones, taken, strict=True)]
            for rest in self._covered(others, left):
                yield rest + Counter({(kind, size): n for kind, n in enumerate(taken)})

    def _counts(self, size: int, number: int, open_ones: Sequence[int], kind: int) -> Iterator[tuple[int, ...]]:
        """Yield how many GPUs of each kind, from one on, take so many vGPUs of a size."""
        if kind == len(open_ones):
            if number <= 0:
                yield ()
            return
        each = self._sizes.most[kind].get(size, 0)
        enough = max(0, -(-number // each)) if each else 0
        for taken in range(min(open_ones[kind], enough), -1, -1):
            for others in self._counts(size, number - taken * each, open_ones, kind + 1):
                yield (taken, *others)

    def _room(self, cleared: Sequence[_Gpu]) -> Counter[int]:
        """Return the room for each size on the GPUs that stay as they are, less what is wanted."""
        gone = {gpu.number for gpu in cleared}
        room = Counter({size: -n for size, n in self._wanted.items()})
        for gpu in self._gpus:
            if gpu.number not in gone:
                room[gpu.size] += gpu.free
        return room

    def order(self, cleared: Sequence[_Gpu], takes: Counter[Takes] | None) -> tuple[_Gpu | Takes, ...] | None:
        """Return an order in which each GPU is cleared while there is room for what is on it, and others take that.

        `takes`: what empty GPUs take; None: anything, as one more may have to hold what comes from others first.
        """
        dead: set[tuple[frozenset[int], frozenset[tuple[Takes, int]]]] = set()

        def go(done: tuple[_Gpu | Takes, ...], room: Counter[int]) -> tuple[_Gpu | Takes, ...] | None:
            given = Counter(one for one in done if not isinstance(one, _Gpu))
            left = [gpu for gpu in cleared if gpu not in done]
            if not left and all(n >= 0 for n in room.values()):
                return done
            key = (frozenset(gpu.number for gpu in left), frozenset(given.items()))
            if key in dead:
                return None
            self.count()
            for one, after in self._next(cleared, left, given, takes, room):
                found = go((*done, one), after)
                if found is not None:
                    return found
            dead.add(key)
            return None

        return go((), self._room(cleared))

    def _next(
        self,
        cleared: Sequence[_Gpu],
        left: Sequence[_Gpu],
        given: Counter[Takes],
        takes: Counter[Takes] | None,
        room: Counter[int],
    ) -> Iterator[tuple[_Gpu | Takes, Counter[int]]]:
        """Yield what can be next, with the room for each size after it; what is wanted comes when all is done."""
        for gpu in left:
            if room[gpu.size] + self._wanted[gpu.size] >= gpu.there:
                yield gpu, _less(room, gpu.size, gpu.there)
        for kind, most in enumerate(self._sizes.most):
            used = sum(n for (k, _), n in given.items() if k == kind)
            ready = len(self._empty[kind]) + sum(g.kind == kind and g not in left for g in cleared)
            for size, number in sorted(most.items()) if used < ready else ():
                if takes is None or given[kind, size] < takes[kind, size]:
                    yield (kind, size), _less(room, size, -number)

    def room(self, order: Sequence[_Gpu | Takes], wanted: Sequence[str]) -> Room:
        """Return the moves of an order, each vGPU to the fullest GPU that is open to it, and where the rest goes."""
        gone = {one.number for one in order if isinstance(one, _Gpu)}
        ready = [list(empty) for empty in self._empty]
        open_ones: dict[int, list[list[int]]] = {}
        for gpu in sorted(self._gpus, key=lambda g: (g.free, g.number)):
            if gpu.number not in gone:
                open_ones.setdefault(gpu.size, []).append([gpu.number, gpu.free])

        def place(profile: str) -> int:
            there = next(one for one in open_ones[self._sizes.of[profile]] if one[1])
            there[1] -= 1
            return there[0]

        shifts: list[Shift] = []
        for one in order:
            if isinstance(one, _Gpu):
                shifts += [Shift(which, place(self._placed[which].profile), PLACE) for which in one.movable]
                ready[one.kind].append(one.number)
            else:
                kind, size = one
                open_ones.setdefault(size, []).append([ready[kind].pop(0), self._sizes.most[kind][size]])
        return Room(tuple(shifts), tuple(Placed(place(profile), profile, PLACE) for profile in wanted))


def _less(room: Counter[int], size: int, number: int) -> Counter[int]:
    after = Counter(room)
    after[size] -= number
    return after
