# SPDX-License-Identifier: Apache-2.0
"""The blobs with which guests join domains, in folders or from programs; implements `ports.guests.DomainJoins`.

A blob in a folder is used once. COMPUTER.blob becomes COMPUTER.SETUP.used before a guest can get it, which is one
rename: whatever happens then, only the same setup can use it. It is deleted when the guest has it.

Every folder and file is opened without following links, and checked when it is open.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vgpuctl.host.usage.processes import read_output
from vgpuctl.model.domain_join import BlobUse, JoinSource, NotRootsAlone

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_OTHERS, _OTHERS_WRITE = 0o077, 0o022
"""The permission bits of everybody but the owner."""
_FRESH, _USED = ".blob", ".used"


class DomainJoinFiles:
    """The entries of one directory. `owner`: who must have everything there; tests cannot be root."""

    def __init__(self, directory: Path, *, owner: int = 0) -> None:
        self._directory = directory
        self._owner = owner

    def source(self, name: str) -> JoinSource | None:
        """Return what an entry is; None if there is none.

        Raises:
            ValueError: it is neither a folder nor a program, or others can change it, or read its blobs.
            OSError: it cannot be read.
        """
        try:
            with self._open_directory() as directory:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        path = str(self._directory / name)
        if stat.S_ISDIR(status.st_mode):
            self._require(status, _OTHERS, path)
            return JoinSource.FOLDER
        if not stat.S_ISREG(status.st_mode) or not status.st_mode & stat.S_IXUSR:
            raise ValueError(f"{path} is neither a folder nor a program")
        self._require(status, _OTHERS_WRITE, path)
        return JoinSource.PROGRAM

    def read(self, use: BlobUse, max_bytes: int, *, claimed: bool = False) -> bytes | None:
        """Return the fresh blob of a computer in a folder, else the one that this setup has claimed; None for none.

        `claimed`: only that, also where there is a fresh one.

        Raises:
            ValueError: it is no regular file, or others can read or change it, or its folder.
            OSError: it is larger than `max_bytes`, or cannot be read.
        """
        with self._open_folder(use.name) as folder:
            fresh = None if claimed else self._read(folder, use, f"{use.computer}{_FRESH}", max_bytes)
            return self._read(folder, use, _claimed(use), max_bytes) if fresh is None else fresh

    def claim(self, use: BlobUse) -> None:
        """Mark the fresh blob of a computer as used by this setup; without one nothing happens.

        What earlier setups of this computer have claimed is deleted.

        Raises:
            OSError: it cannot be renamed.
        """
        with self._open_folder(use.name) as folder:
            with suppress(FileNotFoundError):
                os.rename(f"{use.computer}{_FRESH}", _claimed(use), src_dir_fd=folder, dst_dir_fd=folder)
            for name in os.listdir(folder):
                if name.startswith(f"{use.computer}.") and name.endswith(_USED) and name != _claimed(use):
                    os.unlink(name, dir_fd=folder)
            os.fsync(folder)

    def release(self, use: BlobUse) -> None:
        """Make what this setup has claimed fresh again, unless there is a fresh one.

        Raises:
            OSError: it cannot be renamed.
        """
        with self._open_folder(use.name) as folder:
            with suppress(FileNotFoundError, FileExistsError):
                os.link(_claimed(use), f"{use.computer}{_FRESH}", src_dir_fd=folder, dst_dir_fd=folder)
            self._unlink(folder, _claimed(use))

    def forget(self, use: BlobUse) -> None:
        """Delete what this setup has claimed.

        Raises:
            OSError: it cannot be deleted.
        """
        with self._open_folder(use.name) as folder:
            self._unlink(folder, _claimed(use))

    def run(self, name: str, computer: str, *, deadline_seconds: float, max_bytes: int) -> bytes:
        """Return what a program prints for a computer.

        Raises:
            ValueError: others can change the program.
            TimeoutError: it did not end in time; it was killed with what it started.
            OSError: it cannot be run, prints too much, or failed; what it complains about may have secrets.
        """
        path = str(self._directory / name)
        if self.source(name) is not JoinSource.PROGRAM:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return read_output((path, computer), user=None, deadline_seconds=deadline_seconds, max_bytes=max_bytes)

    @contextmanager
    def _open_directory(self) -> Iterator[int]:
        """Open the directory of all entries."""
        parent = str(self._directory.parent)
        with suppress(FileNotFoundError):
            self._require(os.stat(parent), _OTHERS_WRITE, parent)
        descriptor = os.open(self._directory, _FOLDER_FLAGS)
        try:
            self._require(os.fstat(descriptor), _OTHERS_WRITE, str(self._directory))
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _open_folder(self, name: str) -> Iterator[int]:
        """Open the folder of one entry."""
        with self._open_directory() as directory:
            descriptor = os.open(name, _FOLDER_FLAGS, dir_fd=directory)
        try:
            self._require(os.fstat(descriptor), _OTHERS, str(self._directory / name))
            yield descriptor
        finally:
            os.close(descriptor)

    def _read(self, folder: int, use: BlobUse, file: str, max_bytes: int) -> bytes | None:
        path = str(self._directory / use.name / file)
        try:
            is_regular = stat.S_ISREG(os.stat(file, dir_fd=folder, follow_symlinks=False).st_mode)
            descriptor = os.open(file, _FILE_FLAGS, dir_fd=folder) if is_regular else -1
        except FileNotFoundError:
            return None
        if descriptor < 0:
            raise ValueError(f"{path} is no regular file")
        with open(descriptor, "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{path} is no regular file")
            self._require(status, _OTHERS, path)
            data = opened.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise OSError(errno.EFBIG, f"it is larger than {max_bytes >> 10} KiB", path)
        return data

    def _require(self, status: os.stat_result, forbidden: int, path: str) -> None:
        if status.st_uid != self._owner or status.st_mode & forbidden:
            raise NotRootsAlone(path, "go=" if forbidden == _OTHERS else "go-w")

    @staticmethod
    def _unlink(folder: int, file: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(file, dir_fd=folder)
        os.fsync(folder)


def _claimed(use: BlobUse) -> str:
    return f"{use.computer}.{use.setup}{_USED}"
