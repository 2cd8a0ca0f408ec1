# SPDX-License-Identifier: Apache-2.0
"""Read a file that people write: a regular one, and no more of it than such a file can have."""

from __future__ import annotations

import errno
import os
import stat

MOST_BYTES = 1 << 20
"""No spec, host.yaml or user-data is larger; a file without an end, as /dev/zero is, would fill the host's memory."""

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_regular(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the bytes of a regular file; a link is followed.

    Who opens a pipe waits for its writer, and opening a device may do something: neither is opened.

    Raises:
        OSError: it cannot be read; EISDIR or EINVAL: it is no regular file; EFBIG: it has more than `most_bytes`.
    """
    _require_regular(os.stat(path), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        known = os.fstat(descriptor)
        _require_regular(known, path)  # another may have taken its name meanwhile
        with open(descriptor, "rb", closefd=False) as file:
            found = file.read(most_bytes + 1)
        if len(found) > most_bytes:
            raise _refused(errno.EFBIG, f"it is larger than {most_bytes >> 10} KiB", path)
        return found
    finally:
        os.close(descriptor)


def _require_regular(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise _refused(errno.EISDIR, "it is a directory", path)
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for is_kind, name in _KINDS if is_kind(found.st_mode)), "something else")
        raise _refused(errno.EINVAL, f"it is {kind} and no regular file", path)


def _refused(number: int, why: str, path: str | os.PathLike[str]) -> OSError:
    return OSError(number, why, os.fspath(path))
