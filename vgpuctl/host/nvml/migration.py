# SPDX-License-Identifier: Apache-2.0
"""What NVML knows of the move of a vGPU to another host: how much it has to send, how fast, and whether a GPU takes it.

pynvml's structures of metadata have room for 256 opaque bytes, and the library may have more: so these calls are made
with a buffer of the size that the library asks for. A description of another host is checked before the library gets
it, which believes the sizes in there.

Source: nvml.h, nvmlVgpuInstanceGetMetadata, nvmlDeviceGetVgpuMetadata, nvmlGetVgpuCompatibility (vGPU 18 to 20).
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from ctypes import byref, c_uint, create_string_buffer, sizeof
from typing import Any

from vgpuctl.host.nvml.gpu_usage import possible
from vgpuctl.host.nvml.library import NvmlLibrary
from vgpuctl.model.vgpu_moves import NvmlMigration, NvmlMovableVgpu, NvmlPairing

_READ_SPEED, _WRITE_SPEED, _STREAMS = 3, 4, 5
"""nvml.h's NVML_DEVICE_VGPU_CAP_READ_DEVICE_BUFFER_BW, ..WRITE_DEVICE_BUFFER_BW, ..DEVICE_STREAMING."""
_INSUFFICIENT_SIZE = 7
_VM_ID_IS_UUID = 1
_MAX_METADATA = 1 << 16
_HIBERNATE, _LIVE = 2, 8
"""nvml.h's NVML_VGPU_VM_COMPATIBILITY_HIBERNATE and .._LIVE."""
_LIMITS = {1: "host-driver", 2: "guest-driver", 4: "gpu"}
_OTHER_LIMIT = "other"
_METADATA = "nvmlVgpuInstanceGetMetadata"
_GPU_METADATA = "nvmlDeviceGetVgpuMetadata"
_COMPATIBILITY = "nvmlGetVgpuCompatibility"


def read_migration(library: NvmlLibrary, handle: Any) -> NvmlMigration:
    """Return how fast a GPU's driver reads and writes the state of vGPUs, and those that VMs use."""
    streams = _read_capability(library, handle, _STREAMS)
    return NvmlMigration(
        read_mb_per_second=_read_capability(library, handle, _READ_SPEED) or None,
        write_mb_per_second=_read_capability(library, handle, _WRITE_SPEED) or None,
        streams=None if streams is None else bool(streams),
        vgpus=tuple(_read_vgpu(library, vgpu) for vgpu in library.query("nvmlDeviceGetActiveVgpus", handle) or ()),
    )


def read_pairing(library: NvmlLibrary, handle: Any, metadata: str) -> NvmlPairing | None:
    """Return whether a GPU takes a vGPU of another host by its metadata (base64); None where NVML does not say."""
    vgpu = _decode_metadata(library, metadata)
    gpu = _read_blob(library, _GPU_METADATA, handle)
    if vgpu is None or gpu is None or not library.has(_COMPATIBILITY):
        return None
    result = (c_uint * 2)()
    function = library.nvml._nvmlGetFunctionPointer(_COMPATIBILITY)
    if function(create_string_buffer(vgpu, len(vgpu)), create_string_buffer(gpu, len(gpu)), byref(result)):
        return None
    states, limits = result
    known = tuple(name for bit, name in _LIMITS.items() if limits & bit)
    other = (_OTHER_LIMIT,) if limits & ~sum(_LIMITS) else ()
    return NvmlPairing(live=bool(states & _LIVE), saved=bool(states & _HIBERNATE), limits=known + other)


def _read_capability(library: NvmlLibrary, handle: Any, capability: int) -> int | None:
    number = library.query("nvmlDeviceGetVgpuCapabilities", handle, capability)
    return None if number is None else int(number)


def _read_vgpu(library: NvmlLibrary, vgpu: Any) -> NvmlMovableVgpu:
    vm_id = library.query("nvmlVgpuInstanceGetVmID", vgpu)
    mdev = library.query("nvmlVgpuInstanceGetMdevUUID", vgpu)
    type_id = library.query("nvmlVgpuInstanceGetType", vgpu)
    state = library.query("nvmlVgpuInstanceGetRuntimeStateSize", vgpu)
    metadata = _read_blob(library, _METADATA, c_uint(int(vgpu)))
    return NvmlMovableVgpu(
        vm_uuid=_decode(vm_id[0]).lower() if vm_id is not None and vm_id[1] == _VM_ID_IS_UUID else None,
        mdev_uuid=_decode(mdev).lower() if mdev else None,
        type_id=None if type_id is None else int(type_id),
        state_bytes=None if state is None else possible(state.size),
        metadata=None if metadata is None else b64encode(metadata).decode(),
    )


def _read_blob(library: NvmlLibrary, name: str, handle: Any) -> bytes | None:
    """Return what a function writes into a buffer whose size it tells first."""
    if not library.has(name):
        return None
    function, size = library.nvml._nvmlGetFunctionPointer(name), c_uint(0)
    if function(handle, None, byref(size)) != _INSUFFICIENT_SIZE or not 0 < size.value <= _MAX_METADATA:
        return None
    buffer = create_string_buffer(size.value)
    if function(handle, buffer, byref(size)):
        return None
    return buffer.raw[: min(size.value, sizeof(buffer))]


def _decode_metadata(library: NvmlLibrary, text: str) -> bytes | None:
    """Return a description of another host; None if it is none, or shorter than it says."""
    layout = getattr(library.nvml, "c_nvmlVgpuMetadata_t", None)
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if layout is None or not layout.opaqueData.offset <= len(data) <= _MAX_METADATA:
        return None
    at = layout.opaqueDataSize.offset
    size = int.from_bytes(data[at : at + 4], "little")
    return data if layout.opaqueData.offset + size <= len(data) else None


def _decode(text: bytes | str) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text
