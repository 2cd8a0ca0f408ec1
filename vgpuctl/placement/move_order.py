# SPDX-License-Identifier: Apache-2.0
"""In which order vGPUs go to their new places: each when one is free; where none is, one gives up its place and waits.

A vGPU that gives up its place gives up its function too, and has neither until its new place is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.placement.fleet import Fleet, FreeFunctions, Leave, Migration, PlacedVgpu


class Mover(NamedTuple):
    """A vGPU that moves: its number, where it is, which class of places it may have, and whether its VM runs."""

    number: int
    here: PlacedVgpu
    profile_class: str
    runs: bool = False


class _Position(NamedTuple):
    """What is reached: the GPUs' states and free functions, who is at the old place or waits, and the places left."""

    states: Mapping[int, State]
    free_functions: FreeFunctions
    here: tuple[Mover, ...]
    waiting: tuple[Mover, ...]
    targets: tuple[PlacedVgpu, ...]


class _Turn(NamedTuple):
    mover: Mover
    target: PlacedVgpu | None
    """None: it gives up its place."""


class MoveOrder(NamedTuple):
    """The moves in order, and the places that are left over for vGPUs that are not there yet."""

    entries: tuple[Migration | Leave, ...]
    places_left: tuple[PlacedVgpu, ...]


def order_moves(
    fleet: Fleet,
    movers: Sequence[Mover],
    targets: Sequence[PlacedVgpu],
    free_functions: FreeFunctions,
    fixed_gpus: frozenset[int] = frozenset(),
) -> MoveOrder | None:
    """Return an order in which each vGPU gets one of the places of its class; None when there is none.

    Whoever finds a place free moves. If nobody does, the VM gives up its place for which most others wait, one that is
    off before one that runs. `targets`: `profile` is the class. `fixed_gpus`: on which no vGPU changes its place.
    """
    states = {gpu: fleet.group_of(gpu).state for gpu in range(len(fleet))}
    position = _Position(states, free_functions, tuple(movers), (), tuple(targets))
    orders = _Orders(fleet, fixed_gpus)
    entries: list[Migration | Leave] = []
    while position.here or position.waiting:
        turn = orders.best_move(position) or orders.best_leave(position)
        if turn is None:
            return None
        position = orders.after(position, turn)
        target = turn.target
        entries.append(
            Leave(turn.mover.number) if target is None else Migration(turn.mover.number, target.gpu, target.place)
        )
    return MoveOrder(tuple(entries), position.targets)


class _Orders:
    """What can be done at a position."""

    def __init__(self, fleet: Fleet, fixed_gpus: frozenset[int]) -> None:
        self._fleet = fleet
        self._fixed_gpus = fixed_gpus

    def best_move(self, position: _Position) -> _Turn | None:
        """Return a move to a free place that takes no function which another one may need first, if there is one."""
        turns = []
        for turn in self._moves(position):
            if self._is_safe(position, turn):
                return turn
            turns.append(turn)
        return max(turns, key=lambda turn: self._count_moves(self.after(position, turn)), default=None)

    def best_leave(self, position: _Position) -> _Turn | None:
        """Return who gives up its place."""
        turns = [_Turn(mover, None) for mover in position.here]
        return min(
            turns,
            key=lambda t: (t.mover.runs, -self._count_moves(self.after(position, t)), t.mover.number),
            default=None,
        )

    def after(self, position: _Position, turn: _Turn) -> _Position:
        """Return the position after a turn."""
        mover, target = turn
        states, free = dict(position.states), dict(position.free_functions)
        if mover in position.here:
            gpu = mover.here.gpu
            states[gpu] = self._kind(gpu).remove(states[gpu], mover.here.profile, mover.here.place)
            free |= {gpu: free[gpu] + 1} if gpu in free else {}
        here = tuple(other for other in position.here if other != mover)
        if target is None:
            return _Position(states, free, here, (*position.waiting, mover), position.targets)
        states[target.gpu] = self._kind(target.gpu).add(states[target.gpu], mover.here.profile, target.place)
        free |= {target.gpu: free[target.gpu] - 1} if target.gpu in free else {}
        waiting = tuple(other for other in position.waiting if other != mover)
        targets = list(position.targets)
        targets.remove(target)
        return _Position(states, free, here, waiting, tuple(targets))

    def _moves(self, position: _Position) -> Iterator[_Turn]:
        """Yield every move to a free place, those of vGPUs that wait first; a class has each place once."""
        for mover in (*position.waiting, *position.here):
            for target in dict.fromkeys(position.targets):
                if target.profile == mover.profile_class and self._is_free(position, mover, target):
                    yield _Turn(mover, target)

    def _is_free(self, position: _Position, mover: Mover, target: PlacedVgpu) -> bool:
        gpu = target.gpu
        if position.free_functions.get(gpu, 1) < 1 or not self._leaves_places(position, mover, target):
            return False
        state = position.states[gpu]
        if gpu == mover.here.gpu and mover in position.here:
            state = self._kind(gpu).remove(state, mover.here.profile, mover.here.place)
        return self._kind(gpu).add(state, mover.here.profile, target.place) is not None

    def _leaves_places(self, position: _Position, mover: Mover, target: PlacedVgpu) -> bool:
        """Return whether after a move each vGPU of a fixed GPU still finds a place of its class on another one."""
        if target.gpu == mover.here.gpu and target.gpu in self._fixed_gpus:
            return False
        if not self._fixed_gpus:
            return True
        movers = [m.here.gpu for m in (*position.here, *position.waiting) if m.profile_class == mover.profile_class]
        targets = [t.gpu for t in position.targets if t.profile == mover.profile_class]
        movers.remove(mover.here.gpu)
        targets.remove(target.gpu)
        return all(movers.count(gpu) + targets.count(gpu) <= len(targets) for gpu in self._fixed_gpus)

    def _is_safe(self, position: _Position, turn: _Turn) -> bool:
        gpu = turn.target.gpu if turn.target is not None else -1
        free = position.free_functions.get(gpu)
        return free is None or free >= sum(target.gpu == gpu for target in position.targets)

    def _count_moves(self, position: _Position) -> int:
        """Return how many vGPUs can move."""
        return len({turn.mover for turn in self._moves(position)})

    def _kind(self, gpu: int) -> GpuKind:
        return self._fleet.kind_of(self._fleet.group_of(gpu))
