# SPDX-License-Identifier: Apache-2.0
"""NVML's running vGPUs: the VM of each, and the version of NVIDIA's driver in its guest.

NVML reports "Not Available" while no NVIDIA driver runs in the guest, for example until it has booted. With KVM a VM's
id is its UUID (NVML_VGPU_VM_ID_UUID); other hypervisors have numbers. pynvml leaves the id as bytes, because its call
returns two values.
Source: nvml.h, nvmlVgpuInstanceGetVmDriverVersion.
"""

from __future__ import annotations

import re
from typing import Any

from vgpuctl.host.nvml.library import NvmlLibrary
from vgpuctl.model.port_values import NvmlGuest

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


def _decode(text: bytes | str) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text
