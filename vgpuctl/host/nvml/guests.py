# SPDX-License-Identifier: Apache-2.0
"""NVML's running vGPUs: whose each is, and the version of NVIDIA's driver in its guest.

NVML says "Not Available" while no driver of NVIDIA's runs in the guest, as until it has booted. With KVM a VM's id is
its UUID (NVML_VGPU_VM_ID_UUID); other hypervisors have numbers. pynvml leaves it bytes, as it is one of two answers.
Source: nvml.h, nvmlVgpuInstanceGetVmDriverVersion.
"""

from __future__ import annotations

import re
from typing import Any

from vgpuctl.host.nvml.call import Library
from vgpuctl.model.records import NvmlGuest

_UUID = 1
_VERSION = re.compile(r"\d+(?:\.\d+)+")


def read(library: Library, handle: Any) -> tuple[NvmlGuest, ...] | None:
    """Return the vGPUs of a GPU that VMs have; None where NVML does not tell them, or not their drivers."""
    running = library.ask("nvmlDeviceGetActiveVgpus", handle)
    if running is None or not library.has("nvmlVgpuInstanceGetVmDriverVersion"):
        return None
    return tuple(_guest(library, one) for one in running)


def _guest(library: Library, vgpu: Any) -> NvmlGuest:
    who = library.ask("nvmlVgpuInstanceGetVmID", vgpu)
    version = str(library.ask("nvmlVgpuInstanceGetVmDriverVersion", vgpu) or "")
    return NvmlGuest(
        vm_uuid=_text(who[0]).lower() if who is not None and who[1] == _UUID else None,
        driver_version=version if _VERSION.fullmatch(version) else None,
    )


def _text(told: bytes | str) -> str:
    return told.decode(errors="replace") if isinstance(told, bytes) else told
