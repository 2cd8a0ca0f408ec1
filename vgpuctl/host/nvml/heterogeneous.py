# SPDX-License-Identifier: Apache-2.0
"""NVML's heterogeneous mode (mixed size), and the placements that it supports for a vGPU type.

NVML reports the placements also while the mode is off, because the mode is an argument of the call. Traps:
- Heterogeneous mode is 1 when set, but 0 when a list of placements is queried.
- The list has version 2 since vGPU 18, before that version 1, in which pynvml up to 13.590 has size and count swapped.
Source: nvml.h, nvmlVgpuPlacementList_v1_t and _v2_t.
"""

from __future__ import annotations

from ctypes import c_uint
from typing import Any

from vgpuctl.host.nvml.library import NvmlLibrary

_SUPPORTED_PLACEMENTS = "nvmlDeviceGetVgpuTypeSupportedPlacements"
_HETEROGENEOUS_MODE = 0


def read_mode(library: NvmlLibrary, handle: Any) -> bool | None:
    """Return whether heterogeneous mode is on; None where the GPU or the library has no such mode."""
    mode = library.query("nvmlDeviceGetVgpuHeterogeneousMode", handle)
    return None if mode is None else bool(mode)


def set_mode(library: NvmlLibrary, handle: Any, *, enabled: bool) -> None:
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
