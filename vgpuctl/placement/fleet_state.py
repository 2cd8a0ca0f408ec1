# SPDX-License-Identifier: Apache-2.0
"""Observed GPUs as a fleet: GPUs that are divided alike are of one kind, and only what is known for sure counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from vgpuctl.gpu.division import AllocatedSlot, Division, GpuNumbers
from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.gpu.mdev_pool import MdevPool
from vgpuctl.gpu.room import divide
from vgpuctl.model.address import address_sort_key
from vgpuctl.model.gpu import Gpu, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.restrictions import why_profile_forbidden, why_unschedulable
from vgpuctl.value import Value


class FleetState(Value):
    """GPUs as numbers: GPU number n of `fleet` is `gpus[n]`, with `allocated[n]`; they are in the order of addresses.

    `excluded_gpus`: by address, why a GPU is not among them.
    """

    fleet: Fleet
    gpus: tuple[Gpu, ...]
    allocated: tuple[tuple[AllocatedSlot, ...], ...]
    excluded_gpus: Mapping[str, str]


def build_fleet_state(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    vm: str | None = None,
    read_profiles: Set[str] | None = None,
    *,
    assume_largest_pool: bool = False,
) -> FleetState:
    """Return GPUs as numbers, without those closed to a VM of this name or with a stuck kernel write.

    `read_profiles`: see `Division.numbers`. `assume_largest_pool`: where the driver only reports how many of each type
    fit, assume the largest possible pool.
    """
    excluded: dict[str, str] = {}
    vgpus_by_gpu: dict[str, list[Vgpu]] = {}
    for vgpu in snapshot.vgpus:
        vgpus_by_gpu.setdefault(vgpu.gpu, []).append(vgpu)
    kind_numbers: dict[GpuKind, int] = {}
    counted: list[tuple[Gpu, GpuGroup, tuple[AllocatedSlot, ...]]] = []
    for gpu in sorted(gpus, key=lambda g: address_sort_key(g.address)):
        division = divide(gpu, vgpus_by_gpu.get(gpu.address, ()))
        blocked = why_unschedulable(snapshot, gpu, division.mode, vm)
        numbers = _numbers_of(division, read_profiles, assume_largest_pool=assume_largest_pool)
        if blocked is not None or numbers is None:
            excluded[gpu.address] = blocked or "how many fit on it is not known"
            continue
        kind_number = kind_numbers.setdefault(numbers.kind, len(kind_numbers))
        counted.append((gpu, GpuGroup(kind_number, numbers.state), numbers.allocated))
    fleet = Fleet(
        list(kind_numbers),
        [group for _, group, _ in counted],
        [len(vgpus_by_gpu.get(g.address, ())) for g, _, _ in counted],
    )
    return FleetState(fleet, tuple(g for g, _, _ in counted), tuple(c for _, _, c in counted), excluded)


def _numbers_of(division: Division, read_profiles: Set[str] | None, *, assume_largest_pool: bool) -> GpuNumbers | None:
    """Return a GPU as numbers, for the types that host.yaml allows on it."""
    types = [t for t in division.gpu.types if why_profile_forbidden(division.gpu, t) is None]
    if assume_largest_pool and isinstance(division, MdevPool):
        return division.numbers_of_largest_pool(types)
    return division.numbers(types, read_profiles)
