# SPDX-License-Identifier: Apache-2.0
"""The host's file tree under a root directory: sysfs, proc, /etc/vgpuctl and the machine's id.

It implements `ports.Sysfs`.

One command reads thousands of attributes, so under the real root each costs only open, fstat, read and close. Under
another root (a captured /sys) every link is resolved as chroot would: an absolute link, or one with many "..", must not
lead to the files of the machine that runs vgpuctl.

A VM's record contains the id of the machine that wrote it, so that vgpuctl does not act on the record of a VM that was
restored on another host. machine-id(5): 32 lower-case hexadecimal digits in /etc/machine-id; D-Bus keeps the same id in
/var/lib/dbus on hosts without systemd. In an image that was never booted the file is empty or has "uninitialized".
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import Protocol

from vgpuctl.model.port_values import FilePermissions
from vgpuctl.regular_file import read_regular_file

MAX_SYSFS_BYTES = 256 << 10
"""An attribute is at most one page of 4 to 64 KiB (sysfs_emit); only binary ones, such as `config`, are larger."""
MAX_BYTES = 32 << 20
"""/proc/kallsyms has about 15 MiB and pci.ids 1.5 MiB; /proc/mounts with thousands of containers has a few."""
_MAX_LINKS = 40  # as the kernel, path_resolution(7)

UNSAFE_TO_READ = frozenset({"reset_gpu"})
"""Files whose read has an effect: AMD's GIM resets the whole card (gim_shim/sysfs/gim_monitor.c)."""

_MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class UninterruptibleWrites(Protocol):
    """Writes in a child process (`vgpuctl.host.uninterruptible`)."""

    def write(self, real_path: str, text: str, *, path: str, gpu: str, deadline_seconds: float) -> None:
        """Write and wait until the deadline at most."""


class HostFiles:
    """Files under `root`. Writing while `lock_held()` raises AssertionError."""

    def __init__(
        self, root: str = "/", *, lock_held: Callable[[], bool], writer: UninterruptibleWrites | None = None
    ) -> None:
        self._root = "" if root == "/" else root.rstrip("/")
        self._lock_held = lock_held
        self._uninterruptible_writer = writer

    def read(self, path: str) -> str:
        """Return the whole file as text."""
        if path.rpartition("/")[2] in UNSAFE_TO_READ:
            raise PermissionError(errno.EPERM, "reading this file resets the device; not read", path)
        in_sysfs = path.startswith("/sys/")
        max_bytes = MAX_SYSFS_BYTES if in_sysfs else MAX_BYTES
        if not self._root:
            return read_regular_file(path, max_bytes, is_sysfs=in_sysfs).decode("utf-8", "replace")
        try:
            real = resolve_below(self._root, path)
        except OSError as error:
            raise _error_with_path(error, path) from None
        data = read_regular_file(real, max_bytes, display_path=path, flags=os.O_NOFOLLOW, is_sysfs=in_sysfs)
        return data.decode("utf-8", "replace")

    def listdir(self, path: str) -> tuple[str, ...]:
        """Return the sorted names in a directory."""
        if not self._root:
            return tuple(sorted(os.listdir(path)))
        try:
            return tuple(sorted(os.listdir(resolve_below(self._root, path))))
        except OSError as error:
            raise _error_with_path(error, path) from None

    def readlink(self, path: str) -> str:
        """Return a link's target."""
        if not self._root:
            return os.readlink(path)
        try:
            return os.readlink(resolve_below(self._root, path, follow_last=False))
        except OSError as error:
            raise _error_with_path(error, path) from None

    def permissions(self, path: str) -> FilePermissions:
        """Return a file's owner, group and mode."""
        try:
            status = os.stat(resolve_below(self._root, path) if self._root else path)
        except OSError as error:
            raise _error_with_path(error, path) from None
        return FilePermissions(status.st_mode & 0o7777, status.st_uid, status.st_gid)

    def write(self, path: str, text: str) -> None:
        """Write `text` in one write call."""
        self._refuse_under_lock(path)
        descriptor = self._open(path, os.O_WRONLY | os.O_TRUNC)
        data = text.encode("utf-8", "surrogateescape")
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.EIO, "only a part was written", path)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(descriptor)

    def write_uninterruptible(self, path: str, text: str, *, gpu: str, deadline_seconds: float) -> None:
        """Write in a child process, which may hang uninterruptibly in the kernel."""
        self._refuse_under_lock(path)
        if self._uninterruptible_writer is None:
            raise PermissionError(errno.EROFS, "this host is read-only", path)
        try:
            real = resolve_below(self._root, path) if self._root else path
        except OSError as error:
            raise _error_with_path(error, path) from None
        self._uninterruptible_writer.write(real, text, path=path, gpu=gpu, deadline_seconds=deadline_seconds)

    def _refuse_under_lock(self, path: str) -> None:
        if self._lock_held():
            raise AssertionError(f"a write to {path} under the host lock")

    def _open(self, path: str, flags: int) -> int:
        if not self._root:
            return os.open(path, flags | os.O_CLOEXEC)
        try:
            return os.open(resolve_below(self._root, path), flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise _error_with_path(error, path) from None


def resolve_below(root: str, path: str, *, follow_last: bool = True) -> str:
    """Return the real path of `path` with every link resolved inside the root, as chroot would."""
    resolved: list[str] = []
    pending = path.split("/")[::-1]
    links = 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del resolved[-1:]
            continue
        resolved.append(part)
        if not pending and not follow_last:
            break
        target = _read_link("/".join((root, *resolved)))
        if target is None:
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        if target.startswith("/"):
            resolved.clear()
        else:
            resolved.pop()
        pending.extend(target.split("/")[::-1])
    return "/".join((root, *resolved))


def _read_link(path: str) -> str | None:
    """Return a link's target, or None for anything else, also for a missing path: opening it reports that."""
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def _error_with_path(error: OSError, path: str) -> OSError:
    """Return the same error with the caller's path, without the root."""
    return OSError(error.errno, error.strerror, path)


def read_machine_id(root: str = "/") -> str | None:
    """Return the id of the machine whose files are under `root`, or None when it has none yet.

    D-Bus's file is mostly an absolute link: under a captured root it leads to the capture's own /etc.
    """
    files = HostFiles(root, lock_held=lambda: False)
    for name in _MACHINE_ID_FILES:
        try:
            text = files.read(name).strip().lower()
        except OSError:
            continue
        if _MACHINE_ID.fullmatch(text):
            return text
    return None
