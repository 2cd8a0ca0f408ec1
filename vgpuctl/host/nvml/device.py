# SPDX-License-Identifier: Apache-2.0
"""What NVML tells of one GPU: its name and memory, the vGPU types it supports, and how it is partitioned.

MIG is asked about only where the GPU has it, and placements only while mixed size is on or about to be: most commands
look at every GPU, and each answer is a call of the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml import mig, placement, scheduler
from vgpuctl.host.nvml.call import NOT_SUPPORTED, Library
from vgpuctl.model.partition import Span
from vgpuctl.model.records import Ecc, NvmlGpu, NvmlVgpuType
from vgpuctl.value import NOTHING

_MIB = 1 << 20
_MOST_PER_VM = 16
_TIME_SLICED = 0xFFFFFFFF
"""nvml.h's INVALID_GPU_INSTANCE_PROFILE_ID."""


def read(library: Library, handle: Any) -> NvmlGpu:
    """Return what is told of a GPU.

    Raises:
        NvmlFailed: NVML does not tell its name, its memory or its vGPU types.
    """
    framebuffer_mib = int(library.run("nvmlDeviceGetMemoryInfo", handle).total) // _MIB
    ids = _type_ids(library, handle)
    mode = mig.mode(library, handle)
    mixed = placement.mode(library, handle) if ids else None
    partition = None if mode is None else mig.read(library, handle, mode, framebuffer_mib)
    types = {i: _type(library, handle, i, has_mig=mode is not None, mixed=mixed is True) for i in ids}
    instances = partition.instances if partition is not None and types else ()
    return NvmlGpu(
        model=str(library.run("nvmlDeviceGetName", handle)),
        framebuffer_mib=framebuffer_mib,
        types=types,
        scheduler=scheduler.read(library, handle) if types else None,
        mig=partition,
        mixed_size=mixed,
        gi_schedulers=scheduler.read_instances(library, handle, instances) if instances else NOTHING,
    )


def ecc(library: Library, handle: Any) -> Ecc | None:
    """Return whether ECC is on, and whether it is after the next reset; None where the GPU has none."""
    seen = library.ask("nvmlDeviceGetEccMode", handle)
    return None if seen is None else Ecc(enabled=bool(seen[0]), pending=bool(seen[1]))


def placements(library: Library, handle: Any) -> Mapping[int, tuple[Span, ...]]:
    """Return where each type may be with mixed sizes, also while they are off; without those that are not told."""
    told = ((number, placement.of_type(library, handle, number)) for number in _type_ids(library, handle))
    return {number: tuple(Span(start, one[1]) for start in one[0]) for number, one in told if one is not None}


def _type_ids(library: Library, handle: Any) -> list[int]:
    try:
        return [int(type_id) for type_id in library.run("nvmlDeviceGetSupportedVgpus", handle)]
    except NvmlFailed as error:
        if error.facts["nvml_code"] != NOT_SUPPORTED:  # what the plain data-centre driver says
            raise
        return []


def _type(library: Library, handle: Any, type_id: int, *, has_mig: bool, mixed: bool) -> NvmlVgpuType:
    profile = library.ask("nvmlVgpuTypeGetGpuInstanceProfileId", type_id) if has_mig else None
    if profile == _TIME_SLICED:
        profile = None
    per_gi = library.ask("nvmlVgpuTypeGetMaxInstancesPerGpuInstance", type_id) if profile is not None else None
    places = placement.of_type(library, handle, type_id) if mixed and profile is None else None
    return NvmlVgpuType(
        type_id=type_id,
        name=str(library.run("nvmlVgpuTypeGetName", type_id)),
        framebuffer_mib=int(library.run("nvmlVgpuTypeGetFramebufferSize", type_id)) // _MIB,
        max_per_gpu=int(library.run("nvmlVgpuTypeGetMaxInstances", handle, type_id)),
        max_per_vm=library.ask("nvmlVgpuTypeGetMaxInstancesPerVm", type_id) or _MOST_PER_VM,
        gi_profile_id=profile,
        max_per_gi=per_gi,
        placement_ids=places[0] if places else None,
        placement_size=places[1] if places else None,
    )
