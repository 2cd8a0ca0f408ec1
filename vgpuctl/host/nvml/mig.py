# SPDX-License-Identifier: Apache-2.0
"""MIG through NVML: its mode, the GPU instances that can be and that are, and making and destroying them.

Traps: profiles are asked for by an index from 0 to 0x11, and answer with the id that all else takes; turning MIG on
succeeds also when it is not on afterwards, with the reason beside it: IN_USE by another client, or RESET_REQUIRED;
the index of a compute instance's profile is another one again. Sources: nvml.h; NVIDIA's MIG user guide for the names.
"""

from __future__ import annotations

import math
from contextlib import suppress
from ctypes import byref, c_uint
from typing import Any

from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml.call import INVALID_ARGUMENT, Library
from vgpuctl.model.partition import GiProfile, GpuInstance, Mig, Span

_GET_MODE, _SET_MODE = "nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode"
_MAKE, _DESTROY = "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy"
_MAKE_COMPUTE = "nvmlGpuInstanceCreateComputeInstance"
_PLACES = "nvmlDeviceGetGpuInstancePossiblePlacements"
_SUFFIXES = ("", "", "", "", "", "", "", "+me", "+me", "", "+gfx", "+gfx", "+gfx", "-me", "-me", "+me.all", "+me.all",
             "+gfx")  # fmt: skip
"""By index: what a GPU instance profile's name has beside its slices and memory."""
_COMPUTE_PROFILES = range(9)
_SHARED_ENGINES = 0
_EIGHTHS = 8


def mode(library: Library, handle: Any) -> tuple[bool, bool] | None:
    """Return whether MIG is on, and whether it is after the GPU's next reset; None where the GPU has no MIG."""
    found = library.ask(_GET_MODE, handle)
    return None if found is None else (bool(found[0]), bool(found[1]))


def read(library: Library, handle: Any, modes: tuple[bool, bool], framebuffer_mib: int) -> Mig | None:
    """Return MIG of a GPU that has it; None when its instances are not told, as to others than root.

    A profile whose placements are not told is left out.
    """
    kinds = _kinds(library, handle)
    try:
        instances = [i for kind, _ in kinds for i in _instances(library, handle, kind)] if modes[0] else []
    except NvmlFailed:  # unknown is not "none"
        return None
    profiles = []
    for kind, suffix in kinds:
        with suppress(NvmlFailed):
            profiles.append(_profile(kind, suffix, _places(library, handle, int(kind.id)), framebuffer_mib))
    return Mig(
        enabled=modes[0],
        pending=modes[1],
        profiles=tuple(sorted(profiles, key=lambda p: p.profile_id)),
        instances=tuple(sorted(instances, key=lambda i: i.gi_id)),
    )


def set_mode(library: Library, handle: Any, *, enabled: bool) -> None:
    """Turn MIG on or off. It may be pending then, as while another client has the GPU open: the caller reads it back.

    Raises:
        NvmlFailed: NVML refused it, or took it and neither did it nor has it pending.
    """
    status = int(library.run(_SET_MODE, handle, int(enabled)))
    if status and enabled not in map(bool, library.run(_GET_MODE, handle)):
        raise library.failed(f"{library.nvml.NVMLError(status)}; nothing is pending", _SET_MODE, status)


def instance(library: Library, handle: Any, gi_id: int) -> Any:
    """Return NVML's handle of a GPU instance.

    Raises:
        NvmlFailed: there is none with that id.
    """
    return library.run("nvmlDeviceGetGpuInstanceById", handle, gi_id)


def make(library: Library, handle: Any, profile_id: int, start: int) -> int:
    """Make a GPU instance and a compute instance that takes all of it; return its id.

    Raises:
        NvmlFailed: NVML refused one of them; nothing is left then, or the message says so.
    """
    spans = _places(library, handle, profile_id)
    span = next((s for s in spans if s.start == start), None)
    if span is None:
        places = ", ".join(map(str, spans)) or "none"
        raise library.failed(f"that profile's placements are {places}", _MAKE, INVALID_ARGUMENT)
    place = library.nvml.c_nvmlGpuInstancePlacement_t(span.start, span.size)
    made = library.run(_MAKE, handle, profile_id, byref(place))
    try:
        gi_id = int(library.run("nvmlGpuInstanceGetInfo", made).id)
        library.run(_MAKE_COMPUTE, made, _whole(library, made))
    except BaseException as error:
        try:
            library.run(_DESTROY, made)
        except NvmlFailed as left:
            raise library.failed(f"{error}; the GPU instance is left: {left}", _MAKE_COMPUTE, None) from error
        raise
    return gi_id


