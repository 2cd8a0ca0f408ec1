# SPDX-License-Identifier: Apache-2.0
"""Reads a regular file, and no more of it than fits: what somebody put there may be a FIFO, a device or endless.

Opening a FIFO waits for its writer, so every file is opened with O_NONBLOCK. The kernel's own files ignore that flag.
"""

from __future__ import annotations

import errno
import os
import stat

_CHUNK = 8192
_PAGE = 4096
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_regular(path: str, most_bytes: int, *, shown: str | None = None, flags: int = 0, page: bool = False) -> bytes:
    """Return what is in a regular file.

    `shown`: the path in errors. `flags`: more flags for open(2). `page`: a short first read is the whole file, as it
    is for an attribute in sysfs; elsewhere a short read may have more behind it (seq_file).

    Raises:
        OSError: the kernel's; EINVAL for what is no regular file, EFBIG for more than `most_bytes`.
    """
    shown = path if shown is None else shown
    try:
        descriptor = os.open(path, _FLAGS | flags)
        try:
            return _read(descriptor, most_bytes, page=page)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, shown) from None


def _read(descriptor: int, most_bytes: int, *, page: bool) -> bytes:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # reading a directory is refused by the kernel
        raise OSError(errno.EINVAL, "it is not a regular file")
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
