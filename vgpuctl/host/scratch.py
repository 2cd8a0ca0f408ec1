# SPDX-License-Identifier: Apache-2.0
"""A cache that may be lost: /run/vgpuctl/scratch stores what is expensive to compute again, like a compiled template.

A compiled template is code, so a directory that another user could write to is not used at all. Nothing here fails: the
caller recomputes what cannot be read, and what cannot be stored is not stored.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from vgpuctl.host.atomic_files import write_file
from vgpuctl.host.file_lock import make_private_directories


class HostScratch:
    """The directory; implements `ports.Scratch`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes | None:
        """Return the bytes stored under a name, or None."""
        with suppress(OSError):
            if self._is_private():
                return (self._directory / name).read_bytes()
        return None

    def write(self, name: str, data: bytes) -> None:
        """Store bytes under a name if possible; a reader sees the old file or the new one."""
        with suppress(OSError):  # also FileExistsError: another thread is storing the same
            make_private_directories(self._directory.parent, self._directory)
            if self._is_private():
                write_file(self._directory / name, data, durable=False)

    def _is_private(self) -> bool:
        status = os.lstat(self._directory)
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
