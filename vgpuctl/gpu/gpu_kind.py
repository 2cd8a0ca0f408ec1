# SPDX-License-Identifier: Apache-2.0
"""What interchangeable GPUs take, as small hashable states: what is on a GPU, and its state after one more vGPU.

A way to divide a GPU (`division`) builds one of these and explains its numbers with names and holders. Without names a
policy can weigh thousands of choices in a second. Two GPUs of one kind in one state are interchangeable for every
choice, so a choice is among distinct states, not among GPUs.

`RoomLost` is what a vGPU takes from the room of its GPU at each place: the two numbers by which a place is chosen. The
room of a profile is the framebuffer that vGPUs of it alone can still use. Profiles with the same footprint count once,
so types of one size (4Q, 4A, 4C) weigh as much as one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from vgpuctl.solver import Program


Columns: TypeAlias = Mapping[tuple[str, int], Sequence[int]]
"""Columns of an integer program: how many vGPUs of a profile are at a place."""

State: TypeAlias = Any
"""What is on a GPU, in the form of its kind: hashable. Equal states take the same, now and later."""


class Placement(NamedTuple):
    """One more vGPU: its place (which `GpuKind.remove` needs to remove it again), and the state after it."""

    place: int
    state_after: State


class AlikeKind(ABC):
    """The base of kinds that are equal if they have the same numbers: their GPUs are interchangeable then."""

    def __init__(self, *numbers: Hashable) -> None:
        self._numbers = numbers

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)

    @abstractmethod
    def count_remaining(self, state: State, profile: str) -> int:
        """See `GpuKind.count_remaining`."""

    def count_each(self, state: State, profiles: tuple[str, ...]) -> list[int]:
        """See `GpuKind.count_each`."""
        return [self.count_remaining(state, profile) for profile in profiles]

    def sizes_in_use(self, state: State) -> frozenset[int]:
        """See `GpuKind.sizes_in_use`."""
        return frozenset()


class GpuKind(Protocol):
    """GPUs of one model that are divided in the same way.

    `framebuffer_mib`: of a whole GPU. `sizes`: the framebuffer in MiB of each profile that it offers.
    """

    @property
    def name(self) -> str:
        """The model, and how it is divided: for tables and messages."""

    @property
    def framebuffer_mib(self) -> int:
        """The framebuffer of the whole GPU."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The framebuffer in MiB of each profile."""

    @property
    def empty(self) -> State:
        """The state of a GPU with nothing on it."""

    def footprint(self, profile: str) -> Hashable:
        """Return what a vGPU of the profile takes; vGPUs with equal footprints can always swap places."""

    def placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """Return every distinct state after one more vGPU of the profile, the lowest place first; empty: no room."""

    def all_placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """Return `placements` and also each equivalent place: these differ only by the vGPUs that are there."""

    def add(self, state: State, profile: str, place: int) -> State | None:
        """Return the state after one more vGPU of the profile at this place; None: it is not free.

        Of equivalent places `placements` names only the first; here each of them is valid.
        """

    def remove(self, state: State, profile: str, place: int) -> State:
        """Return the state after the vGPU at this place is removed."""

    def count_remaining(self, state: State, profile: str) -> int:
        """Return how many more of this one profile fit, exactly."""

    def count_each(self, state: State, profiles: tuple[str, ...]) -> list[int]:
        """Return how many more of each of these profiles alone fit."""

    def sizes_in_use(self, state: State) -> frozenset[int]:
        """Return the framebuffer sizes in MiB of the vGPUs on a GPU; none where the state does not have them."""

    def fits(self, state: State, requested: Mapping[str, int]) -> bool:
        """Return whether this many of each of these profiles fit together, exactly."""

    def add_rows(self, program: Program, state: State, columns: Columns, number: int) -> None:
        """Add to an integer program what vGPUs on so many GPUs, each in this state, have to satisfy together.

        `columns`: for each (profile, place) the columns that count vGPUs there, of `all_placements` of this state.
        """


class RoomLost(NamedTuple):
    """In MiB; less is better, `extra` decides first.

    `extra`: how much more the largest room shrinks than on an empty GPU at the best place there; 0 where it shrinks
    less. A vGPU has some if it lies across places of sizes that it does not line up with. `total`: by how much the
    rooms of all profiles shrink together.
    """

    extra: int
    total: int


class RoomLostByKind:
    """Answers for the GPUs of one kind, and caches."""

    def __init__(self, kind: GpuKind) -> None:
        self._kind = kind
        distinct: dict[tuple[Hashable, int], str] = {}
        for profile, mib in kind.sizes.items():
            distinct.setdefault((kind.footprint(profile), mib), profile)
        self._profiles = tuple(distinct.values())
        self._mib = tuple(kind.sizes[profile] for profile in self._profiles)
        self._rooms: dict[State, tuple[int, int]] = {}
        self._when_empty: dict[str, int] = {}

    def placements_by_cost(self, state: State, profile: str) -> list[tuple[RoomLost, Placement]]:
        """Return every place for one more vGPU with its cost, the cheapest first, of equal ones the lowest first."""
        costs = [(self.lost(state, profile, p.state_after), p) for p in self._kind.placements(state, profile)]
        return sorted(costs, key=lambda cost: (cost[0], cost[1].place))

    def lost(self, state: State, profile: str, state_after: State) -> RoomLost:
        """Return what one more vGPU of a profile takes."""
        most, total = self._room(state)
        most_after, total_after = self._room(state_after)
        return RoomLost(max(0, most - most_after - self.lost_when_empty(profile)), total - total_after)

    def lost_when_empty(self, profile: str) -> int:
        """Return by how much the largest room shrinks on an empty GPU that takes a vGPU of a profile at its best place.

        It is at least the vGPU's framebuffer, and more where vGPUs of the profile do not fill a GPU. With GPU instances
        of other profiles the largest room may not shrink at all.
        """
        lost = self._when_empty.get(profile)
        if lost is None:
            most, _ = self._room(self._kind.empty)
            after = [self._room(p.state_after)[0] for p in self._kind.placements(self._kind.empty, profile)]
            lost = max(most - max(after, default=0), self._kind.sizes.get(profile, 0))
            self._when_empty[profile] = lost
        return lost

    def _room(self, state: State) -> tuple[int, int]:
        """Return the largest room of a profile, and the rooms of all profiles together."""
        room = self._rooms.get(state)
        if room is None:
            rooms = list(map(mul, self._kind.count_each(state, self._profiles), self._mib))
            room = self._rooms[state] = (max(rooms, default=0), sum(rooms))
        return room
