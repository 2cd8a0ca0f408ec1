# SPDX-License-Identifier: Apache-2.0
"""Writes that the kernel may park: done by a child that is left alone when they do not come back.

Removing a vfio device that somebody holds keeps its writer in the kernel, and after a signal not even SIGKILL
ends that (drivers/vfio/vfio_main.c). So an exec'd child writes; never a bare fork, which would share the host
lock. It has all signals blocked and a session of its own, so neither Ctrl-C nor a hang-up reaches it, and it
holds nothing but a pipe on which it reports the kernel's errno. A write that is slow is recorded soon after it
begins rather than at the deadline, so that a parent that is killed meanwhile does not leave it unknown.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import Protocol

from vgpuctl.errors import Stuck
from vgpuctl.model.vm import ProcessId, StuckWrite

_RECORD_AFTER_SECONDS = 0.5
_EIO = 5

# Runs in an interpreter that imports nothing else. Its arguments stay visible in ps, which is what an
# administrator looks at.
_CHILD = """
import os, sys
path, text = sys.argv[1:3]
os.closerange(3, 65536)
try:
    file = os.open(path, os.O_WRONLY | os.O_TRUNC)
    data = os.fsencode(text)
    code = 0 if os.write(file, data) == len(data) else 5
except OSError as error:
    code = error.errno or 5
try:
    os.write(1, b"%d\\n" % code)
except OSError:  # nobody waits any more
    pass
"""


class StuckRecords(Protocol):
    """Where a write that does not come back is written down."""

    def record_stuck(self, write: StuckWrite) -> None:
        """Keep the record."""

    def forget_stuck(self, write: StuckWrite) -> None:
        """Drop it."""


class FindProcess(Protocol):
    """Tells a process's start time."""

    def started(self, pid: int) -> ProcessId | None:
        """Return a process by pid."""


class ParkedWriter:
    """Writes in a child and waits for it no longer than a deadline."""

    def __init__(self, records: StuckRecords, processes: FindProcess) -> None:
        self._records = records
        self._processes = processes
        self._left: list[int] = []

    def write(self, real_path: str, text: str, *, path: str, gpu: str, deadline_seconds: float) -> None:
        """Write `text` to `real_path`, called `path` in messages.

        Raises:
            OSError: the kernel refused it; errno is what the child got.
            Stuck: the deadline passed; the write goes on and is recorded.
        """
        self._collect()
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            pid = _spawn(real_path, text, writer)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        try:
            code = self._wait(pid, reader, StuckWrite(ProcessId(pid, 0), gpu, path, text), deadline_seconds)
        finally:
            os.close(reader)
        if code:
            raise OSError(code, os.strerror(code), path)

    def _wait(self, pid: int, reader: int, write: StuckWrite, deadline_seconds: float) -> int:
        """Return the child's errno (0: written)."""
        process = self._processes.started(pid) or write.process
        write = StuckWrite(process, write.gpu, write.path, write.text)
        deadline = time.monotonic() + deadline_seconds
        ended = recorded = False
        try:
            ended = _readable(reader, min(deadline_seconds, _RECORD_AFTER_SECONDS))
            if not ended:
                recorded = True
                self._records.record_stuck(write)
                ended = _readable(reader, deadline - time.monotonic())
        finally:
            if not ended:  # the deadline, or a signal to this process
                self._left.append(pid)
                if not recorded:
                    self._records.record_stuck(write)
        if not ended:
            raise Stuck(
                f"the kernel has not come back from writing {write.text!r} to {write.path} (pid {pid})",
                hint=f"something still holds {write.gpu}; see where it waits: cat /proc/{pid}/stack",
                pid=pid,
                path=write.path,
                gpu=write.gpu,
                deadline_seconds=deadline_seconds,
            )
        answer = os.read(reader, 16)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        if recorded:
            self._records.forget_stuck(write)
        return int(answer) if answer.strip().isdigit() else _EIO

    def _collect(self) -> None:
        """Let children that came back after their deadline go."""
        for pid in tuple(self._left):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    continue
            with contextlib.suppress(ValueError):  # another thread let it go just now
                self._left.remove(pid)


def _spawn(path: str, text: str, writer: int) -> int:
    """Start the writing child and return its pid."""
    python = sys.executable or "/usr/bin/python3"
    null_in = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    null_err = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
    return os.posix_spawn(
        python,
        [python, "-I", "-S", "-c", _CHILD, path, text],
        {"PATH": "/usr/bin:/bin"},
        file_actions=[null_in, (os.POSIX_SPAWN_DUP2, writer, 1), null_err],
        setsid=True,
        setsigmask=signal.valid_signals(),
    )


def _readable(descriptor: int, seconds: float) -> bool:
    """Wait until a pipe can be read or is closed at its other end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0, int(seconds * 1000))))
