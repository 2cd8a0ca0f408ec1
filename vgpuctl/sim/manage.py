# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's sriov-manage, and nvidia-smi's reset of a GPU, on a simulated host.

Sources: its usage text and messages in NVIDIA's vGPU documentation and in tools that call it; unbindLock in NVIDIA's
open kernel modules (nv-procfs.c): it is given only while nobody uses the driver. It takes the GPU from the driver and
gives it back, so vGPUs on it are lost. The script's exit statuses are not documented: 1 stands for every failure. No
contract test holds it to the truth: only NVIDIA's own driver brings the command, and the lab does not have it. Here it
always ends at once: no scenario leaves it running. nvidia-smi's words and exit statuses are those of its manual (19, in
use, is what people saw).
"""

from __future__ import annotations

import errno

from vgpuctl.model.address import normal_pci
from vgpuctl.model.records import CommandResult
from vgpuctl.sim.core import Core, Met
from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import SimGpu
from vgpuctl.sim.sriov import below
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import fail
from vgpuctl.sim.turns import in_turn

PATH, SMI = "/usr/lib/nvidia/sriov-manage", "/usr/bin/nvidia-smi"
WEDGES_SINCE = (7, 0)
_NOT_RESET = """The following GPUs could not be reset:
  GPU 0000{0}: In use by another client

1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics \
application such as an X server, or a monitoring application such as another instance of nvidia-smi). Please first \
kill all processes using this device and all compute applications running in the system.
"""
USAGE = "Usage: sriov-manage <-e|-d> <ssss:bb:dd.f|ALL>\n"


@in_turn
class SimVendorCommands:
    """Commands of the drivers that the simulated host has."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def sriov_manage(self, flag: str, address: str, *, deadline_seconds: float) -> CommandResult:
        """Turn the VFs of an NVIDIA GPU on or off; a host without vGPU GPUs has no such command."""
        try:
            with self._core.change("sriov-manage", address) as change:
                state = self._core.state
                if not any(_is_vgpu(gpu) for gpu in state.machine.gpus.values()):
                    raise fail(errno.ENOENT, PATH)
                done = _managed(state, flag, address)
                if isinstance(done, CommandResult):
                    return done
                change.records += done
                word = "Enabling" if flag == "-e" else "Disabling"
                return CommandResult(0, f"{word} VFs on {address}\n")
        except Met as exc:
            return CommandResult(1, f"{exc.fault.message}\n")

    def reset_gpu(self, address: str, *, deadline_seconds: float) -> CommandResult:
        """Reset an NVIDIA GPU that nobody uses; then MIG is as it was to be.

        Raises:
            AssertionError: from kernel 7.0 on the reset of the bus wedges a real host whose VFs are vendor-specific
                VFIO's (met with an RTX PRO 6000 and driver 595): nobody may ask for it there.
        """
        try:
            with self._core.change("reset-gpu", address) as change:
                state = self._core.state
                if not any(gpu.nvml and state.driver(gpu.own) == "nvidia" for gpu in state.machine.gpus.values()):
                    raise fail(errno.ENOENT, SMI)
                gpu = state.machine.gpus.get(normal_pci(address) or address)
                if gpu is None or not gpu.nvml or state.driver(gpu.own) != "nvidia":
                    return CommandResult(6, "No devices were found\n")
                wedges = gpu.backend == "vendor-vf" and state.machine.kernel >= WEDGES_SINCE
                assert not wedges, f"nvidia-smi --gpu-reset of {address} wedges a host with this kernel"
                if state.vfs[gpu.address] or state.on_gpu[gpu.address] or gpu.held_by or gpu.address in state.users:
                    return CommandResult(19, _NOT_RESET.format(gpu.address.upper()))
                pending = state.partitions.modes.get(gpu.address, (False, False))[1]
                change.add("partition", "lose", gpu.address)
                if gpu.gi_profiles:
                    change.add("partition", "mig", gpu.address, pending, pending)
                return CommandResult(0, f"GPU 0000{gpu.address.upper()} was successfully reset.\nAll done.\n")
        except Met as exc:
            return CommandResult(255, f"{exc.fault.message}\n")


def _is_vgpu(gpu: SimGpu) -> bool:
    return gpu.own.vendor.removeprefix("0x") == "10de" and gpu.backend in ("mdev-pf", "mdev-vf", "vendor-vf")


def _managed(state: State, flag: str, address: str) -> CommandResult | list[Record]:
    """Return what the command says when it fails, or the records of its success."""
    gpu = state.machine.gpus.get(address)
    if flag not in ("-e", "-d"):
        return CommandResult(1, USAGE)
    if gpu is None or not _is_vgpu(gpu) or not gpu.vfs_total:
        return CommandResult(1, f"/sys/bus/pci/devices/{address}/sriov_numvfs: No such file or directory\n")
    if flag == "-e" and state.vfs[address]:
        return []
    if state.used_by(below(state, gpu)) or state.driver(gpu.own) != gpu.own.driver or gpu.held_by:
        return CommandResult(1, f"Cannot obtain unbindLock for {address}\n")
    return [["vfs", address, gpu.vfs_total if flag == "-e" else 0]]
