# SPDX-License-Identifier: Apache-2.0
"""What determines the carriers of a GPU: its VFs, MIG and mixed sizes.

Each method of switching VFs has its own module; `vf_steps` chooses one for a GPU.
"""

from __future__ import annotations

from vgpuctl.gpu_setup.sriov import ManageVfs, SetVfs
from vgpuctl.makers import vfs_are_for_vgpus, vgpus_take_vfs
from vgpuctl.model.gpu import Gpu
from vgpuctl.ports.step import Step


def vf_steps(gpu: Gpu, vf_count: int, *, autoprobe: bool, restore_steps: tuple[Step, ...] = ()) -> tuple[Step, ...]:
    """Return the steps that set a GPU's number of VFs; none if it has that number.

    `autoprobe`: whether host drivers bind new VFs now; `restore_steps`: on undo they restore an NVIDIA GPU's settings
    after its VFs are turned on again.
    """
    if vf_count == gpu.vfs_enabled:
        return ()
    if vfs_are_for_vgpus(gpu):
        return (ManageVfs(gpu.address, vf_count > 0, gpu.vfs_total, restore_steps),)
    keeps_autoprobe = vgpus_take_vfs(gpu)
    return (SetVfs(gpu.address, vf_count, gpu.vfs_enabled, autoprobe, gpu.driver, keeps_autoprobe),)