def destroy(library: Library, handle: Any, gi_id: int) -> None:
    """Destroy a GPU instance and the compute instances in it.

    Raises:
        NvmlFailed: NVML refused it, as while it is in use; the compute instances are made again then.
    """
    found = instance(library, handle, gi_id)
    gone: list[int] = []
    try:
        for kind in _compute_kinds(library, found):
            pointer, most = library.nvml.c_nvmlComputeInstance_t, int(kind.instanceCount)
            for one in library.several("nvmlGpuInstanceGetComputeInstances", pointer, most, found, kind.id):
                library.run("nvmlComputeInstanceDestroy", one)
                gone.append(int(kind.id))
        library.run(_DESTROY, found)
    except NvmlFailed:
        for profile_id in gone:
            library.ask(_MAKE_COMPUTE, found, profile_id)
        raise


def profile_name(slices: int, memory_mib: int, gpu_mib: int, suffix: str = "") -> str:
    """Return a profile's name as nvidia-smi makes it, for a library that does not tell it.

    Memory is named by eighths of the GPU's, rounded up, in whole GiB. This gives all names of the user guide's tables
    for A30, A100, H100 and H200; what a later GPU is called there is not certain.
    """
    eighths = math.ceil(memory_mib / gpu_mib * _EIGHTHS)
    gib = math.floor(math.ceil(gpu_mib / 1024) * eighths / _EIGHTHS + 0.5)
    return f"{slices}g.{gib}gb{suffix}"


def _kinds(library: Library, handle: Any) -> list[tuple[Any, str]]:
    """Return NVML's description of each GPU instance profile that the GPU has, with its suffix."""
    version = 2 if library.has("nvmlDeviceGetGpuInstanceProfileInfoV") else 1  # version 1 has no name
    asked = [library.ask("nvmlDeviceGetGpuInstanceProfileInfo", handle, n, version) for n in range(len(_SUFFIXES))]
    return [(kind, suffix) for kind, suffix in zip(asked, _SUFFIXES, strict=True) if kind is not None]


def _profile(kind: Any, suffix: str, places: tuple[Span, ...], gpu_mib: int) -> GiProfile:
    slices, memory_mib = int(kind.sliceCount), int(kind.memorySizeMB)
    told = str(getattr(kind, "name", "")).removeprefix("MIG ").strip()
    return GiProfile(
        profile_id=int(kind.id),
        name=told or profile_name(slices, memory_mib, gpu_mib, suffix),
        slices=slices,
        memory_mib=memory_mib,
        maximum=int(kind.instanceCount),
        placements=places,
    )


def _places(library: Library, handle: Any, profile_id: int) -> tuple[Span, ...]:
    """Return where a GPU instance of a profile can be, whatever is there now."""
    count = c_uint(0)
    library.run(_PLACES, handle, profile_id, None, byref(count))
    found = library.several(_PLACES, library.nvml.c_nvmlGpuInstancePlacement_t, count.value, handle, profile_id)
    return tuple(sorted((Span(int(p.start), int(p.size)) for p in found), key=lambda span: span.start))


def _instances(library: Library, handle: Any, kind: Any) -> list[GpuInstance]:
    pointer, most = library.nvml.c_nvmlGpuInstance_t, int(kind.instanceCount)
    found = library.several("nvmlDeviceGetGpuInstances", pointer, most, handle, kind.id)
    told = [library.run("nvmlGpuInstanceGetInfo", one) for one in found]
    return [GpuInstance(int(i.id), int(i.profileId), Span(int(i.placement.start), int(i.placement.size))) for i in told]


def _compute_kinds(library: Library, found: Any) -> list[Any]:
    """Return NVML's description of each compute instance profile that a GPU instance has."""
    name = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
    asked = [library.ask(name, found, n, _SHARED_ENGINES, 1) for n in _COMPUTE_PROFILES]
    return [kind for kind in asked if kind is not None]


def _whole(library: Library, found: Any) -> int:
    """Return the id of the compute instance profile that takes all slices of a GPU instance."""
    kinds = _compute_kinds(library, found)
    if not kinds:
        raise library.failed("it tells no compute instance profile", _MAKE_COMPUTE, None)
    return int(max(kinds, key=lambda kind: int(kind.sliceCount)).id)
