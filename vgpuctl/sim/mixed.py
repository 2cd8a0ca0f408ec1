# SPDX-License-Identifier: Apache-2.0
"""vGPUs of mixed sizes on a simulated GPU (NVML's heterogeneous mode): where each type may begin.

The simulator's own statement of the resource manager's rules (NVIDIA's open kernel modules, kernel_vgpu_mgr.c). A GPU's
region is its nominal framebuffer in GiB. Before Blackwell the region is halved again and again, and a type has places
in the halves of one size only, so fewer of it fit than in the same-size mode; from Blackwell on its places divide the
region evenly. Left out: the ids that types of 1 GiB lose when their guest sees all of it, which no figure tells.
"""

from __future__ import annotations

from functools import cache

from vgpuctl.model.partition import Span
from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import SimGpu, SimType
from vgpuctl.sim.nvml_codes import IN_USE, NOT_SUPPORTED, refuse
from vgpuctl.sim.state import State

SINCE = 550
"""The first driver with mixed sizes (vGPU 17)."""
AMPERE, BLACKWELL = 7, 10
NO_PLACEMENT = 0xFFFF
"""What the driver shows for a vGPU that has no placement (NVML_INVALID_VGPU_PLACEMENT_ID)."""
_MOST_HALVES = 16
_MIB_PER_GIB = 1024


def has(state: State, gpu: SimGpu) -> bool:
    """Say whether the GPU can have vGPUs of mixed sizes at all."""
    own = gpu.rule == "nvidia" and gpu.backend in ("mdev-vf", "vendor-vf")
    return own and gpu.architecture >= AMPERE and state.machine.driver_major >= SINCE


def told(state: State, gpu: SimGpu) -> bool | None:
    """Return what NVML says of the mode; nothing where there is none, as with MIG."""
    asked = has(state, gpu) and not state.partitions.enabled(gpu.address)
    return gpu.address in state.partitions.mixed if asked else None


def set_mode(state: State, gpu: SimGpu, *, enabled: bool) -> list[Record]:
    """Return the records of letting vGPUs have several sizes, or not.

    Raises:
        RefusedByNvml: the GPU cannot, MIG is on, its VFs are off, or a vGPU is there.
    """
    if not has(state, gpu) or state.partitions.enabled(gpu.address) or not state.vfs[gpu.address]:
        refuse(NOT_SUPPORTED)
    if state.on_gpu[gpu.address]:
        refuse(IN_USE)
    return [["partition", "mixed", gpu.address, enabled]]


def spans(state: State, gpu: SimGpu, kind: SimType) -> tuple[Span, ...]:
    """Return every place where a type may be on a GPU of mixed sizes; none where there is no such mode."""
    if kind.mig or not kind.framebuffer_mib or not has(state, gpu):
        return ()
    return _spans(_gib(gpu.largest_mib), _gib(kind.framebuffer_mib), kind.maximum, evenly=gpu.architecture >= BLACKWELL)


@cache
def _spans(region: int, size: int, maximum: int, *, evenly: bool) -> tuple[Span, ...]:
    if evenly:
        return tuple(Span(start, size_in(region, size)) for start in even(region, maximum))
    return tuple(Span(start, size) for start in halved(region, size, maximum))


def size_in(region: int, size: int) -> int:
    """Return how many GiB a type covers: types of 2 GiB take 3 on GPUs of 96 GiB, which have 32 of them at most."""
    return 3 if (region, size) == (96, 2) else size


def even(region: int, maximum: int) -> tuple[int, ...]:
    """Return the placement ids of a type from Blackwell on."""
    return tuple(region * number // maximum for number in range(maximum))


def halved(region: int, size: int, maximum: int) -> tuple[int, ...]:
    """Return the placement ids of a type before Blackwell."""
    found: set[int] = set()
    parts = 1
    while parts <= _MOST_HALVES:
        both = maximum == 2 * parts
        one = maximum == parts == 1 or (maximum & (maximum - 1) != 0 and parts < maximum < 2 * parts)
        for number in range(parts):
            start, end = region * number // parts, region * (number + 1) // parts
            if both or (one and number % 2 == 0):
                found.add(start)
            if both or (one and number % 2 == 1):
                found.add(end - size)
        parts *= 2
    return tuple(sorted(found))


def free(state: State, gpu: SimGpu, wanted: SimType, *, but: str | None = None) -> tuple[int, ...]:
    """Return the placement ids where one more of this type can be made now; `but` is a vGPU that does not count."""
    taken = []
    for carrier, key in state.on_gpu[gpu.address].items():
        begins = state.partitions.placement(carrier)
        if carrier != but and begins is not None:
            taken += [span for span in spans(state, gpu, gpu.types[key]) if span.start == begins]
    return tuple(span.start for span in spans(state, gpu, wanted) if not any(span.overlaps(other) for other in taken))


def _gib(mib: int) -> int:
    return max(1, mib // _MIB_PER_GIB)
