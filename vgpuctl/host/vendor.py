# SPDX-License-Identifier: Apache-2.0
"""Commands that come with a GPU's driver, as `seams.VendorCommands`.

sriov-manage (NVIDIA's vGPU host driver) unbinds the GPU, so no NVML handle of ours may be open: `host.nvml` opens and
closes it for each question. It must not be stopped half-way either: one that does not end is left alone and recorded,
as a kernel write that is parked, and nobody works on its GPU before it has ended.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress

from vgpuctl.errors import Stuck
from vgpuctl.host.parked import FindProcess, StuckRecords
from vgpuctl.model.records import CommandResult
from vgpuctl.model.vm import ProcessId, StuckWrite

SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"


class HostVendorCommands:
    """The installed ones. Nothing is run while `lock_held()`; one that does not come back is kept in `records`."""

    def __init__(
        self,
        sriov_manage: str = SRIOV_MANAGE,
        *,
        lock_held: Callable[[], bool],
        records: StuckRecords,
        processes: FindProcess,
    ) -> None:
        self._sriov_manage = sriov_manage
        self._lock_held = lock_held
        self._records = records
        self._processes = processes

    def sriov_manage(self, flag: str, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run sriov-manage to its end; both its streams are kept, it complains on either."""
        if self._lock_held():
            raise AssertionError(f"sriov-manage {flag} {address} under the host lock")
        if not os.path.exists(self._sriov_manage):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._sriov_manage)
        from vgpuctl.host.commands import GoesOn, run_to_end

        recorded: list[StuckWrite] = []

        def record(pid: int) -> None:
            process = self._processes.started(pid) or ProcessId(pid, 0)
            path = f"/sys/bus/pci/devices/{address}/sriov_numvfs"  # what the command writes in the end
            recorded.append(StuckWrite(process, address, path, f"sriov-manage {flag}"))
            with suppress(OSError):  # the command runs already: what it says is worth more than its record
                self._records.record_stuck(recorded[-1])

        argv = [self._sriov_manage, flag, address]
        try:
            done = run_to_end(argv, deadline_seconds=deadline_seconds, slow=record)
        except GoesOn as error:
            raise _stuck(str(error), error.pid, address, " ".join(argv)) from error
        except BaseException:  # an interruption, raised when the command had ended
            self._forget(recorded)
            raise
        self._forget(recorded)
        return CommandResult(done.rc, done.stdout)

    def reset_gpu(self, address: str, *, deadline_seconds: float) -> CommandResult:
        """Refuse."""
        raise FileNotFoundError(errno.ENOENT, "nvidia-smi")

    def _forget(self, recorded: list[StuckWrite]) -> None:
        for write in recorded:
            self._records.forget_stuck(write)


def _stuck(text: str, pid: int, address: str, command: str) -> Stuck:
    return Stuck(
        text,
        hint=f"see what it waits for: cat /proc/{pid}/stack; run the command again when it has ended",
        pid=pid,
        gpu=address,
        command=command,
    )
