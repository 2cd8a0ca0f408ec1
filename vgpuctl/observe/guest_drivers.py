# SPDX-License-Identifier: Apache-2.0
"""Reads a file with NVIDIA's driver for guests."""

from __future__ import annotations

import errno
from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config.guest_drivers import MAX_BYTES, MIN_BYTES, check_content, parse_driver_name
from vgpuctl.errors import HostCannot, InvalidInput, NotFound, Refused, unreadable_error
from vgpuctl.model.guest_driver import GuestDriver, disc_name
from vgpuctl.model.numbers import format_bytes

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

_FIELD = "guest_driver"
_HINT = "name a file of the host, such as /srv/drivers/NVIDIA-Linux-x86_64-VERSION-grid.run"


def read_guest_driver(host: Host, path: str) -> GuestDriver:
    """Return the driver in a file; this reads all of it.

    Raises:
        NotFound: there is no such file.
        InvalidInput: it is no driver, or not the one that its name says.
        Refused: others than root can change it, and guests run it as root.
        FileFailed: it cannot be read.
        HostCannot: this is not the host itself.
    """
    if host.driver_discs is None:
        raise HostCannot(f"{_FIELD}: {host.name} is read-only", check="guest-driver")
    try:
        file = host.driver_discs.read(path, MAX_BYTES)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.EINVAL, errno.EFBIG):
            raise InvalidInput(f"{_FIELD}: {path}: {error.strerror}", hint=_HINT, path=path) from error
        raise unreadable_error(path, error) from error
    if file is None:
        raise NotFound(f"{_FIELD}: {path} does not exist", hint=_HINT, path=path)
    if file.exposure is not None:
        raise Refused(
            f"{_FIELD}: {path} is not root's alone, and guests run it as root: {file.exposure}",
            hint=f"sudo chown root: {quote(path)} && sudo chmod go-w {quote(path)}; or a copy of root's: sudo install "
            f"-D -m 644 -t /srv/drivers {quote(path)}",
            path=path,
        )
    name = parse_driver_name(path)
    problem = ""
    if file.size_bytes < MIN_BYTES:
        problem = f"it has {format_bytes(file.size_bytes)}, and NVIDIA's drivers have hundreds of MiB"
    try:
        check_content(name, file.head)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise InvalidInput(
            f"{_FIELD}: {path} is not the driver that its name says: {problem}",
            hint="download it again from NVIDIA's licensing portal",
            path=path,
        )
    disc, discs = disc_name(name, file.sha256), host.driver_discs
    return GuestDriver(path, name, file.size_bytes, file.sha256, discs.path(disc), discs.has(disc))
