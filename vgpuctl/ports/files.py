# SPDX-License-Identifier: Apache-2.0
"""The ports to vgpuctl's own files: host.yaml, unfinished files, and a cache that may be lost."""

from __future__ import annotations

from typing import Protocol

from vgpuctl.model.vm import UnfinishedFile


class HostFile(Protocol):
    """The file /etc/vgpuctl/host.yaml, always replaced as a whole. Its directory keeps the ten previous versions."""

    def read(self) -> str | None:
        """Return the file's text, None when there is no file; raises OSError."""

    def previous_version(self, number: int) -> str | None:
        """Return the text of a previous version, 1 being the newest; None when there is none; raises OSError."""

    def replace(self, text: str, expected: str | None, *, is_undo: bool = False) -> None:
        """Replace the file's text atomically, keeping its owner and mode; `expected` is the text it must still have.

        `expected` becomes the newest previous version. With `is_undo` a failed command wrote `expected`, so it is not
        kept, and `text` is removed from the previous versions.

        Raises:
            Busy: the file's text is no longer `expected`: somebody else changed it.
            OSError: the file cannot be written (EROFS: /etc is read-only).
        """


class UnfinishedFiles(Protocol):
    """The files that ended processes left unfinished, in every directory where vgpuctl writes."""

    def all(self) -> tuple[UnfinishedFile, ...]:
        """Return these files, sorted by directory and name.

        Raises:
            OSError: a directory cannot be listed.
        """

    def remove(self, file: UnfinishedFile) -> None:
        """Remove a file if it is still an unfinished file; a missing one is no error.

        Raises:
            OSError: with the kernel's errno.
        """


class Scratch(Protocol):
    """Bytes that may be lost at any time. No method raises."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes stored under a name, or None."""

    def write(self, name: str, data: bytes) -> None:
        """Store bytes under a name if possible."""
