# SPDX-License-Identifier: Apache-2.0
"""What a vGPU takes from the room of its GPU at each place: the two numbers by which a place is chosen.

The room of a profile is the framebuffer that vGPUs of it alone can still use. Profiles with the same footprint count
once, so types of one size (4Q, 4A, 4C) weigh as much as one.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import mul
from typing import NamedTuple

from vgpuctl.gpu.gpu_kind import GpuKind, Placement, State


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
