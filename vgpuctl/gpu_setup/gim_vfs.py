# SPDX-License-Identifier: Apache-2.0
"""Steps for GPUs with AMD's driver gim: the numbers of their VFs, and their partition modes.

gim turns VFs on while it is loaded, and never at another time. So its file is written whole, it is unloaded, and it is
loaded again, with the VMs of all its GPUs off. `modprobe -r gim` waits in the kernel while a VM uses a VF (gim_exit in
gim_shim/gim_drv.c), so whoever holds one is looked for first. sriov_numvfs is never written. The kernel keeps
sriov_drivers_autoprobe of a GPU while its driver is away (drivers/pci/iov.c), so amdgpu does not take the new VFs.

A driver that refuses a partition mode returns no error (gim_shim/sysfs/gim_monitor.c): each is read back. The memory
mode comes first: it resets the GPUs of the hive and sets the compute mode that belongs to it.
Source of these: amd/MxGPU-Virtualization at 695afe2, see `vgpuctl.makers.gim`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.backends.base import refuse_if_held, write_error
from vgpuctl.errors import DeviceFailed, HostCannot, InUse, VerifyFailed, VgpuctlError
from vgpuctl.gpu_setup.sriov import count_vfs, list_vfs, refuse_while_stuck, set_autoprobe
from vgpuctl.gpu_setup.sriov_errors import PCI_DEVICES
from vgpuctl.makers import gim
from vgpuctl.model.numbers import count_text
from vgpuctl.observe.gim import list_bound
from vgpuctl.ports.step import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vgpuctl.ports.host import Host

DEADLINE_SECONDS = 300.0
SETTLE_SECONDS = 120.0
POLL_SECONDS = 0.5

Counts = tuple[tuple[str, int], ...]


class SetGimVfs(Step):
    """Load gim again with another number of VFs for a GPU.

    `counts`, `previous_counts`: the VFs of each of its GPUs afterwards and before. `text`: what its file then has;
    `previous_text`: what it had, None for no file. `autoprobe`: the GPUs whose new VFs host drivers take now.
    """

    gpu: str
    counts: Counts
    previous_counts: Counts
    text: str
    previous_text: str | None
    autoprobe: tuple[str, ...] = ()
    drops_modes: bool = False

    def describe(self) -> str:
        before, after = dict(self.previous_counts)[self.gpu], dict(self.counts)[self.gpu]
        dropped = "; the saved partition modes of its GPUs are dropped" if self.drops_modes else ""
        return (
            f"turn {count_text(after, 'VF')} of {self.gpu} on instead of {before}: "
            f"write {self.text.splitlines()[0]} to {gim.CONFIG_PATH}, unload gim, load gim{dropped}"
        )

    def perform(self, host: Host) -> None:
        """Write the file, unload the driver while nobody uses its VFs, and load it.

        The file comes first: gim reads it when it is loaded, so a full disk is noticed while the driver still runs.

        Raises:
            InUse: a process holds a VF, or has the driver open; nothing was changed.
            HostCannot: the driver has another GPU; modprobe is missing.
            DeviceFailed: modprobe failed, or the file cannot be written.
            Stuck: modprobe did not end; it continues and is recorded.
        """
        bound = list_bound(host)
        known = {address for address, _ in self.previous_counts}
        unknown = [address for address in bound if address not in known]
        if unknown:
            raise unknown_gpus_error(self.gpu, unknown, ())
        self._refuse_holders(host, bound)
        self._write_file(host, self.text)
        try:
            self._modprobe(host, unload=True)
        except VgpuctlError:
            self._write_file(host, self.previous_text)
            raise
        self._load(host, ())

    def _refuse_holders(self, host: Host, bound: tuple[str, ...]) -> None:
        for address in bound:
            for vf in list_vfs(host, address):
                refuse_if_held(host, vf, f"{PCI_DEVICES}/{vf}")

    def _write_file(self, host: Host, text: str | None) -> None:
        """Write this text, unless the file has it; None: remove the file."""
        try:
            current: str | None = host.sysfs.read(gim.CONFIG_PATH)
        except OSError:
            current = None
        if current == text:
            return
        if host.system is None:
            raise HostCannot(f"{gim.CONFIG_PATH} of {host.name} cannot be written", check="gim-settings")
        try:
            if text is None:
                host.system.remove(gim.CONFIG_PATH)
            else:
                host.system.put(gim.CONFIG_PATH, text, gim.CONFIG_MODE)
        except OSError as error:
            raise write_error(error, f"writing the numbers of VFs of {self.gpu}", gim.CONFIG_PATH) from error

    def _load(self, host: Host, autoprobe: tuple[str, ...]) -> None:
        for address, _ in self.counts:
            set_autoprobe(host, address, address in autoprobe)
        self._modprobe(host, unload=False)

    def _modprobe(self, host: Host, *, unload: bool) -> None:
        command = f"modprobe {'-r ' if unload else ''}{gim.MODULE}"
        facts: dict[str, object] = {"gpu": self.gpu, "command": command}
        if host.vendor_commands is None:
            raise HostCannot(f"modprobe is not accessible on {host.name}", check="gim-settings")
        try:
            result = host.vendor_commands.modprobe(
                gim.MODULE, unload=unload, address=self.gpu, deadline_seconds=DEADLINE_SECONDS
            )
        except FileNotFoundError as error:
            raise HostCannot("modprobe is not installed", hint="apt install kmod", check="gim-settings") from error
        except OSError as error:
            raise DeviceFailed(f"modprobe could not be started: {error.strerror}", hint=command, **facts) from error
        if result.status == 0:
            return
        lines = [line.strip() for line in result.text.splitlines() if line.strip()]
        message = lines[-1] if lines else f"it ended with status {result.status}"
        if unload and "is in use" in message:
            raise InUse(
                f"a program has the driver gim of {self.gpu} open: {message}",
                hint="stop amd-smi, its exporter and other monitoring, then run the command again",
                **facts,
            )
        raise DeviceFailed(
            f"{command} failed: {message}", hint=f"journalctl -k -g {gim.MODULE} -n 20", output=lines[-20:], **facts
        )

    def verify(self, host: Host) -> None:
        """Count the VFs of every GPU of the driver that had some."""
        _verify_counts(host, self.gpu, self.counts)

    def undo(self, host: Host) -> None:
        """Load gim with its former file, unless it runs with that; where that cannot be written, with the one it has.

        Raises:
            InUse: a process holds a VF; the driver stays loaded.
            Stuck: a command on this GPU has not ended; nothing is changed until it does.
            VgpuctlError: the former numbers could not be restored.
        """
        refuse_while_stuck(host, self.gpu)
        bound = list_bound(host)
        if self.gpu in bound and _count_all(host, self.previous_counts) == self.previous_counts:
            self._write_file(host, self.previous_text)
            return
        self._refuse_holders(host, bound)
        try:
            self._write_file(host, self.previous_text)
        except VgpuctlError:
            if not bound:
                self._load(host, self.autoprobe)
            raise
        self._modprobe(host, unload=True)
        self._load(host, self.autoprobe)
        _verify_counts(host, self.gpu, self.previous_counts)


def unknown_gpus_error(gpu: str, unknown: Sequence[str], reasons: Sequence[str]) -> HostCannot:
    """Return the error for GPUs of gim that were not read: their VMs and numbers of VFs would be lost."""
    why = [reason for reason in reasons if any(address in reason for address in unknown)]
    return HostCannot(
        f"gim also drives {', '.join(unknown)}, which {'was' if len(unknown) == 1 else 'were'} not read, so gim is not "
        f"loaded again for {gpu}{': ' if why else ''}{'; '.join(why)}",
        hint=f"ls -l {gim.DRIVER}; vgpuctl list-gpus",
        check="gim-settings",
        gpu=gpu,
        others=list(unknown),
    )


def _count_all(host: Host, counts: Counts) -> Counts:
    return tuple((address, count_vfs(host, address)) for address, _ in counts)


def _verify_counts(host: Host, gpu: str, counts: Counts) -> None:
    """Check the numbers of VFs; 0 is not one that gim sets, but a GPU that it could not initialize before."""
    wrong = [
        f"{address} has {count_text(actual, 'VF')}, not {wanted}"
        for (address, actual), (_, wanted) in zip(_count_all(host, counts), counts, strict=True)
        if wanted and actual != wanted
    ]
    if wrong:
        raise VerifyFailed(
            f"gim was loaded with other numbers of VFs: {'; '.join(wrong)}",
            hint=f"journalctl -k -g {gim.MODULE} -n 20; cat {gim.CONFIG_PATH}",
            gpu=gpu,
        )


class SetPartitionMode(Step):
    """Set the memory or the compute partition mode of a GPU, and of all GPUs in its hive.

    `previous`: its mode before; None: an undo has nothing to do, because gim is loaded again with its former file.
    """

    gpu: str
    kind: str
    mode: str
    previous: str | None

    def describe(self) -> str:
        return f"set the {self.kind} partition mode of {self.gpu} to {self.mode} (gim)"

    def perform(self, host: Host) -> None:
        """Write it, unless the GPU has it.

        Raises:
            HostCannot: the driver does not offer it with this number of VFs.
            DeviceFailed: the write failed.
        """
        self._set(host, self.mode)

    def _set(self, host: Host, mode: str) -> None:
        if self._read(host) == mode:
            return
        path, value = f"{PCI_DEVICES}/{self.gpu}/{gim.MEMORY_FILE}", mode
        if self.kind == "compute":
            path = f"{PCI_DEVICES}/{self.gpu}/{gim.COMPUTE_FILE}"
            index = gim.find_profile_index(self._read_file(host, gim.PROFILES_FILE), mode)
            if index is None:
                raise HostCannot(
                    f"{self.gpu} does not offer the compute partition mode {mode} with "
                    f"{count_text(count_vfs(host, self.gpu), 'VF')}",
                    hint=f"cat {PCI_DEVICES}/{self.gpu}/{gim.PROFILES_FILE}",
                    check="partition",
                    gpu=self.gpu,
                )
            value = str(index)
        try:
            host.sysfs.write_uninterruptible(path, f"{value}\n", gpu=self.gpu, deadline_seconds=SETTLE_SECONDS)
        except OSError as error:
            raise write_error(error, f"setting the {self.kind} partition mode of {self.gpu}", path) from error

    def _read(self, host: Host) -> str | None:
        if self.kind == "compute":
            return gim.parse_compute_mode(self._read_file(host, gim.COMPUTE_FILE))
        return gim.parse_memory_mode(self._read_file(host, gim.MEMORY_FILE))

    def _read_file(self, host: Host, name: str) -> str:
        try:
            return host.sysfs.read(f"{PCI_DEVICES}/{self.gpu}/{name}")
        except OSError:
            return ""

    def verify(self, host: Host) -> None:
        """Wait until the GPU shows it: after a change of the memory mode the driver resets the GPU."""
        deadline = host.clock.monotonic() + SETTLE_SECONDS
        while (current := self._read(host)) != self.mode:
            if host.clock.monotonic() >= deadline:
                raise VerifyFailed(
                    f"{self.gpu} was set to the {self.kind} partition mode {self.mode} but has {current or 'none'}",
                    hint=f"journalctl -k -g {gim.MODULE} -n 20",
                    wanted=self.mode,
                    actual=current,
                )
            host.clock.sleep(POLL_SECONDS)

    def undo(self, host: Host) -> None:
        """Set the mode of before, if another one is set.

        Raises:
            Stuck: a write on this GPU has not returned; nothing is changed until it does.
        """
        refuse_while_stuck(host, self.gpu)
        if self.previous is not None:
            self._set(host, self.previous)
