# SPDX-License-Identifier: Apache-2.0
"""Turning a GPU's VFs on and off: plainly through `sriov_numvfs`, or through NVIDIA's sriov-manage.

Sources: sriov_numvfs_store in the kernel's drivers/pci/pci-sysfs.c and iov.c. Writing the current number does nothing.
Another number while VFs are on gives EBUSY (write 0 first), more than sriov_totalvfs gives ERANGE. Without a driver, or
without its callback, it gives ENOENT. AMD's gim is such a driver (`vgpuctl.gpu_setup.gim_vfs`). vgpuctl
keeps host drivers off new VFs (`sriov_drivers_autoprobe`), because a VF in use by the host cannot be given to a VM.

The number is counted from the `virtfnN` links and never read from sriov_numvfs: sriov_numvfs_show takes the device's
lock on many kernels (5.5 to 6.8 and later), so a reader would block in the kernel behind a stuck write.

sriov-manage of NVIDIA's vGPU host driver turns all VFs on or off. It unbinds the GPU from the driver and binds it
again. The driver allows that (unbindLock) only while nobody uses the GPU: "Cannot obtain unbindLock" means that a
process uses it. A monitor that polls NVML uses it for a moment only, so vgpuctl retries after this error alone. The VFs
appear and disappear after the command has ended.
Source: NVIDIA's vGPU documentation; nv-procfs.c in NVIDIA's open kernel modules; the retries are those of CubeCOS, and
stackhpc/ansible-collection-linux#37 reports the same race.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vgpuctl.backends.base import REMOVE_DEADLINE_SECONDS, refuse_if_held, write_error
from vgpuctl.errors import (
    DeviceFailed,
    HostCannot,
    InUse,
    VerifyFailed,
)
from vgpuctl.gpu_setup.sriov_errors import PCI_DEVICES, numvfs_error
from vgpuctl.gpu_setup.vf_memory import release_memory, verify_memory, write_memory
from vgpuctl.model.numbers import count_text, format_size, parse_integer
from vgpuctl.observe.claims import report_unreadable
from vgpuctl.placement.vm_placement import stuck_write_error
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


def count_vfs(host: Host, address: str) -> int:
    """Return a GPU's number of enabled VFs; 0 for a GPU without SR-IOV or a missing one."""
    try:
        return len(_virtfn_links(host, address))
    except FileNotFoundError:
        return 0


def list_vfs(host: Host, address: str) -> tuple[str, ...]:
    """Return a GPU's VFs in the kernel's order."""
    return tuple(
        host.sysfs.readlink(f"{PCI_DEVICES}/{address}/{n}").rpartition("/")[2] for n in _virtfn_links(host, address)
    )


def _virtfn_links(host: Host, address: str) -> list[str]:
    names = [n for n in host.sysfs.listdir(f"{PCI_DEVICES}/{address}") if re.fullmatch("virtfn[0-9]{1,6}", n)]
    return sorted(names, key=lambda n: int(n[6:]))


def refuse_while_stuck(host: Host, address: str) -> None:
    """Refuse to undo anything on a GPU while a kernel write or its driver's command is stuck on it.

    Raises:
        Stuck: naming the process.
    """
    with report_unreadable("the records of blocked writes"):
        stuck = host.claims.stuck_writes()
    for write in stuck:
        if write.gpu == address:
            raise stuck_write_error(write)


def set_autoprobe(host: Host, gpu: str, enable: bool) -> None:
    """Let host drivers take new VFs of a GPU, or keep them off.

    Raises:
        VgpuctlError: the kernel refused the write.
    """
    path = f"{PCI_DEVICES}/{gpu}/sriov_drivers_autoprobe"
    try:
        if bool(parse_integer(host.sysfs.read(path))) is not enable:
            host.sysfs.write(path, f"{int(enable)}\n")
    except FileNotFoundError:
        return  # kernels before 4.12 have no such file; libvirt still detaches a VF from its driver at start
    except OSError as error:
        raise write_error(error, f"keeping host drivers off the VFs of {gpu}", path) from error


