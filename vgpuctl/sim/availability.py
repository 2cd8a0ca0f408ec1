# SPDX-License-Identifier: Apache-2.0
"""How many more vGPUs of a type the GPU's driver would create now.

The simulator states the drivers' rules itself. They come from the reference, not from vgpuctl's capacity code:
the resource manager's one-size-at-a-time rule (NVIDIA), the rule of MIG or of mixed sizes where that mode is on,
and the counters that all types of mtty, GVT-g (one each) and Ascend share. Ascend has five: AI cores, AI CPUs, JPEG
decoders, memory in GB and vNPUs (hw_dvt_update_vdavinci_types in vascend/dvt.c of Huawei's driver).
"""

from __future__ import annotations

from vgpuctl.sim import mig, mixed_size
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimFunction, SimGpu, SimType
from vgpuctl.sim.state import State

MAX_PER_GPU = 32
"""How many vGPUs the resource manager's own table holds for a GPU without MIG."""
MIXED_SERIES_SINCE = 550
"""From this driver on, a running vGPU fixes the framebuffer size of further vGPUs. Older drivers fix the type."""


def count_available(state: State, gpu: SimGpu, vgpu_type: SimType) -> int:
    """Return how many more vGPUs of this type the whole GPU has room for."""
    vgpus = state.vgpus_by_gpu[gpu.address]
    if gpu.rule == "counter":
        used = [gpu.types[key].units for key in vgpus.values()]
        free = (max(0, total - sum(units[n] for units in used)) for n, total in enumerate(gpu.units))
        return min(left // each for left, each in zip(free, vgpu_type.units, strict=True) if each)
    if vgpu_type.is_mig_backed != state.partitions.is_mig_enabled(gpu.address):
        return 0
    if vgpu_type.is_mig_backed:
        return mig.count_available(state, gpu, vgpu_type)
    if gpu.address in state.partitions.mixed_size_gpus:
        return min(len(mixed_size.free_starts(state, gpu, vgpu_type)), MAX_PER_GPU - len(vgpus))
    if vgpus:
        first = gpu.types[next(iter(vgpus.values()))]
        same_size = first.framebuffer_mib == vgpu_type.framebuffer_mib
        fits = same_size if state.machine.driver_major >= MIXED_SERIES_SINCE else first.key == vgpu_type.key
        if not fits:
            return 0
    return max(0, min(vgpu_type.maximum, MAX_PER_GPU) - len(vgpus))


def count_available_on(state: State, gpu: SimGpu, function: SimFunction, vgpu_type: SimType) -> int:
    """Return how many more vGPUs of this type this function takes. A VF carries at most one."""
    available = count_available(state, gpu, vgpu_type)
    if function.kind != "vf":
        return available
    is_taken = function.address in state.vf_types or bool(state.mdevs_on(function.address))
    return 0 if is_taken else min(1, available)


def placement_records(state: State, gpu: SimGpu, vgpu_type: SimType, carrier: str) -> list[JournalRecord]:
    """Return the records that place a new vGPU: the driver picks the first free placement or GPU instance."""
    if vgpu_type.is_mig_backed:
        return [["partition", "place", carrier, None, mig.first_available_instance(state, gpu, vgpu_type)]]
    if gpu.address in state.partitions.mixed_size_gpus:
        return [["partition", "place", carrier, mixed_size.free_starts(state, gpu, vgpu_type)[0], None]]
    return []
