# SPDX-License-Identifier: Apache-2.0
"""Writes files atomically, and finds the temporary files that a killed process leaves.

A file is written under a temporary name in its directory, then renamed: over the former file (rename(2)), or only if
there is none (link(2)). The temporary name, `.NAME.vgpuctl-PID-START`, shows the target and the writer: the pid, and
the start time in clock ticks, so that a later process with that pid is not mistaken for the writer.
A process writes each file from one thread at a time: callers with threads hold a lock, or skip a file that another
thread is writing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from vgpuctl.host.processes import HostProcesses, ProcessTable
from vgpuctl.model.vm import ProcessId, UnfinishedFile

SYSTEM_DIRECTORIES = (
    "/etc/vgpuctl",
    "/etc/systemd/system",
    "/etc/libvirt/hooks",
    "/etc/libvirt/hooks/qemu.d",
    "/usr/share/bash-completion/completions",
    "/etc/bash_completion.d",
    "/usr/share/zsh/vendor-completions",
    "/usr/share/zsh/site-functions",
    "/usr/share/fish/vendor_completions.d",
    "/var/lib/vgpuctl/drivers",
)
"""The directories outside its run directory in which vgpuctl writes files."""
RUN_DIRECTORIES = ("claims", "drained", "working", "stuck", "scratch", "removals", "guests")
"""The directories in its run directory in which it writes files."""

_UNFINISHED_NAME = re.compile(r"\.(.+)\.vgpuctl-([1-9][0-9]{0,9})-([0-9]{1,20})", re.ASCII)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


@contextmanager
def temporary_file(
    path: Path, data: bytes, *, mode: int = 0o600, owner: tuple[int, int] | None = None, durable: bool = True
) -> Iterator[Path]:
    """Write a temporary file and yield its path; the block renames it to `path`, otherwise it is removed at the end.

    `durable`: flush the file to disk, so that a power cut leaves the former file or the new one. Files that a reboot
    removes anyway do not need it and do not wait for the disk.

    Raises:
        OSError: with `path`, the final name, because users know that one.
    """
    process = HostProcesses().current_process()
    temporary = path.with_name(f".{path.name}.vgpuctl-{process.pid}-{process.start_ticks}")
    try:
        descriptor = os.open(temporary, _CREATE_FLAGS, 0o600)
    except OSError as error:
        raise _error_with_path(path, error) from None
    try:
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if owner is not None:
                    os.fchown(descriptor, *owner)
                os.fchmod(descriptor, mode)
                if durable:
                    os.fsync(descriptor)
        except OSError as error:
            raise _error_with_path(path, error) from None
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def write_file(
    path: Path,
    data: bytes,
    *,
    mode: int = 0o600,
    owner: tuple[int, int] | None = None,
    overwrite: bool = True,
    durable: bool = True,
) -> None:
    """Write a whole file atomically. `overwrite`: replace an existing file. Other parameters as in `temporary_file`.

    Raises:
        FileExistsError: the file exists, and `overwrite` is False.
        OSError: as `temporary_file`.
    """
    with temporary_file(path, data, mode=mode, owner=owner, durable=durable) as temporary:
        try:
            (os.replace if overwrite else os.link)(temporary, path)
        except OSError as error:
            raise _error_with_path(path, error) from None
    if durable:
        sync_directory(path.parent)


def _error_with_path(path: Path, error: OSError) -> OSError:
    return OSError(error.errno, error.strerror, str(path))


def sync_directory(directory: Path) -> None:
    """Flush a directory's entries to disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class HostUnfinishedFiles:
    """The unfinished files of ended processes in these directories; implements `ports.UnfinishedFiles`."""

    def __init__(self, directories: Sequence[Path], processes: ProcessTable) -> None:
        self._directories = tuple(dict.fromkeys(Path(os.path.realpath(directory)) for directory in directories))
        self._processes = processes

    def all(self) -> tuple[UnfinishedFile, ...]:
        """Return the files whose writer has ended; a missing directory, or one that only root can read, has none."""
        return tuple(file for directory in self._directories for file in self._list_in(directory))

    def _list_in(self, directory: Path) -> Iterator[UnfinishedFile]:
        try:
            names = sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return
        for name in names:
            match = _UNFINISHED_NAME.fullmatch(name)
            if match is not None:
                file = UnfinishedFile(str(directory / name), ProcessId(int(match[2]), int(match[3])))
                if self._is_abandoned(file):
                    yield file

    def _is_abandoned(self, file: UnfinishedFile) -> bool:
        """Return whether it is a regular file of this user, or of the target's owner, and its writer has ended."""
        try:
            status = os.lstat(file.path)
        except FileNotFoundError:
            return False
        is_candidate = stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), *_possible_owners(file.path))
        return is_candidate and not self._processes.is_alive(file.process)

    def remove(self, file: UnfinishedFile) -> None:
        """Remove one of these files; a missing one is no error."""
        if self._is_abandoned(file):
            with suppress(FileNotFoundError):
                os.unlink(file.path)


def _possible_owners(path: str) -> Iterator[int]:
    """Yield the owner of the target file: `temporary_file` sets that owner before the rename.

    A previous version, such as host.yaml.1, has the owner of host.yaml.
    """
    directory, name = os.path.split(path)
    match = _UNFINISHED_NAME.fullmatch(name)
    for target in {match[1], re.sub(r"\.[0-9]+$", "", match[1])} if match is not None else ():
        with suppress(OSError):
            yield os.stat(os.path.join(directory, target)).st_uid


def open_unfinished_files(root: Path, run_dir: Path, host_file: Path, processes: ProcessTable) -> HostUnfinishedFiles:
    """Return a host's unfinished files: in its run directory, next to host.yaml, and in the system directories."""
    run_directories = [run_dir / name for name in RUN_DIRECTORIES]
    config_directories = [host_file.parent, Path(os.path.realpath(host_file)).parent]
    return HostUnfinishedFiles(
        [*run_directories, *config_directories, *(root / name.lstrip("/") for name in SYSTEM_DIRECTORIES)], processes
    )
