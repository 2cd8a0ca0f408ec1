# SPDX-License-Identifier: Apache-2.0
"""Discs with NVIDIA's driver for guests, in a folder that QEMU can read; implements `ports.guests.DriverDiscs`.

A disc is an ISO 9660 image of one file. All VMs with that driver have the same one, and nobody writes to it: it is
complete when it has its name. Which VMs have it is in their definitions alone. A command defines its VM, and then makes
sure of the disc, under the folder's lock; a command that deletes the disc reads the definitions under the same lock.
"""

from __future__ import annotations

import hashlib
import io
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, cast

from vgpuctl.host.atomic_files import sync_directory, temporary_file
from vgpuctl.host.file_lock import lock_file
from vgpuctl.host.trusted_path import resolve_path
from vgpuctl.model.guest_driver import DISC_LABEL, DriverFile, is_driver_disc
from vgpuctl.regular_file import open_regular_file
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.system import Clock

DIRECTORY = "/var/lib/vgpuctl/drivers"
_HEAD_BYTES = 64 << 10
_CHUNK_BYTES = 1 << 20
_FOLDER_MODE, _DISC_MODE = 0o755, 0o644
"""QEMU's user reads them: a driver is no secret."""
_OTHERS_WRITE = 0o022
_LOCK, _LOCK_SECONDS = ".lock", 30.0
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

    def __init__(self, directory: Path, clock: Clock, *, of_root: bool) -> None:
        self._directory = directory
        self._clock = clock
        self._of_root = of_root
        self._lock = Lock()
        self._last: tuple[tuple[int, ...], DriverFile] | None = None
        """The file that was read last, and by what it is known again: many VMs get one driver."""

    def read(self, path: str, max_bytes: int) -> DriverFile | None:
        """Return what is in a driver's file; None if there is none.

        Raises:
            OSError: it cannot be read, is no regular file, or larger than `max_bytes`.
        """
        try:
            resolved = resolve_path(path, ()) if self._of_root else None
            with open_regular_file(path, max_bytes) as file:
                content = self._read_content(file)
            return replace(content, exposure=None if resolved is None else resolved.exposure)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _read_content(self, file: BinaryIO) -> DriverFile:
        """Return what is in a file; of one that has not changed since it was read before, without reading it."""
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        with self._lock:
            if self._last is None or self._last[0] != identity:
                reader = _HashingReader(file)
                head = reader.read(_HEAD_BYTES)
                while reader.read(_CHUNK_BYTES):
                    pass
                self._last = identity, DriverFile(head, file.tell(), reader.sha256)
            return self._last[1]

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

    def sizes(self) -> Mapping[str, int]:
        """Return the discs by name, and their sizes in bytes.

        Raises:
            OSError: the folder cannot be read.
        """
        try:
            entries = sorted(os.scandir(self._directory), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        sizes = {}
        for entry in entries:
            if is_driver_disc(entry.path) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):  # deleted since
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
        return sizes

    def delete(self, disc: str, is_used: Callable[[], bool]) -> bool:
        """Delete a disc unless it is used, and return whether it was deleted.

        `is_used` finds that out while no other process makes or deletes one.

        Raises:
            Locked: another process has kept the folder locked.
            OSError: it cannot be deleted.
        """
        if not self.has(disc):
            return False
        with self._locked():
            if not self.has(disc) or is_used():
                return False
            os.unlink(self.path(disc))
            sync_directory(self._directory)
            return True

    def write(self, disc: str, path: str, sha256: str, max_bytes: int) -> None:
        """Make a disc of a driver's file, unless it exists.

        Raises:
            ValueError: the file has changed since it was read.
            Locked: another process has kept the folder locked.
            OSError: it cannot be read, or the disc not written.
        """
        with self._lock:  # another process writes under another temporary name
            for folder in (self._directory.parent, self._directory):
                with suppress(FileExistsError):
                    folder.mkdir(parents=True)
                    folder.chmod(_FOLDER_MODE)  # mkdir leaves out what the umask says
            with self._locked():
                if self.has(disc):
                    return
            self._make(disc, path, sha256, max_bytes)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with lock_file(self._directory / _LOCK, self._clock, _LOCK_SECONDS):
            yield

    def _make(self, disc: str, path: str, sha256: str, max_bytes: int) -> None:
        from pycdlib import PyCdlib

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
