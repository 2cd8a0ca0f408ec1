# SPDX-License-Identifier: Apache-2.0
"""The host's file tree below a root: sysfs, proc and /etc/vgpuctl, as `seams.Sysfs`.

Thousands of attributes are read in one command, so the real root costs an open, a look at what it is, a read and a
close each. Below another root (a captured /sys) every link is resolved as chroot would: an absolute link, or one with
many "..", must not lead to the files of the machine that looks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Protocol

from vgpuctl.model.records import FilePermissions
from vgpuctl.regular_file import read_regular

MOST_SYSFS_BYTES = 256 << 10
"""An attribute is a page at most, of 4 to 64 KiB (sysfs_emit); only binary ones, such as `config`, are larger."""
MOST_BYTES = 32 << 20
"""/proc/kallsyms has some 15 MiB and pci.ids 1.5; /proc/mounts with thousands of containers a few."""
_MOST_LINKS = 40  # as the kernel, path_resolution(7)

ACTS_WHEN_READ = frozenset({"reset_gpu"})
"""Files that do something when they are read: AMD's GIM resets the whole card (gim_shim/sysfs/gim_monitor.c)."""


class ParkedWrites(Protocol):
    """Writes in a child (vgpuctl.host.parked)."""

    def write(self, real_path: str, text: str, *, path: str, gpu: str, deadline_seconds: float) -> None:
        """Write and wait at most the deadline."""


class HostFiles:
    """Files below `root`. Nothing is written while `lock_held()`."""

    def __init__(self, root: str = "/", *, lock_held: Callable[[], bool], parked: ParkedWrites | None = None) -> None:
        self._root = "" if root == "/" else root.rstrip("/")
        self._lock_held = lock_held
        self._parked = parked

    def read(self, path: str) -> str:
        """Return the whole file as text."""
        if path.rpartition("/")[2] in ACTS_WHEN_READ:
            raise PermissionError(errno.EPERM, "reading this file resets the device; not read", path)
        sysfs = path.startswith("/sys/")
        most = MOST_SYSFS_BYTES if sysfs else MOST_BYTES
        if not self._root:
            return read_regular(path, most, page=sysfs).decode("utf-8", "replace")
        try:
            real = resolved(self._root, path)
        except OSError as error:
            raise _named(error, path) from None
        data = read_regular(real, most, shown=path, flags=os.O_NOFOLLOW, page=sysfs)
        return data.decode("utf-8", "replace")

    def listdir(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory."""
        if not self._root:
            return tuple(sorted(os.listdir(path)))
        try:
            return tuple(sorted(os.listdir(resolved(self._root, path))))
        except OSError as error:
            raise _named(error, path) from None

    def readlink(self, path: str) -> str:
        """Return a link's text."""
        if not self._root:
            return os.readlink(path)
        try:
            return os.readlink(resolved(self._root, path, follow_last=False))
        except OSError as error:
            raise _named(error, path) from None

    def permissions(self, path: str) -> FilePermissions:
        """Return whose a file is and who may do what."""
        try:
            found = os.stat(resolved(self._root, path) if self._root else path)
        except OSError as error:
            raise _named(error, path) from None
        return FilePermissions(found.st_mode & 0o7777, found.st_uid, found.st_gid)

    def write(self, path: str, text: str) -> None:
        """Write `text` in one write call."""
        self._refuse_under_lock(path)
        descriptor = self._opened(path, os.O_WRONLY | os.O_TRUNC)
        data = text.encode("utf-8", "surrogateescape")
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.EIO, "only a part was taken", path)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)

    def write_parked(self, path: str, text: str, *, gpu: str, deadline_seconds: float) -> None:
        """Write in a child process that may be parked in the kernel."""
        self._refuse_under_lock(path)
        if self._parked is None:
            raise PermissionError(errno.EROFS, "nothing is written here", path)
        try:
            real = resolved(self._root, path) if self._root else path
        except OSError as error:
            raise _named(error, path) from None
        self._parked.write(real, text, path=path, gpu=gpu, deadline_seconds=deadline_seconds)

    def _refuse_under_lock(self, path: str) -> None:
        if self._lock_held():
            raise AssertionError(f"a write to {path} under the host lock")

    def _opened(self, path: str, flags: int) -> int:
        if not self._root:
            return os.open(path, flags | os.O_CLOEXEC)
        try:
            return os.open(resolved(self._root, path), flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise _named(error, path) from None


def resolved(root: str, path: str, *, follow_last: bool = True) -> str:
    """Return the real path of `path` with every link resolved below the root, as chroot would."""
    done: list[str] = []
    waiting = path.split("/")[::-1]
    links = 0
    while waiting:
        part = waiting.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        done.append(part)
        if not waiting and not follow_last:
            break
        target = _target("/".join((root, *done)))
        if target is None:
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            done.clear()
        else:
            done.pop()
        waiting.extend(target.split("/")[::-1])
    return "/".join((root, *done))


def _target(path: str) -> str | None:
    """Return a link's text, or None for anything else, also for what is not there: opening it will say so."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def _named(error: OSError, path: str) -> OSError:
    """Return the same error with the path that the caller used, without the root before it."""
    return OSError(error.errno, error.strerror, path)
