# SPDX-License-Identifier: Apache-2.0
"""Lock files in /run/vgpuctl (flock(2)): the host lock, held for milliseconds, and one creation lock for each GPU.

The kernel releases it when its holder dies, however it dies. The file is never removed: another process may be waiting
on it. Its text names the holder, for the error after a timeout. The holder writes it after taking the lock and empties
it before releasing. If /run is full, the text is missing and the lock still works. The descriptor is closed on exec, so
no child keeps the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import FileFailed, HostCannot, Locked
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.value import as_dict

if TYPE_CHECKING:
    from vgpuctl.ports.run_directory import Operations
    from vgpuctl.ports.system import Clock

_FIRST_PAUSE_SECONDS = 0.001
_MAX_PAUSE_SECONDS = 0.05
_HOLDER_NICE = -20


def make_private_directories(*directories: Path) -> None:
    """Create missing directories, outermost first, with mode 0700; the first one's parents get the default mode.

    Raises:
        HostCannot: a symbolic link has the name of one.
    """
    os.makedirs(directories[0].parent, exist_ok=True)
    for directory in directories:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        if directory.is_symlink():
            raise _link_error(directory, "directory")


@contextmanager
def lock_file(path: Path, clock: Clock, wait_seconds: float) -> Iterator[None]:
    """Keep other writers out of a directory that everybody can read, by a file in it that only its owner can open.

    Raises:
        Locked: as `lock_directory` has it.
        OSError: the file cannot be made or opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _acquire(descriptor, str(path), clock, wait_seconds)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def lock_directory(directory: Path, clock: Clock, wait_seconds: float) -> Iterator[None]:
    """Keep other writers out of a directory for the microseconds of one change.

    Raises:
        Locked: another process has held the lock for `wait_seconds`, for example because it is stopped.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _acquire(descriptor, str(directory), clock, wait_seconds)
        yield
    finally:
        os.close(descriptor)


def _link_error(path: Path, expected: str) -> HostCannot:
    """Return the error for a symbolic link where vgpuctl keeps a file or directory of its own."""
    return HostCannot(
        f"{path} is a symbolic link to {os.readlink(path)}; vgpuctl needs a {expected} of its own there",
        hint=f"ls -ld {path}; move it away: mv {path} {path}.old",
        check="run-directory",
        path=str(path),
    )


def _acquire(descriptor: int, description: str, clock: Clock, wait_seconds: float) -> None:
    """Take a lock. flock has no timeout, and SIGALRM would interrupt the whole process, so this polls."""
    deadline = clock.monotonic() + wait_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remaining = deadline - clock.monotonic()
            if remaining <= 0:
                raise _locked_error(descriptor, description, wait_seconds) from None
            clock.sleep(min(pause, remaining))
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)
        else:
            return


def _locked_error(descriptor: int, description: str, wait_seconds: float) -> Locked:
    try:
        holder: Any = parse_json(os.pread(descriptor, 4096, 0))
        pid, command = int(holder["pid"]), str(holder["command"])
    except (OSError, ValueError, KeyError, TypeError):  # a directory has no text; nor has a file if /run is full
        return _locked_by_unnamed(descriptor, description, wait_seconds)
    return Locked(
        f"another vgpuctl holds {description}: pid {pid} ({command})",
        hint=f"wait longer with --wait SECONDS; ps -fp {pid} shows the process",
        pid=pid,
        command=command,
        waited_seconds=wait_seconds,
    )


def _locked_by_unnamed(descriptor: int, description: str, wait_seconds: float) -> Locked:
    """Return the error for a lock whose holder wrote no name: the kernel may know its process."""
    pid = _find_lock_holder(descriptor)
    if pid is None:
        return Locked(f"another vgpuctl holds {description}", hint="try again", waited_seconds=wait_seconds)
    return Locked(
        f"another process holds {description}: pid {pid}",
        hint=f"ps -fp {pid} shows the process; if it is stopped (T), it continues after: kill -CONT {pid}",
        pid=pid,
        waited_seconds=wait_seconds,
    )


def _find_lock_holder(descriptor: int) -> int | None:
    """Return the process that holds a lock, as the kernel lists it; None if it is not listed (proc_locks(5))."""
    status = os.fstat(descriptor)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with suppress(OSError, ValueError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and file in words:
                return int(words[4])
    return None


class FileLock:
    """A handle on a lock. Each hold opens the file again, so two threads exclude each other like two processes.

    `path` is None where vgpuctl reads a copy of a host's files (`--root`): then there is nothing to lock.

    `description`: what is locked, for the error after a timeout.
    """

    def __init__(
        self, path: Path | None, operations: Operations, clock: Clock, description: str = "the host lock"
    ) -> None:
        self._path = path
        self._description = description
        self._operations = operations
        self._clock = clock
        self._holding_threads: set[int] = set()

    @property
    def is_locked(self) -> bool:
        """Whether the calling thread holds the lock now."""
        return get_ident() in self._holding_threads

    @contextmanager
    def hold(self, wait_seconds: float) -> Iterator[None]:
        """Take the lock, and release it at the end of the block.

        Raises:
            Locked: after `wait_seconds`, naming the holder.
            FileFailed: there is no space for the lock file.
            HostCannot: the lock file cannot be opened.
        """
        if self.is_locked:
            raise AssertionError(f"{self._description} is already held")
        with nullcontext() if self._path is None else self._hold_file_lock(self._path, wait_seconds):
            self._holding_threads.add(get_ident())
            try:
                yield
            finally:
                self._holding_threads.discard(get_ident())

    @contextmanager
    def _hold_file_lock(self, path: Path, wait_seconds: float) -> Iterator[None]:
        descriptor = _open_lock_file(path)
        try:
            _acquire(descriptor, self._description, self._clock, wait_seconds)
            with _raised_priority():
                with suppress(OSError):
                    self._write_holder(descriptor)
                try:
                    yield
                finally:
                    with suppress(OSError):
                        os.ftruncate(descriptor, 0)
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _write_holder(self, descriptor: int) -> None:
        """Write who holds the lock; first clear what an earlier holder left."""
        os.ftruncate(descriptor, 0)
        operation = self._operations.current()
        text = json.dumps({**as_dict(operation.process), "command": operation.command})
        os.pwrite(descriptor, text.encode(), 0)


@contextmanager
def _raised_priority() -> Iterator[None]:
    """Raise the holder's priority, so that the processes that poll for the lock do not take the CPU from it.

    Without it, four callers on two CPUs held the lock six times as long as one. Only root may lower a nice value
    (setpriority(2)); for other users this does nothing.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _HOLDER_NICE)
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)


def _open_lock_file(path: Path) -> int:
    try:
        make_private_directories(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        text, directory = f"cannot open {path}: {error.strerror}", path.parent.parent
        if error.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT):
            hint = f"df -h {directory}; df -i {directory}; findmnt -T {directory}"
            raise FileFailed(text, hint=hint, path=str(path), errno=error.errno) from error
        if error.errno == errno.ELOOP:
            raise _link_error(path, "file") from error
        raise HostCannot(
            text, hint="run it as root", check="run-directory", path=str(path), errno=error.errno
        ) from error
