# SPDX-License-Identifier: Apache-2.0
"""What determines the carriers of a GPU: its VFs, MIG and mixed sizes.

Each method of switching VFs has its own module; `vf_steps` chooses one for a GPU.
"""

from __future__ import annotations

from vgpuctl.gpu_setup.sriov import ManageVfs, SetVfs
from vgpuctl.makers import vfs_are_for_vgpus, vgpus_take_vfs
from vgpuctl.model.gpu import Gpu
from vgpuctl.ports.step import Step
from vgpuctl.value import replace


def has_vf_memory(gpu: Gpu, memory_mib: int | None) -> bool:
    """Return whether each VF that is on has this GPU memory; None: any."""
    return memory_mib is None or all(f.framebuffer_mib == memory_mib for f in gpu.functions)


def vf_steps(
    gpu: Gpu,
    vf_count: int,
    *,
    autoprobe: bool,
    memory_mib: int | None = None,
    restore_steps: tuple[Step, ...] = (),
) -> tuple[Step, ...]:
    """Return the steps that set a GPU's number of VFs and the memory of each; none if it has both.

    `autoprobe`: whether host drivers bind new VFs now; `restore_steps`: on undo they restore a GPU's settings after its
    VFs are turned on again.
    """
    if vf_count == gpu.vfs_enabled and (not vf_count or has_vf_memory(gpu, memory_mib)):
        return ()
    if vfs_are_for_vgpus(gpu):
        return (ManageVfs(gpu.address, vf_count > 0, gpu.vfs_total, restore_steps),)
    previous_mib = gpu.functions[0].framebuffer_mib if memory_mib is not None and gpu.vfs_enabled else None
    step = SetVfs(gpu.address, vf_count, gpu.vfs_enabled, autoprobe, gpu.driver, memory_mib, previous_mib)
    return (replace(step, restore_steps=restore_steps, keeps_autoprobe=vgpus_take_vfs(gpu)),)
