# SPDX-License-Identifier: Apache-2.0
"""Files, links and services that install-host puts in place and uninstall-host takes away, as steps."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from vgpuctl.errors import FileFailed, HostCannot, VerifyFailed
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.system import System
    from vgpuctl.model.world import World

_MOUNTED_READ_ONLY = (
    "a host whose /etc is read-only gets these files from its image; else mount it writable: findmnt /etc"
)


def system_of(world: World) -> System:
    """Return the host's configuration files.

    Raises:
        HostCannot: this host's are only looked at.
    """
    if world.system is None:
        raise HostCannot(f"nothing can be installed on {world.name}", hint="leave --root out", check="system")
    return world.system


def _look(path: str, number: int | None) -> str:
    """Return what helps: more room, root's rights, or a look at what is there, as when the directory is none."""
    directory = path.rpartition("/")[0]
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"make room: df {directory}"
    if number == errno.EROFS:
        return _MOUNTED_READ_ONLY
    look = f"ls -ld {directory} {path}"
    return f"run this as root; {look}" if number in (errno.EACCES, errno.EPERM) else look


def _failed(path: str, what: str, error: OSError) -> FileFailed:
    return FileFailed(
        f"{path} cannot be {what}: {error.strerror or error}",
        hint=_look(path, error.errno),
        path=path,
        errno=error.errno,
    )


class PutFile(Value):
    """Write one whole file. `was`: its text before, None when there was none; `mode` None leaves the file its own."""

    path: str
    text: str
    mode: int | None
    was: str | None = None

    def describe(self) -> str:
        """Say which file."""
        return f"{'write' if self.was is None else 'replace'} {self.path}"

    def perform(self, world: World) -> None:
        """Put it there."""
        try:
            system_of(world).put(self.path, self.text, self.mode)
        except OSError as error:
            raise _failed(self.path, "written", error) from error

    def verify(self, world: World) -> None:
        """Read it back."""
        if system_of(world).read(self.path) != self.text:
            raise VerifyFailed(f"{self.path} was written but reads back differently", path=self.path)

    def undo(self, world: World) -> None:
        """Put back what was there, if it still is ours."""
        if system_of(world).read(self.path) != self.text:
            return
        if self.was is None:
            system_of(world).remove(self.path)
        else:
            system_of(world).put(self.path, self.was, self.mode)


class DropFile(Value):
    """Remove one file that install-host wrote. `was`: its text."""

    path: str
    was: str
    mode: int

    def describe(self) -> str:
        """Say which file."""
        return f"remove {self.path}"

    def perform(self, world: World) -> None:
        """Remove it."""
        try:
            system_of(world).remove(self.path)
        except OSError as error:
            raise _failed(self.path, "removed", error) from error

    def verify(self, world: World) -> None:
        """See that it is gone."""
        if system_of(world).read(self.path) is not None:
            raise VerifyFailed(f"{self.path} was removed but is still there", path=self.path)

    def undo(self, world: World) -> None:
        """Put it back, where nobody put another."""
        if system_of(world).read(self.path) is None:
            system_of(world).put(self.path, self.was, self.mode)


class PutLink(Value):
    """Make one symbolic link: what `systemctl enable` does."""

    path: str
    target: str

    def describe(self) -> str:
        """Say which link."""
        return f"link {self.path} to {self.target}"

    def perform(self, world: World) -> None:
        """Make it; one that another install-host made meanwhile is as good."""
        try:
            system_of(world).link(self.path, self.target)
        except OSError as error:
            if not isinstance(error, FileExistsError) or system_of(world).readlink(self.path) != self.target:
                raise _failed(self.path, "made", error) from error

    def verify(self, world: World) -> None:
        """Read it back."""
        if system_of(world).readlink(self.path) != self.target:
            raise VerifyFailed(f"the link {self.path} was made but reads back differently", path=self.path)

    def undo(self, world: World) -> None:
        """Remove it, if it still is ours."""
        if system_of(world).readlink(self.path) == self.target:
            system_of(world).remove(self.path)


class DropLink(Value):
    """Remove one symbolic link."""

    path: str
    target: str

    def describe(self) -> str:
        """Say which link."""
        return f"remove the link {self.path}"

    def perform(self, world: World) -> None:
        """Remove it."""
        try:
            system_of(world).remove(self.path)
        except OSError as error:
            raise _failed(self.path, "removed", error) from error

    def verify(self, world: World) -> None:
        """See that it is gone."""
        if system_of(world).readlink(self.path) is not None:
            raise VerifyFailed(f"the link {self.path} was removed but is still there", path=self.path)

    def undo(self, world: World) -> None:
        """Make it again."""
        if system_of(world).readlink(self.path) is None:
            system_of(world).link(self.path, self.target)


class PutDirectory(Value):
    """Make a directory."""

    path: str

    def describe(self) -> str:
        """Say which one."""
        return f"make {self.path}"

    def perform(self, world: World) -> None:
        """Make it."""
        try:
            system_of(world).make_directory(self.path)
        except OSError as error:
            raise _failed(self.path, "made", error) from error

    def verify(self, world: World) -> None:
        """See it."""
        if not system_of(world).is_directory(self.path):
            raise VerifyFailed(f"{self.path} was made but is not there", path=self.path)

    def undo(self, world: World) -> None:
        """Remove it, if nothing was put into it."""
        system_of(world).remove_directory(self.path)


class DropDirectory(Value):
    """Remove a directory if nothing is in it: what people wrote there stays."""

    path: str

    def describe(self) -> str:
        """Say which one."""
        return f"remove {self.path}, which is empty"

    def perform(self, world: World) -> None:
        """Remove it; one that is not empty any more stays."""
        system_of(world).remove_directory(self.path)

    def verify(self, world: World) -> None:
        """Nothing: what is in it now was put there meanwhile."""

    def undo(self, world: World) -> None:
        """Make it again."""
        system_of(world).make_directory(self.path)


class Systemctl(Value):
    """Run systemctl, which is safe to run again."""

    words: tuple[str, ...]

    def describe(self) -> str:
        """Say what is run."""
        return f"run systemctl {' '.join(self.words)}"

    def perform(self, world: World) -> None:
        """Run it."""
        system_of(world).systemctl(*self.words)

    def verify(self, world: World) -> None:
        """Nothing to read back: it says itself whether it worked."""

    def undo(self, world: World) -> None:
        """Nothing: reading units anew and restarting libvirt harm nothing."""
