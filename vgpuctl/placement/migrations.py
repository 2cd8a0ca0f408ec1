# SPDX-License-Identifier: Apache-2.0
"""vGPUs that may move, and their migrations, each a stop and start, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vgpuctl.gpu.gpu_kind import Placement
from vgpuctl.placement.fleet import Fleet


class PlacedVgpu(NamedTuple):
    """An existing vGPU that may move. `place` is its place as in `Placement.place`."""

    gpu: int
    profile: str
    place: int


class Migration(NamedTuple):
    """One stop and start: which of the existing vGPUs, and where it goes."""

    vgpu_index: int
    gpu: int
    place: int


class Leave(NamedTuple):
    """One of the existing vGPUs gives up its place and waits for its new one; its migration comes later."""

    vgpu_index: int


class MigrationPlan(NamedTuple):
    """`order`: in an order that works. `places`: where the requested vGPUs go afterwards, in request order.

    `is_minimal`: whether it is known that fewer migrations would not do.
    """

    order: tuple[Migration | Leave, ...]
    places: tuple[PlacedVgpu, ...]
    is_minimal: bool = True

    @property
    def waiting(self) -> int:
        """How many vGPUs give up their places before their new ones are free."""
        return sum(isinstance(entry, Leave) for entry in self.order)

    @property
    def migrations(self) -> tuple[Migration, ...]:
        """All migrations in their order."""
        return tuple(entry for entry in self.order if isinstance(entry, Migration))


FreeFunctions = Mapping[int, int]
"""How many functions are free on a GPU, by its number; a GPU that is not in it has enough."""


def copy_fleet(fleet: Fleet) -> Fleet:
    """Return a copy of the fleet that can change independently."""
    gpus = range(len(fleet))
    return Fleet(fleet.kinds, [fleet.group_of(gpu) for gpu in gpus], [fleet.vgpu_count(gpu) for gpu in gpus])


def apply_order(fleet: Fleet, placed: list[PlacedVgpu], order: Sequence[Migration | Leave]) -> None:
    """Remove each vGPU from its place and put it at its new place, in this order; updates `placed` too."""
    left: set[int] = set()
    for entry in order:
        vgpu = placed[entry.vgpu_index]
        if entry.vgpu_index not in left:
            fleet.remove_vgpu(vgpu.gpu, vgpu.profile, vgpu.place)
        left.add(entry.vgpu_index)
        if isinstance(entry, Migration):
            placed[entry.vgpu_index] = PlacedVgpu(entry.gpu, vgpu.profile, entry.place)
            add_placed_vgpu(fleet, placed[entry.vgpu_index])


def add_placed_vgpu(fleet: Fleet, vgpu: PlacedVgpu) -> None:
    """Place a vGPU at a free place."""
    group = fleet.group_of(vgpu.gpu)
    state = fleet.kind_of(group).add(group.state, vgpu.profile, vgpu.place)
    if state is None:
        raise ValueError(f"{vgpu} is not free")
    fleet.add_vgpu(vgpu.gpu, Placement(vgpu.place, state))
