# SPDX-License-Identifier: Apache-2.0
"""MIG through NVML: its mode, the possible and existing GPU instances, and creating and destroying them.

Traps:
- Profiles are queried by an index from 0 to 0x11; the result has the id that all other calls take. The index of a
  compute instance's profile is yet another number.
- Turning MIG on returns success even if it is not on afterwards, with the reason as a separate value: IN_USE by another
  client, or RESET_REQUIRED.
Sources: nvml.h; NVIDIA's MIG user guide for the names.
"""

from __future__ import annotations

import math
from contextlib import suppress
from ctypes import byref, c_uint
from typing import Any

from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml.library import INVALID_ARGUMENT, NvmlLibrary
from vgpuctl.model.gpu import GiProfile, GpuInstance, MigState, PlacementSpan

_GET_MODE, _SET_MODE = "nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode"
_MAKE, _DESTROY = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy"
_CREATE_COMPUTE = "nvmlGpuInstanceCreateComputeInstance"
_POSSIBLE_PLACEMENTS = "nvmlDeviceGetGpuInstancePossiblePlacements"
_SUFFIXES = ("", "", "", "", "", "", "", "+me", "+me", "", "+gfx", "+gfx", "+gfx", "-me", "-me", "+me.all", "+me.all",
             "+gfx")  # fmt: skip
"""By index: the part of a GPU instance profile's name after its slices and memory."""
_COMPUTE_PROFILES = range(9)
_SHARED_ENGINES = 0
_MEMORY_SLICES = 8


def read_mode(library: NvmlLibrary, handle: Any) -> tuple[bool, bool] | None:
    """Return whether MIG is on now and after the GPU's next reset; None where the GPU has no MIG."""
    modes = library.query(_GET_MODE, handle)
    return None if modes is None else (bool(modes[0]), bool(modes[1]))


def read_mig(library: NvmlLibrary, handle: Any, modes: tuple[bool, bool], framebuffer_mib: int) -> MigState | None:
    """Return the MIG state of a GPU that has MIG; None when NVML does not report its instances, as without root.

    A profile without reported placements is left out.
    """
    profile_infos = _read_profile_infos(library, handle)
    try:
        instances = [i for info, _ in profile_infos for i in _read_instances(library, handle, info)] if modes[0] else []
    except NvmlFailed:  # unknown is not "none"
        return None
    profiles = []
    for info, suffix in profile_infos:
        with suppress(NvmlFailed):
            profiles.append(
                _parse_profile(info, suffix, _read_placements(library, handle, int(info.id)), framebuffer_mib)
            )
    return MigState(
        enabled=modes[0],
        pending_enabled=modes[1],
        profiles=tuple(sorted(profiles, key=lambda p: p.profile_id)),
        instances=tuple(sorted(instances, key=lambda i: i.gi_id)),
    )


def set_mode(library: NvmlLibrary, handle: Any, *, enabled: bool) -> None:
    """Turn MIG on or off. It may stay pending, as while another client has the GPU open: the caller reads it back.

    Raises:
        NvmlFailed: NVML refused the call, or accepted it and the change is neither done nor pending.
    """
    status = int(library.call(_SET_MODE, handle, int(enabled)))
    if status and enabled not in map(bool, library.call(_GET_MODE, handle)):
        raise library.make_error(f"{library.nvml.NVMLError(status)}; nothing is pending", _SET_MODE, status)


def get_instance_handle(library: NvmlLibrary, handle: Any, gi_id: int) -> Any:
    """Return NVML's handle of a GPU instance.

    Raises:
        NvmlFailed: there is no instance with that id.
    """
    return library.call("nvmlDeviceGetGpuInstanceById", handle, gi_id)


def create_instance(library: NvmlLibrary, handle: Any, profile_id: int, start: int) -> int:
    """Create a GPU instance and a compute instance that fills it; return its id.

    Raises:
        NvmlFailed: NVML refused one of them; nothing is left then, or the message says what is.
    """
    spans = _read_placements(library, handle, profile_id)
    span = next((s for s in spans if s.start == start), None)
    if span is None:
        placements = ", ".join(map(str, spans)) or "none"
        raise library.make_error(f"that profile's placements are {placements}", _MAKE, INVALID_ARGUMENT)
    placement = library.nvml.c_nvmlGpuInstancePlacement_t(span.start, span.size)
    instance = library.call(_MAKE, handle, profile_id, byref(placement))
    try:
        gi_id = int(library.call("nvmlGpuInstanceGetInfo", instance).id)
        library.call(_CREATE_COMPUTE, instance, _full_compute_profile_id(library, instance))
    except BaseException as error:
        try:
            library.call(_DESTROY, instance)
        except NvmlFailed as undo_error:
            raise library.make_error(
                f"{error}; the GPU instance is left: {undo_error}", _CREATE_COMPUTE, None
            ) from error
        raise
    return gi_id


