# SPDX-License-Identifier: Apache-2.0
"""NVIDIA: vGPUs as mdevs or by vendor-specific VFIO; NVML knows its GPUs.

The description of an mdev type is one line, such as `num_heads=4, framebuffer=2048M, max_instance=8`.

NVIDIA's list of GPUs for vGPU (docs.nvidia.com/vgpu) has no GeForce; patched drivers offer vGPUs on them, such as that
of noon-at-cgn/geforce-sriov (Ampere and Ada, 2026).

A vGPU with the plugin's parameter for unified memory, debuggers or profilers is not migrated, saved or restored
(docs.nvidia.com/vgpu, known limitations of migration).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vgpuctl.makers.maker import Maker
from vgpuctl.model.gpu import NVIDIA_VENDOR_ID, Gpu, GpuMode, VgpuType
from vgpuctl.model.names import profile_of_type

if TYPE_CHECKING:
    from vgpuctl.model.results.migration import MigrationHostResult

_FRAMEBUFFER = re.compile(r"framebuffer=([0-9]{1,9})M")
_MAX_INSTANCE = re.compile(r"max_instance=([0-9]{1,9})")
_PARAMS_AGAINST_MOVES = ("enable_uvm=1", "enable_debugging=1", "enable_profiling=1")
_SAME = "the other host needs the same version of NVIDIA's vGPU driver"
_SIMILAR = "the other host may have another version of NVIDIA's vGPU driver, if NVIDIA's release notes allow it"


class Nvidia(Maker):
    """NVIDIA."""

    name = "NVIDIA"
    vendor_id = NVIDIA_VENDOR_ID
    type_prefix = "nvidia-"
    has_numbered_types = True
    vgpu_driver = "nvidia"
    has_nvml = True
    has_vgpu_params = True
    vfs_are_for_vgpus = True
    scheduler_hint = None
    vgpus_can_move = True
    saved_note = "what is saved needs the same version of the vGPU driver when the VM starts: update the driver later"
    drawing_problem = (
        "NVIDIA's driver also needs /dev/nvidiactl and /dev/nvidia0, which libvirt does not give to QEMU: the start "
        "mostly fails (eglInitialize failed) until cgroup_device_acl in /etc/libvirt/qemu.conf has them"
    )

    def read_type(self, type_id: str, name: str, description: str) -> VgpuType:
        """Name the profile by the last word of the type's name."""
        framebuffer, limit = _FRAMEBUFFER.search(description), _MAX_INSTANCE.search(description)
        return VgpuType(
            type_id=type_id,
            name=name,
            profile=profile_of_type(name.strip()) or type_id,
            framebuffer_mib=int(framebuffer[1]) if framebuffer else None,
            max_per_gpu=int(limit[1]) if limit else None,
        )

    def move_problems(self, source: MigrationHostResult, target: MigrationHostResult) -> tuple[str, ...]:
        """Compare drivers and distributions."""
        from vgpuctl.makers import nvidia_moves

        return nvidia_moves.find_problems(source, target)

    def move_doubts(self, source: MigrationHostResult, target: MigrationHostResult) -> tuple[str, ...]:
        """Name distributions that NVIDIA does not list."""
        from vgpuctl.makers import nvidia_moves

        return nvidia_moves.find_doubts(source, target)

    def params_against_moves(self, params: str) -> tuple[str, ...]:
        """Return those for CUDA's unified memory, debuggers and profilers."""
        return tuple(word for word in params.replace(",", " ").split() if word in _PARAMS_AGAINST_MOVES)

    def move_rule(self, distribution: str, version: str) -> str | None:
        """Return on which systems NVIDIA supports migration, and whether its vGPU drivers may differ."""
        from vgpuctl.makers import nvidia_moves

        here = f"{distribution} {version}".strip()
        system = nvidia_moves.find_system(here)
        if system is None:
            known = nvidia_moves.systems_text()
            return f"NVIDIA supports migration on {known} only, and this is {here or 'an unknown system'}"
        return _SIMILAR if system.drivers_may_differ else _SAME

    def support_warning(self, gpu: Gpu) -> str | None:
        """Return the warning for a GeForce that has vGPUs or VFs."""
        offers = gpu.vfs_enabled or gpu.mode in (GpuMode.VGPU, GpuMode.MIG_VGPU)
        if not offers or "geforce" not in gpu.model.lower():
            return None
        return (
            "vGPUs of a GeForce are not supported by NVIDIA: a patched driver offers them, NVIDIA gives no help and no "
            "license for them, and its next driver may not have them"
        )
