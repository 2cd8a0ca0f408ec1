# SPDX-License-Identifier: Apache-2.0
"""Whether host.yaml, a stuck kernel write, or a driver that lost the GPU keeps it from new vGPUs and VMs.

Existing vGPUs and VMs stay on it, and may start and stop, except on a GPU that is lost.
"""

from __future__ import annotations

from vgpuctl.config.name_patterns import expand_braces, matches_glob
from vgpuctl.gpu.profiles import matches_type
from vgpuctl.model.gpu import Gpu, GpuMode, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.unapplied import unapplied_settings


def why_unschedulable(snapshot: Snapshot, gpu: Gpu, mode: str, vm: str | None = None) -> str | None:
    """Return why nothing new is placed on a GPU now.

    A kernel write has not returned there, `why_restricted`, or settings of host.yaml have to be made first.
    """
    if any(write.gpu == gpu.address for write in snapshot.stuck_writes):
        return "a kernel write on it is blocked"
    restriction = why_restricted(gpu, mode, vm)
    if restriction is None and mode == GpuMode.VGPU and (differences := unapplied_settings(snapshot, gpu)):
        return f"it is not set up as host.yaml says: {'; '.join(differences)}; vgpuctl restore-host sets it up"
    return restriction


def why_restricted(gpu: Gpu, mode: str, vm: str | None = None) -> str | None:
    """Return why nothing new of a mode (`vgpu`, `sriov`, `passthrough`) is placed on a GPU; None when it may be.

    `vm`: the name of the VM that it is for; None for any VM.
    """
    if gpu.is_lost:
        return gpu.lost_text
    if gpu.cordoned:
        return f"it is cordoned; vgpuctl uncordon {gpu.address} allows new vGPUs"
    if gpu.desired_mode is GpuMode.UNMANAGED:
        return "host.yaml excludes it from vgpuctl (mode: unmanaged)"
    if gpu.desired_mode is not None and gpu.desired_mode != mode:
        return f"host.yaml reserves it for mode {gpu.desired_mode}; vgpuctl set-mode {gpu.address} {mode} changes that"
    if gpu.reserved_for and not any(_is_named(vm or "", pattern) for pattern in gpu.reserved_for):
        return f"host.yaml reserves it for VMs named {' or '.join(gpu.reserved_for)}"
    return None


def _is_named(vm: str, pattern: str) -> bool:
    return any(matches_glob(vm, word) for word in expand_braces(pattern))


def why_profile_forbidden(gpu: Gpu, vgpu_type: VgpuType) -> str | None:
    """Return why a type may not be placed on a GPU although its driver offers it; None when it may be."""
    if gpu.allowed_profiles is None or any(matches_type(vgpu_type, text) for text in gpu.allowed_profiles):
        return None
    return f"host.yaml allows only {', '.join(gpu.allowed_profiles)} on it (gpus: profiles:)"
