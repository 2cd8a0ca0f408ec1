# SPDX-License-Identifier: Apache-2.0
"""The bin of a directory pool: a folder in it that is root's alone, to which deleted disks are renamed.

Everything is named relative to open directories, so a link that is put there meanwhile leads nowhere. What is not a
file with the name of an entry is reported, and never changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vgpuctl.errors import Exists, FileFailed, NotFound, Refused
from vgpuctl.model.deleted_disk import BIN_FOLDER, BinnedVolume, parse_bin_entry

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MAX_ENTRIES = 10_000
_BLOCK_BYTES = 512


class FolderBin:
    """The bin of the pool `pool`, whose volumes are the files in `directory`."""

    def __init__(self, pool: str, directory: str) -> None:
        self._pool = pool
        self._directory = directory
        self._path = os.path.join(directory, BIN_FOLDER)

    def prepare(self) -> None:
        """Make the folder if there is none.

        Raises:
            Refused: it cannot be made, or is not root's alone; nothing is changed.
        """
        try:
            with suppress(FileExistsError):
                os.mkdir(self._path, 0o700)
            with self._open():
                pass
        except (OSError, FileFailed) as error:
            reason = error.message if isinstance(error, FileFailed) else f"{self._path}: {error.strerror}"
            raise Refused(
                f"the storage pool {self._pool} has no bin for deleted disks, and it cannot be made: {reason}",
                hint=f"df -h {self._directory}; ls -ld {self._directory}",
                pool=self._pool,
                path=self._path,
            ) from error

    def move_in(self, volume: str, entry: str) -> None:
        """Rename a file of the pool to an entry; a missing one is no error.

        Raises:
            Refused: it is not a file, or the entry exists already.
        """
        with self._explain(f"cannot move {volume} to the bin"), self._open() as (pool, folder):
            try:
                status = os.stat(volume, dir_fd=pool, follow_symlinks=False)
            except FileNotFoundError:
                return
            path = os.path.join(self._directory, volume)
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{path} is not a file, so it is not moved to the bin", hint=f"ls -l {path}", path=path)
            with suppress(FileNotFoundError):
                os.stat(entry, dir_fd=folder, follow_symlinks=False)
                raise Refused(f"{self._path}/{entry} exists already", hint=f"ls -l {self._path}", path=path)
            os.rename(volume, entry, src_dir_fd=pool, dst_dir_fd=folder)
            os.fsync(folder)
            os.fsync(pool)

    def volumes(self) -> tuple[BinnedVolume, ...]:
        """Return what is in the folder, by name; nothing if there is no folder.

        Raises:
            FileFailed: it cannot be read, or is not root's alone.
        """
        with self._explain("cannot read the bin"):
            try:
                with self._open() as (_, folder):
                    names = sorted(os.listdir(folder))[:_MAX_ENTRIES]
                    return tuple(self._read(folder, name) for name in names)
            except FileNotFoundError:
                return ()

    def move_out(self, entry: str, volume: str) -> str:
        """Make an entry a file of the pool again, without replacing one: by a second name, and then without the first.

        Raises:
            Exists: the name is taken.
            NotFound: there is no such entry.
        """
        path = os.path.join(self._directory, volume)
        with self._explain(f"cannot move {entry} out of the bin"), self._open() as (pool, folder):
            if self._read(folder, entry).entry is None:
                raise NotFound(f"the bin of storage pool {self._pool} has no {entry}", hint="vgpuctl list-deleted")
            try:
                os.link(entry, volume, src_dir_fd=folder, dst_dir_fd=pool, follow_symlinks=False)
            except FileExistsError as error:
                raise Exists(f"{path} exists already", hint=f"ls -l {path}", path=path) from error
            os.fsync(pool)
            os.unlink(entry, dir_fd=folder)
            os.fsync(folder)
        return path

    def delete(self, entry: str) -> None:
        """Delete an entry; a missing one is no error."""
        with self._explain(f"cannot delete {entry} in the bin"), self._open() as (_, folder):
            if self._read(folder, entry).entry is not None:
                os.unlink(entry, dir_fd=folder)
                os.fsync(folder)

    def _read(self, folder: int, name: str) -> BinnedVolume:
        path = os.path.join(self._path, name)
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return BinnedVolume(self._pool, path, None, problem="it is gone")
        if not stat.S_ISREG(status.st_mode):
            return BinnedVolume(self._pool, path, None, problem="it is not a file")
        entry = parse_bin_entry(name)
        problem = None if entry is not None else "vgpuctl gives no such name"
        return BinnedVolume(self._pool, path, entry, status.st_blocks * _BLOCK_BYTES, problem)

    @contextmanager
    def _open(self) -> Iterator[tuple[int, int]]:
        """Yield the pool's directory and the bin, open."""
        pool = os.open(self._directory, _DIRECTORY_FLAGS)
        try:
            folder = os.open(BIN_FOLDER, _DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=pool)
            try:
                self._require_own(os.fstat(folder))
                yield pool, folder
            finally:
                os.close(folder)
        finally:
            os.close(pool)

    def _require_own(self, status: os.stat_result) -> None:
        """Refuse a folder into which others could have put something."""
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            mode = f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
            raise FileFailed(
                f"others than root may write to {self._path} ({mode})",
                hint=f"ls -la {self._path}; then chown root: {self._path}; chmod 700 {self._path}",
                path=self._path,
            )

    @contextmanager
    def _explain(self, failure: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileFailed(
                f"{failure} of storage pool {self._pool}: {error.strerror}",
                hint=f"ls -la {self._path}; df -h {self._directory}",
                path=self._path,
                errno=error.errno,
            ) from error
