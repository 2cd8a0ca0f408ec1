# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's sriov-manage, nvidia-smi's reset of a GPU, and modprobe for AMD's gim, on a simulated host.

Sources for sriov-manage: its usage text and messages in NVIDIA's vGPU documentation and in tools that call it, and
unbindLock in NVIDIA's open kernel modules (nv-procfs.c), which is granted only while nobody uses the driver. It unbinds
the GPU from the driver and binds it again, so vGPUs on it are lost. Its exit statuses are not documented: 1 stands for
every failure. No contract test verifies it: only NVIDIA's own driver provides the command, and the lab does not have
it. Here it always ends at once: no scenario leaves it running. nvidia-smi's messages and exit statuses are those of its
manual (19, in use, was observed). modprobe's are those of kmod: 1 for every failure.
"""

from __future__ import annotations

import errno
from pathlib import Path

from vgpuctl.model.names import normalize_pci
from vgpuctl.model.port_values import CommandResult
from vgpuctl.sim import gim
from vgpuctl.sim.core import Core, FaultInjected, serialize_calls
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimGpu
from vgpuctl.sim.sriov import vf_carriers
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import kernel_error

SRIOV_MANAGE, NVIDIA_SMI = "/usr/lib/nvidia/sriov-manage", "/usr/bin/nvidia-smi"
RESET_HANGS_SINCE = (7, 0)
_RESET_REFUSED = """The following GPUs could not be reset:
  GPU 0000{0}: In use by another client

1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics \
application such as an X server, or a monitoring application such as another instance of nvidia-smi). Please first \
kill all processes using this device and all compute applications running in the system.
"""
USAGE = "Usage: sriov-manage <-e|-d> <ssss:bb:dd.f|ALL>\n"


@serialize_calls
class SimVendorCommands:
    """Vendor commands of the drivers on the simulated host."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def sriov_manage(self, flag: str, address: str, *, deadline_seconds: float) -> CommandResult:
        """Turn the VFs of an NVIDIA GPU on or off. A host without vGPU GPUs lacks the command."""
        try:
            with self._core.operation("sriov-manage", address) as change:
                state = self._core.state
                if not any(_supports_vgpus(gpu) for gpu in state.machine.gpus.values()):
                    raise kernel_error(errno.ENOENT, SRIOV_MANAGE)
                outcome = _run_sriov_manage(state, flag, address)
                if isinstance(outcome, CommandResult):
                    return outcome
                change.records += outcome
                word = "Enabling" if flag == "-e" else "Disabling"
                return CommandResult(0, f"{word} VFs on {address}\n")
        except FaultInjected as exc:
            return CommandResult(1, f"{exc.fault.message}\n")

    def reset_gpu(self, address: str, *, deadline_seconds: float) -> CommandResult:
        """Reset an NVIDIA GPU that nobody uses. A pending MIG mode then takes effect.

        Raises:
            AssertionError: from kernel 7.0 on, the bus reset wedges a real host whose VFs use vendor-specific VFIO
                (observed with an RTX PRO 6000 and driver 595). vgpuctl must not request it there.
        """
        try:
            with self._core.operation("reset-gpu", address) as change:
                state = self._core.state
                if not any(
                    gpu.nvml and state.driver(gpu.own_function) == "nvidia" for gpu in state.machine.gpus.values()
                ):
                    raise kernel_error(errno.ENOENT, NVIDIA_SMI)
                gpu = state.machine.gpus.get(normalize_pci(address) or address)
                if gpu is None or not gpu.nvml or state.driver(gpu.own_function) != "nvidia":
                    return CommandResult(6, "No devices were found\n")
                would_hang = gpu.backend == "vendor-vf" and state.machine.kernel >= RESET_HANGS_SINCE
                assert not would_hang, f"nvidia-smi --gpu-reset of {address} wedges a host with this kernel"
                if (
                    state.vfs[gpu.address]
                    or state.vgpus_by_gpu[gpu.address]
                    or gpu.held_by
                    or gpu.address in state.carrier_users
                ):
                    return CommandResult(19, _RESET_REFUSED.format(gpu.address.upper()))
                pending = state.partitions.mig_modes.get(gpu.address, (False, False))[1]
                change.add("partition", "lose", gpu.address)
                if gpu.gi_profiles:
                    change.add("partition", "mig", gpu.address, pending, pending)
                return CommandResult(0, f"GPU 0000{gpu.address.upper()} was successfully reset.\nAll done.\n")
        except FaultInjected as exc:
            return CommandResult(255, f"{exc.fault.message}\n")

    def modprobe(self, module: str, *, unload: bool, address: str, deadline_seconds: float) -> CommandResult:
        """Load or unload AMD's driver gim. A host without its GPUs lacks the module."""
        try:
            with self._core.operation("modprobe", module) as change:
                state = self._core.state
                if module != "gim" or not state.gim_config:
                    release = state.machine.scenario["kernel"]
                    return CommandResult(
                        1, f"modprobe: FATAL: Module {module} not found in directory /lib/modules/{release}\n"
                    )
                if unload and any(gpu.held_by for gpu in state.machine.gpus.values()):
                    return CommandResult(1, f"modprobe: FATAL: Module {module} is in use.\n")
                change.records += gim.unload_records(state) if unload else load_gim(self._core)
                return CommandResult(0, "")
        except FaultInjected as exc:
            return CommandResult(1, f"modprobe: ERROR: could not insert '{module}': {exc.fault.message}\n")


def load_gim(core: Core) -> list[JournalRecord]:
    """Return the records of loading gim: it reads its file, whose text is then the simulator's."""
    file = core.directory / gim.CONFIG_PATH.lstrip("/")
    text = file.read_text() if file.exists() else core.state.gim_config
    file.unlink(missing_ok=True)
    return gim.load_records(core.state, text, modprobe_files(core.directory))


def modprobe_files(directory: Path) -> list[str]:
    """Return the files that modprobe reads below /etc, in its order."""
    return [path.read_text() for path in sorted((directory / "etc" / "modprobe.d").glob("*.conf"))]


def _supports_vgpus(gpu: SimGpu) -> bool:
    return gpu.own_function.vendor.removeprefix("0x") == "10de" and gpu.backend in ("mdev-pf", "mdev-vf", "vendor-vf")


def _run_sriov_manage(state: State, flag: str, address: str) -> CommandResult | list[JournalRecord]:
    """Return the command's result if it fails, or the records of its success."""
    gpu = state.machine.gpus.get(address)
    if flag not in ("-e", "-d"):
        return CommandResult(1, USAGE)
    if gpu is None or not _supports_vgpus(gpu) or not gpu.vfs_total:
        return CommandResult(1, f"/sys/bus/pci/devices/{address}/sriov_numvfs: No such file or directory\n")
    if flag == "-e" and state.vfs[address]:
        return []
    if (
        state.used_carriers(vf_carriers(state, gpu))
        or state.driver(gpu.own_function) != gpu.own_function.driver
        or gpu.held_by
    ):
        return CommandResult(1, f"Cannot obtain unbindLock for {address}\n")
    return [["vfs", address, gpu.vfs_total if flag == "-e" else 0]]
