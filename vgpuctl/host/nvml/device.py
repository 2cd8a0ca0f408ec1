# SPDX-License-Identifier: Apache-2.0
"""What NVML reports about one GPU: name and memory, the supported vGPU types, how it is partitioned, and its guests.

MIG is queried only where the GPU has it, and placements only while heterogeneous mode (mixed size) is on or about to
be: most commands read every GPU, and each query is a call of the driver.

NVML reports the placements also while the mode is off, because the mode is an argument of the call. Traps:
- Heterogeneous mode is 1 when set, but 0 when a list of placements is queried.
- The list has version 2 since vGPU 18, before that version 1, in which pynvml up to 13.590 has size and count swapped.
Source: nvml.h, nvmlVgpuPlacementList_v1_t and _v2_t.

The version of NVIDIA's driver in a guest is "Not Available" while no NVIDIA driver runs in it, for example until it has
booted. With KVM a VM's id is its UUID (NVML_VGPU_VM_ID_UUID); other hypervisors have numbers. pynvml leaves the id as
bytes, because its call returns two values. Source: nvml.h, nvmlVgpuInstanceGetVmDriverVersion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ctypes import c_uint
from typing import Any

from vgpuctl.errors import NvmlFailed
from vgpuctl.host.nvml import mig, vgpu_scheduler
from vgpuctl.host.nvml.library import NOT_SUPPORTED, NvmlLibrary
from vgpuctl.model.gpu import PlacementSpan
from vgpuctl.model.names import GPU_UUID, normalize_pci
from vgpuctl.model.port_values import EccState, NvmlGpu, NvmlGuest, NvmlVgpuType
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
    mixed_size = read_heterogeneous_mode(library, handle) if ids else None
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
        uuid=_read_uuid(library, handle),
    )


def _read_uuid(library: NvmlLibrary, handle: Any) -> str | None:
    text = library.query("nvmlDeviceGetUUID", handle)
    return text if isinstance(text, str) and GPU_UUID.fullmatch(text) else None


def read_ecc(library: NvmlLibrary, handle: Any) -> EccState | None:
    """Return whether ECC is on now and after the next reset; None where the GPU has none."""
    modes = library.query("nvmlDeviceGetEccMode", handle)
    return None if modes is None else EccState(enabled=bool(modes[0]), pending_enabled=bool(modes[1]))


def read_placements(library: NvmlLibrary, handle: Any) -> Mapping[int, tuple[PlacementSpan, ...]]:
    """Return each type's placements in heterogeneous mode, also while it is off; omits types without a report."""
    reported = (
        (type_id, read_type_placements(library, handle, type_id)) for type_id in _read_type_ids(library, handle)
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
    placements = read_type_placements(library, handle, type_id) if mixed and profile is None else None
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


_SUPPORTED_PLACEMENTS = "nvmlDeviceGetVgpuTypeSupportedPlacements"
_HETEROGENEOUS_MODE = 0


def read_heterogeneous_mode(library: NvmlLibrary, handle: Any) -> bool | None:
    """Return whether heterogeneous mode is on; None where the GPU or the library has no such mode."""
    mode = library.query("nvmlDeviceGetVgpuHeterogeneousMode", handle)
    return None if mode is None else bool(mode)


def set_heterogeneous_mode(library: NvmlLibrary, handle: Any, *, enabled: bool) -> None:
    """Turn heterogeneous mode on or off.

    Raises:
        NvmlFailed: NVML refused it: IN_USE while the GPU has a vGPU, NOT_SUPPORTED without VFs or with MIG.
    """
    library.call("nvmlDeviceSetVgpuHeterogeneousMode", handle, int(enabled))


def read_type_placements(library: NvmlLibrary, handle: Any, type_id: int) -> tuple[tuple[int, ...], int] | None:
    """Return the placement ids of a type, taken or not, and its size; None when NVML does not report them."""
    placements = library.query(_SUPPORTED_PLACEMENTS, handle, type_id, _HETEROGENEOUS_MODE, 2)
    if placements is None:
        placements = library.query(_SUPPORTED_PLACEMENTS, handle, type_id, _HETEROGENEOUS_MODE, 1)
    if placements is None:
        return None
    _version, size, count = (c_uint * 3).from_buffer(placements)  # as in nvml.h, not by pynvml's field names, see above
    return tuple(sorted(int(placements.placementIds[n]) for n in range(count))), int(size)


_VM_ID_IS_UUID = 1
_VERSION = re.compile(r"\d+(?:\.\d+)+")


def read_guests(library: NvmlLibrary, handle: Any) -> tuple[NvmlGuest, ...] | None:
    """Return the vGPUs that VMs use on a GPU; None where NVML does not report them or their drivers."""
    running = library.query("nvmlDeviceGetActiveVgpus", handle)
    if running is None or not library.has("nvmlVgpuInstanceGetVmDriverVersion"):
        return None
    return tuple(_read_guest(library, vgpu) for vgpu in running)


def _read_guest(library: NvmlLibrary, vgpu: Any) -> NvmlGuest:
    vm_id = library.query("nvmlVgpuInstanceGetVmID", vgpu)
    version = str(library.query("nvmlVgpuInstanceGetVmDriverVersion", vgpu) or "")
    return NvmlGuest(
        vm_uuid=_decode(vm_id[0]).lower() if vm_id is not None and vm_id[1] == _VM_ID_IS_UUID else None,
        driver_version=version if _VERSION.fullmatch(version) else None,
    )


_MAX_LINKS = 18
_LINK_ACTIVE = 1
_REMOTE_IS_GPU = 0


def read_nvlink_peers(library: NvmlLibrary, handle: Any) -> tuple[str, ...] | None:
    """Return the GPUs at the other ends of a GPU's active NVLinks; none on a GPU without NVLink.

    A link to an NVSwitch has no GPU at its other end. A link that the GPU does not have is an error of NVML.
    Source: nvml.h, nvmlDeviceGetNvLinkState, nvmlDeviceGetNvLinkRemoteDeviceType and NVML_NVLINK_MAX_LINKS.
    """
    if not library.has("nvmlDeviceGetNvLinkState") or not library.has("nvmlDeviceGetNvLinkRemotePciInfo"):
        return None
    peers = set()
    for link in range(_MAX_LINKS):
        if library.query("nvmlDeviceGetNvLinkState", handle, link) != _LINK_ACTIVE:
            continue
        if library.query("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) not in (None, _REMOTE_IS_GPU):
            continue
        remote = library.query("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        address = None if remote is None else normalize_pci(_decode(remote.busId))
        if address is None:
            return None
        peers.add(address)
    return tuple(sorted(peers))


def _decode(text: bytes | str) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text
