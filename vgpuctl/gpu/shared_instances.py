# SPDX-License-Identifier: Apache-2.0
"""GPUs with MIG whose GPU instances (GIs) take several vGPUs each, all of one framebuffer size in one GI (GB20x).

Where a GI takes one vGPU, `SliceKind` with a pool for each GI profile gives the same results and is faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vgpuctl.gpu.equal_size import add_one_size_rows
from vgpuctl.gpu.gpu_kind import AlikeKind, Columns, Placement, State

if TYPE_CHECKING:
    from vgpuctl.solver import Program


class InstanceNeed(NamedTuple):
    """What a profile needs: an instance of this GI profile, which takes `max_vgpus` of it."""

    gi_profile_id: int
    max_vgpus: int


class SharedInstanceKind(AlikeKind):
    """A kind whose state is (all vGPUs, (size in MiB, vGPUs) of each instance). A place is an instance's number."""

    def __init__(
        self,
        name: str,
        framebuffer_mib: int,
        sizes: Mapping[str, int],
        needs: Mapping[str, InstanceNeed],
        *,
        instances: Sequence[int],
        carriers: int,
    ) -> None:
        """`instances`: the GI profile of each; `carriers`: the VFs of the GPU."""
        super().__init__(name, framebuffer_mib, tuple(sizes.items()), tuple(needs.items()), tuple(instances), carriers)
        self.name = name
        self.framebuffer_mib = framebuffer_mib
        self.sizes = dict(sizes)
        self.empty: State = (0, tuple((0, 0) for _ in instances))
        self._needs = dict(needs)
        self._instances = tuple(instances)
        self._carriers = carriers

    def footprint(self, profile: str) -> Hashable:
        """See `GpuKind.footprint`."""
        return (self._needs[profile], self.sizes[profile]) if profile in self._needs else None

    def placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """See `GpuKind.placements`. Of equivalent instances only the first counts."""
        _, instance_states = state
        distinct: dict[tuple[int, int, int], Placement] = {}
        for placement in self.all_placements(state, profile):
            distinct.setdefault((self._instances[placement.place], *instance_states[placement.place]), placement)
        return tuple(distinct.values())

    def all_placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """See `GpuKind.all_placements`."""
        return tuple(
            Placement(place, self._add_to_instance(state, profile, place))
            for place in self._open_instances(state, profile)
        )

    def add(self, state: State, profile: str, place: int) -> State | None:
        """See `GpuKind.add`."""
        return self._add_to_instance(state, profile, place) if place in self._open_instances(state, profile) else None

    def _add_to_instance(self, state: State, profile: str, place: int) -> State:
        vgpu_count, instance_states = state
        new_state = (self.sizes[profile], instance_states[place][1] + 1)
        return (vgpu_count + 1, (*instance_states[:place], new_state, *instance_states[place + 1 :]))

    def _open_instances(self, state: State, profile: str) -> list[int]:
        vgpu_count, instance_states = state
        need = self._needs.get(profile)
        if need is None or vgpu_count >= self._carriers:
            return []
        return [
            n
            for n, gi_profile_id in enumerate(self._instances)
            if gi_profile_id == need.gi_profile_id and self._count_free_in_instance(instance_states[n], profile)
        ]

    def _count_free_in_instance(self, instance_state: tuple[int, int], profile: str) -> int:
        """Return how many more of a profile fit into an instance of its GI profile."""
        size, vgpu_count = instance_state
        return max(0, self._needs[profile].max_vgpus - vgpu_count) if size in (0, self.sizes[profile]) else 0

    def remove(self, state: State, profile: str, place: int) -> State:
        """See `GpuKind.remove`."""
        vgpu_count, instance_states = state
        size, count = instance_states[place]
        new_state = (size, count - 1) if count > 1 else (0, 0)
        return (vgpu_count - 1, (*instance_states[:place], new_state, *instance_states[place + 1 :]))

    def count_remaining(self, state: State, profile: str) -> int:
        """See `GpuKind.count_remaining`."""
        vgpu_count, instance_states = state
        free = sum(
            self._count_free_in_instance(instance_states[place], profile)
            for place in self._open_instances(state, profile)
        )
        return int(min(free, self._carriers - vgpu_count)) if free else 0

    def sizes_in_use(self, state: State) -> frozenset[int]:
        """See `GpuKind.sizes_in_use`."""
        return frozenset(size for size, count in state[1] if count)

    def fits(self, state: State, requested: Mapping[str, int]) -> bool:
        """See `GpuKind.fits`. Each size uses the instances that already have it, and needs some of the free ones."""
        vgpu_count, instance_states = state
        counts_by_profile = {p: n for p, n in requested.items() if n}
        if not counts_by_profile:
            return True
        if (
            not all(p in self._needs for p in counts_by_profile)
            or sum(counts_by_profile.values()) > self._carriers - vgpu_count
        ):
            return False
        sizes: dict[tuple[int, int], Counter[int]] = {}
        for profile, count in counts_by_profile.items():
            need = self._needs[profile]
            sizes.setdefault((need.gi_profile_id, self.sizes[profile]), Counter())[need.max_vgpus] += count
        free = Counter(gi for gi, (size, _) in zip(self._instances, instance_states, strict=True) if not size)
        for (gi, size), counts in sizes.items():
            current = [
                n
                for gi_profile_id, (own_size, n) in zip(self._instances, instance_states, strict=True)
                if (gi_profile_id, own_size) == (gi, size)
            ]
            free[gi] -= _count_extra_instances(counts, current)
        return all(free_count >= 0 for free_count in free.values())

    def add_rows(self, program: Program, state: State, columns: Columns, number: int) -> None:
        """See `GpuKind.add_rows`: each instance is of one size, and each vGPU has a carrier of its own."""
        vgpu_count, instance_states = state
        max_vgpus = {profile: need.max_vgpus for profile, need in self._needs.items()}
        for place, (size, count) in enumerate(instance_states):
            here = {key: same for key, same in columns.items() if key[1] == place}
            if here:
                add_one_size_rows(program, size, count, self.sizes, max_vgpus, here, number)
        every: dict[int, float] = {column: 1 for same in columns.values() for column in same}
        program.add_row(every, upper=number * max(0, self._carriers - vgpu_count))


def _count_extra_instances(counts: Mapping[int, int], current: Sequence[int]) -> int:
    """Return how many more instances these vGPUs of one size need. `counts`: by the maximum of vGPUs in their instance.

    `current`: the number of vGPUs in each instance of that size. vGPUs with a lower maximum are placed first: together
    with those of still lower maxima, each instance takes as many as the maximum allows beyond its current vGPUs.
    """
    extra = waiting = 0
    for max_vgpus, count in sorted(counts.items()):
        waiting += count
        without_room = waiting - sum(max(0, max_vgpus - vgpu_count) for vgpu_count in current)
        extra = max(extra, -(-without_room // max_vgpus))
    return extra
