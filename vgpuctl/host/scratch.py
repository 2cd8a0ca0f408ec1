# SPDX-License-Identifier: Apache-2.0
"""Bytes that may be lost: /run/vgpuctl/scratch keeps what is only dear to make again, like a compiled template.

A template's compiled form is code, so a directory that another user could write to is not used at all. Nothing
here ever fails: what cannot be read is made anew, and what cannot be kept is not kept.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from vgpuctl.host.atomic import write
from vgpuctl.host.lock import make_private


class HostScratch:
    """The directory, as `seams.Scratch`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def read(self, name: str) -> bytes | None:
        """Return what was kept under a name, or None."""
        with suppress(OSError):
            if self._is_ours():
                return (self._directory / name).read_bytes()
        return None

    def keep(self, name: str, data: bytes) -> None:
        """Keep bytes under a name if that can be done; a reader sees the old file or the new one."""
        with suppress(OSError):  # FileExistsError among them: another thread keeps the same just now
            make_private(self._directory.parent, self._directory)
            if self._is_ours():
                write(self._directory / name, data, durable=False)

    def _is_ours(self) -> bool:
        found = os.lstat(self._directory)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
