# SPDX-License-Identifier: Apache-2.0
"""The port to the commands that come with a GPU's driver."""

from __future__ import annotations

from typing import Protocol

from vgpuctl.model.port_values import CommandResult


class VendorCommands(Protocol):
    """Commands that come with a GPU's driver."""

    def sriov_manage(self, flag: str, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run NVIDIA's sriov-manage with `-e` (VFs on) or `-d` (off) for one GPU.

        Raises:
            FileNotFoundError: it is not installed: only NVIDIA's vGPU host driver includes it.
            OSError: it could not be started.
            Stuck: it did not end in time, or two signals arrived; it is recorded in /run/vgpuctl/stuck and continues.
        """

    def reset_gpu(self, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run `nvidia-smi --gpu-reset` for one GPU; NVML has no call for it.

        Raises:
            FileNotFoundError, OSError, Stuck: as `sriov_manage`.
        """
