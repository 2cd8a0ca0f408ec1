# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's driver for guests: a file of the operator's, and the disc by which guests get it."""

from __future__ import annotations

import re

from vgpuctl.value import Value

DISC_LABEL = "vgpudriver"
"""The name of the disc's file system."""
_DISC = re.compile(r".*/vgpuctl-driver-[0-9.]+-[0-9a-f]{16}\.iso", re.ASCII)


class DriverName(Value):
    """What the name of a driver's file says. `machine`: as `uname -m` has it. `is_grid`: it is for vGPUs, too.

    `kind`: "run" for NVIDIA's installer, "deb" or "rpm" for a package, "exe" for Windows.
    """

    version: str
    kind: str
    machine: str
    is_grid: bool


class DriverFile(Value):
    """What is in a driver's file: the first bytes, its size and its SHA-256. `exposure`: as of `ResolvedPath`."""

    head: bytes
    size_bytes: int
    sha256: str
    exposure: str | None = None


def disc_name(name: DriverName, sha256: str) -> str:
    """Return the name of the disc with a driver: one for each content."""
    return f"vgpuctl-driver-{name.version}-{sha256[:16]}.iso"


class GuestDriver(Value):
    """A driver that guests can get.

    `disc`: where the disc with it is, or will be; all VMs with this driver share it. `has_disc`: it exists.
    """

    path: str
    name: DriverName
    size_bytes: int
    sha256: str
    disc: str
    has_disc: bool = False

    @property
    def disc_name(self) -> str:
        """The name of its disc."""
        return disc_name(self.name, self.sha256)


def is_driver_disc(path: str | None) -> bool:
    """Return whether the path of a VM's CD-ROM is that of such a disc."""
    return path is not None and _DISC.fullmatch(path) is not None
