# SPDX-License-Identifier: Apache-2.0
"""NVML's mixed size (heterogeneous mode), and where it lets a vGPU type be.

The placements are told while the mode is off too: which mode is meant is an argument. Traps: the mode is 1 for mixed
size, but a list of placements is asked with 0 for it; the list has a version 2 since vGPU 18, and before that version
1, in which pynvml up to 13.590 has size and count in each other's place.
Source: nvml.h, nvmlVgpuPlacementList_v1_t and _v2_t.
"""

from __future__ import annotations

from ctypes import c_uint
from typing import Any

from vgpuctl.host.nvml.call import Library

_LIST = "nvmlDeviceGetVgpuTypeSupportedPlacements"
_OF_MIXED_SIZE = 0


def mode(library: Library, handle: Any) -> bool | None:
    """Say whether mixed size is on; None where the GPU or the library has no such mode."""
    found = library.ask("nvmlDeviceGetVgpuHeterogeneousMode", handle)
    return None if found is None else bool(found)


def set_mode(library: Library, handle: Any, *, enabled: bool) -> None:
    """Turn mixed size on or off.

    Raises:
        NvmlFailed: NVML refused it: IN_USE while the GPU has a vGPU, NOT_SUPPORTED without VFs or with MIG.
    """
    library.run("nvmlDeviceSetVgpuHeterogeneousMode", handle, int(enabled))


def of_type(library: Library, handle: Any, type_id: int) -> tuple[tuple[int, ...], int] | None:
    """Return the placement ids of a type, taken or not, and its size; None when they are not told."""
    found = library.ask(_LIST, handle, type_id, _OF_MIXED_SIZE, 2)
    if found is None:
        found = library.ask(_LIST, handle, type_id, _OF_MIXED_SIZE, 1)
    if found is None:
        return None
    _version, size, count = (c_uint * 3).from_buffer(found)  # by nvml.h; not by the fields' names, see above
    return tuple(sorted(int(found.placementIds[n]) for n in range(count))), int(size)
