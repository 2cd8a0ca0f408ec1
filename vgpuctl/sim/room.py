# SPDX-License-Identifier: Apache-2.0
"""How many more vGPUs of a type a GPU's driver would make now.

The simulator's own statement of the drivers' rules, made from what the reference says and not from the
program's capacity code: NVIDIA's one-size-at-a-time rule in the resource manager, or that of MIG or of mixed sizes
where one of these is on, and the shared counter of mtty and GVT-g.
"""

from __future__ import annotations

from vgpuctl.sim import mig, mixed
from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import SimFunction, SimGpu, SimType
from vgpuctl.sim.state import State

MOST_PER_GPU = 32
"""The resource manager's own table of vGPUs of a GPU without MIG."""
MIXED_SERIES_SINCE = 550
"""From this driver on a running vGPU fixes the size; before, it fixes the very type."""


def room(state: State, gpu: SimGpu, wanted: SimType) -> int:
    """Return how many more of this type the GPU has room for, wherever they go."""
    made = state.on_gpu[gpu.address]
    if gpu.rule == "counter":
        used = sum(gpu.types[key].units for key in made.values())
        return max(0, gpu.units - used) // wanted.units
    if wanted.mig != state.partitions.enabled(gpu.address):
        return 0
    if wanted.mig:
        return mig.room(state, gpu, wanted)
    if gpu.address in state.partitions.mixed:
        return min(len(mixed.free(state, gpu, wanted)), MOST_PER_GPU - len(made))
    if made:
        first = gpu.types[next(iter(made.values()))]
        same_size = first.framebuffer_mib == wanted.framebuffer_mib
        fits = same_size if state.machine.driver_major >= MIXED_SERIES_SINCE else first.key == wanted.key
        if not fits:
            return 0
    return max(0, min(wanted.maximum, MOST_PER_GPU) - len(made))


def room_on(state: State, gpu: SimGpu, function: SimFunction, wanted: SimType) -> int:
    """Return how many more this function takes: a VF carries at most one."""
    left = room(state, gpu, wanted)
    if function.kind != "vf":
        return left
    taken = function.address in state.types or bool(state.mdevs_on(function.address))
    return 0 if taken else min(1, left)


def placed(state: State, gpu: SimGpu, kind: SimType, carrier: str) -> list[Record]:
    """Return the records of where the driver puts a new vGPU: the first place, or GPU instance, that it can have."""
    if kind.mig:
        return [["partition", "place", carrier, None, mig.first(state, gpu, kind)]]
    if gpu.address in state.partitions.mixed:
        return [["partition", "place", carrier, mixed.free(state, gpu, kind)[0], None]]
    return []
