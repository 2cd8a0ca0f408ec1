# SPDX-License-Identifier: Apache-2.0
"""How many more vGPUs of a type a simulated GPU's driver would create now, and the placements of mixed sizes.

The simulator states the drivers' rules itself. They come from the reference, not from vgpuctl's capacity code:
the resource manager's one-size-at-a-time rule (NVIDIA), the rule of MIG or of mixed sizes where that mode is on,
and the counters that all types of mtty, GVT-g (one each) and Ascend share. Ascend has five: AI cores, AI CPUs, JPEG
decoders, memory in GB and vNPUs (hw_dvt_update_vdavinci_types in vascend/dvt.c of Huawei's driver).

Mixed sizes are NVML's heterogeneous mode (NVIDIA's open kernel modules, kernel_vgpu_mgr.c). A GPU's region is its
nominal framebuffer in GiB. Before Blackwell the region is halved repeatedly, and a type has placements in the parts of
one size only, so fewer vGPUs of it fit than in same-size mode. From Blackwell on, its placements divide the region
evenly. Left out: the ids that types of 1 GiB lose if their guest sees all of it (not published).
"""

from __future__ import annotations

from functools import cache

from vgpuctl.model.gpu import PlacementSpan
from vgpuctl.sim import mig
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimFunction, SimGpu, SimType
from vgpuctl.sim.refusals import IN_USE, NOT_SUPPORTED, raise_nvml_error
from vgpuctl.sim.state import State

MIXED_SIZE_SINCE = 550
"""The first driver with mixed sizes (vGPU 17)."""
AMPERE, BLACKWELL = 7, 10
NO_PLACEMENT = 0xFFFF
"""What the driver shows for a vGPU without placement (NVML_INVALID_VGPU_PLACEMENT_ID)."""
_MAX_PARTS = 16
_MIB_PER_GIB = 1024

MAX_PER_GPU = 32
"""How many vGPUs the resource manager's own table holds for a GPU without MIG."""
MIXED_SERIES_SINCE = 550
"""From this driver on, a running vGPU fixes the framebuffer size of further vGPUs. Older drivers fix the type."""


def supports_mixed_size(state: State, gpu: SimGpu) -> bool:
    """Say whether the GPU can have vGPUs of mixed sizes at all."""
    has_mixed_size_backend = gpu.rule == "nvidia" and gpu.backend in ("mdev-vf", "vendor-vf")
    return has_mixed_size_backend and gpu.architecture >= AMPERE and state.machine.driver_major >= MIXED_SIZE_SINCE


def read_mode(state: State, gpu: SimGpu) -> bool | None:
    """Return what NVML reports about the mode, or None where there is no such mode, as with MIG on."""
    is_supported = supports_mixed_size(state, gpu) and not state.partitions.is_mig_enabled(gpu.address)
    return gpu.address in state.partitions.mixed_size_gpus if is_supported else None


def set_mode(state: State, gpu: SimGpu, *, enabled: bool) -> list[JournalRecord]:
    """Return the records that turn mixed sizes on or off.

    Raises:
        NvmlError: the GPU does not support it, MIG is on, its VFs are off, or it has a vGPU.
    """
    if (
        not supports_mixed_size(state, gpu)
        or state.partitions.is_mig_enabled(gpu.address)
        or not state.vfs[gpu.address]
    ):
        raise_nvml_error(NOT_SUPPORTED)
    if state.vgpus_by_gpu[gpu.address]:
        raise_nvml_error(IN_USE)
    return [["partition", "mixed", gpu.address, enabled]]


def placement_spans(state: State, gpu: SimGpu, vgpu_type: SimType) -> tuple[PlacementSpan, ...]:
    """Return every placement of a type on a GPU of mixed sizes, or none where there is no such mode."""
    if vgpu_type.is_mig_backed or not vgpu_type.framebuffer_mib or not supports_mixed_size(state, gpu):
        return ()
    return _computed_spans(
        _gib(gpu.largest_mib), _gib(vgpu_type.framebuffer_mib), vgpu_type.maximum, evenly=gpu.architecture >= BLACKWELL
    )


