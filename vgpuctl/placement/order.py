# SPDX-License-Identifier: Apache-2.0
"""In which order vGPUs go to other places: each when its new place is free; where none is, one gives up its place.

A vGPU that gives up its place, and its function with it, waits without one until its new place is free. As few as
possible wait, and of those as few as possible in running VMs, which are off meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.gpu_kind import State
from vgpuctl.placement.migrations import FreeFunctions, PlacedVgpu

MAX_TRIES = 2_000
"""The most positions from which one search goes on; then it takes the best order that it has."""


class Change(NamedTuple):
    """A vGPU that is here goes there."""

    here: PlacedVgpu
    to: PlacedVgpu


class Turn(NamedTuple):
    """A change by its number: the vGPU goes to its new place, or gives up its present one and waits (`leaves`)."""

    number: int
    leaves: bool = False


class _Position(NamedTuple):
    """What is reached: the GPUs' states and free functions, and which changes wait or have not begun."""

    states: Mapping[int, State]
    spare: FreeFunctions
    here: frozenset[int]
    waiting: frozenset[int] = frozenset()


Order = tuple[Turn, ...]


def order_of(
    fleet: Fleet, changes: Sequence[Change], spare: FreeFunctions, running: frozenset[int] = frozenset()
) -> Order | None:
    """Return an order in which each change finds its new place free; None: all together they cannot be.

    `running`: the changes of vGPUs whose VMs run.
    """
    search = _OrderSearch(fleet, changes, running)
    start = _Position(states_before(fleet, changes), spare, frozenset(range(len(changes))))
    best = search.dive(start)
    if best is None:
        return None
    most, most_running = search.cost(best)
    for leaves in range(most + 1):
        for leaves_running in range(min(leaves, len(running)) + 1):
            if (leaves, leaves_running) >= (most, most_running):
                return best
            found = search.find(start, leaves, leaves_running)
            if found is not None:
                return found
    return best


def states_before(fleet: Fleet, changes: Sequence[Change]) -> dict[int, State]:
    """Return the states of the GPUs that change."""
    return {gpu: fleet.group_of(gpu).state for here, to in changes for gpu in (to.gpu, here.gpu)}


def states_after(fleet: Fleet, states: Mapping[int, State], changes: Sequence[Change]) -> dict[int, State] | None:
    """Return the states of GPUs when all of these have left and then are at their new places; None: impossible."""
    after = dict(states)
    for here, _ in changes:
        after[here.gpu] = fleet.kind_of(fleet.group_of(here.gpu)).remove(after[here.gpu], here.profile, here.place)
    for _, to in changes:
        after[to.gpu] = fleet.kind_of(fleet.group_of(to.gpu)).add(after[to.gpu], to.profile, to.place)
        if after[to.gpu] is None:
            return None
    return after


class _OrderSearch:
    """Search for orders; a position from which no order led on is not tried again."""

    def __init__(self, fleet: Fleet, changes: Sequence[Change], running: frozenset[int]) -> None:
        self._fleet = fleet
        self._changes = changes
        self._running = running
        self._tries = 0
        self._dead: set[tuple[frozenset[int], frozenset[int], int, int]] = set()

    def cost(self, order: Order) -> tuple[int, int]:
        """Return how many vGPUs wait in an order, and how many of them are in running VMs."""
        waiting = [turn.number for turn in order if turn.leaves]
        return len(waiting), len(self._running.intersection(waiting))

    def dive(self, position: _Position) -> Order | None:
        """Return the order in which always the likeliest one leaves when nothing else can be done."""
        turns: list[Turn] = []
        while position.here or position.waiting:
            moves = self._moves(position)
            turn = next(moves, None) or next(self._leaves(position), None)
            if turn is None:
                return None
            position = self._require(position, turn)
            turns.append(turn)
        return tuple(turns)

    def find(self, position: _Position, leaves: int, leaves_running: int) -> Order | None:
        """Return an order in which no more vGPUs leave their places, and no more of those in running VMs."""
        turns: list[Turn] = []
        while (safe := next((t for t in self._moves(position) if self._is_safe(position, t)), None)) is not None:
            position = self._require(position, safe)
            turns.append(safe)
        if not position.here and not position.waiting:
            return tuple(turns)
        key = (position.here, position.waiting, leaves, leaves_running)
        if key in self._dead or self._tries >= MAX_TRIES:
            return None
        self._tries += 1
        for turn in (*self._moves(position), *(self._leaves(position) if leaves else ())):
            runs = turn.leaves and turn.number in self._running
            if runs and not leaves_running:
                continue
            rest = self.find(self._require(position, turn), leaves - turn.leaves, leaves_running - runs)
            if rest is not None:
                return (*turns, turn, *rest)
        self._dead.add(key)
        return None

    def _moves(self, position: _Position) -> Iterator[Turn]:
        """Yield the changes whose new place is free, those that wait first."""
        for number in (*sorted(position.waiting), *sorted(position.here)):
            turn = Turn(number)
            if self._after(position, turn) is not None:
                yield turn

    def _leaves(self, position: _Position) -> Iterator[Turn]:
        """Yield who may leave: VMs that are off first, and first those for which most others wait."""
        free = {turn.number for turn in self._moves(position)}

        def rank(number: int) -> tuple[bool, int, int]:
            after = self._require(position, Turn(number, leaves=True))
            freed = sum(turn.number not in free | {number} for turn in self._moves(after))
            return number in self._running, -freed, number

        for number in sorted(position.here, key=rank):
            yield Turn(number, leaves=True)

    def _is_safe(self, position: _Position, turn: Turn) -> bool:
        """Return whether a move to a free place takes no function that another one may need earlier."""
        here, to = self._changes[turn.number]
        free = position.spare.get(to.gpu)
        if free is None or (here.gpu == to.gpu and turn.number in position.here):
            return True
        return free >= sum(self._changes[n].to.gpu == to.gpu for n in position.here | position.waiting)

    def _require(self, position: _Position, turn: Turn) -> _Position:
        after = self._after(position, turn)
        if after is None:
            raise ValueError(f"{turn} is impossible")
        return after

    def _after(self, position: _Position, turn: Turn) -> _Position | None:
        """Return the position after a turn; None if its place or a function is not free."""
        here, to = self._changes[turn.number]
        states, spare = dict(position.states), dict(position.spare)
        if not turn.leaves and spare.get(to.gpu, 1) < 1:
            return None
        if turn.number in position.here:
            kind = self._fleet.kind_of(self._fleet.group_of(here.gpu))
            states[here.gpu] = kind.remove(states[here.gpu], here.profile, here.place)
            spare |= {here.gpu: spare[here.gpu] + 1} if here.gpu in spare else {}
        one = frozenset({turn.number})
        if turn.leaves:
            return _Position(states, spare, position.here - one, position.waiting | one)
        states[to.gpu] = self._fleet.kind_of(self._fleet.group_of(to.gpu)).add(states[to.gpu], to.profile, to.place)
        spare |= {to.gpu: spare[to.gpu] - 1} if to.gpu in spare else {}
        return None if states[to.gpu] is None else _Position(states, spare, position.here - one, position.waiting - one)
