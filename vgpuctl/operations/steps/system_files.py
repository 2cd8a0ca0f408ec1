# SPDX-License-Identifier: Apache-2.0
"""A host's configuration files, and the errors of writing them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.errors import FileFailed, HostCannot

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host
    from vgpuctl.ports.system import System

_MOUNTED_READ_ONLY = (
    "a host whose /etc is read-only gets these files from its image; otherwise mount it writable: findmnt /etc"
)


def require_system(host: Host) -> System:
    """Return the host's configuration files.

    Raises:
        HostCannot: this host is read-only for vgpuctl (--root).
    """
    if host.system is None:
        raise HostCannot(f"nothing can be installed on {host.name}", hint="omit --root", check="system")
    return host.system


def _error_hint(path: str, number: int | None) -> str:
    """Return a remedy: more room, root permissions, or `ls` of the path, for example if the directory is not one."""
    directory = path.rpartition("/")[0]
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"df {directory}; free space there"
    if number == errno.EROFS:
        return _MOUNTED_READ_ONLY
    list_command = f"ls -ld {directory} {path}"
    return f"run this as root; {list_command}" if number in (errno.EACCES, errno.EPERM) else list_command


def file_error(path: str, what: str, error: OSError) -> FileFailed:
    """Return the error of a file that cannot be `what`: written, created or removed."""
    return FileFailed(
        f"{path} cannot be {what}: {error.strerror or error}",
        hint=_error_hint(path, error.errno),
        path=path,
        errno=error.errno,
    )
