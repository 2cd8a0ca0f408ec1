# SPDX-License-Identifier: Apache-2.0
"""What decides which carriers a GPU has: its VFs. One file for each way of switching them, chosen per card."""

from __future__ import annotations

from vgpuctl.layout.nvidia import ManageVfs
from vgpuctl.layout.sriov import SetVfs
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.step import Step


def steps(gpu: Gpu, number: int, *, autoprobe: bool) -> tuple[Step, ...]:
    """Return the steps that bring a GPU to this number of VFs; none when it has it.

    `autoprobe`: whether host drivers take new VFs now.
    """
    if number == gpu.vfs_enabled:
        return ()
    if gpu.nvidia_driver:
        return (ManageVfs(gpu.address, number > 0, gpu.vfs_total),)
    return (SetVfs(gpu.address, number, gpu.vfs_enabled, autoprobe, gpu.driver),)