@cache
def _computed_spans(region: int, size: int, maximum: int, *, evenly: bool) -> tuple[PlacementSpan, ...]:
    if evenly:
        return tuple(PlacementSpan(start, covered_size(region, size)) for start in even_starts(region, maximum))
    return tuple(PlacementSpan(start, size) for start in halved_starts(region, size, maximum))


def covered_size(region: int, size: int) -> int:
    """Return how many GiB a type covers: a type of 2 GiB takes 3 on a GPU of 96 GiB, which has at most 32 of them."""
    return 3 if (region, size) == (96, 2) else size


def even_starts(region: int, maximum: int) -> tuple[int, ...]:
    """Return the placement ids of a type from Blackwell on: 5 in 96 GiB are at 0, 19, 38, 57, 76."""
    return tuple(region * number // maximum for number in range(maximum))


def halved_starts(region: int, size: int, maximum: int) -> tuple[int, ...]:
    """Return the placement ids of a type before Blackwell.

    `maximum` is how many fit in same-size mode. If it is a power of two, the region is halved until it has half as many
    parts, and the type may begin or end each part: 4 of 10 GiB in 40 GiB are at 0, 10, 20, 30. Otherwise the parts are
    the largest power of two below it, and each has one: where 3 of 12 GiB fit in 48 GiB, the two parts give 0 and 36.
    """
    starts: set[int] = set()
    parts = 1
    while parts <= _MAX_PARTS:
        uses_both_ends = maximum == 2 * parts
        uses_one_end = maximum == parts == 1 or (maximum & (maximum - 1) != 0 and parts < maximum < 2 * parts)
        for number in range(parts):
            start, end = region * number // parts, region * (number + 1) // parts
            if uses_both_ends or (uses_one_end and number % 2 == 0):
                starts.add(start)
            if uses_both_ends or (uses_one_end and number % 2 == 1):
                starts.add(end - size)
        parts *= 2
    return tuple(sorted(starts))


def free_starts(
    state: State, gpu: SimGpu, vgpu_type: SimType, *, ignored_carrier: str | None = None
) -> tuple[int, ...]:
    """Return the placement ids where one more vGPU of this type fits now, as if `ignored_carrier` did not exist."""
    used_spans = []
    for carrier, key in state.vgpus_by_gpu[gpu.address].items():
        placement_id = state.partitions.placement_id(carrier)
        if carrier != ignored_carrier and placement_id is not None:
            used_spans += [span for span in placement_spans(state, gpu, gpu.types[key]) if span.start == placement_id]
    return tuple(
        span.start
        for span in placement_spans(state, gpu, vgpu_type)
        if not any(span.overlaps(other) for other in used_spans)
    )


def _gib(mib: int) -> int:
    return max(1, mib // _MIB_PER_GIB)


def count_available(state: State, gpu: SimGpu, vgpu_type: SimType) -> int:
    """Return how many more vGPUs of this type the whole GPU has room for."""
    vgpus = state.vgpus_by_gpu[gpu.address]
    if gpu.rule == "counter":
        used = [gpu.types[key].units for key in vgpus.values()]
        free = (max(0, total - sum(units[n] for units in used)) for n, total in enumerate(gpu.units))
        if gpu.mdevs_take_vfs and len(used) >= state.vfs[gpu.address]:
            return 0  # Huawei's dvt.c: the driver offers nothing without SR-IOV, and each vNPU gets a VF
        return min(left // each for left, each in zip(free, vgpu_type.units, strict=True) if each)
    if vgpu_type.is_mig_backed != state.partitions.is_mig_enabled(gpu.address):
        return 0
    if vgpu_type.is_mig_backed:
        return mig.count_available(state, gpu, vgpu_type)
    if gpu.address in state.partitions.mixed_size_gpus:
        return min(len(free_starts(state, gpu, vgpu_type)), MAX_PER_GPU - len(vgpus))
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
        return [["partition", "place", carrier, free_starts(state, gpu, vgpu_type)[0], None]]
    return []