class SetVfs(Step):
    """Turn on this many VFs, or none. Undo restores `previous_count`, `previous_memory_mib` and `autoprobe`.

    `memory_mib`: the GPU memory of each VF, which xe takes before VFs are on; None: the driver divides it.
    `restore_steps`: undo restores with them what the GPU loses with its VFs (the scheduler). `keeps_autoprobe`: host
    drivers bind new VFs as they did, because no VM gets such a VF itself.
    """

    gpu: str
    vf_count: int
    previous_count: int
    autoprobe: bool
    driver: str | None = None
    memory_mib: int | None = None
    previous_memory_mib: int | None = None
    restore_steps: tuple[Step, ...] = ()
    keeps_autoprobe: bool = False

    def describe(self) -> str:
        if self.vf_count == 0:
            return f"turn the {count_text(self.previous_count, 'VF')} of {self.gpu} off"
        memory = f", each with {format_size(self.memory_mib)}" if self.memory_mib is not None else ""
        if self.vf_count == self.previous_count:
            return f"turn the {count_text(self.vf_count, 'VF')} of {self.gpu} off and on again{memory}"
        instead = f" instead of {self.previous_count}" if self.previous_count else ""
        return f"turn {count_text(self.vf_count, 'VF')} of {self.gpu} on{instead}{memory}"

    def perform(self, host: Host) -> None:
        """Write 0 if another number is set, keep host drivers off new VFs, then write the number.

        Raises:
            InUse: a process holds one of the VFs to remove.
            Stuck: the write that removes the VFs has not returned from the kernel.
        """
        keeps = self.keeps_autoprobe or not self.vf_count
        self._switch(host, self.vf_count, self.memory_mib, autoprobe=self.autoprobe if keeps else False)

    def _switch(self, host: Host, vf_count: int, memory_mib: int | None, *, autoprobe: bool) -> None:
        current = count_vfs(host, self.gpu)
        if current == vf_count and self.memory_mib is None:
            return
        if current:
            for vf in list_vfs(host, self.gpu):
                refuse_if_held(host, vf, f"{PCI_DEVICES}/{vf}")
            self._write_numvfs(host, 0)
        if vf_count:
            set_autoprobe(host, self.gpu, autoprobe)
            if self.driver == "xe":
                release_memory(host, self.gpu)
            if memory_mib is not None:
                write_memory(host, self.gpu, vf_count, memory_mib)
            self._write_numvfs(host, vf_count)

    def _write_numvfs(self, host: Host, vf_count: int) -> None:
        path = f"{PCI_DEVICES}/{self.gpu}/sriov_numvfs"
        try:
            if vf_count:
                host.sysfs.write(path, f"{vf_count}\n")
            else:
                host.sysfs.write_uninterruptible(path, "0\n", gpu=self.gpu, deadline_seconds=REMOVE_DEADLINE_SECONDS)
        except OSError as error:
            raise numvfs_error(error, self.gpu, vf_count, path, self.driver) from error

    def verify(self, host: Host) -> None:
        """Count the VFs, and read their memory: a driver may accept a write and keep its own number."""
        actual = count_vfs(host, self.gpu)
        if actual != self.vf_count:
            raise VerifyFailed(
                f"{self.gpu} was set to {count_text(self.vf_count, 'VF')} but has {actual}",
                hint="journalctl -k -n 20",
                wanted=self.vf_count,
                actual=actual,
            )
        if self.memory_mib is not None:
            verify_memory(host, self.gpu, self.vf_count, self.memory_mib)

    def undo(self, host: Host) -> None:
        """Restore the previous number unless somebody else has set another one meanwhile.

        Raises:
            Stuck: a write on this GPU has not returned; nothing is changed until it does.
            VerifyFailed: the previous memory was written again, and reads back as another size.
        """
        refuse_while_stuck(host, self.gpu)
        current = count_vfs(host, self.gpu)
        if self.memory_mib is not None and not current:
            release_memory(host, self.gpu)
        is_changed = current != self.previous_count or self.memory_mib is not None
        if is_changed and current in (0, self.vf_count):
            self._switch(host, self.previous_count, self.previous_memory_mib, autoprobe=self.autoprobe)
            if self.previous_count and self.previous_memory_mib is not None:
                verify_memory(host, self.gpu, self.previous_count, self.previous_memory_mib)
            for step in self.restore_steps if self.previous_count else ():
                step.perform(host)
                step.verify(host)
        if not self.previous_count:
            set_autoprobe(host, self.gpu, self.autoprobe)
