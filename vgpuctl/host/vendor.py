# SPDX-License-Identifier: Apache-2.0
"""Commands that come with a GPU's driver, as `seams.VendorCommands`.

sriov-manage (NVIDIA's vGPU host driver) unbinds the GPU and nvidia-smi resets it, so no NVML handle of ours may be
open: `host.nvml` opens and closes it for each question. They must not be stopped half-way either: one that does not
end is left alone and recorded, as a kernel write that is parked, and nobody works on its GPU before it has ended.
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
NVIDIA_SMI = "/usr/bin/nvidia-smi"
"""Where it is, unless another directory of commands has it."""


class HostVendorCommands:
    """The installed ones. Nothing is run while `lock_held()`; one that does not come back is kept in `records`."""

    def __init__(
        self,
        sriov_manage: str = SRIOV_MANAGE,
        nvidia_smi: str | None = None,
        *,
        lock_held: Callable[[], bool],
        records: StuckRecords,
        processes: FindProcess,
    ) -> None:
        self._sriov_manage = sriov_manage
        self._nvidia_smi = nvidia_smi
        self._lock_held = lock_held
        self._records = records
        self._processes = processes

    def sriov_manage(self, flag: str, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run sriov-manage to its end; both its streams are kept, it complains on either."""
        argv = [self._sriov_manage, flag, address]
        return self._run(argv, address, "sriov_numvfs", f"sriov-manage {flag}", deadline_seconds)

    def reset_gpu(self, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run nvidia-smi's reset to its end."""
        from vgpuctl.host.commands import find_command

        argv = [self._nvidia_smi or find_command("nvidia-smi") or NVIDIA_SMI, "--gpu-reset", "-i", address]
        return self._run(argv, address, "reset", "nvidia-smi --gpu-reset", deadline_seconds)

    def _run(self, argv: list[str], address: str, writes: str, said: str, deadline_seconds: float) -> CommandResult:
        """Run a command to its end; `writes` is the GPU's file that it writes, `said` what its record calls it."""
        if self._lock_held():
            raise AssertionError(f"{said} {address} under the host lock")
        if not os.path.exists(argv[0]):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
        from vgpuctl.host.commands import GoesOn, run_to_end

        recorded: list[StuckWrite] = []

        def record(pid: int) -> None:
            process = self._processes.started(pid) or ProcessId(pid, 0)
            recorded.append(StuckWrite(process, address, f"/sys/bus/pci/devices/{address}/{writes}", said))
            with suppress(OSError):  # the command runs already: what it says is worth more than its record
                self._records.record_stuck(recorded[-1])

        try:
            done = run_to_end(argv, deadline_seconds=deadline_seconds, slow=record)
        except GoesOn as error:
            raise _stuck(str(error), error.pid, address, " ".join(argv)) from error
        except BaseException:  # an interruption, raised when the command had ended
            self._forget(recorded)
            raise
        self._forget(recorded)
        return CommandResult(done.rc, done.stdout)

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
