# SPDX-License-Identifier: Apache-2.0
"""MIG on a simulated host: its mode, GPU instances (GIs), and the vGPUs in them.

The simulator's own statement, made from nvml.h, NVIDIA's MIG and vGPU guides and NVIDIA's open kernel modules
(kvgpumgrGetAvailableInstances): the mode changes only without VFs, vGPUs and instances; Ampere keeps it over a reboot
and may want a reset first, later GPUs have it until the driver is loaded again; an instance has one vGPU, or as many as
its type allows, all of one framebuffer size. An instance's number is one of those of its length: the whole GPU has 0,
halves 1 and 2, quarters 3 to 6, eighths 7 to 14. For a vGPU the driver takes the lowest number that has room for it
(kvgpumgrGetSwizzId).
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.model.partition import GpuInstance, Mig, Span
from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import SimGpu, SimType
from vgpuctl.sim.nvml_codes import IN_USE, INSUFFICIENT_RESOURCES, INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, refuse
from vgpuctl.sim.state import State

AMPERE = 7


def seen(state: State, gpu: SimGpu) -> Mig | None:
    """Return what NVML says of a GPU's MIG, None when it has none."""
    if not gpu.gi_profiles:
        return None
    enabled, pending = state.partitions.modes.get(gpu.address, (False, False))
    return Mig(enabled, pending, tuple(gpu.gi_profiles.values()), state.partitions.on(gpu.address))


def set_mode(state: State, gpu: SimGpu, *, enabled: bool, at_reset: bool) -> list[Record]:
    """Return the records of turning MIG on or off.

    An Ampere GPU has to be reset for it, which the driver does unless somebody has the GPU open, or `at_reset`: then
    the mode is pending, and NVML counts that as a success.

    Raises:
        RefusedByNvml: the GPU has no MIG, or VFs, vGPUs or instances are there.
    """
    if not gpu.gi_profiles:
        refuse(NOT_SUPPORTED)
    now, pending = state.partitions.modes.get(gpu.address, (False, False))
    if (now, pending) == (enabled, enabled):
        return []
    if state.vfs[gpu.address] or state.on_gpu[gpu.address] or state.partitions.on(gpu.address):
        refuse(IN_USE)
    later = gpu.architecture <= AMPERE and (at_reset or gpu.held_by is not None)
    return [["partition", "mig", gpu.address, now if later else enabled, enabled]]


def make(state: State, gpu: SimGpu, profile_id: int, start: int) -> tuple[int, list[Record]]:
    """Return the number of a new instance and the records of it.

    Raises:
        RefusedByNvml: MIG is off, there is no such profile or placement, or no room.
    """
    if not gpu.gi_profiles or not state.partitions.enabled(gpu.address):
        refuse(NOT_SUPPORTED)
    profile = gpu.gi_profiles.get(profile_id)
    span = next((p for p in profile.placements if p.start == start), None) if profile is not None else None
    if profile is None or span is None:
        refuse(INVALID_ARGUMENT)
    there = state.partitions.on(gpu.address)
    same = sum(1 for instance in there if instance.profile_id == profile_id)
    if same >= profile.maximum or any(span.overlaps(instance.span) for instance in there):
        refuse(INSUFFICIENT_RESOURCES)
    taken = {instance.gi_id for instance in there}
    whole = max(place.start + place.size for kind in gpu.gi_profiles.values() for place in kind.placements)
    first_number = whole // span.size - 1
    number = next(n for n in range(first_number, first_number + len(taken) + 1) if n not in taken)
    return number, [["partition", "make", gpu.address, number, profile_id, span.start, span.size]]


def starts(gpu: SimGpu, wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Return where instances of these profiles can be together on an empty GPU, in their order; None when they cannot.

    Each is as low as it can be, the first one first.
    """
    kinds = [gpu.gi_profiles[profile_id] for profile_id in wanted]
    if any(wanted.count(kind.profile_id) > kind.maximum for kind in kinds):
        return None

    def rest(number: int, taken: tuple[Span, ...]) -> tuple[Span, ...] | None:
        if number == len(kinds):
            return taken
        free = (span for span in kinds[number].placements if not any(span.overlaps(other) for other in taken))
        tries = (rest(number + 1, (*taken, span)) for span in free)
        return next((found for found in tries if found is not None), None)

    spans = rest(0, ())
    return tuple(span.start for span in spans) if spans is not None else None


def destroy(state: State, gpu: SimGpu, gi_id: int) -> list[Record]:
    """Return the records of destroying an instance.

    Raises:
        RefusedByNvml: MIG is off, there is no such instance, or a vGPU is in it.
    """
    if not gpu.gi_profiles or not state.partitions.enabled(gpu.address):
        refuse(NOT_SUPPORTED)
    if gi_id not in {instance.gi_id for instance in state.partitions.on(gpu.address)}:
        refuse(NOT_FOUND)
    if inside(state, gpu, gi_id):
        refuse(IN_USE)
    return [["partition", "destroy", gpu.address, gi_id]]


def inside(state: State, gpu: SimGpu, gi_id: int) -> dict[str, SimType]:
    """Return the vGPUs in an instance, by carrier."""
    made = state.on_gpu[gpu.address]
    return {c: gpu.types[key] for c, key in made.items() if state.partitions.instance(c) == gi_id}


def room(state: State, gpu: SimGpu, wanted: SimType) -> int:
    """Return how many more vGPUs of a MIG-backed type fit into the instances that are there."""
    return sum(room_in(state, gpu, wanted, instance) for instance in state.partitions.on(gpu.address))


def room_in(state: State, gpu: SimGpu, wanted: SimType, instance: GpuInstance) -> int:
    """Return how many more of this type one instance takes."""
    if not wanted.mig or instance.profile_id != wanted.gi_profile:
        return 0
    there = list(inside(state, gpu, instance.gi_id).values())
    if any(kind.framebuffer_mib != wanted.framebuffer_mib for kind in there):
        return 0
    return max(0, wanted.max_per_gi - len(there))


def first(state: State, gpu: SimGpu, wanted: SimType) -> int | None:
    """Return the instance into which the driver puts the next vGPU of a type."""
    there = sorted(state.partitions.on(gpu.address), key=lambda instance: instance.gi_id)
    return next((instance.gi_id for instance in there if room_in(state, gpu, wanted, instance)), None)


def can_move(state: State, gpu: SimGpu, carrier: str, gi_id: int) -> bool:
    """Say whether a vGPU may be moved into an instance: its own, or another one with room for its type."""
    if state.partitions.instance(carrier) in (None, gi_id):
        return state.partitions.instance(carrier) == gi_id
    kind = gpu.types[state.on_gpu[gpu.address][carrier]]
    there = {instance.gi_id: instance for instance in state.partitions.on(gpu.address)}
    return gi_id in there and room_in(state, gpu, kind, there[gi_id]) > 0
