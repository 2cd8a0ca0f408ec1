# SPDX-License-Identifier: Apache-2.0
"""Commands that come with a GPU's driver; implements `ports.VendorCommands`.

sriov-manage (NVIDIA's vGPU host driver) unbinds the GPU and nvidia-smi resets it, so vgpuctl must not have NVML open:
`host.nvml` opens and closes it for each query. These commands must not be stopped half-way: one that does not end is
left alone and recorded, like a write that hangs in the kernel, and nobody changes its GPU before it has ended.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress

from vgpuctl.errors import Stuck
from vgpuctl.host.commands import StillRunning, find_command, run_uninterrupted
from vgpuctl.host.uninterruptible import ProcessLookup, StuckWriteStore
from vgpuctl.model.port_values import CommandResult
from vgpuctl.model.vm import ProcessId, StuckWrite

SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"
NVIDIA_SMI = "/usr/bin/nvidia-smi"
"""The path, unless another directory for commands has it."""


class HostVendorCommands:
    """The installed commands. Running one while `lock_held()` raises AssertionError. `store` records stuck ones."""

    def __init__(
        self,
        sriov_manage: str = SRIOV_MANAGE,
        nvidia_smi: str | None = None,
        *,
        lock_held: Callable[[], bool],
        store: StuckWriteStore,
        processes: ProcessLookup,
    ) -> None:
        self._sriov_manage = sriov_manage
        self._nvidia_smi = nvidia_smi
        self._lock_held = lock_held
        self._records = store
        self._processes = processes

    def sriov_manage(self, flag: str, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run sriov-manage to its end and keep both streams, because it prints errors on either."""
        argv = [self._sriov_manage, flag, address]
        return self._run(argv, address, "sriov_numvfs", f"sriov-manage {flag}", deadline_seconds)

    def reset_gpu(self, address: str, *, deadline_seconds: float) -> CommandResult:
        """Run nvidia-smi's reset to its end."""
        argv = [self._nvidia_smi or find_command("nvidia-smi") or NVIDIA_SMI, "--gpu-reset", "-i", address]
        return self._run(argv, address, "reset", "nvidia-smi --gpu-reset", deadline_seconds)

    def _run(self, argv: list[str], address: str, attribute: str, label: str, deadline_seconds: float) -> CommandResult:
        """Run a command to its end; `attribute`: the GPU's file that it writes, `label`: its text in the entry."""
        if self._lock_held():
            raise AssertionError(f"{label} {address} under the host lock")
        if not os.path.exists(argv[0]):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
        recorded: list[StuckWrite] = []

        def record(pid: int) -> None:
            process = self._processes.find_process(pid) or ProcessId(pid, 0)
            recorded.append(StuckWrite(process, address, f"/sys/bus/pci/devices/{address}/{attribute}", label))
            with suppress(OSError):  # the command already runs: its result matters more than the entry
                self._records.add_stuck_write(recorded[-1])

        try:
            result = run_uninterrupted(argv, deadline_seconds=deadline_seconds, report_slow=record)
        except StillRunning as error:
            raise _stuck_error(str(error), error.pid, address, " ".join(argv)) from error
        except BaseException:  # an interruption, raised once the command has ended
            self._forget_stuck(recorded)
            raise
        self._forget_stuck(recorded)
        return CommandResult(result.status, result.stdout)

    def _forget_stuck(self, recorded: list[StuckWrite]) -> None:
        for write in recorded:
            self._records.remove_stuck_write(write)


def _stuck_error(text: str, pid: int, address: str, command: str) -> Stuck:
    return Stuck(
        text,
        hint=f"cat /proc/{pid}/stack shows where it waits; run the command again when it has ended",
        pid=pid,
        gpu=address,
        command=command,
    )
