# SPDX-License-Identifier: Apache-2.0
"""What decides which carriers a GPU has: its VFs, MIG and mixed sizes.

One file for each way of switching VFs, chosen per card.
"""

from __future__ import annotations

from vgpuctl.layout.nvidia import ManageVfs
from vgpuctl.layout.sriov import SetVfs
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.step import Step


def steps(gpu: Gpu, number: int, *, autoprobe: bool, again: tuple[Step, ...] = ()) -> tuple[Step, ...]:
    """Return the steps that bring a GPU to this number of VFs; none when it has it.

    `autoprobe`: whether host drivers take new VFs now; `again`: what sets an NVIDIA GPU as it is when VFs that went
    are turned on again.
    """
    if number == gpu.vfs_enabled:
        return ()
    if gpu.nvidia_driver:
        return (ManageVfs(gpu.address, number > 0, gpu.vfs_total, again),)
    return (SetVfs(gpu.address, number, gpu.vfs_enabled, autoprobe, gpu.driver),)
