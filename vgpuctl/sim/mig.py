# SPDX-License-Identifier: Apache-2.0
"""MIG on a simulated host: its mode, GPU instances (GIs), and the vGPUs in them.

The simulator states these rules itself, from nvml.h, NVIDIA's MIG and vGPU guides and NVIDIA's open kernel modules
(kvgpumgrGetAvailableInstances). The mode changes only while there are no VFs, vGPUs and instances. Ampere keeps it
across a reboot and may need a reset first; later GPUs lose it when the driver is reloaded. An instance holds as many
vGPUs as their type allows (often one), all of one framebuffer size. An instance's number depends on its size: the
whole GPU has 0, halves 1 and 2, quarters 3 to 6, eighths 7 to 14. The driver puts a vGPU into the instance with the
lowest number that has room for it (kvgpumgrGetSwizzId).
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.model.gpu import GpuInstance, MigState, PlacementSpan
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimGpu, SimType
from vgpuctl.sim.refusals import (
    IN_USE,
    INSUFFICIENT_RESOURCES,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    raise_nvml_error,
)
from vgpuctl.sim.state import State

AMPERE = 7


def read_mig(state: State, gpu: SimGpu) -> MigState | None:
    """Return what NVML reports about a GPU's MIG, or None if it has no MIG."""
    if not gpu.gi_profiles:
        return None
    enabled, pending = state.partitions.mig_modes.get(gpu.address, (False, False))
    return MigState(enabled, pending, tuple(gpu.gi_profiles.values()), state.partitions.instances_on(gpu.address))


def set_mode(state: State, gpu: SimGpu, *, enabled: bool, at_reset: bool) -> list[JournalRecord]:
    """Return the records of turning MIG on or off.

    An Ampere GPU needs a reset for it. The driver resets it unless a process has the GPU open or `at_reset` is set.
    Then the mode is pending, and NVML reports success.

    Raises:
        NvmlError: the GPU has no MIG, or it has VFs, vGPUs or instances.
    """
    if not gpu.gi_profiles:
        raise_nvml_error(NOT_SUPPORTED)
    current, pending = state.partitions.mig_modes.get(gpu.address, (False, False))
    if (current, pending) == (enabled, enabled):
        return []
    if state.vfs[gpu.address] or state.vgpus_by_gpu[gpu.address] or state.partitions.instances_on(gpu.address):
        raise_nvml_error(IN_USE)
    needs_reset = gpu.architecture <= AMPERE and (at_reset or gpu.held_by is not None)
    return [["partition", "mig", gpu.address, current if needs_reset else enabled, enabled]]


def create_instance(state: State, gpu: SimGpu, profile_id: int, start: int) -> tuple[int, list[JournalRecord]]:
    """Return the number of a new instance and the records that create it.

    Raises:
        NvmlError: MIG is off, there is no such profile or placement, or no room.
    """
    if not gpu.gi_profiles or not state.partitions.is_mig_enabled(gpu.address):
        raise_nvml_error(NOT_SUPPORTED)
    profile = gpu.gi_profiles.get(profile_id)
    span = next((p for p in profile.placements if p.start == start), None) if profile is not None else None
    if profile is None or span is None:
        raise_nvml_error(INVALID_ARGUMENT)
    existing = state.partitions.instances_on(gpu.address)
    same_profile = sum(1 for instance in existing if instance.profile_id == profile_id)
    if same_profile >= profile.max_instances or any(span.overlaps(instance.placement) for instance in existing):
        raise_nvml_error(INSUFFICIENT_RESOURCES)
    used_numbers = {instance.gi_id for instance in existing}
    gpu_slices = max(place.start + place.size for kind in gpu.gi_profiles.values() for place in kind.placements)
    first_number = gpu_slices // span.size - 1
    number = next(n for n in range(first_number, first_number + len(used_numbers) + 1) if n not in used_numbers)
    return number, [["partition", "make", gpu.address, number, profile_id, span.start, span.size]]


