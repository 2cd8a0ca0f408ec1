# SPDX-License-Identifier: Apache-2.0
"""Complete a requested GPU partitioning with facts that only NVML has: the instances that requested vGPUs run in.

The kernel lists types only while a GPU's VFs are on. NVML lists all types, MIG-backed ones also with MIG off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.gpu_setup.instance_plan import choose_gi_profiles
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import Gpu, MigSpec, VgpuType
from vgpuctl.model.names import profile_of_type
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def read_vgpu_types(host: Host, gpu: Gpu) -> tuple[VgpuType, ...]:
    """Return every type that NVML lists for a GPU; without NVML, the types in `gpu`."""
    nvml_gpu = host.nvml.gpu(gpu.address) if uses_nvml(gpu) else None
    if nvml_gpu is None or not nvml_gpu.types:
        return gpu.types
    return tuple(
        VgpuType(
            str(number),
            nvml_type.name,
            profile_of_type(nvml_type.name),
            nvml_type.framebuffer_mib,
            nvml_type.max_per_gpu,
            gi_profile_id=nvml_type.gi_profile_id,
            max_per_gi=nvml_type.max_per_gi,
            placement_ids=nvml_type.placement_ids,
            placement_size=nvml_type.placement_size,
        )
        for number, nvml_type in sorted(nvml_gpu.types.items())
    )


def with_nvml_placements(host: Host, gpu: Gpu, types: tuple[VgpuType, ...]) -> tuple[VgpuType, ...]:
    """Return the types of a GPU that is not in mixed-size mode yet, with the placements they will have there."""
    spans_by_number = host.nvml.placements(gpu.address)
    spans_by_type = {str(number): spans for number, spans in spans_by_number.items()}

    def with_placements(kind: VgpuType) -> VgpuType:
        spans = spans_by_type.get(kind.type_id)
        if spans is None:
            return kind
        size = spans[0].size if spans else None
        return replace(kind, placement_ids=tuple(s.start for s in spans), placement_size=size)

    return tuple(with_placements(kind) for kind in types)


def resolve_mig_spec(host: Host, gpu: Gpu, requested: MigSpec | None) -> MigSpec | None:
    """Return the request with its instances named, also if it names vGPUs instead of instances.

    Raises:
        InvalidInput: the GPU has no such vGPU profile, or the profile does not run in an instance.
    """
    if requested is None or not requested.vgpus or requested.instances or gpu.mig is None:
        return requested
    names = choose_gi_profiles(gpu.mig, requested.vgpus, read_vgpu_types(host, gpu), gpu.address)
    return replace(requested, instances=names)
