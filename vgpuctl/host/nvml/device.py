# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about one GPU: its name and memory, the supported vGPU types, and its partitioning.

MIG is queried only where the GPU has it, and placements only while heterogeneous mode is on or about to be: most
commands read every GPU, and each query is a call of the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml import heterogeneous, mig, vgpu_scheduler
from vgpuctl.host.nvml.library import NOT_SUPPORTED, NvmlLibrary
from vgpuctl.model.mig import PlacementSpan
from vgpuctl.model.port_values import EccState, NvmlGpu, NvmlVgpuType
from vgpuctl.value import EMPTY_MAPPING

_MIB = 1 << 20
_MAX_PER_VM = 16
_NO_GI_PROFILE = 0xFFFFFFFF
"""nvml.h's INVALID_GPU_INSTANCE_PROFILE_ID."""


def read_gpu(library: NvmlLibrary, handle: Any) -> NvmlGpu:
    """Return what NVML reports about a GPU.

    Raises:
        NvmlFailed: NVML does not report its name, its memory or its vGPU types.
    """
    framebuffer_mib = int(library.call("nvmlDeviceGetMemoryInfo", handle).total) // _MIB
    ids = _read_type_ids(library, handle)
    mig_mode = mig.read_mode(library, handle)
    mixed_size = heterogeneous.read_mode(library, handle) if ids else None
    mig_state = None if mig_mode is None else mig.read_mig(library, handle, mig_mode, framebuffer_mib)
    types = {i: _read_type(library, handle, i, has_mig=mig_mode is not None, mixed=mixed_size is True) for i in ids}
    instances = mig_state.instances if mig_state is not None and types else ()
    return NvmlGpu(
        model=str(library.call("nvmlDeviceGetName", handle)),
        framebuffer_mib=framebuffer_mib,
        types=types,
        scheduler=vgpu_scheduler.read_scheduler(library, handle) if types else None,
        mig=mig_state,
        mixed_size=mixed_size,
        gi_schedulers=vgpu_scheduler.read_gi_schedulers(library, handle, instances) if instances else EMPTY_MAPPING,
    )


def read_ecc(library: NvmlLibrary, handle: Any) -> EccState | None:
    """Return whether ECC is on now and after the next reset; None where the GPU has none."""
    modes = library.query("nvmlDeviceGetEccMode", handle)
    return None if modes is None else EccState(enabled=bool(modes[0]), pending_enabled=bool(modes[1]))


def read_placements(library: NvmlLibrary, handle: Any) -> Mapping[int, tuple[PlacementSpan, ...]]:
    """Return each type's placements in heterogeneous mode, also while it is off; omits types without a report."""
    reported = (
        (type_id, heterogeneous.read_type_placements(library, handle, type_id))
        for type_id in _read_type_ids(library, handle)
    )
    return {
        type_id: tuple(PlacementSpan(start, placements[1]) for start in placements[0])
        for type_id, placements in reported
        if placements is not None
    }


def _read_type_ids(library: NvmlLibrary, handle: Any) -> list[int]:
    try:
        return [int(type_id) for type_id in library.call("nvmlDeviceGetSupportedVgpus", handle)]
    except NvmlFailed as error:
        if error.facts["nvml_code"] != NOT_SUPPORTED:  # the plain data-centre driver returns this
            raise
        return []


def _read_type(library: NvmlLibrary, handle: Any, type_id: int, *, has_mig: bool, mixed: bool) -> NvmlVgpuType:
    profile = library.query("nvmlVgpuTypeGetGpuInstanceProfileId", type_id) if has_mig else None
    if profile == _NO_GI_PROFILE:
        profile = None
    per_gi = library.query("nvmlVgpuTypeGetMaxInstancesPerGpuInstance", type_id) if profile is not None else None
    placements = heterogeneous.read_type_placements(library, handle, type_id) if mixed and profile is None else None
    return NvmlVgpuType(
        type_id=type_id,
        name=str(library.call("nvmlVgpuTypeGetName", type_id)),
        framebuffer_mib=int(library.call("nvmlVgpuTypeGetFramebufferSize", type_id)) // _MIB,
        max_per_gpu=int(library.call("nvmlVgpuTypeGetMaxInstances", handle, type_id)),
        max_per_vm=library.query("nvmlVgpuTypeGetMaxInstancesPerVm", type_id) or _MAX_PER_VM,
        gi_profile_id=profile,
        max_per_gi=per_gi,
        placement_ids=placements[0] if placements else None,
        placement_size=placements[1] if placements else None,
    )
