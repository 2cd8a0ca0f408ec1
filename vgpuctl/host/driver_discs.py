# SPDX-License-Identifier: Apache-2.0
"""Discs with NVIDIA's driver for guests, in a folder that QEMU can read; implements `ports.guests.DriverDiscs`.

A disc is an ISO 9660 image of one file. All VMs with that driver have the same one, and
nobody writes to it: it is complete when it has its name.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import stat
from pathlib import Path
from threading import Lock
from typing import BinaryIO, cast

from vgpuctl.host.atomic_files import sync_directory, temporary_file
from vgpuctl.host.trusted_path import resolve_path
from vgpuctl.model.guest_driver import DISC_LABEL, DriverFile
from vgpuctl.regular_file import open_regular_file

DIRECTORY = "/var/lib/vgpuctl/drivers"
_HEAD_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20
_FOLDER_MODE, _DISC_MODE = 0o755, 0o644
"""QEMU's user reads them: a driver is no secret."""
_OTHERS_WRITE = 0o022
_JOLIET_LENGTH = 64
"""The longest name that Windows reads on a disc; only NVIDIA's drivers for Windows have longer ones."""


class _HashingReader(io.RawIOBase):
    """What pycdlib needs of a file; it knows the SHA-256 of what was read from the start."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._end = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        """Read, and count what comes after all that was read before."""
        at = self._file.tell()
        data = self._file.read(-1 if size is None else size)
        if at == self._end:
            self._hash.update(data)
            self._end += len(data)
        return data

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file up to where it was read."""
        return self._hash.hexdigest()


class DriverDiscFiles:
    """The discs in one folder. `of_root`: whether the files that they are made of must be root's alone."""

    def __init__(self, directory: Path, *, of_root: bool) -> None:
        self._directory = directory
        self._of_root = of_root
        self._lock = Lock()

    def read(self, path: str, max_bytes: int) -> DriverFile | None:
        """Return what is in a driver's file; None if there is none.

        Raises:
            OSError: it cannot be read, is no regular file, or larger than `max_bytes`.
        """
        try:
            resolved = resolve_path(path, ()) if self._of_root else None
            with open_regular_file(path, max_bytes) as file:
                reader = _HashingReader(file)
                head = reader.read(_HEAD_BYTES)
                while reader.read(_CHUNK_BYTES):
                    pass
                return DriverFile(head, file.tell(), reader.sha256, None if resolved is None else resolved.exposure)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def path(self, disc: str) -> str:
        """Return where a disc is, or will be, by its name."""
        return str(self._directory / disc)

    def has(self, disc: str) -> bool:
        """Return whether a disc exists that nobody but its maker could change."""
        try:
            status = os.lstat(self.path(disc))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE

    def write(self, disc: str, path: str, sha256: str, max_bytes: int) -> None:
        """Make a disc of a driver's file, unless it exists.

        Raises:
            ValueError: the file has changed since it was read.
            OSError: it cannot be read, or the disc not written.
        """
        from pycdlib import PyCdlib

        with self._lock:  # another process writes under another temporary name
            if self.has(disc):
                return
            for folder in (self._directory.parent, self._directory):
                if not folder.exists():
                    folder.mkdir(parents=True)
                    folder.chmod(_FOLDER_MODE)  # mkdir leaves out what the umask says
            final = self._directory / disc
            with open_regular_file(path, max_bytes) as file, temporary_file(final, b"", mode=_DISC_MODE) as temporary:
                reader, image = _HashingReader(file), PyCdlib()
                size = os.fstat(file.fileno()).st_size
                image.new(interchange_level=3, joliet=3, rock_ridge="1.09", vol_ident=DISC_LABEL)
                name = posixpath.basename(path)
                image.add_fp(
                    cast("BinaryIO", reader),
                    size,
                    iso_path="/DRIVER.;1",
                    rr_name=name,
                    joliet_path=f"/{name if len(name) <= _JOLIET_LENGTH else 'driver.exe'}",
                    file_mode=0o100444,
                )
                with open(temporary, "r+b") as out:
                    image.write_fp(out)
                    out.flush()
                    os.fsync(out.fileno())
                image.close()
                if reader.sha256 != sha256:
                    raise ValueError("it has changed since it was read")
                os.replace(temporary, final)
            sync_directory(self._directory)