def find_starts(gpu: SimGpu, profile_ids: Sequence[int]) -> tuple[int, ...] | None:
    """Return where instances of these profiles fit together on an empty GPU, in their order, or None.

    Each instance starts as low as possible. Earlier instances take precedence.
    """
    profiles = [gpu.gi_profiles[profile_id] for profile_id in profile_ids]
    if any(profile_ids.count(profile.profile_id) > profile.max_instances for profile in profiles):
        return None

    def place_from(number: int, taken: tuple[PlacementSpan, ...]) -> tuple[PlacementSpan, ...] | None:
        if number == len(profiles):
            return taken
        free = (span for span in profiles[number].placements if not any(span.overlaps(other) for other in taken))
        attempts = (place_from(number + 1, (*taken, span)) for span in free)
        return next((result for result in attempts if result is not None), None)

    spans = place_from(0, ())
    return tuple(span.start for span in spans) if spans is not None else None


def destroy_instance(state: State, gpu: SimGpu, gi_id: int) -> list[JournalRecord]:
    """Return the records that destroy an instance.

    Raises:
        NvmlError: MIG is off, there is no such instance, or it holds a vGPU.
    """
    if not gpu.gi_profiles or not state.partitions.is_mig_enabled(gpu.address):
        raise_nvml_error(NOT_SUPPORTED)
    if gi_id not in {instance.gi_id for instance in state.partitions.instances_on(gpu.address)}:
        raise_nvml_error(NOT_FOUND)
    if instance_vgpus(state, gpu, gi_id):
        raise_nvml_error(IN_USE)
    return [["partition", "destroy", gpu.address, gi_id]]


def instance_vgpus(state: State, gpu: SimGpu, gi_id: int) -> dict[str, SimType]:
    """Return the vGPUs in an instance, by carrier."""
    vgpus = state.vgpus_by_gpu[gpu.address]
    return {c: gpu.types[key] for c, key in vgpus.items() if state.partitions.instance_id(c) == gi_id}


def count_available(state: State, gpu: SimGpu, vgpu_type: SimType) -> int:
    """Return how many more vGPUs of a MIG-backed type fit into the existing instances."""
    return sum(
        count_available_in(state, gpu, vgpu_type, instance) for instance in state.partitions.instances_on(gpu.address)
    )


def count_available_in(state: State, gpu: SimGpu, vgpu_type: SimType, instance: GpuInstance) -> int:
    """Return how many more vGPUs of this type one instance takes."""
    if not vgpu_type.is_mig_backed or instance.profile_id != vgpu_type.gi_profile:
        return 0
    existing = list(instance_vgpus(state, gpu, instance.gi_id).values())
    if any(kind.framebuffer_mib != vgpu_type.framebuffer_mib for kind in existing):
        return 0
    return max(0, vgpu_type.max_per_gi - len(existing))


def first_available_instance(state: State, gpu: SimGpu, vgpu_type: SimType) -> int | None:
    """Return the instance into which the driver puts the next vGPU of a type, or None."""
    instances = sorted(state.partitions.instances_on(gpu.address), key=lambda instance: instance.gi_id)
    return next((instance.gi_id for instance in instances if count_available_in(state, gpu, vgpu_type, instance)), None)


def can_move_vgpu(state: State, gpu: SimGpu, carrier: str, gi_id: int) -> bool:
    """Say whether a vGPU may move into an instance: its own, or another one with room for its type."""
    if state.partitions.instance_id(carrier) in (None, gi_id):
        return state.partitions.instance_id(carrier) == gi_id
    vgpu_type = gpu.types[state.vgpus_by_gpu[gpu.address][carrier]]
    instances = {instance.gi_id: instance for instance in state.partitions.instances_on(gpu.address)}
    return gi_id in instances and count_available_in(state, gpu, vgpu_type, instances[gi_id]) > 0
