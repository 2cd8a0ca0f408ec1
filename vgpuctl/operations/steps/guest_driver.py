# SPDX-License-Identifier: Apache-2.0
"""The disc by which guests get NVIDIA's driver, as steps."""

from __future__ import annotations

import posixpath
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config.guest_drivers import MAX_BYTES
from vgpuctl.domain.domain_xml import parse_disk_sources
from vgpuctl.errors import Busy, FileFailed, VerifyFailed, VgpuctlError
from vgpuctl.model.guest_driver import GuestDriver, is_driver_disc
from vgpuctl.model.numbers import format_bytes
from vgpuctl.model.vm import Vm
from vgpuctl.ports.step import Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class MakeDriverDisc(Step):
    """Make the disc with a driver, which all VMs with this driver share, or make sure that it exists.

    It follows the definition of the VM: from then on nobody deletes the disc.
    """

    driver: GuestDriver

    def describe(self) -> str:
        """Say which driver it has, and its size."""
        driver = self.driver
        if driver.has_disc:
            return f"use the disc {driver.disc} with driver {driver.name.version}"
        return f"make the disc {driver.disc} with driver {driver.name.version} ({format_bytes(driver.size_bytes)})"

    def perform(self, host: Host) -> None:
        """Make it; one that another command made meanwhile is no error.

        Raises:
            Busy: the driver's file has changed since it was read.
            FileFailed: the disc cannot be written.
        """
        driver, problem = self.driver, None
        assert host.driver_discs is not None  # the driver was read through it
        try:
            host.driver_discs.write(driver.disc_name, driver.path, driver.sha256, MAX_BYTES)
        except ValueError as error:
            problem = str(error)
        except OSError as error:
            folder = quote(driver.disc.rpartition("/")[0])
            raise FileFailed(
                f"the disc {driver.disc} cannot be made: {error.filename or ''}: {error.strerror or error}",
                hint=f"ls -l {quote(driver.path)}" if error.filename == driver.path else f"df -h {folder}",
                errno=error.errno,
                path=driver.disc,
            ) from error
        if problem is not None:
            raise Busy(f"{driver.path}: {problem}", hint="run the command again", path=driver.path)

    def verify(self, host: Host) -> None:
        """Check that it is there."""
        if host.driver_discs is None or not host.driver_discs.has(self.driver.disc_name):
            raise VerifyFailed(f"the disc {self.driver.disc} was made but does not exist", path=self.driver.disc)

    def undo(self, host: Host) -> None:
        """Leave it: another VM may have it already, and the next command needs it."""


class DropDriverDisc(Step):
    """Delete a disc with a driver that no VM has any more.

    `required` False: one that cannot be deleted now is left, and reconcile-host deletes it. What else the command did
    is done, and nobody should have it undone for this.
    """

    path: str
    required: bool = False

    def describe(self) -> str:
        """Say when it is deleted."""
        return f"delete the disc {self.path} if no other VM has it"

    def perform(self, host: Host) -> None:
        """Delete it, unless a VM's definition has it.

        Raises:
            FileFailed, Locked, LibvirtFailed: it is required, and cannot be deleted.
        """
        disc = posixpath.basename(self.path)
        if host.driver_discs is None or host.driver_discs.path(disc) != self.path:
            return
        try:
            host.driver_discs.delete(disc, partial(_is_used, host, self.path))
        except VgpuctlError:
            if self.required:
                raise
        except OSError as error:
            if self.required:
                raise FileFailed(
                    f"the disc {self.path} cannot be deleted: {error.strerror or error}",
                    hint=f"ls -l {quote(self.path)}",
                    errno=error.errno,
                    path=self.path,
                ) from error

    def verify(self, host: Host) -> None:
        """Nothing: another command may need it again."""

    def undo(self, host: Host) -> None:
        """Nothing: whoever needs it makes it again."""


def _is_used(host: Host, path: str) -> bool:
    return any(path in parse_disk_sources(domain.xml, domain.live_xml).files for domain in host.hypervisor.domains())


def driver_steps(driver: GuestDriver | None) -> tuple[Step, ...]:
    """Return the steps that make the disc of a driver."""
    return () if driver is None else (MakeDriverDisc(driver),)


def drop_disc_steps(vm: Vm, *, except_for: GuestDriver | None = None) -> tuple[Step, ...]:
    """Return the steps that delete the disc that a VM had, if it is not that of this driver."""
    kept = None if except_for is None else except_for.disc
    discs = [disk.source for disk in vm.disks if disk.source is not None and is_driver_disc(disk.source)]
    return tuple(DropDriverDisc(disc) for disc in dict.fromkeys(discs) if disc != kept)
