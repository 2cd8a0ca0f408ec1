# SPDX-License-Identifier: Apache-2.0
"""The fewest moves of vGPUs after which more fit: an integer program says where each is in the end, then the order.

A vGPU moves at most once, so its user is interrupted once. As many as possible stay where they are. For one GPU alone,
without a solver: the fewest vGPUs that have to leave it so that one more fits there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.placement.fit import largest_mib, total_left
from vgpuctl.placement.fleet import Fleet, FreeFunctions, MigrationPlan, PlacedVgpu, apply_order, copy_fleet
from vgpuctl.placement.fleet_program import FleetProgram, ProfileClasses
from vgpuctl.placement.move_order import Mover, order_moves
from vgpuctl.solver import Program, Solution
from vgpuctl.value import EMPTY_MAPPING, Value


class MovableFleet(Value):
    """A fleet, and the vGPUs on it that may move.

    `fixed_gpus`: GPUs on which a vGPU cannot change its place, because the driver chooses it. `free_functions`: the
    functions that are free before the moves. `running`: the vGPUs, by their number in `placed`, whose VMs run.
    """

    fleet: Fleet
    placed: tuple[PlacedVgpu, ...]
    fixed_gpus: frozenset[int] = frozenset()
    free_functions: FreeFunctions = EMPTY_MAPPING
    running: frozenset[int] = frozenset()


def plan_room(movable: MovableFleet, profiles: Sequence[str], max_moves: int | None = None) -> MigrationPlan | None:
    """Return the fewest moves after which all these fit too; None when no `max_moves` moves make enough room.

    Raises:
        SolverFailed: HiGHS is not installed, or found no answer in time.
    """
    for apart in _blocks_to_try(movable):
        program = _MoveProgram(movable, profiles, max_moves, apart)
        solution = program.keep_most()
        if solution is None:
            return None
        plan = program.plan(solution)
        if plan is not None:
            return plan
    return None


def plan_larger_pieces(movable: MovableFleet, max_moves: int | None = None) -> MigrationPlan:
    """Return the fewest moves after which as many as possible of the largest profile fit, alone.

    Where no more of it can be made to fit, of the next one, without losing any of a larger one.

    Raises:
        SolverFailed: HiGHS is not installed, or found no answer in time.
    """
    anywhere = _EndProgram(movable, (), ())
    larger: dict[str, int] = {}
    for profile in _classes_by_size(movable.fleet):
        now = total_left(movable.fleet, profile)
        most = anywhere.leave_room(profile, now).most() or now
        plan = _plan_more_room(movable, max_moves, larger, profile, most) if most > now else None
        if plan is not None:
            return plan
        larger[profile] = now
    return MigrationPlan((), ())


def _plan_more_room(
    movable: MovableFleet, max_moves: int | None, larger: Mapping[str, int], profile: str, most: int
) -> MigrationPlan | None:
    """Return the fewest moves after which the most of one profile fit, and no fewer of larger ones; None: no more do.

    `larger`: how many of each of those fit now. `most`: how many of the profile could fit if every vGPU could move.
    """
    now = total_left(movable.fleet, profile)
    for apart in _blocks_to_try(movable):
        program = _MoveProgram(movable, (), max_moves, apart)
        for other, number in larger.items():
            if number:
                program.leave_room(other, number)
        required = most
        room = program.leave_room(profile, required)
        solution = program.keep_most()
        if solution is None:
            room.require(now + 1)
            reachable = room.most()
            if reachable is None:
                return None
            required = reachable
            room.require(required)
            solution = program.keep_most()
        plan = program.plan(solution) if solution is not None else None
        if plan is not None and _has_room(movable, plan, {**larger, profile: required}):
            return plan
    return None


def _has_room(movable: MovableFleet, plan: MigrationPlan, rooms: Mapping[str, int]) -> bool:
    """Return whether so many of each profile fit after a plan, alone: GPUs that were merged may take fewer."""
    after = copy_fleet(movable.fleet)
    apply_order(after, list(movable.placed), plan.order)
    return all(total_left(after, profile) >= room for profile, room in rooms.items())


def profiles_by_size(fleet: Fleet) -> list[str]:
    """Return the profiles, the largest first; of one size by name."""
    names = {profile for kind in fleet.kinds for profile in kind.sizes}
    return sorted(names, key=lambda profile: (-largest_mib(fleet, profile), profile))


def _classes_by_size(fleet: Fleet) -> list[str]:
    """Return one profile of each class, the largest first."""
    profiles = profiles_by_size(fleet)
    class_of = ProfileClasses(fleet, profiles).class_of
    return list(dict.fromkeys(class_of[profile] for profile in profiles))


def _blocks_to_try(movable: MovableFleet) -> Iterator[Collection[int]]:
    """Yield which GPUs are not merged with others: those with movable vGPUs; if that is not exact, all."""
    yield frozenset(vgpu.gpu for vgpu in movable.placed)
    yield range(len(movable.fleet))


class _UnusedRoom:
    """Room for more of one profile. Its columns count how many fit, and its row requires some."""

    def __init__(self, program: Program, columns: Sequence[int], row: int) -> None:
        self._program = program
        self._columns = columns
        self._row = row

    def most(self) -> int | None:
        """Return the most that can fit; None when what is required cannot."""
        solution = self._program.maximize(dict.fromkeys(self._columns, 1))
        return None if solution is None else sum(solution.values[column] for column in self._columns)

    def require(self, least: int) -> None:
        """Require at least so many."""
        self._program.set_lower(self._row, least)


class _EndProgram:
    """Where all vGPUs are in the end: the movable ones anywhere, and those that are requested."""

    def __init__(self, movable: MovableFleet, profiles: Sequence[str], apart: Collection[int]) -> None:
        self._movable = movable
        self._profiles = profiles
        self._classes = ProfileClasses(movable.fleet, [*profiles, *(vgpu.profile for vgpu in movable.placed)])
        self._program = FleetProgram(movable.fleet, movable.placed, self._classes.class_of.values(), apart)
        self._totals = self._classes.count(Counter([*profiles, *(vgpu.profile for vgpu in movable.placed)]))
        for name, total in self._totals.items():
            self._program.add_row(dict.fromkeys(self._program.columns_of(name), 1), lower=total, upper=total)

    def leave_room(self, profile: str, least: int) -> _UnusedRoom:
        """Require room for so many more of a profile, alone beside the vGPUs there are."""
        columns = self._program.add_unused_room(profile)
        return _UnusedRoom(self._program, columns, self._program.add_row(dict.fromkeys(columns, 1), lower=least))


class _MoveProgram(_EndProgram):
    """The same, with a column for each place of movable vGPUs that counts how many of them stay there."""

    def __init__(
        self, movable: MovableFleet, profiles: Sequence[str], max_moves: int | None, apart: Collection[int]
    ) -> None:
        super().__init__(movable, profiles, apart)
        self._there: dict[tuple[PlacedVgpu, bool], list[int]] = {}
        for number, vgpu in enumerate(movable.placed):
            spot = vgpu._replace(profile=self._classes.class_of[vgpu.profile])
            self._there.setdefault((spot, number in movable.running), []).append(number)
        self._kept = {key: self._program.add_column(len(numbers)) for key, numbers in self._there.items()}
        for spot in {spot: None for spot, _ in self._there}:
            kept = {self._kept[spot, runs]: 1.0 for runs in (True, False) if (spot, runs) in self._kept}
            self._program.add_row({**kept, self._program.column_at(spot): -1}, upper=0)
        for gpu in sorted(movable.fixed_gpus & {vgpu.gpu for vgpu in movable.placed}):
            for name in self._totals:
                self._forbid_moves_within(gpu, name)
        if max_moves is not None:
            self._program.add_row(dict.fromkeys(self._kept.values(), 1), lower=len(movable.placed) - max_moves)

    def _forbid_moves_within(self, gpu: int, name: str) -> None:
        """Let no more vGPUs of a class be at new places on a GPU than leave other GPUs or are new."""
        here = sum(
            len(numbers) for (spot, _), numbers in self._there.items() if (spot.gpu, spot.profile) == (gpu, name)
        )
        row = dict.fromkeys(self._program.columns_of(name, gpu), 1.0)
        for (spot, _), column in self._kept.items():
            if spot.profile == name:
                row[column] = -1 if spot.gpu == gpu else 1
        self._program.add_row(row, upper=self._totals[name] - here)

    def keep_most(self) -> Solution | None:
        """Return the solution in which the most vGPUs stay where they are, and of these the most of running VMs."""
        share = 1 / (len(self._movable.placed) + 1)
        return self._program.maximize({column: 1 + share * runs for (_, runs), column in self._kept.items()})

    def plan(self, solution: Solution) -> MigrationPlan | None:
        """Return the moves in their order; None when GPUs that are alike do not take what they take together."""
        placed = self._program.spread(solution)
        if placed is None:
            return None
        targets = Counter(placed)
        movers: list[Mover] = []
        for (spot, runs), numbers in self._there.items():
            stays = solution.values[self._kept[spot, runs]]
            targets[spot] -= stays
            movers += [
                Mover(number, self._movable.placed[number], spot.profile, runs)
                for number in numbers[: len(numbers) - stays]
            ]
        order = order_moves(
            self._movable.fleet,
            sorted(movers),
            sorted(targets.elements()),
            self._movable.free_functions,
            self._movable.fixed_gpus,
        )
        if order is None:
            return None
        left = list(order.places_left)
        places: list[PlacedVgpu] = []
        for profile in self._profiles:
            place = next(place for place in left if place.profile == self._classes.class_of[profile])
            left.remove(place)
            places.append(place._replace(profile=profile))
        return MigrationPlan(order.entries, tuple(places), is_minimal=solution.is_proven)


Allocated = tuple[str, int]
"""The profile of a vGPU, and its place."""


def find_fewest_blocking(
    kind: GpuKind, state: State, allocated: Sequence[Allocated], profile: str
) -> tuple[int, ...] | None:
    """Return the fewest of these vGPUs, by number, without which one more of the profile fits on a GPU.

    Empty when it fits as it is; None when it would not fit even without all of them.
    """
    empty = _without(kind, state, allocated)
    candidates = [
        blocking
        for placement in kind.all_placements(empty, profile)
        for blocking in _blocking_at(kind, state, allocated, profile, placement.place)
    ]
    return min(candidates, key=lambda numbers: (len(numbers), numbers), default=None)


def _blocking_at(
    kind: GpuKind, state: State, allocated: Sequence[Allocated], profile: str, place: int
) -> Iterator[tuple[int, ...]]:
    """Yield the fewest vGPUs without which one place is free, in the first way there is.

    All that cannot be beside it have to leave, and of the others as few as possible: those use what a GPU has only so
    much of, such as VFs.
    """
    empty = _without(kind, state, allocated)
    excluding = [
        number for number, vgpu in enumerate(allocated) if not _fit_beside(kind, empty, vgpu, (profile, place))
    ]
    rest = tuple(sorted(vgpu for number, vgpu in enumerate(allocated) if number not in excluding))
    remaining = _without(kind, state, [allocated[number] for number in excluding])
    for count in range(len(rest) + 1):
        for chosen in _distinct_subsets(rest, count):
            if kind.add(_without(kind, remaining, chosen), profile, place) is None:
                continue
            leaving = list(excluding)
            for vgpu in chosen:
                leaving.append(next(n for n, other in enumerate(allocated) if other == vgpu and n not in leaving))
            yield tuple(sorted(leaving))
            return


def _distinct_subsets(vgpus: tuple[Allocated, ...], number: int) -> Iterator[tuple[Allocated, ...]]:
    """Yield every distinct subset of this size; the input is sorted."""
    if not number:
        yield ()
        return
    for n, first in enumerate(vgpus[: len(vgpus) - number + 1]):
        if n and vgpus[n - 1] == first:
            continue
        for others in _distinct_subsets(vgpus[n + 1 :], number - 1):
            yield (first, *others)


def _fit_beside(kind: GpuKind, empty: State, one: Allocated, other: Allocated) -> bool:
    with_one = kind.add(empty, *one)
    return with_one is not None and kind.add(with_one, *other) is not None


def _without(kind: GpuKind, state: State, vgpus: Sequence[Allocated]) -> State:
    for profile, place in vgpus:
        state = kind.remove(state, profile, place)
    return state
