# SPDX-License-Identifier: Apache-2.0
"""Plain SR-IOV through `sriov_numvfs`.

Sources: sriov_numvfs_store in the kernel's drivers/pci/pci-sysfs.c and iov.c: the same number does nothing, another one
while VFs are on is EBUSY (write 0 first), more than sriov_totalvfs is ERANGE, no driver or one without a callback is
ENOENT. AMD's GIM is such a driver: its module parameter vf_num decides. Host drivers are kept off new VFs
(`sriov_drivers_autoprobe`), for a VF that the host uses cannot be given to a VM.

The number is counted from the `virtfnN` links and never read: sriov_numvfs_show takes the device's lock on many
kernels (5.5 to 6.8 and later), so a reader would wait in the kernel behind a write that is parked.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.backends.base import REMOVE_DEADLINE_SECONDS, refuse_if_held, write_failed
from vgpuctl.capacity.place import stuck_error
from vgpuctl.errors import Busy, DeviceFailed, HostCannot, InvalidInput, VerifyFailed, VgpuctlError
from vgpuctl.model.digits import whole
from vgpuctl.steps.claims import reading
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World

PCI = "/sys/bus/pci/devices"
FIXED_HINT = "set vf_num in /etc/modprobe.d (options gim vf_num=N) or /etc/gim_config, and reload gim"


def number_of(world: World, address: str) -> int:
    """Return how many VFs a GPU has on now; 0 for one without SR-IOV, or that is not there."""
    try:
        return len(_links(world, address))
    except FileNotFoundError:
        return 0


def vfs_of(world: World, address: str) -> tuple[str, ...]:
    """Return a GPU's VFs in the kernel's order."""
    return tuple(world.sysfs.readlink(f"{PCI}/{address}/{n}").rpartition("/")[2] for n in _links(world, address))


def _links(world: World, address: str) -> list[str]:
    names = [n for n in world.sysfs.listdir(f"{PCI}/{address}") if n.startswith("virtfn") and n[6:].isdigit()]
    return sorted(names, key=lambda n: int(n[6:]))


def refuse_while_stuck(world: World, address: str) -> None:
    """Refuse to undo anything on a GPU while a kernel write, or its driver's command, has not come back there.

    Raises:
        Stuck: naming the process.
    """
    with reading("the records of stuck writes"):
        stuck = world.claims.stuck()
    for write in stuck:
        if write.gpu == address:
            raise stuck_error(write)


class SetVfs(Value):
    """Turn on this many VFs, or none. `before` and `autoprobe` are what it goes back to."""

    gpu: str
    number: int
    before: int
    autoprobe: bool
    driver: str | None = None

    def describe(self) -> str:
        """Say how many, and of how many."""
        if self.number == 0:
            return f"turn the {self.before} VFs of {self.gpu} off"
        return f"turn {self.number} VFs of {self.gpu} on" + (f" instead of {self.before}" if self.before else "")

    def perform(self, world: World) -> None:
        """Keep host drivers off, write 0 where another number is set, then the number.

        Raises:
            InUse: a process holds one of the VFs that would go.
            Stuck: the kernel has not come back from taking the VFs away.
        """
        self._switch(world, self.number, autoprobe=False if self.number else self.autoprobe)

    def _switch(self, world: World, number: int, *, autoprobe: bool) -> None:
        current = number_of(world, self.gpu)
        if current == number:
            return
        if current:
            for vf in vfs_of(world, self.gpu):
                refuse_if_held(world, vf, f"{PCI}/{vf}")
            self._write(world, 0)
        if number:
            self._set_autoprobe(world, autoprobe)
            self._write(world, number)

    def _set_autoprobe(self, world: World, wanted: bool) -> None:
        path = f"{PCI}/{self.gpu}/sriov_drivers_autoprobe"
        try:
            if bool(whole(world.sysfs.read(path))) is not wanted:
                world.sysfs.write(path, f"{int(wanted)}\n")
        except FileNotFoundError:
            return  # kernels before 4.12 have no such file; libvirt takes a VF from its driver at start all the same
        except OSError as error:
            raise write_failed(error, f"keeping host drivers off the VFs of {self.gpu}", path) from error

    def _write(self, world: World, number: int) -> None:
        path = f"{PCI}/{self.gpu}/sriov_numvfs"
        try:
            if number:
                world.sysfs.write(path, f"{number}\n")
            else:
                world.sysfs.write_parked(path, "0\n", gpu=self.gpu, deadline_seconds=REMOVE_DEADLINE_SECONDS)
        except OSError as error:
            raise refusal(error, self.gpu, number, path, self.driver) from error

    def verify(self, world: World) -> None:
        """Count the VFs: a driver may take the write and keep its own number."""
        found = number_of(world, self.gpu)
        if found != self.number:
            raise VerifyFailed(
                f"{self.gpu} was set to {self.number} VFs but has {found}",
                hint=FIXED_HINT if self.driver == "gim" else "journalctl -k -n 20",
                wanted=self.number,
                found=found,
            )

    def undo(self, world: World) -> None:
        """Go back to the number before, unless somebody else has set another one meanwhile.

        Raises:
            Stuck: a write on this GPU has not come back; nothing is touched before it does.
        """
        refuse_while_stuck(world, self.gpu)
        current = number_of(world, self.gpu)
        if current != self.before and current in (0, self.number):
            self._switch(world, self.before, autoprobe=self.autoprobe)
        if not self.before:
            self._set_autoprobe(world, self.autoprobe)


def refusal(error: OSError, gpu: str, number: int, path: str, driver: str | None) -> VgpuctlError:
    """Return what a refused write of `sriov_numvfs` means."""
    facts = {"gpu": gpu, "vfs": number, "errno": error.errno, "path": path}
    if error.errno == errno.ENOENT:
        why = f"its driver {driver} sets it itself" if driver else "it has no driver"
        hint = FIXED_HINT if driver == "gim" else f"see modinfo {driver}" if driver else f"lspci -ks {gpu}"
        return HostCannot(f"the number of VFs of {gpu} cannot be set: {why}", hint=hint, check="vfs-fixed", **facts)
    if error.errno == errno.ERANGE:
        return InvalidInput(f"{gpu} cannot have {number} VFs", hint=f"cat {PCI}/{gpu}/sriov_totalvfs", **facts)
    if error.errno == errno.EBUSY:
        return Busy(f"another program turned VFs of {gpu} on just now", hint="run the command again", **facts)
    if error.errno == errno.EINVAL:
        return DeviceFailed(f"the driver of {gpu} does not take {number} VFs", hint="journalctl -k -n 20", **facts)
    if error.errno in (errno.ENOMEM, errno.ENOSPC):
        return HostCannot(
            f"the firmware left {gpu} no room for {number} VFs (bus numbers or memory space)",
            hint="turn SR-IOV, ARI and Above 4G Decoding on in the firmware, or boot with pci=realloc",
            check="vf-resources",
            **facts,
        )
    return write_failed(error, f"setting {number} VFs on {gpu}", path)
