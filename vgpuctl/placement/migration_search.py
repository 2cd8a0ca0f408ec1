# SPDX-License-Identifier: Apache-2.0
"""Find the fewest vGPUs that have to move so that more vGPUs fit, and the order of the moves.

The search places the requested vGPUs first, then the vGPUs that they displace, and so on. A vGPU moves at most once, so
its user is interrupted once. Each moves when its new place is free; of those that wait for each other, some leave
first.
The search is exact up to a number of tries, and tries only the first of interchangeable GPUs.

Size: one search; its steps share the states that they have tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from vgpuctl.placement.cleared import TooManyError, room_by_clearing, sizes_of
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.gpu_kind import GpuKind, State
from vgpuctl.placement.migrations import (
    FreeFunctions,
    Leave,
    Migration,
    MigrationPlan,
    PlacedVgpu,
    add_placed_vgpu,
    apply_order,
    copy_fleet,
    count_free_after_order,
    renumber_order,
)
from vgpuctl.placement.order import Change, order_of, states_after, states_before
from vgpuctl.value import EMPTY_MAPPING

MAX_TRIES = 50_000
"""The most places that one search tries: a second or two."""
EXTRA_TRIES = 1_000
"""How many more it tries for a plan with equally few moves in which fewer vGPUs wait without a place."""
IsBetter = Callable[[Sequence[tuple[GpuGroup, GpuGroup]]], bool]
"""Decides from the groups of GPUs before and after a plan whether the plan is an improvement."""


class _SearchGpu(NamedTuple):
    """A GPU during the search: `unmoved` are the vGPUs that are still at their places and may move."""

    kind: int
    state: State
    unmoved: tuple[tuple[str, int], ...]


class _UnplacedVgpu(NamedTuple):
    """A vGPU without a place: a requested one (its number), or one removed from `moved_from`."""

    profile: str
    number: int = 0
    moved_from: PlacedVgpu | None = None


class _Assignment(NamedTuple):
    vgpu: _UnplacedVgpu
    target: PlacedVgpu


class _Option(NamedTuple):
    """A way to place one vGPU on a GPU: the vGPUs that it displaces, its place, and the GPU after it."""

    displaced: tuple[tuple[str, int], ...]
    place: int
    gpu_after: _SearchGpu


def find_migrations(
    fleet: Fleet, placed: Sequence[PlacedVgpu], profile: str, max_migrations: int = 2
) -> tuple[Migration | Leave, ...] | None:
    """Return the fewest moves (at most `max_migrations`) that let one more of the profile fit; None: there are none.

    Empty when it fits without a move. `placed` are the vGPUs of the fleet that may move; the fleet does not change.
    """
    plan = plan_migrations(fleet, placed, (profile,), max_migrations)
    return None if plan is None else plan.order


def plan_migrations(
    fleet: Fleet,
    placed: Sequence[PlacedVgpu],
    profiles: Sequence[str],
    max_migrations: int | None = None,
    *,
    max_tries: int = MAX_TRIES,
    fixed_gpus: frozenset[int] = frozenset(),
    free_functions: FreeFunctions = EMPTY_MAPPING,
    is_better: IsBetter | None = None,
) -> MigrationPlan | None:
    """Return the fewest moves that let all requested vGPUs fit; None: no plan within `max_migrations` exists.

    When there are too many plans to try, each requested vGPU gets its room in turn: this may take more moves than
    needed (`is_minimal` False), or give None although a plan exists. `fixed_gpus`: GPUs on which an existing vGPU
    cannot change its place, because the driver chooses it. `free_functions`: the functions that are free before the
    moves; a plan is dropped if no order of its moves finds enough of them, and `is_minimal` is then False.
    `is_better`: a plan counts only if this is true of how its moves change GPUs, without the requested vGPUs.
    """
    limit = len(placed) if max_migrations is None else min(max_migrations, len(placed))
    sizes = sizes_of(fleet, [*profiles, *(vgpu.profile for vgpu in placed)]) if is_better is None else None
    if sizes is not None:
        try:
            return room_by_clearing(fleet, sizes, placed, profiles, limit, max_tries, free_functions)
        except TooManyError:
            return (
                None
                if len(profiles) < 2
                else _plan_one_by_one(fleet, placed, profiles, limit, max_tries, fixed_gpus, free_functions)
            )
    search = _MigrationSearch(fleet, placed, max_tries, fixed_gpus, free_functions, is_better)
    for move_count in range(limit + 1):
        plan = search.find_plan(profiles, move_count)
        if plan is not None:
            return plan
        if search.gave_up:
            return (
                None
                if len(profiles) < 2
                else _plan_one_by_one(fleet, placed, profiles, limit, max_tries, fixed_gpus, free_functions)
            )
    return None


def _plan_one_by_one(
    fleet: Fleet,
    placed: Sequence[PlacedVgpu],
    profiles: Sequence[str],
    max_migrations: int,
    max_tries: int,
    fixed_gpus: frozenset[int],
    free_functions: FreeFunctions,
) -> MigrationPlan | None:
    """Make room for one vGPU after the other, the largest first; none of them moves for a later one."""
    current_fleet, current = copy_fleet(fleet), list(placed)
    order: list[Migration | Leave] = []
    places: dict[int, PlacedVgpu] = {}
    for number in sorted(range(len(profiles)), key=lambda n: (-max_framebuffer_mib(fleet, profiles[n]), n)):
        moved = {entry.vgpu_index for entry in order}
        unmoved = [n for n in range(len(placed)) if n not in moved]
        moves_left = max_migrations - len(moved)
        free = count_free_after_order(free_functions, placed, order)
        if free is None:
            return None
        plan = plan_migrations(
            current_fleet,
            [current[n] for n in unmoved],
            (profiles[number],),
            moves_left,
            max_tries=max_tries,
            fixed_gpus=fixed_gpus,
            free_functions=free,
        )
        if plan is None:
            return None
        added = renumber_order(plan.order, unmoved)
        apply_order(current_fleet, current, added)
        order += added
        (places[number],) = plan.places
        add_placed_vgpu(current_fleet, places[number])
    return MigrationPlan(tuple(order), tuple(places[n] for n in range(len(profiles))), is_minimal=False)


def find_fewest_blocking(fleet: Fleet, placed: Sequence[PlacedVgpu], gpu: int, profile: str) -> tuple[int, ...] | None:
    """Return the fewest vGPUs of `placed` that have to leave one GPU so that one more of the profile fits on it.

    Empty when it fits as it is; None when it would not fit even without them.
    """
    on_gpu = [n for n, vgpu in enumerate(placed) if vgpu.gpu == gpu]
    search = _MigrationSearch(fleet, [placed[n] for n in on_gpu], MAX_TRIES, frozenset(), EMPTY_MAPPING, None)
    displaced = search.find_fewest_displaced(gpu, profile)
    if displaced is None:
        return None
    numbers: dict[tuple[str, int], list[int]] = {(placed[n].profile, placed[n].place): [] for n in on_gpu}
    for n in on_gpu:
        numbers[placed[n].profile, placed[n].place].append(n)
    return tuple(sorted(numbers[vgpu_key].pop(0) for vgpu_key in displaced))


def max_framebuffer_mib(fleet: Fleet, profile: str) -> int:
    """Return the framebuffer of a profile in MiB, on the GPU on which it is largest; 0 where no GPU has the profile."""
    return max((kind.sizes.get(profile, 0) for kind in fleet.kinds), default=0)


class _MigrationSearch:
    """Search for plans, the fewest moves first. A state of all GPUs that led to no plan is not tried again."""

    def __init__(
        self,
        fleet: Fleet,
        placed: Sequence[PlacedVgpu],
        max_tries: int,
        fixed_gpus: frozenset[int],
        free_functions: FreeFunctions,
        is_better: IsBetter | None,
    ) -> None:
        self.gave_up = self._lacked_functions = False
        self._fleet = fleet
        self._placed = placed
        self._max_tries = max_tries
        self._fixed_gpus = fixed_gpus
        self._free_functions = free_functions
        self._is_improvement = is_better
        self._tried = self._plans_seen = 0
        self._failed: set[tuple[object, tuple[tuple[str, int | None], ...], int]] = set()
        self._options: dict[tuple[_SearchGpu, str, int], list[_Option]] = {}
        self._improvement_by_states: dict[frozenset[tuple[int, State]], bool] = {}
        vgpus_by_gpu: dict[int, list[tuple[str, int]]] = {}
        for vgpu in placed:
            vgpus_by_gpu.setdefault(vgpu.gpu, []).append((vgpu.profile, vgpu.place))
        groups = [fleet.group_of(gpu) for gpu in range(len(fleet))]
        self._gpus = tuple(
            _SearchGpu(g.kind_index, g.state, tuple(sorted(vgpus_by_gpu.get(n, ())))) for n, g in enumerate(groups)
        )

    def find_plan(self, profiles: Sequence[str], move_count: int) -> MigrationPlan | None:
        """Return a plan with exactly this many moves; of the plans tried, one in which the fewest vGPUs wait."""
        waiting = tuple(_UnplacedVgpu(profile, n) for n, profile in enumerate(profiles))
        best: MigrationPlan | None = None
        for assignments in self._iterate_plans(self._gpus, self._sort_by_size(waiting), move_count):
            self._plans_seen += 1
            changes = [
                Change(assignment.vgpu.moved_from, assignment.target)
                for assignment in assignments
                if assignment.vgpu.moved_from is not None
            ]
            plan = self._make_plan(assignments, changes) if len(changes) == move_count else None
            if plan is not None and (best is None or plan.waiting < best.waiting):
                self._max_tries = min(self._max_tries, self._tried + EXTRA_TRIES) if best is None else self._max_tries
                best = plan
            if best is not None and not best.waiting:
                break
        return best and best._replace(is_minimal=not self._lacked_functions)

    def find_fewest_displaced(self, gpu: int, profile: str) -> tuple[tuple[str, int], ...] | None:
        """Return the fewest vGPUs that have to leave one GPU so that one more fits; None when that is not enough."""
        for displaced_count in range(len(self._gpus[gpu].unmoved) + 1):
            candidates = [option.displaced for option in self._find_options(self._gpus[gpu], profile, displaced_count)]
            if candidates:
                return min(candidates, key=lambda vgpus: (len(vgpus), vgpus))
        return None

    def _sort_by_size(self, waiting: tuple[_UnplacedVgpu, ...]) -> tuple[_UnplacedVgpu, ...]:
        return tuple(sorted(waiting, key=lambda w: (-max_framebuffer_mib(self._fleet, w.profile), w.profile)))

    def _iterate_plans(
        self, gpus: tuple[_SearchGpu, ...], waiting: tuple[_UnplacedVgpu, ...], moves_left: int
    ) -> Iterator[tuple[_Assignment, ...]]:
        """Yield for every way to place all waiting vGPUs, with at most this many further moves, where each goes."""
        if not waiting:
            yield ()
            return
        key = (
            frozenset(Counter(gpus).items()),
            tuple((w.profile, self._forbidden_gpu(w)) for w in waiting),
            moves_left,
        )
        if key in self._failed or self.gave_up:
            return
        leaves = self._plans_seen
        for gpu, option in self._list_options(gpus, waiting[0], moves_left):
            self._tried += 1
            if self._tried > self._max_tries:
                self.gave_up = True
                return
            displaced = tuple(_UnplacedVgpu(p, moved_from=PlacedVgpu(gpu, p, place)) for p, place in option.displaced)
            after = (*gpus[:gpu], option.gpu_after, *gpus[gpu + 1 :])
            first = _Assignment(waiting[0], PlacedVgpu(gpu, waiting[0].profile, option.place))
            for rest in self._iterate_plans(
                after, self._sort_by_size((*waiting[1:], *displaced)), moves_left - len(displaced)
            ):
                yield (first, *rest)
        if self._plans_seen == leaves and not self.gave_up:
            self._failed.add(key)

    def _forbidden_gpu(self, vgpu: _UnplacedVgpu) -> int | None:
        """Return the GPU to which a vGPU must not go: its own, where it would get the same place."""
        return vgpu.moved_from.gpu if vgpu.moved_from is not None and vgpu.moved_from.gpu in self._fixed_gpus else None

    def _list_options(
        self, gpus: tuple[_SearchGpu, ...], vgpu: _UnplacedVgpu, moves_left: int
    ) -> list[tuple[int, _Option]]:
        """Return the ways to place one vGPU on one GPU of each interchangeable set, fewest displaced vGPUs first."""
        forbidden = self._forbidden_gpu(vgpu)
        firsts = {gpu: number for number, gpu in reversed(list(enumerate(gpus))) if number != forbidden}
        options = [
            (number, option)
            for gpu, number in firsts.items()
            for option in self._options_on_gpu(gpu, vgpu.profile, moves_left)
        ]
        return sorted(
            options, key=lambda entry: (len(entry[1].displaced), entry[0], entry[1].place, entry[1].displaced)
        )

    def _options_on_gpu(self, gpu: _SearchGpu, profile: str, moves_left: int) -> list[_Option]:
        key = (gpu, profile, moves_left)
        options = self._options.get(key)
        if options is None:
            candidates = self._find_options(gpu, profile, moves_left)  # taking the place of an equal vGPU gains nothing
            options = self._options[key] = [
                option for option in candidates if option.displaced != ((profile, option.place),)
            ]
        return options

    def _find_options(self, gpu: _SearchGpu, profile: str, moves_left: int) -> Iterator[_Option]:
        """Yield for each place the vGPUs it displaces: incompatible ones, and of the rest no more than needed."""
        kind = self._fleet.kinds[gpu.kind]
        empty_state = _remove_vgpus(kind, gpu.state, gpu.unmoved)
        state_with_each = [(vgpu, kind.add(empty_state, *vgpu)) for vgpu in gpu.unmoved]
        for place in [m.place for m in kind.all_placements(empty_state, profile)]:
            incompatible = (
                v for v, state in state_with_each if state is None or kind.add(state, profile, place) is None
            )
            required = tuple(islice(incompatible, moves_left + 1))
            if len(required) > moves_left:
                continue
            rest = tuple(v for v in gpu.unmoved if v not in required)
            opened: list[Counter[tuple[str, int]]] = []
            for extra_count in range(moves_left - len(required) + 1):
                for chosen in _subsets(rest, extra_count):
                    displaced = (*required, *chosen)
                    chosen_counts = Counter(chosen)
                    state_after = kind.add(_remove_vgpus(kind, gpu.state, displaced), profile, place)
                    if state_after is None or any(smaller <= chosen_counts for smaller in opened):
                        continue
                    opened.append(chosen_counts)
                    remaining = tuple((Counter(gpu.unmoved) - Counter(displaced)).elements())
                    yield _Option(displaced, place, _SearchGpu(gpu.kind, state_after, tuple(sorted(remaining))))
                if Counter() in opened:
                    break
                if extra_count == 1:
                    rest = tuple(v for v in rest if Counter([v]) not in opened)

    def _make_plan(self, assignments: tuple[_Assignment, ...], changes: Sequence[Change]) -> MigrationPlan | None:
        """Return the plan with its vGPUs by number, if its result is an improvement."""
        if self._is_improvement is not None and not self._is_better(changes, self._is_improvement):
            return None
        numbers: dict[PlacedVgpu, list[int]] = {}
        for number, vgpu in enumerate(self._placed):
            numbers.setdefault(vgpu, []).append(number)
        migrations = [Migration(numbers[source].pop(0), target.gpu, target.place) for source, target in changes]
        order = order_of(self._fleet, changes, self._free_functions)
        if order is None:
            self._lacked_functions = True
            return None
        places = {item.vgpu.number: item.target for item in assignments if item.vgpu.moved_from is None}
        entries = (Leave(migrations[n].vgpu_index) if leaves else migrations[n] for n, leaves in order)
        return MigrationPlan(tuple(entries), tuple(places[n] for n in range(len(places))))

    def _is_better(self, changes: Sequence[Change], is_better: IsBetter) -> bool:
        """Return whether the changed GPUs are an improvement.

        Many plans lead to the same states, so it caches results.
        """
        states = states_after(self._fleet, states_before(self._fleet, changes), changes) or {}
        key = frozenset(states.items())
        cached = self._improvement_by_states.get(key)
        if cached is None:
            old_groups = [(self._fleet.group_of(gpu), state) for gpu, state in states.items()]
            cached = self._improvement_by_states[key] = is_better(
                [(old, old._replace(state=state)) for old, state in old_groups]
            )
        return cached


def _remove_vgpus(kind: GpuKind, state: State, vgpus: Sequence[tuple[str, int]]) -> State:
    for profile, place in vgpus:
        state = kind.remove(state, profile, place)
    return state


def _subsets(vgpus: tuple[tuple[str, int], ...], number: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield every distinct subset of this size; the input is sorted."""
    if not number:
        yield ()
        return
    for n, first in enumerate(vgpus[: len(vgpus) - number + 1]):
        if n and vgpus[n - 1] == first:
            continue
        for others in _subsets(vgpus[n + 1 :], number - 1):
            yield (first, *others)
