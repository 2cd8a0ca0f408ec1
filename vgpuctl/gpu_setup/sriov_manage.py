# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's VFs, through sriov-manage of the vGPU host driver, which turns all VFs on or off.

The command unbinds the GPU from the driver and binds it again. The driver allows that (unbindLock) only while nobody
uses the GPU: "Cannot obtain unbindLock" means that a process uses it. A monitor that polls NVML uses it for a moment
only, so vgpuctl retries after this error alone. The VFs appear and disappear after the command has ended.
Source: NVIDIA's vGPU documentation; nv-procfs.c in NVIDIA's open kernel modules; the retries are those of CubeCOS, and
stackhpc/ansible-collection-linux#37 reports the same race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.backends.base import refuse_if_held
from vgpuctl.errors import DeviceFailed, HostCannot, InUse, VerifyFailed
from vgpuctl.gpu_setup.sriov import PCI_DEVICES, count_vfs, list_vfs, refuse_while_stuck
from vgpuctl.ports.step import Step
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.port_values import CommandResult
    from vgpuctl.ports.devices import VendorCommands
    from vgpuctl.ports.host import Host

SRIOV_MANAGE = "/usr/lib/nvidia/sriov-manage"
DEADLINE_SECONDS = 180.0
SETTLE_SECONDS = 60.0
POLL_SECONDS = 0.5
UNBIND_RETRIES = 5
UNBIND_PAUSE_SECONDS = 1.0


class ManageVfs(Step):
    """Turn all VFs of an NVIDIA GPU on, or off.

    `restore_steps`: undo restores with them what the GPU loses with its VFs (GPU instances, mixed sizes, scheduler).
    """

    gpu: str
    enable: bool
    vf_total: int
    restore_steps: tuple[Step, ...] = ()

    def describe(self) -> str:
        return f"turn the {self.vf_total} VFs of {self.gpu} {'on' if self.enable else 'off'} (sriov-manage)"

    def perform(self, host: Host) -> None:
        """Check for holders of VFs, because the kernel would wait for them; then run the command.

        Raises:
            InUse: a VM uses the GPU, or a process still does after the retries.
            HostCannot: the command is not installed.
            DeviceFailed: it failed.
            Stuck: it did not end in time, or vgpuctl stopped waiting; it continues and is recorded.
        """
        self._run(host, enable=self.enable)

    def _run(self, host: Host, *, enable: bool) -> None:
        if host.vendor_commands is None:
            raise HostCannot(f"{SRIOV_MANAGE} is not accessible on {host.name}", check="sriov-manage")
        for vf in list_vfs(host, self.gpu):
            refuse_if_held(host, vf, f"{PCI_DEVICES}/{vf}")
        flag = "-e" if enable else "-d"
        facts: dict[str, object] = {"gpu": self.gpu, "command": f"{SRIOV_MANAGE} {flag} {self.gpu}"}
        result = self._call_sriov_manage(host.vendor_commands, flag, facts)
        for _ in range(UNBIND_RETRIES):
            if not _is_gpu_in_use(result):
                break
            host.clock.sleep(UNBIND_PAUSE_SECONDS)
            result = self._call_sriov_manage(host.vendor_commands, flag, facts)
        if result.status != 0:
            raise self._command_error(host, result, facts)

    def _call_sriov_manage(self, vendor: VendorCommands, flag: str, facts: dict[str, object]) -> CommandResult:
        try:
            return vendor.sriov_manage(flag, self.gpu, deadline_seconds=DEADLINE_SECONDS)
        except FileNotFoundError as error:
            hint = "install NVIDIA's vGPU host driver (for KVM); the bare-metal driver does not include it"
            raise HostCannot(f"{SRIOV_MANAGE} is not installed", hint=hint, check="sriov-manage", **facts) from error
        except OSError as error:
            raise DeviceFailed(
                f"{SRIOV_MANAGE} could not be started: {error.strerror}", hint=SRIOV_MANAGE, **facts
            ) from error

    def _command_error(self, host: Host, result: CommandResult, facts: dict[str, object]) -> Exception:
        lines = [line.strip() for line in result.text.splitlines() if line.strip()]
        message = lines[-1] if lines else f"it ended with status {result.status}"
        if _is_gpu_in_use(result):
            users = list_driver_users(host)
            return InUse(
                f"{self.gpu} is in use by {', '.join(users) or 'an unknown process'}: its driver refused to "
                f"release it {UNBIND_RETRIES + 1} times in {UNBIND_RETRIES * UNBIND_PAUSE_SECONDS:g} s "
                "(Cannot obtain unbindLock)",
                hint="run the command again after: systemctl stop "
                "nvidia-persistenced nvidia-dcgm dcgm-exporter; also stop other monitoring and CUDA programs",
                holders=list(users),
                tries=UNBIND_RETRIES + 1,
                **facts,
            )
        return DeviceFailed(
            f"sriov-manage failed on {self.gpu}: {message}",
            hint="journalctl -k -n 20; are SR-IOV and the IOMMU on in the firmware?",
            output=lines[-20:],
            **facts,
        )

    def verify(self, host: Host) -> None:
        """Wait until the VFs are gone, or exist and have a driver: that continues after the command has ended."""
        deadline = host.clock.monotonic() + SETTLE_SECONDS
        while not self._are_vfs_ready(host):
            if host.clock.monotonic() >= deadline:
                raise VerifyFailed(
                    f"{self.gpu} has {count_vfs(host, self.gpu)} VFs, and not all in the driver's usual state, "
                    f"{SETTLE_SECONDS:g} s after they were turned {'on' if self.enable else 'off'}",
                    hint="journalctl -k -n 20; systemctl status nvidia-vgpu-mgr",
                    gpu=self.gpu,
                )
            host.clock.sleep(POLL_SECONDS)

    def _are_vfs_ready(self, host: Host) -> bool:
        if not self.enable:
            return count_vfs(host, self.gpu) == 0
        if count_vfs(host, self.gpu) == 0:
            return False
        try:
            listings = [host.sysfs.listdir(f"{PCI_DEVICES}/{vf}") for vf in list_vfs(host, self.gpu)]
        except OSError:
            return False
        return bool(listings) and all("driver" in names for names in listings)

    def undo(self, host: Host) -> None:
        """Switch the VFs back if they are as this step left them, and restore what the GPU lost with them.

        Raises:
            Stuck: the command still runs; a second one would find a half-configured GPU.
            VgpuctlError: the VFs are restored, but a setting that was lost with them could not be.
        """
        refuse_while_stuck(host, self.gpu)
        if (count_vfs(host, self.gpu) > 0) is self.enable:
            self._run(host, enable=not self.enable)
        if self.restore_steps:
            replace(self, enable=not self.enable, restore_steps=()).verify(host)
        for step in self.restore_steps:
            step.perform(host)
            step.verify(host)


def _is_gpu_in_use(result: CommandResult) -> bool:
    """Return whether the driver refused to release the GPU because a process uses it."""
    return result.status != 0 and "unbindLock" in result.text


def list_driver_users(host: Host) -> tuple[str, ...]:
    """Return the visible processes that have a device node of NVIDIA's driver open."""
    try:
        return tuple(f"{h.command} (pid {h.pid})" for h in host.processes.find_holders(list_driver_nodes(host)))
    except OSError:
        return ()


def list_driver_nodes(host: Host) -> tuple[str, ...]:
    """Return the device nodes of NVIDIA's driver.

    Raises:
        OSError: /dev cannot be listed.
    """
    return tuple(f"/dev/{name}" for name in host.sysfs.listdir("/dev") if name.startswith("nvidia"))
