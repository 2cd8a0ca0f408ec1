# SPDX-License-Identifier: Apache-2.0
"""The fewest moves where every GPU has one size at a time: which GPUs are cleared, and what they take after that.

There it does not matter where on a GPU a vGPU is, nor which of its size goes. To move some of a GPU's vGPUs to others
of their size wins nothing; only a GPU that is cleared altogether can take another size. So what is tried are sets of
GPUs to clear, those with the fewest vGPUs on them first: thirty moves cost hardly more tries than two. Where GPUs wait
for each other to be cleared, some of what is on them gives up its place first.

Size: one search; its steps share what they have tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import groupby
from typing import NamedTuple

from vgpuctl.placement.equal_size import EqualSizeKind
from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.migrations import (
    FreeFunctions,
    Leave,
    Migration,
    MigrationPlan,
    PlacedVgpu,
    count_free_after_order,
)
from vgpuctl.placement.order import Change, order_of
from vgpuctl.value import EMPTY_MAPPING

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


class _Order(NamedTuple):
    """GPUs that are cleared and empty ones that take a size, one after the other; then those that are cleared together.

    `takes`: what those take then; `at_once`: how many vGPUs find no room before that. Some of them have to wait.
    """

    acts: tuple[_Gpu | Takes, ...]
    together: tuple[_Gpu, ...] = ()
    takes: tuple[Takes, ...] = ()
    at_once: int = 0


def sizes_of(fleet: Fleet, profiles: Iterable[str]) -> Sizes | None:
    """Return the sizes of these profiles; None where GPUs are divided otherwise, or two of a size differ in number."""
    kinds = [kind for kind in fleet.kinds if isinstance(kind, EqualSizeKind)]
    if len(kinds) < len(fleet.kinds):
        return None
    of: dict[str, int] = {}
    numbers: dict[tuple[object, ...], int] = {}
    locks: list[dict[object, int]] = [{} for _ in kinds]
    most: list[dict[int, int]] = [{} for _ in kinds]
    for profile in sorted(set(profiles)):
        takes = [kind.count_remaining(kind.empty, profile) for kind in kinds]
        offered = tuple(kind.lock_of(profile) if n else None for kind, n in zip(kinds, takes, strict=True))
        size = of[profile] = numbers.setdefault(offered, len(numbers))
        for k, (lock, number) in enumerate(zip(offered, takes, strict=True)):
            if number and (locks[k].setdefault(lock, size), most[k].setdefault(size, number)) != (size, number):
                return None
    return Sizes(of, tuple(locks), tuple(most))


def room_by_clearing(
    fleet: Fleet,
    sizes: Sizes,
    placed: Sequence[PlacedVgpu],
    wanted: Sequence[str],
    most: int,
    tries: int,
    spare: FreeFunctions = EMPTY_MAPPING,
) -> MigrationPlan | None:
    """Return the fewest moves after which all that is wanted fits together; None: there are none within `most`.

    Of those that were tried, one in which the fewest vGPUs find no room at first. `spare`: as for `room_for`.

    Raises:
        TooManyError: that would take more than so many tries.
    """
    search = _Search(fleet, sizes, placed, wanted, tries, spare)
    everything = search.clearable
    if not any(True for _ in search.covers(everything)):
        return None
    for _, alike in groupby(_cheapest_first(everything, most), key=lambda gpus: sum(gpu.there for gpu in gpus)):
        best = search.best(alike)
        if best is not None:
            return search.plan(best)
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

    def __init__(
        self,
        fleet: Fleet,
        sizes: Sizes,
        placed: Sequence[PlacedVgpu],
        wanted: Sequence[str],
        tries: int,
        spare: FreeFunctions,
    ) -> None:
        self._fleet = fleet
        self._sizes = sizes
        self._placed = placed
        self._names = wanted
        self._wanted = Counter(sizes.of[profile] for profile in wanted)
        self._left = tries
        self._spare = spare
        self._lacking = False
        mine: dict[int, list[int]] = {}
        for which, vgpu in enumerate(placed):
            mine.setdefault(vgpu.gpu, []).append(which)
        groups = [fleet.group_of(number) for number in range(len(fleet))]
        self._empty = [
            [n for n, group in enumerate(groups) if group.kind_index == kind and not group.state[1]]
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

    def best(self, sets: Iterable[Sequence[_Gpu]]) -> _Order | None:
        """Return an order for one of these sets of GPUs; of those tried one in which the fewest find no room at first.

        Raises:
            TooManyError: none was found before too many were tried.
        """
        found: _Order | None = None
        try:
            for cleared in sets:
                self.count()
                for order in self._orders(cleared):
                    found = order if found is None or order.at_once < found.at_once else found
                    if not found.at_once:
                        return found
        except TooManyError:
            if found is None:
                raise
        return found

    def _orders(self, cleared: Sequence[_Gpu]) -> Iterator[_Order]:
        """Yield for everything that empty GPUs may take an order in which these are cleared.

        Last one in which all find room at once and one GPU more may hold what comes from others first, if there is one.
        None in which functions are lacking.
        """
        enough = False
        for takes in self.covers(cleared):
            enough = True
            yield from self._order(cleared, takes)
        if enough:
            yield from self._order(cleared, None)

    def _order(self, cleared: Sequence[_Gpu], takes: Counter[Takes] | None) -> Iterator[_Order]:
        """Yield orders in which each GPU is cleared while there is room for what is on it, and others take that.

        `takes`: what empty GPUs take, None: anything. Before the whole search there is one with all of them together;
        after it the one in which the fewest vGPUs find no room at first.
        """
        dead: set[tuple[frozenset[int], frozenset[tuple[Takes, int]]]] = set()
        best = self._better(None, self._rest((), cleared, takes, self._room(cleared))) if takes is not None else None

        def go(done: tuple[_Gpu | Takes, ...], room: Counter[int]) -> None:
            nonlocal best
            given = Counter(one for one in done if not isinstance(one, _Gpu))
            left = [gpu for gpu in cleared if gpu not in done]
            if not left and all(n >= 0 for n in room.values()):
                best = self._better(best, _Order(done))
                return
            key = (frozenset(gpu.number for gpu in left), frozenset(given.items()))
            if key in dead:
                return
            self.count()
            dead.add(key)
            if takes is not None:
                best = self._better(best, self._rest(done, left, takes - given, room))
            for one, after in self._next(cleared, left, given, takes, room):
                go((*done, one), after)
                if best is not None and not best.at_once:
                    return

        if best is not None:
            yield best
        go((), self._room(cleared))
        if best is not None:
            yield best

    def _better(self, best: _Order | None, order: _Order) -> _Order | None:
        """Return an order if fewer find no room at first than in the best one so far, and no functions are lacking."""
        if best is not None and order.at_once >= best.at_once:
            return best
        if self._spare:
            migrations, _ = self._assign(order)
            leaves = [Leave(migration.vgpu_index) for migration in migrations]
            if count_free_after_order(self._spare, self._placed, [*leaves, *migrations]) is None:
                self._lacking = True
                return best
        return order

    def _rest(
        self, done: tuple[_Gpu | Takes, ...], left: Sequence[_Gpu], takes: Counter[Takes], room: Counter[int]
    ) -> _Order:
        """Return an order that ends with all GPUs that are left cleared together."""
        there = Counter[int]()
        for gpu in left:
            there[gpu.size] += gpu.there
        at_once = sum(max(0, n - max(0, room[size] + self._wanted[size])) for size, n in there.items())
        return _Order(done, tuple(left), tuple(sorted(takes.elements())), max(1, at_once))

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

    def plan(self, order: _Order) -> MigrationPlan | None:
        """Return the plan for an order; None if functions are lacking."""
        migrations, places = self._assign(order)
        vgpus = [self._placed[migration.vgpu_index] for migration in migrations]
        changes = [Change(v, PlacedVgpu(m.gpu, v.profile, m.place)) for v, m in zip(vgpus, migrations, strict=True)]
        turns = order_of(self._fleet, changes, self._spare)
        if turns is None:
            return None
        entries = (Leave(migrations[n].vgpu_index) if leaves else migrations[n] for n, leaves in turns)
        return MigrationPlan(tuple(entries), places, is_minimal=not self._lacking)

    def _assign(self, order: _Order) -> tuple[list[Migration], tuple[PlacedVgpu, ...]]:
        """Return the moves of an order, each vGPU to the fullest GPU that is open to it, and where the rest goes."""
        gone = {one.number for one in (*order.acts, *order.together) if isinstance(one, _Gpu)}
        now = _Open(self._sizes, self._empty, [gpu for gpu in self._gpus if gpu.number not in gone])
        migrations: list[Migration] = []
        for one in order.acts:
            if isinstance(one, _Gpu):
                migrations += [self._away(now, which) for which in one.movable]
                now.ready[one.kind].append(one.number)
            else:
                now.take(*one)
        rest: list[int] = []
        for which in (which for gpu in order.together for which in gpu.movable):
            if now.some(self._placed[which].profile):
                migrations.append(self._away(now, which))
            else:
                rest.append(which)
        for gpu in order.together:
            now.ready[gpu.kind].append(gpu.number)
        for one in order.takes:
            now.take(*one)
        migrations += [self._away(now, which) for which in rest]
        return migrations, tuple(PlacedVgpu(now.place(profile), profile, PLACE) for profile in self._names)

    def _away(self, now: _Open, which: int) -> Migration:
        return Migration(which, now.place(self._placed[which].profile), PLACE)


class _Open:
    """GPUs that have room while an order is carried out, and those that are empty, by kind."""

    def __init__(self, sizes: Sizes, empty: Sequence[Sequence[int]], gpus: Sequence[_Gpu]) -> None:
        self.ready = [list(numbers) for numbers in empty]
        self._sizes = sizes
        self._open: dict[int, list[list[int]]] = {}
        for gpu in sorted(gpus, key=lambda g: (g.free, g.number)):
            self._open.setdefault(gpu.size, []).append([gpu.number, gpu.free])

    def take(self, kind: int, size: int) -> None:
        """Give a size to an empty GPU."""
        self._open.setdefault(size, []).append([self.ready[kind].pop(0), self._sizes.most[kind][size]])

    def some(self, profile: str) -> bool:
        """Say whether there is room for one of the profile."""
        return any(free for _, free in self._open.get(self._sizes.of[profile], ()))

    def place(self, profile: str) -> int:
        """Place one of the profile; returns the GPU."""
        there = next(one for one in self._open[self._sizes.of[profile]] if one[1])
        there[1] -= 1
        return there[0]


def _less(room: Counter[int], size: int, number: int) -> Counter[int]:
    after = Counter(room)
    after[size] -= number
    return after
