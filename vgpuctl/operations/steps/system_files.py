# SPDX-License-Identifier: Apache-2.0
"""Steps for the files, links and services that install-host creates and uninstall-host removes."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.errors import FileFailed, HostCannot, VerifyFailed
from vgpuctl.value import Value

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


def _file_error(path: str, what: str, error: OSError) -> FileFailed:
    return FileFailed(
        f"{path} cannot be {what}: {error.strerror or error}",
        hint=_error_hint(path, error.errno),
        path=path,
        errno=error.errno,
    )


class WriteFile(Value):
    """Write one whole file. `previous_text`: its text before, None for no file."""

    path: str
    text: str
    mode: int
    previous_text: str | None = None

    def describe(self) -> str:
        """Say which file."""
        return f"{'write' if self.previous_text is None else 'replace'} {self.path}"

    def perform(self, host: Host) -> None:
        """Write it."""
        try:
            require_system(host).put(self.path, self.text, self.mode)
        except OSError as error:
            raise _file_error(self.path, "written", error) from error

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
            require_system(host).put(self.path, self.previous_text, self.mode)


class RemoveFile(Value):
    """Remove one file that install-host wrote. `previous_text`: its text."""

    path: str
    previous_text: str
    mode: int

    def describe(self) -> str:
        """Say which file."""
        return f"remove {self.path}"

    def perform(self, host: Host) -> None:
        """Remove it."""
        try:
            require_system(host).remove(self.path)
        except OSError as error:
            raise _file_error(self.path, "removed", error) from error

    def verify(self, host: Host) -> None:
        """Check that it is gone."""
        if require_system(host).read(self.path) is not None:
            raise VerifyFailed(f"{self.path} was removed but still exists", path=self.path)

    def undo(self, host: Host) -> None:
        """Write it again unless another file exists."""
        if require_system(host).read(self.path) is None:
            require_system(host).put(self.path, self.previous_text, self.mode)


class CreateLink(Value):
    """Create one symbolic link: what `systemctl enable` does."""

    path: str
    target: str

    def describe(self) -> str:
        """Say which link."""
        return f"link {self.path} to {self.target}"

    def perform(self, host: Host) -> None:
        """Create it. The same link from a concurrent install-host is no error."""
        try:
            require_system(host).link(self.path, self.target)
        except OSError as error:
            if not isinstance(error, FileExistsError) or require_system(host).readlink(self.path) != self.target:
                raise _file_error(self.path, "created", error) from error

    def verify(self, host: Host) -> None:
        """Read it back."""
        if require_system(host).readlink(self.path) != self.target:
            raise VerifyFailed(f"the link {self.path} was created but reads back differently", path=self.path)

    def undo(self, host: Host) -> None:
        """Remove it if it still has the target of this step."""
        if require_system(host).readlink(self.path) == self.target:
            require_system(host).remove(self.path)


class RemoveLink(Value):
    """Remove one symbolic link."""

    path: str
    target: str

    def describe(self) -> str:
        """Say which link."""
        return f"remove the link {self.path}"

    def perform(self, host: Host) -> None:
        """Remove it."""
        try:
            require_system(host).remove(self.path)
        except OSError as error:
            raise _file_error(self.path, "removed", error) from error

    def verify(self, host: Host) -> None:
        """Check that it is gone."""
        if require_system(host).readlink(self.path) is not None:
            raise VerifyFailed(f"the link {self.path} was removed but still exists", path=self.path)

    def undo(self, host: Host) -> None:
        """Create it again."""
        if require_system(host).readlink(self.path) is None:
            require_system(host).link(self.path, self.target)


class CreateDirectory(Value):
    """Create a directory."""

    path: str

    def describe(self) -> str:
        """Say which one."""
        return f"create {self.path}"

    def perform(self, host: Host) -> None:
        """Create it."""
        try:
            require_system(host).make_directory(self.path)
        except OSError as error:
            raise _file_error(self.path, "created", error) from error

    def verify(self, host: Host) -> None:
        """Check that it exists."""
        if not require_system(host).is_directory(self.path):
            raise VerifyFailed(f"{self.path} was created but does not exist", path=self.path)

    def undo(self, host: Host) -> None:
        """Remove it if it is empty."""
        require_system(host).remove_directory(self.path)


class RemoveDirectory(Value):
    """Remove a directory if it is empty: other people's files stay."""

    path: str

    def describe(self) -> str:
        """Say which one."""
        return f"remove {self.path}, which is empty"

    def perform(self, host: Host) -> None:
        """Remove it, unless it is not empty any more."""
        require_system(host).remove_directory(self.path)

    def verify(self, host: Host) -> None:
        """Nothing: a directory that still exists got new content meanwhile."""

    def undo(self, host: Host) -> None:
        """Create it again."""
        require_system(host).make_directory(self.path)


class RunSystemctl(Value):
    """Run systemctl, which is safe to run again."""

    arguments: tuple[str, ...]

    def describe(self) -> str:
        """Say what is run."""
        return f"run systemctl {' '.join(self.arguments)}"

    def perform(self, host: Host) -> None:
        """Run it."""
        require_system(host).systemctl(*self.arguments)

    def verify(self, host: Host) -> None:
        """Nothing to read back: systemctl reports a failure itself."""

    def undo(self, host: Host) -> None:
        """Nothing: reloading units and restarting libvirt do no harm."""