def destroy_instance(library: NvmlLibrary, handle: Any, gi_id: int) -> None:
    """Destroy a GPU instance and the compute instances in it.

    Raises:
        NvmlFailed: NVML refused it, as while it is in use; the compute instances are created again then.
    """
    instance = get_instance_handle(library, handle, gi_id)
    destroyed_profiles: list[int] = []
    try:
        for profile in _read_compute_profiles(library, instance):
            item_type, max_count = library.nvml.c_nvmlComputeInstance_t, int(profile.instanceCount)
            for compute_instance in library.call_for_list(
                "nvmlGpuInstanceGetComputeInstances", item_type, max_count, instance, profile.id
            ):
                library.call("nvmlComputeInstanceDestroy", compute_instance)
                destroyed_profiles.append(int(profile.id))
        library.call(_DESTROY, instance)
    except NvmlFailed:
        for profile_id in destroyed_profiles:
            library.query(_CREATE_COMPUTE, instance, profile_id)
        raise


def format_profile_name(slices: int, memory_mib: int, gpu_mib: int, suffix: str = "") -> str:
    """Return a profile's name as nvidia-smi forms it, for a library that does not report it.

    The memory in the name counts eighths of the GPU's memory, rounded up, in whole GiB. This gives all names in the
    user guide's tables for A30, A100, H100 and H200; whether it holds for later GPUs is not certain.
    """
    eighths = math.ceil(memory_mib / gpu_mib * _MEMORY_SLICES)
    gib = math.floor(math.ceil(gpu_mib / 1024) * eighths / _MEMORY_SLICES + 0.5)
    return f"{slices}g.{gib}gb{suffix}"


def _read_profile_infos(library: NvmlLibrary, handle: Any) -> list[tuple[Any, str]]:
    """Return NVML's description of each GPU instance profile that the GPU has, with its suffix."""
    version = 2 if library.has("nvmlDeviceGetGpuInstanceProfileInfoV") else 1  # version 1 has no name
    infos = [library.query("nvmlDeviceGetGpuInstanceProfileInfo", handle, n, version) for n in range(len(_SUFFIXES))]
    return [(info, suffix) for info, suffix in zip(infos, _SUFFIXES, strict=True) if info is not None]


def _parse_profile(kind: Any, suffix: str, places: tuple[PlacementSpan, ...], gpu_mib: int) -> GiProfile:
    compute_slices, memory_mib = int(kind.sliceCount), int(kind.memorySizeMB)
    reported_name = str(getattr(kind, "name", "")).removeprefix("MIG ").strip()
    return GiProfile(
        profile_id=int(kind.id),
        name=reported_name or format_profile_name(compute_slices, memory_mib, gpu_mib, suffix),
        compute_slices=compute_slices,
        memory_mib=memory_mib,
        max_instances=int(kind.instanceCount),
        placements=places,
    )


def _read_placements(library: NvmlLibrary, handle: Any, profile_id: int) -> tuple[PlacementSpan, ...]:
    """Return the possible placements of a profile's GPU instances, taken or not."""
    count = c_uint(0)
    library.call(_POSSIBLE_PLACEMENTS, handle, profile_id, None, byref(count))
    placements = library.call_for_list(
        _POSSIBLE_PLACEMENTS, library.nvml.c_nvmlGpuInstancePlacement_t, count.value, handle, profile_id
    )
    return tuple(sorted((PlacementSpan(int(p.start), int(p.size)) for p in placements), key=lambda span: span.start))


def _read_instances(library: NvmlLibrary, handle: Any, kind: Any) -> list[GpuInstance]:
    item_type, max_count = library.nvml.c_nvmlGpuInstance_t, int(kind.instanceCount)
    handles = library.call_for_list("nvmlDeviceGetGpuInstances", item_type, max_count, handle, kind.id)
    infos = [library.call("nvmlGpuInstanceGetInfo", instance) for instance in handles]
    return [
        GpuInstance(int(i.id), int(i.profileId), PlacementSpan(int(i.placement.start), int(i.placement.size)))
        for i in infos
    ]


def _read_compute_profiles(library: NvmlLibrary, instance: Any) -> list[Any]:
    """Return NVML's description of each compute instance profile that a GPU instance has."""
    name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
    infos = [library.query(name, instance, n, _SHARED_ENGINES, 1) for n in _COMPUTE_PROFILES]
    return [info for info in infos if info is not None]


def _full_compute_profile_id(library: NvmlLibrary, instance: Any) -> int:
    """Return the id of the compute instance profile that takes all slices of a GPU instance."""
    profiles = _read_compute_profiles(library, instance)
    if not profiles:
        raise library.make_error("it reports no compute instance profile", _CREATE_COMPUTE, None)
    return int(max(profiles, key=lambda profile: int(profile.sliceCount)).id)
