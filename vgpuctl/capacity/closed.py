# SPDX-License-Identifier: Apache-2.0
"""Whether host.yaml, or a write that is stuck, keeps a GPU from new vGPUs and VMs.

What is on it already stays, and may start and stop.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from vgpuctl.capacity.profiles import means
from vgpuctl.model.gpu import Gpu, Mode, VgpuType
from vgpuctl.model.snapshot import Snapshot


def why_shut(snapshot: Snapshot, gpu: Gpu, mode: str, vm: str | None = None) -> str | None:
    """Say why nothing new is placed on a GPU now: a write that the kernel has not ended there, or `why_closed`."""
    if any(write.gpu == gpu.address for write in snapshot.stuck):
        return "a kernel write on it is stuck"
    return why_closed(gpu, mode, vm)


def why_closed(gpu: Gpu, mode: str, vm: str | None = None) -> str | None:
    """Say why nothing new of a mode (`vgpu`, `sriov`, `passthrough`) is placed on a GPU; None when it may be.

    `vm`: the name of the VM that it is for, None when that is any.
    """
    if gpu.cordoned:
        return f"it is cordoned; vgpuctl uncordon {gpu.address} opens it"
    if gpu.desired is Mode.UNMANAGED:
        return "host.yaml says that vgpuctl leaves it alone (mode: unmanaged)"
    if gpu.desired is not None and gpu.desired != mode:
        return f"host.yaml keeps it for mode {gpu.desired}"
    if gpu.reserved_for and not any(fnmatchcase(vm or "", pattern) for pattern in gpu.reserved_for):
        return f"host.yaml reserves it for VMs named {' or '.join(gpu.reserved_for)}"
    return None


def why_not_allowed(gpu: Gpu, wanted: VgpuType) -> str | None:
    """Say why a type may not be placed on a GPU although its driver offers it; None when it may be."""
    if gpu.allowed_profiles is None or any(means(wanted, text) for text in gpu.allowed_profiles):
        return None
    return f"host.yaml allows only {', '.join(gpu.allowed_profiles)} on it (gpus: profiles:)"
