# SPDX-License-Identifier: Apache-2.0
"""The disc by which guests get NVIDIA's driver, as a step."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config.guest_drivers import MAX_BYTES
from vgpuctl.errors import Busy, FileFailed, VerifyFailed
from vgpuctl.model.guest_driver import GuestDriver
from vgpuctl.model.numbers import format_bytes
from vgpuctl.ports.step import Step

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class MakeDriverDisc(Step):
    """Make the disc with a driver, which all VMs with this driver share."""

    driver: GuestDriver

    def describe(self) -> str:
        """Say which driver it has, and its size."""
        driver = self.driver
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
        """Leave it: another VM may have it already, and the next one needs it."""


def driver_steps(driver: GuestDriver | None) -> tuple[Step, ...]:
    """Return the steps that make the disc of a driver, if there is none yet."""
    return () if driver is None or driver.has_disc else (MakeDriverDisc(driver),)
