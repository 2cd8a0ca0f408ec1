# SPDX-License-Identifier: Apache-2.0
"""Commands that come with a GPU's driver, as `seams.VendorCommands`.

sriov-manage (NVIDIA's vGPU host driver) unbinds the GPU, so no NVML handle of ours may be open: `host.nvml` opens and
closes it for each question.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from vgpuctl.model.records import CommandResult

SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"


class HostVendorCommands:
    """The installed ones. Nothing is run while `lock_held()`."""

    def __init__(self, sriov_manage: str = SRIOV_MANAGE, *, lock_held: Callable[[], bool]) -> None:
        self._sriov_manage = sriov_manage
        self._lock_held = lock_held

    def sriov_manage(self, flag: str, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run sriov-manage to its end; both its streams are kept, it complains on either."""
        if self._lock_held():
            raise AssertionError(f"sriov-manage {flag} {address} under the host lock")
        if not os.path.exists(self._sriov_manage):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._sriov_manage)
        from vgpuctl.host.commands import run_to_end

        done = run_to_end([self._sriov_manage, flag, address], deadline_seconds=deadline_seconds)
        return CommandResult(done.rc, done.stdout)
