# SPDX-License-Identifier: Apache-2.0
"""Many GPUs. Those of one kind and state are interchangeable, so a policy tries one GPU of each such group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from vgpuctl.gpu.gpu_kind import GpuKind, Placement, State


class GpuGroup(NamedTuple):
    """What the GPUs of a group share: the index of their kind in `Fleet.kinds`, and their state."""

    kind_index: int
    state: State


class PlacementChoice(NamedTuple):
    """One possibility for the next vGPU: on this GPU, which is in this group, with this placement."""

    gpu: int
    group: GpuGroup
    placement: Placement


class Fleet:
    """A mutable set of GPUs, numbered in the order of their addresses."""

    def __init__(self, kinds: Sequence[GpuKind], gpus: Sequence[GpuGroup], vgpu_counts: Sequence[int] = ()) -> None:
        """`vgpu_counts`: how many vGPUs each GPU has already; none by default."""
        self.kinds = tuple(kinds)
        self._group_of = list(gpus)
        self._vgpu_counts = list(vgpu_counts) or [0] * len(self._group_of)
        self._members: dict[GpuGroup, list[int]] = {}
        self._group_sizes: dict[GpuGroup, int] = {}
        for gpu, group in enumerate(gpus):
            self._members.setdefault(group, []).append(gpu)
        for group, members in self._members.items():
            heapify(members)
            self._group_sizes[group] = len(members)

    def __len__(self) -> int:
        return len(self._group_of)

    def groups(self) -> Iterator[tuple[GpuGroup, int]]:
        """Return every group that has GPUs, and how many. Do not change the fleet while you iterate."""
        return iter(self._group_sizes.items())

    def group_of(self, gpu: int) -> GpuGroup:
        """Return the current group of a GPU."""
        return self._group_of[gpu]

    def vgpu_count(self, gpu: int) -> int:
        """Return how many vGPUs a GPU has now."""
        return self._vgpu_counts[gpu]

    def kind_of(self, group: GpuGroup) -> GpuKind:
        """Return the kind of the GPUs in a group."""
        return self.kinds[group.kind_index]

    def first_gpu(self, group: GpuGroup) -> int:
        """Return the GPU with the lowest number in a group that is not empty."""
        members = self._members[group]
        while self._group_of[members[0]] != group:  # GPUs that left the group stay in its heap until they are first
            heappop(members)
        return members[0]

    def add_vgpu(self, gpu: int, placement: Placement) -> None:
        """Place a vGPU on a GPU."""
        self._vgpu_counts[gpu] += 1
        self._change_group(gpu, GpuGroup(self._group_of[gpu].kind_index, placement.state_after))

    def remove_vgpu(self, gpu: int, profile: str, place: int) -> None:
        """Remove a vGPU from a GPU. `place`: the place of its `Placement`."""
        group = self._group_of[gpu]
        self._vgpu_counts[gpu] -= 1
        self._change_group(
            gpu, GpuGroup(group.kind_index, self.kinds[group.kind_index].remove(group.state, profile, place))
        )

    def _change_group(self, gpu: int, new: GpuGroup) -> None:
        old = self._group_of[gpu]
        if new == old:
            return
        self._group_sizes[old] -= 1
        if not self._group_sizes[old]:
            del self._group_sizes[old], self._members[old]
        self._group_of[gpu] = new
        self._group_sizes[new] = self._group_sizes.get(new, 0) + 1
        heappush(self._members.setdefault(new, []), gpu)
