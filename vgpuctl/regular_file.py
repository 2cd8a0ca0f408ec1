# SPDX-License-Identifier: Apache-2.0
"""Reads a regular file, and no more of it than fits: what somebody put there may be a FIFO, a device or endless.

Opening a FIFO waits for its writer, so every file is opened with O_NONBLOCK. The kernel's own files ignore that flag.
Opening a device may do something, as to a watchdog, so only sysfs, which has none, is opened without a look before.
"""

from __future__ import annotations

import errno
import os
import stat

MOST_BYTES = 1 << 20
"""No spec, host.yaml or user-data is larger; a file without an end, as /dev/zero is, would fill the host's memory."""

_CHUNK = 8192
_PAGE = 4096
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_regular(
    path: str | os.PathLike[str],
    most_bytes: int = MOST_BYTES,
    *,
    shown: str | None = None,
    flags: int = 0,
    page: bool = False,
) -> bytes:
    """Return what is in a regular file; a link is followed.

    `shown`: the path in errors. `flags`: more flags for open(2). `page`: an attribute in sysfs, of which a short first
    read is the whole; elsewhere a short read may have more behind it (seq_file).

    Raises:
        OSError: the kernel's; EISDIR or EINVAL for what is no regular file, EFBIG for more than `most_bytes`.
    """
    try:
        if not page:
            _require_regular(os.stat(path).st_mode)
        descriptor = os.open(path, _FLAGS | flags)
        try:
            _require_regular(os.fstat(descriptor).st_mode)  # another may have taken its name meanwhile
            return _read(descriptor, most_bytes, page=page)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path) if shown is None else shown) from None


def _require_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, "it is a directory")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a regular file")


def _read(descriptor: int, most_bytes: int, *, page: bool) -> bytes:
    data = os.read(descriptor, _CHUNK)
    if not data or (page and len(data) < _PAGE):
        return data
    parts, size = [data], len(data)
    while data and size <= most_bytes:
        data = os.read(descriptor, _CHUNK)
        parts.append(data)
        size += len(data)
    if size > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes >> 10} KiB")
    return b"".join(parts)
