# SPDX-License-Identifier: Apache-2.0
"""Many GPUs, grouped by kind and state: what a policy weighs is one move for each different group, not for each GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from vgpuctl.placement.kind import Kind, Move, State


class Group(NamedTuple):
    """GPUs that are alike: the number of their kind in `Fleet.kinds`, and their state."""

    kind: int
    state: State


class Choice(NamedTuple):
    """Where the next vGPU goes: on this GPU, which is of this group, by this move."""

    gpu: int
    group: Group
    move: Move


class Fleet:
    """GPUs by number, in the order of their addresses; the only thing here that changes."""

    def __init__(self, kinds: Sequence[Kind], gpus: Sequence[Group], vgpus: Sequence[int] = ()) -> None:
        """`vgpus`: how many each GPU has already; none when not given."""
        self.kinds = tuple(kinds)
        self._group_of = list(gpus)
        self._vgpus = list(vgpus) or [0] * len(self._group_of)
        self._members: dict[Group, list[int]] = {}
        self._size: dict[Group, int] = {}
        for number, group in enumerate(gpus):
            self._members.setdefault(group, []).append(number)
        for group, members in self._members.items():
            heapify(members)
            self._size[group] = len(members)

    def __len__(self) -> int:
        return len(self._group_of)

    def groups(self) -> Iterator[tuple[Group, int]]:
        """Return every group that has GPUs, and how many."""
        return iter(self._size.items())

    def group_of(self, gpu: int) -> Group:
        """Return the group that a GPU is in now."""
        return self._group_of[gpu]

    def vgpus(self, gpu: int) -> int:
        """Return how many vGPUs a GPU has now."""
        return self._vgpus[gpu]

    def kind(self, group: Group) -> Kind:
        """Return what the GPUs of a group take."""
        return self.kinds[group.kind]

    def first(self, group: Group) -> int:
        """Return the GPU with the lowest number in a group that has some."""
        members = self._members[group]
        while self._group_of[members[0]] != group:
            heappop(members)
        return members[0]

    def choices(self, profile: str) -> Iterator[Choice]:
        """Return every different way to place one vGPU of the profile: on the first GPU of each group."""
        for group in self._size:
            for move in self.kinds[group.kind].moves(group.state, profile):
                yield Choice(self.first(group), group, move)

    def put(self, gpu: int, move: Move) -> None:
        """Place a vGPU on a GPU."""
        self._vgpus[gpu] += 1
        self._set(gpu, Group(self._group_of[gpu].kind, move.after))

    def take(self, gpu: int, profile: str, place: int) -> None:
        """Take a vGPU away that was put on a GPU at this place."""
        group = self._group_of[gpu]
        self._vgpus[gpu] -= 1
        self._set(gpu, Group(group.kind, self.kinds[group.kind].without(group.state, profile, place)))

    def _set(self, gpu: int, new: Group) -> None:
        old = self._group_of[gpu]
        if new == old:
            return
        self._size[old] -= 1
        if not self._size[old]:
            del self._size[old], self._members[old]
        self._group_of[gpu] = new
        self._size[new] = self._size.get(new, 0) + 1
        heappush(self._members.setdefault(new, []), gpu)
