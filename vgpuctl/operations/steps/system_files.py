# SPDX-License-Identifier: Apache-2.0
"""The step that writes a modprobe file; and a host's configuration files, with the errors of writing them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, FileFailed, HostCannot, VerifyFailed
from vgpuctl.ports.step import Step

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


class WriteModprobeFile(Step):
    """Write a whole modprobe file over `previous_text`, None for no file; `summary` describes its new content.

    The file keeps its mode.
    """

    path: str
    text: str
    previous_text: str | None
    summary: str

    def describe(self) -> str:
        """Say what is written where."""
        return f"write {self.summary} to {self.path}"

    def perform(self, host: Host) -> None:
        """Write it.

        Raises:
            Busy: somebody else changed the file meanwhile.
            Failed: it cannot be written.
        """
        if require_system(host).read(self.path) != self.previous_text:
            raise Busy(f"{self.path} was changed by another program in the meantime", hint="run the command again")
        try:
            require_system(host).put(self.path, self.text, None)
        except OSError as error:
            raise file_error(self.path, "written", error) from error

    def verify(self, host: Host) -> None:
        """Read it back."""
        if require_system(host).read(self.path) != self.text:
            raise VerifyFailed(f"{self.path} was written but reads back differently", path=self.path)

    def undo(self, host: Host) -> None:
        """Restore the previous text if the file still has the one that this step wrote."""
        if require_system(host).read(self.path) != self.text:
            return
        if self.previous_text is None:
            require_system(host).remove(self.path)
        else:
            require_system(host).put(self.path, self.previous_text, None)
