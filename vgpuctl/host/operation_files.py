# SPDX-License-Identifier: Apache-2.0
"""Operations: /run/vgpuctl/operations/<id>, one file for each, locked (flock(2)) while the operation lives.

The kernel releases the lock when the process dies, however it dies. The file is locked before it has its name, so
nobody sees a living operation as dead at its birth. Whoever asks takes a shared lock without waiting: that works only
on the file of a dead operation. Ids are random and never used again, so a missing file means that its operation ended.

The lock belongs to the open file description. It is closed on exec, so a child that writes to a device does not keep
the operation alive. A bare fork would: nothing in vgpuctl forks without exec.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from vgpuctl.host.file_lock import make_private_directories
from vgpuctl.model.vm import Operation
from vgpuctl.ports.run_directory import OperationsState

if TYPE_CHECKING:
    from vgpuctl.host.processes import HostProcesses

OPERATIONS = "operations"
MAX_ATTEMPTS = 1000
_ID_BYTES = 8
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class OperationFiles:
    """One operation on a host, and how it sees the others; implements `ports.Operations`.

    `captured`: the run directory is in a captured tree, whose operations count as alive.
    """

    def __init__(self, run_dir: Path, processes: HostProcesses, *, captured: bool = False) -> None:
        self._run_dir = run_dir
        self._directory = run_dir / OPERATIONS
        self._processes = processes
        self._captured = captured
        self._current: Operation | None = None
        self._descriptor: int | None = None

    def another(self) -> OperationFiles:
        """Return another operation on the same host, which has not begun."""
        return OperationFiles(self._run_dir, self._processes, captured=self._captured)

    def current(self) -> Operation:
        """Return the current operation; nothing is written."""
        if self._current is None:
            process = self._processes.current_process()
            self._current = Operation(os.urandom(_ID_BYTES).hex(), process, self._processes.command_line())
        return self._current

    def begin(self) -> None:
        """Write and lock the current operation's file unless that is done; call it before each claim or note.

        Raises:
            OSError: with the path; the operation has not begun.
            HostCannot: something else has the directory's name.
        """
        attempts = MAX_ATTEMPTS
        while self._descriptor is None:
            try:
                self._descriptor = self._create(self.current())
            except (FileNotFoundError, BlockingIOError):  # `remove_ended` found the file before it was locked
                attempts -= 1
                if not attempts:
                    raise

    def _create(self, operation: Operation) -> int:
        """Create the operation's file, locked, and return its descriptor."""
        path = self._directory / operation.id
        unnamed = path.with_name(f".{operation.id}")
        try:
            make_private_directories(self._directory.parent, self._directory)
            descriptor = os.open(unnamed, _CREATE_FLAGS, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(descriptor, json.dumps({"pid": operation.process.pid, "command": operation.command}).encode())
                os.rename(unnamed, path)
            except BaseException:
                os.close(descriptor)
                with suppress(OSError):
                    os.unlink(unnamed)
                raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        return descriptor

    def end(self) -> None:
        """Remove the current operation's file, and only then let go of its lock."""
        if self._descriptor is not None and self._current is not None:
            with suppress(OSError):
                os.unlink(self._directory / self._current.id)
            os.close(self._descriptor)
        self._current = self._descriptor = None

    def living(self, ids: frozenset[str | None]) -> frozenset[str | None]:
        """Return those of these operations that are alive; lists the directory once and opens only their files."""
        if self._captured or not ids - {None}:
            return ids if self._captured else frozenset()
        try:
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return frozenset()
        try:
            return frozenset(name for name in os.listdir(descriptor) if name in ids and _is_locked(name, descriptor))
        finally:
            os.close(descriptor)

    def killed(self, ids: frozenset[str | None]) -> frozenset[str | None]:
        """Return those of these operations that died before their end: their files remain, and nobody locks them."""
        try:
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return frozenset()
        try:
            names = ids.intersection(os.listdir(descriptor))
            return frozenset(name for name in names if name is not None and not _is_locked(name, descriptor))
        finally:
            os.close(descriptor)

    def state(self) -> OperationsState:
        """Return when an operation last began or ended, by the directory's time, and how many there are."""
        try:
            return OperationsState(os.stat(self._directory).st_mtime_ns, len(os.listdir(self._directory)))
        except FileNotFoundError:
            return OperationsState(0, 0)

    def remove_ended(self) -> None:
        """Remove the files of dead operations."""
        try:
            descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return
        try:
            for name in os.listdir(descriptor):
                if not _is_locked(name, descriptor):
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=descriptor)
        finally:
            os.close(descriptor)


def _is_locked(name: str, directory: int) -> bool:
    """Say whether somebody holds the lock on a file; a file that is gone is of an operation that ended."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno != errno.EWOULDBLOCK:
            raise
        return True
    finally:
        os.close(descriptor)
    return False
