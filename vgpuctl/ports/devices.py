# SPDX-License-Identifier: Apache-2.0
"""The ports to devices: the file tree with sysfs, procfs and /dev; NVML; the commands that come with a GPU's driver."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from vgpuctl.model.gpu import PlacementSpan
from vgpuctl.model.port_values import CommandResult, EccState, FilePermissions, NvmlGpu, NvmlGuest, NvmlStatus
from vgpuctl.model.results.usage import UsageResult
from vgpuctl.model.usage import ProcessUse, ReaderProgram, UsageSample, UsageTarget
from vgpuctl.model.usage_history import VgpuHistory
from vgpuctl.model.vgpu_moves import NvmlMigration, NvmlPairing
from vgpuctl.model.vgpu_scheduler import SchedulerSpec


class Sysfs(Protocol):
    """The host's file tree: /sys, /proc, the names in /dev, /etc/vgpuctl. Paths are absolute.

    Every method raises OSError with the kernel's errno.
    """

    def read(self, path: str) -> str:
        """Return the whole file as text (undecodable bytes replaced)."""

    def listdir(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory."""

    def readlink(self, path: str) -> str:
        """Return a symbolic link's target; callers mostly need its last component."""

    def permissions(self, path: str) -> FilePermissions:
        """Return the owner, group and mode of a file or directory; a link is followed."""

    def write(self, path: str, text: str) -> None:
        """Write `text` in one write call, in this process: for creating a device, which never hangs in the kernel."""

    def write_uninterruptible(self, path: str, text: str, *, gpu: str, deadline_seconds: float) -> None:
        """Write in a child process, which may hang uninterruptibly in the kernel, and wait until the deadline at most.

        For removing and unbinding devices. The child is never signalled.

        Raises:
            OSError: the kernel refused it.
            Stuck: the deadline passed; the write is recorded in /run/vgpuctl/stuck and continues.
        """


class Nvml(Protocol):
    """NVIDIA's management library; any value may be missing."""

    def status(self) -> NvmlStatus:
        """Return whether NVML answers, and if not, why. Never raises."""

    def gpu(self, address: str) -> NvmlGpu | None:
        """Return what NVML reports about a GPU, by its normalized PCI address; None when that is not available."""

    def ecc(self, address: str) -> EccState | None:
        """Return whether a GPU's memory has error correction on; None where it has none or NVML does not report it."""

    def guests(self, address: str) -> tuple[NvmlGuest, ...] | None:
        """Return the vGPUs that VMs use on a GPU, with each guest's driver; None where NVML does not report them."""

    def migration(self, address: str) -> NvmlMigration | None:
        """Return what a move of the vGPUs that VMs use on a GPU would take; None when NVML does not answer for it.

        A driver or library without one of the calls leaves its values out.
        """

    def pairing(self, address: str, metadata: str) -> NvmlPairing | None:
        """Return whether a GPU takes a vGPU that NVML of another host describes (base64); None: NVML does not say."""

    def nvlink_peers(self, address: str) -> tuple[str, ...] | None:
        """Return the PCI addresses of the GPUs at the other ends of a GPU's active NVLinks, sorted.

        None where that is not known: NVIDIA's driver does not have the GPU, or the library is too old.
        """

    def placements(self, address: str) -> Mapping[int, tuple[PlacementSpan, ...]]:
        """Return the possible placements of each vGPU type by its id, for heterogeneous mode, also while that is off.

        Types for which NVML reports no placements, as with MIG, are left out.
        """

    def set_scheduler(self, address: str, spec: SchedulerSpec, gi_id: int | None = None) -> None:
        """Set the vGPU scheduler of a GPU, until its driver is reloaded, or of one GPU instance, while that exists.

        Raises:
            NvmlFailed: NVML refused the call or is not available; `nvml_code` in its facts is NVML's number.
        """

    def set_mig(self, address: str, *, enabled: bool) -> None:
        """Turn MIG on or off. A driver that applies it only at the next GPU reset makes it pending; that is no error.

        Raises:
            NvmlFailed: as `set_scheduler`.
        """

    def create_gpu_instance(self, address: str, profile_id: int, start: int) -> int:
        """Create a GPU instance from memory slice `start`, with one compute instance that fills it; return its id.

        Raises:
            NvmlFailed: as `set_scheduler`.
        """

    def destroy_gpu_instance(self, address: str, gi_id: int) -> None:
        """Destroy a GPU instance with its compute instances.

        Raises:
            NvmlFailed: as `set_scheduler`; while a vGPU is in the instance, NVML reports that it is in use.
        """

    def set_mixed_size(self, address: str, *, enabled: bool) -> None:
        """Allow vGPUs of several sizes on a GPU, or not (NVML's heterogeneous mode), until its VFs are set up again.

        Raises:
            NvmlFailed: as `set_scheduler`.
        """


class UsageReader(Protocol):
    """Reads how much of the GPUs is used. It never raises, and answers within seconds also when a driver hangs."""

    def read(self, targets: tuple[UsageTarget, ...], programs: tuple[ReaderProgram, ...]) -> UsageSample:
        """Return the use of these GPUs, and what these programs of the operator print about theirs."""

    def read_processes(self, gpu: str) -> tuple[ProcessUse, ...] | None:
        """Return the guests' processes that use a GPU, by its normalized address; None where nothing reports them."""

    def pause(self) -> AbstractContextManager[None]:
        """Keep every reader on this host, in any process, from opening a driver while a GPU's layout is changed."""


class UsageHistory(Protocol):
    """What is kept of the use of vGPUs. Reading never raises: without a history there is none."""

    @property
    def problem(self) -> str | None:
        """Why nothing can be written now; None while that works."""

    def add(self, result: UsageResult) -> None:
        """Add a sample; now and then, write what was added."""

    def flush(self) -> None:
        """Write what was added. What cannot be written waits."""

    def read(self, *, days: bool = False) -> tuple[VgpuHistory, ...]:
        """Return what is kept of all vGPUs, by VM and number: their hours, or with `days` their days."""

    def peaks(self) -> Mapping[tuple[str, int], int]:
        """Return the highest framebuffer use of each vGPU in 35 days, by the VM's uuid and the vGPU's number."""


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

    def modprobe(self, module: str, *, unload: bool, address: str, deadline_seconds: float) -> CommandResult:
        """Load a kernel module, or unload it. `address`: the GPU for which that happens, for the record if it hangs.

        Raises:
            FileNotFoundError, OSError, Stuck: as `sriov_manage`.
        """
