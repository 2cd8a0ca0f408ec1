# SPDX-License-Identifier: Apache-2.0
"""The host lock: flock(2) on one file below /run/vgpuctl, held for milliseconds.

The kernel lets go of it when its holder dies, however it dies. The file is never removed: somebody may be
waiting on it. Its text says who holds it, for those who wait in vain; it is written after the lock is taken
and emptied before it is given back; where /run is full, nobody is told, and the lock holds all the same. The
descriptor is closed on exec, so no child keeps the lock.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgpuctl.errors import FileFailed, HostCannot, Locked
from vgpuctl.model.json_text import parsed

if TYPE_CHECKING:
    from vgpuctl.model.seams import Clock, Processes

_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05
_HOLDER_NICE = -20


def make_private(*directories: Path) -> None:
    """Make directories for root alone where they are missing, outermost first."""
    os.makedirs(directories[0].parent, exist_ok=True)
    for directory in directories:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)


class HostLock:
    """One process's handle on a lock; not for several threads. Without a path (a captured tree) it is only noted.

    `what`: what is held, for those who wait in vain.
    """

    def __init__(
        self, path: Path | None, processes: Processes, command: str, clock: Clock, what: str = "the host lock"
    ) -> None:
        self._path = path
        self._what = what
        self._processes = processes
        self._command = command
        self._clock = clock
        self._held = False

    @property
    def held(self) -> bool:
        """Whether this process holds the lock now."""
        return self._held

    @contextmanager
    def hold(self, wait_seconds: float) -> Iterator[None]:
        """Take the lock, and give it back at the end of the block.

        Raises:
            Locked: after `wait_seconds`, naming the holder.
            FileFailed: there is no room for the lock file.
            HostCannot: it cannot be opened.
        """
        if self._held:
            raise AssertionError("the host lock is held already")
        with nullcontext() if self._path is None else self._locked_file(self._path, wait_seconds):
            self._held = True
            try:
                yield
            finally:
                self._held = False

    @contextmanager
    def _locked_file(self, path: Path, wait_seconds: float) -> Iterator[None]:
        descriptor = _opened(path)
        try:
            self._wait(descriptor, wait_seconds)
            with _first_in_line():
                with suppress(OSError):
                    self._sign(descriptor)
                try:
                    yield
                finally:
                    with suppress(OSError):
                        os.ftruncate(descriptor, 0)
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _wait(self, descriptor: int, wait_seconds: float) -> None:
        """Try until the deadline: flock has no timeout, and an alarm belongs to the whole process."""
        deadline = self._clock.monotonic() + wait_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    raise self._locked(descriptor, wait_seconds) from None
                self._clock.pause(min(pause, left))
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
            else:
                return

    def _sign(self, descriptor: int) -> None:
        """Say who holds the lock; a name that is left from an earlier holder is taken away first."""
        os.ftruncate(descriptor, 0)
        this = self._processes.this()
        text = json.dumps({"pid": this.pid, "start_ticks": this.start_ticks, "command": self._command})
        os.pwrite(descriptor, text.encode(), 0)

    def _locked(self, descriptor: int, wait_seconds: float) -> Locked:
        try:
            holder: Any = parsed(os.pread(descriptor, 4096, 0))
            pid, command = int(holder["pid"]), str(holder["command"])
        except (ValueError, KeyError, TypeError):  # it has just taken the lock, or is just letting go
            return Locked(f"another vgpuctl holds {self._what}", hint="try again", waited_seconds=wait_seconds)
        return Locked(
            f"another vgpuctl holds {self._what}: pid {pid} ({command})",
            hint=f"wait longer with --wait SECONDS, or look at it: ps -fp {pid}",
            pid=pid,
            command=command,
            waited_seconds=wait_seconds,
        )


@contextmanager
def _first_in_line() -> Iterator[None]:
    """Have the holder scheduled before others: those who wait for the lock would compete with it for a CPU.

    setpriority(2) lets root alone go below its nice value; for others nothing changes.
    """
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _HOLDER_NICE)
    try:
        yield
    finally:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, nice)


def _opened(path: Path) -> int:
    try:
        make_private(path.parent)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        text, place = f"cannot open {path}: {error.strerror}", path.parent.parent
        if error.errno in (errno.ENOSPC, errno.EROFS, errno.EDQUOT):
            hint = f"is it full, or mounted read-only? df -h {place}; df -i {place}"
            raise FileFailed(text, hint=hint, path=str(path), errno=error.errno) from error
        raise HostCannot(
            text, hint="run it as root", check="run-directory", path=str(path), errno=error.errno
        ) from error
