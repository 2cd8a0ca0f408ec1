# SPDX-License-Identifier: Apache-2.0
"""The fewest vGPUs that have to be somewhere else so that more fit, and in which order they go.

What is wanted is placed first, and what is in its way there is placed after that, and so on. A vGPU moves at most once:
whoever works in it is interrupted once. Each goes when its new place is free; those that wait for others go at once.
Exact up to a number of tries, and for GPUs that are alike only the first is tried.

Size: one search; its steps share what they have tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from vgpuctl.placement.cleared import TooManyError, room_by_clearing, sizes_of
from vgpuctl.placement.fleet import Fleet, Group
from vgpuctl.placement.kind import Kind, State
from vgpuctl.placement.order import Change, after, before, rounds_of
from vgpuctl.placement.shifts import (
    Placed,
    Room,
    Round,
    Shift,
    Spare,
    copied,
    moved,
    put,
    renumbered,
    spared_by_all,
)
from vgpuctl.value import NOTHING

TRIES = 50_000
"""The most places that one answer tries: a second or two."""
FURTHER = 1_000
"""How many more are tried for a plan of as few moves in which fewer go at once."""
Better = Callable[[Sequence[tuple[Group, Group]]], bool]
"""Says of the groups of GPUs before and after whether that is better."""


class _Gpu(NamedTuple):
    """A GPU while plans are tried: `old` are the vGPUs that are where they were and may be moved."""

    kind: int
    state: State
    old: tuple[tuple[str, int], ...]


class _Waiting(NamedTuple):
    """A vGPU without a place: wanted (its number), or taken away from `here`."""

    profile: str
    number: int = 0
    here: Placed | None = None


class _Goes(NamedTuple):
    what: _Waiting
    to: Placed


class _Option(NamedTuple):
    """A way to place one vGPU on a GPU: what has to go from there for it, its place, and the GPU after it."""

    gone: tuple[tuple[str, int], ...]
    place: int
    after: _Gpu


def moves_for(fleet: Fleet, placed: Sequence[Placed], profile: str, most: int = 2) -> tuple[Round, ...] | None:
    """Return the fewest moves, and no more than `most`, after which one more of the profile fits; None: there are none.

    Empty when it fits as it is. `placed` are the vGPUs of the fleet that may be moved; nothing is changed.
    """
    found = room_for(fleet, placed, (profile,), most)
    return None if found is None else found.rounds


def room_for(
    fleet: Fleet,
    placed: Sequence[Placed],
    wanted: Sequence[str],
    most: int | None = None,
    *,
    tries: int = TRIES,
    fixed: frozenset[int] = frozenset(),
    spare: Spare = NOTHING,
    better: Better | None = None,
) -> Room | None:
    """Return the fewest moves after which all that is wanted fits together; None: there are none within `most`.

    When too many plans would have to be tried, what is wanted gets its room one after the other: more moves than
    needed, perhaps (`fewest` False), or None although there are some. `fixed`: GPUs on which nothing that is there can
    have another place, as where the driver chooses it. `spare`: functions that rounds find free; a plan without an
    order that finds them is none, and `fewest` is False when there was one. `better`: a plan counts only if this is
    true of how its moves change GPUs, without what is wanted.
    """
    limit = len(placed) if most is None else min(most, len(placed))
    sizes = sizes_of(fleet, [*wanted, *(vgpu.profile for vgpu in placed)]) if better is None else None
    if sizes is not None:
        try:
            return room_by_clearing(fleet, sizes, placed, wanted, limit, tries, spare)
        except TooManyError:
            return None if len(wanted) < 2 else _one_by_one(fleet, placed, wanted, limit, tries, fixed, spare)
    search = _Search(fleet, placed, tries, fixed, spare, better)
    for number in range(limit + 1):
        found = search.find(wanted, number)
        if found is not None:
            return found
        if search.gave_up:
            return None if len(wanted) < 2 else _one_by_one(fleet, placed, wanted, limit, tries, fixed, spare)
    return None


def _one_by_one(
    fleet: Fleet,
    placed: Sequence[Placed],
    wanted: Sequence[str],
    most: int,
    tries: int,
    fixed: frozenset[int],
    spare: Spare,
) -> Room | None:
    """Make room for one after the other, the largest first; none of them gives way to a later one."""
    now, there = copied(fleet), list(placed)
    rounds: list[Round] = []
    places: dict[int, Placed] = {}
    for number in sorted(range(len(wanted)), key=lambda n: (-size_of(fleet, wanted[n]), n)):
        done = {shift.which for one in rounds for shift in one}
        still = [n for n in range(len(placed)) if n not in done]
        left = most - len(done)
        free = spared_by_all(spare, placed, rounds)
        if free is None:
            return None
        found = room_for(now, [there[n] for n in still], (wanted[number],), left, tries=tries, fixed=fixed, spare=free)
        if found is None:
            return None
        for one in renumbered(found.rounds, still):
            moved(now, there, one)
            rounds.append(one)
        (places[number],) = found.places
        put(now, places[number])
    return Room(tuple(rounds), tuple(places[n] for n in range(len(wanted))), fewest=False)


def in_the_way(fleet: Fleet, there: Sequence[Placed], gpu: int, profile: str) -> tuple[int, ...] | None:
    """Return the fewest of the vGPUs `there` that would have to leave one GPU for one more of the profile to fit on it.

    Empty when it fits as it is; None when it would not fit even without them.
    """
    mine = [n for n, vgpu in enumerate(there) if vgpu.gpu == gpu]
    search = _Search(fleet, [there[n] for n in mine], TRIES, frozenset(), NOTHING, None)
    gone = search.fewest_gone(gpu, profile)
    if gone is None:
        return None
    numbers: dict[tuple[str, int], list[int]] = {(there[n].profile, there[n].place): [] for n in mine}
    for n in mine:
        numbers[there[n].profile, there[n].place].append(n)
    return tuple(sorted(numbers[one].pop(0) for one in gone))


def size_of(fleet: Fleet, profile: str) -> int:
    """Return the framebuffer of a profile in MiB, on the GPU on which it has the most; 0 where no GPU knows it."""
    return max((kind.sizes.get(profile, 0) for kind in fleet.kinds), default=0)


class _Search:
    """Plans, the fewest moves first. Where nothing was found below a state of all GPUs, it is not tried again."""

    def __init__(
        self,
        fleet: Fleet,
        placed: Sequence[Placed],
        tries: int,
        fixed: frozenset[int],
        spare: Spare,
        better: Better | None,
    ) -> None:
        self.gave_up = self._lacking = False
        self._fleet = fleet
        self._placed = placed
        self._tries = tries
        self._fixed = fixed
        self._spare = spare
        self._better = better
        self._tried = self._leaves = 0
        self._failed: set[tuple[object, tuple[tuple[str, int | None], ...], int]] = set()
        self._options: dict[tuple[_Gpu, str, int], list[_Option]] = {}
        self._judged: dict[frozenset[tuple[int, State]], bool] = {}
        old: dict[int, list[tuple[str, int]]] = {}
        for vgpu in placed:
            old.setdefault(vgpu.gpu, []).append((vgpu.profile, vgpu.place))
        groups = [fleet.group_of(gpu) for gpu in range(len(fleet))]
        self._gpus = tuple(_Gpu(g.kind, g.state, tuple(sorted(old.get(n, ())))) for n, g in enumerate(groups))

    def find(self, wanted: Sequence[str], number: int) -> Room | None:
        """Return a plan with exactly so many moves; of those that were tried one with the fewest at once."""
        waiting = tuple(_Waiting(profile, n) for n, profile in enumerate(wanted))
        best: Room | None = None
        for goes in self._plans(self._gpus, self._in_order(waiting), number):
            self._leaves += 1
            changes = [Change(one.what.here, one.to) for one in goes if one.what.here is not None]
            room = self._room(goes, changes) if len(changes) == number else None
            if room is not None and (best is None or room.at_once < best.at_once):
                self._tries = min(self._tries, self._tried + FURTHER) if best is None else self._tries
                best = room
            if best is not None and best.at_once < 2:
                break
        return best and best._replace(fewest=not self._lacking)

    def fewest_gone(self, gpu: int, profile: str) -> tuple[tuple[str, int], ...] | None:
        """Return the fewest that have to leave one GPU so that one more fits on it; None when that is not enough."""
        for number in range(len(self._gpus[gpu].old) + 1):
            gone = [option.gone for option in self._find_options(self._gpus[gpu], profile, number)]
            if gone:
                return min(gone, key=lambda vgpus: (len(vgpus), vgpus))
        return None

    def _in_order(self, waiting: tuple[_Waiting, ...]) -> tuple[_Waiting, ...]:
        return tuple(sorted(waiting, key=lambda w: (-size_of(self._fleet, w.profile), w.profile)))

    def _plans(self, gpus: tuple[_Gpu, ...], waiting: tuple[_Waiting, ...], left: int) -> Iterator[tuple[_Goes, ...]]:
        """Yield for every way to place all that wait, with so many moves more, where each goes."""
        if not waiting:
            yield ()
            return
        key = (frozenset(Counter(gpus).items()), tuple((w.profile, self._not_on(w)) for w in waiting), left)
        if key in self._failed or self.gave_up:
            return
        leaves = self._leaves
        for gpu, option in self._ways(gpus, waiting[0], left):
            self._tried += 1
            if self._tried > self._tries:
                self.gave_up = True
                return
            gone = tuple(_Waiting(p, here=Placed(gpu, p, place)) for p, place in option.gone)
            after = (*gpus[:gpu], option.after, *gpus[gpu + 1 :])
            first = _Goes(waiting[0], Placed(gpu, waiting[0].profile, option.place))
            for rest in self._plans(after, self._in_order((*waiting[1:], *gone)), left - len(gone)):
                yield (first, *rest)
        if self._leaves == leaves and not self.gave_up:
            self._failed.add(key)

    def _not_on(self, what: _Waiting) -> int | None:
        """Return the GPU to which something must not go: its own, where it would get the same place."""
        return what.here.gpu if what.here is not None and what.here.gpu in self._fixed else None

    def _ways(self, gpus: tuple[_Gpu, ...], what: _Waiting, left: int) -> list[tuple[int, _Option]]:
        """Return the ways to place one vGPU on one of each GPUs that are alike; where the fewest must go first."""
        never = self._not_on(what)
        firsts = {gpu: number for number, gpu in reversed(list(enumerate(gpus))) if number != never}
        ways = [(number, option) for gpu, number in firsts.items() for option in self._on(gpu, what.profile, left)]
        return sorted(ways, key=lambda way: (len(way[1].gone), way[0], way[1].place, way[1].gone))

    def _on(self, gpu: _Gpu, profile: str, left: int) -> list[_Option]:
        key = (gpu, profile, left)
        known = self._options.get(key)
        if known is None:
            found = self._find_options(gpu, profile, left)  # what only takes the place of its like wins nothing
            known = self._options[key] = [o for o in found if o.gone != ((profile, o.place),)]
        return known

    def _find_options(self, gpu: _Gpu, profile: str, left: int) -> Iterator[_Option]:
        """Yield for each place what has to go for it: what cannot be beside it, and of the rest no more than needed."""
        kind = self._fleet.kinds[gpu.kind]
        bare = _without(kind, gpu.state, gpu.old)
        alone = [(vgpu, kind.at(bare, *vgpu)) for vgpu in gpu.old]
        for place in [m.place for m in kind.everywhere(bare, profile)]:
            never = (v for v, there in alone if there is None or kind.at(there, profile, place) is None)
            must = tuple(islice(never, left + 1))
            if len(must) > left:
                continue
            rest = tuple(v for v in gpu.old if v not in must)
            opened: list[Counter[tuple[str, int]]] = []
            for number in range(left - len(must) + 1):
                for some in _subsets(rest, number):
                    gone = (*must, *some)
                    counted = Counter(some)
                    full = kind.at(_without(kind, gpu.state, gone), profile, place)
                    if full is None or any(known <= counted for known in opened):
                        continue
                    opened.append(counted)
                    stays = tuple((Counter(gpu.old) - Counter(gone)).elements())
                    yield _Option(gone, place, _Gpu(gpu.kind, full, tuple(sorted(stays))))
                if Counter() in opened:
                    break
                if number == 1:
                    rest = tuple(v for v in rest if Counter([v]) not in opened)

    def _room(self, goes: tuple[_Goes, ...], changes: Sequence[Change]) -> Room | None:
        """Return the plan with its vGPUs by number, if what it leads to is better."""
        if self._better is not None and not self._is_better(changes, self._better):
            return None
        numbers: dict[Placed, list[int]] = {}
        for number, vgpu in enumerate(self._placed):
            numbers.setdefault(vgpu, []).append(number)
        shifts = [Shift(numbers[here].pop(0), to.gpu, to.place) for here, to in changes]
        order = rounds_of(self._fleet, changes, self._spare)
        if order is None:
            self._lacking = True
            return None
        places = {one.what.number: one.to for one in goes if one.what.here is None}
        return Room(tuple(tuple(shifts[n] for n in one) for one in order), tuple(places[n] for n in range(len(places))))

    def _is_better(self, changes: Sequence[Change], better: Better) -> bool:
        """Say whether that is true of all that changes; what many plans lead to is judged once."""
        then = after(self._fleet, before(self._fleet, changes, NOTHING), changes)
        states = then.states if then is not None else {}
        key = frozenset(states.items())
        known = self._judged.get(key)
        if known is None:
            olds = [(self._fleet.group_of(gpu), state) for gpu, state in states.items()]
            known = self._judged[key] = better([(old, old._replace(state=state)) for old, state in olds])
        return known


def _without(kind: Kind, state: State, vgpus: Sequence[tuple[str, int]]) -> State:
    for profile, place in vgpus:
        state = kind.without(state, profile, place)
    return state


def _subsets(vgpus: tuple[tuple[str, int], ...], number: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield every different choice of so many of these, which are sorted."""
    if not number:
        yield ()
        return
    for n, first in enumerate(vgpus[: len(vgpus) - number + 1]):
        if n and vgpus[n - 1] == first:
            continue
        for others in _subsets(vgpus[n + 1 :], number - 1):
            yield (first, *others)
