# SPDX-License-Identifier: Apache-2.0
"""Reads a regular file, up to a size limit: a path from a user may lead to a FIFO, a device or an endless file.

Opening a FIFO waits for its writer, so every file is opened with O_NONBLOCK. The kernel's own files ignore that flag.
Opening a device can have an effect (a watchdog), so every path is checked with stat() first. Only sysfs, which has no
devices, skips that check.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

MAX_BYTES = 1 << 20
"""A larger spec, host.yaml or user-data is refused: an endless file, such as /dev/zero, would fill the memory."""

_CHUNK = 8192
_PAGE = 4096
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KIND_NAMES = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_regular_file(
    path: str | os.PathLike[str],
    max_bytes: int = MAX_BYTES,
    *,
    display_path: str | None = None,
    flags: int = 0,
    is_sysfs: bool = False,
) -> bytes:
    """Return the content of a regular file; symbolic links are followed.

    `display_path`: the path in errors. `flags`: more flags for open(2). `is_sysfs`: the file is a sysfs attribute, of
    which a short first read is the whole content; elsewhere more data may follow a short read (seq_file).

    Raises:
        OSError: the kernel's; EISDIR or EINVAL if it is not a regular file, EFBIG for more than `max_bytes`.
    """
    try:
        descriptor = _open_regular(path, flags, is_sysfs=is_sysfs)
        try:
            return _read_up_to(descriptor, max_bytes, is_sysfs=is_sysfs)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path) if display_path is None else display_path) from None


def open_regular_file(path: str | os.PathLike[str], max_bytes: int) -> BinaryIO:
    """Open a large regular file to read it in parts.

    Raises:
        OSError: as `read_regular_file`.
    """
    try:
        file = os.fdopen(_open_regular(path, 0, is_sysfs=False), "rb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    if os.fstat(file.fileno()).st_size > max_bytes:
        file.close()
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 20} MiB", os.fspath(path))
    return file


def _open_regular(path: str | os.PathLike[str], flags: int, *, is_sysfs: bool) -> int:
    if not is_sysfs:
        _require_regular(os.stat(path).st_mode)
    descriptor = os.open(path, _OPEN_FLAGS | flags)
    try:
        _require_regular(os.fstat(descriptor).st_mode)  # another file may have replaced it meanwhile
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_KIND_NAMES.get(stat.S_IFMT(mode), 'something else')}, not a regular file")


def _read_up_to(descriptor: int, max_bytes: int, *, is_sysfs: bool) -> bytes:
    data = os.read(descriptor, _CHUNK)
    if not data or (is_sysfs and len(data) < _PAGE):
        return data
    parts, size = [data], len(data)
    while data and size <= max_bytes:
        data = os.read(descriptor, _CHUNK)
        parts.append(data)
        size += len(data)
    if size > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 10} KiB")
    return b"".join(parts)
