# SPDX-License-Identifier: Apache-2.0
"""What is asked of a GPU's partition, with what NVML alone tells: which instances the vGPUs asked for run in.

The kernel lists types only while a GPU's VFs are on; NVML lists all of them, MIG-backed ones also with MIG off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.layout.mig import instances_for
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.partition import MigSpec
from vgpuctl.model.profile_name import profile_of
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def types_of(world: World, gpu: Gpu) -> tuple[VgpuType, ...]:
    """Return every type that NVML knows of a GPU; without NVML those that were seen."""
    seen = world.nvml.gpu(gpu.address) if gpu.nvidia_driver else None
    if seen is None or not seen.types:
        return gpu.types
    return tuple(
        VgpuType(
            str(number),
            kind.name,
            profile_of(kind.name),
            kind.framebuffer_mib,
            kind.max_per_gpu,
            gi_profile_id=kind.gi_profile_id,
            max_per_gi=kind.max_per_gi,
            placement_ids=kind.placement_ids,
            placement_size=kind.placement_size,
        )
        for number, kind in sorted(seen.types.items())
    )


def with_places(world: World, gpu: Gpu, types: tuple[VgpuType, ...]) -> tuple[VgpuType, ...]:
    """Return the types of a GPU whose sizes are not mixed yet with the placements that they will have."""
    told = world.nvml.placements(gpu.address)
    places = {str(number): spans for number, spans in told.items()}

    def placed(kind: VgpuType) -> VgpuType:
        spans = places.get(kind.type_id)
        if spans is None:
            return kind
        size = spans[0].size if spans else None
        return replace(kind, placement_ids=tuple(s.start for s in spans), placement_size=size)

    return tuple(placed(kind) for kind in types)


def with_instances(world: World, gpu: Gpu, wanted: MigSpec | None) -> MigSpec | None:
    """Return what is asked for with its instances named, also where it is said by vGPUs.

    Raises:
        InvalidInput: the GPU has no such vGPU profile, or none that runs in an instance.
    """
    if wanted is None or not wanted.vgpus or wanted.instances or gpu.mig is None:
        return wanted
    names = instances_for(gpu.mig, wanted.vgpus, types_of(world, gpu), gpu.address)
    return replace(wanted, instances=names)
