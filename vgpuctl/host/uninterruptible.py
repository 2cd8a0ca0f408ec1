# SPDX-License-Identifier: Apache-2.0
"""Writes that may hang in the kernel: a child process does them, and is left alone if the write does not return.

A write that removes a vfio device hangs in the kernel while a process holds the device, and after a signal not even
SIGKILL ends it (drivers/vfio/vfio_main.c). So an exec'd child writes; a bare fork would share the host lock. The child
has all signals blocked and its own session, so neither Ctrl-C nor a hang-up reaches it. It holds only a pipe, on which
it reports the kernel's errno. A slow write is recorded soon after it starts rather than at the deadline, so it is
known even if the parent is killed meanwhile.
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

# Runs in an interpreter that imports nothing else. Its arguments stay visible in ps, where an administrator looks.
_CHILD_PROGRAM = """
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


class StuckWriteStore(Protocol):
    """Where writes that do not return are recorded."""

    def add_stuck_write(self, write: StuckWrite) -> None:
        """Record a write."""

    def remove_stuck_write(self, write: StuckWrite) -> None:
        """Remove the entry."""


class ProcessLookup(Protocol):
    """Looks up a process's start time."""

    def find_process(self, pid: int) -> ProcessId | None:
        """Return a process by pid."""


class UninterruptibleWriter:
    """Writes in a child process and waits for it until a deadline at most."""

    def __init__(self, store: StuckWriteStore, processes: ProcessLookup) -> None:
        self._records = store
        self._processes = processes
        self._unreaped_pids: list[int] = []

    def write(self, real_path: str, text: str, *, path: str, gpu: str, deadline_seconds: float) -> None:
        """Write `text` to `real_path`, called `path` in messages.

        Raises:
            OSError: the kernel refused the write; errno is the child's.
            Stuck: the deadline passed; the write continues and is recorded.
        """
        self._reap_children()
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            pid = _spawn_writer(real_path, text, writer)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        try:
            code = self._wait_for_child(pid, reader, StuckWrite(ProcessId(pid, 0), gpu, path, text), deadline_seconds)
        finally:
            os.close(reader)
        if code:
            raise OSError(code, os.strerror(code), path)

    def _wait_for_child(self, pid: int, reader: int, write: StuckWrite, deadline_seconds: float) -> int:
        """Return the child's errno (0: written)."""
        process = self._processes.find_process(pid) or write.process
        write = StuckWrite(process, write.gpu, write.path, write.text)
        deadline = time.monotonic() + deadline_seconds
        ended = recorded = False
        try:
            ended = _wait_readable(reader, min(deadline_seconds, _RECORD_AFTER_SECONDS))
            if not ended:
                recorded = True
                self._records.add_stuck_write(write)
                ended = _wait_readable(reader, deadline - time.monotonic())
        finally:
            if not ended:  # the deadline, or a signal to this process
                self._unreaped_pids.append(pid)
                if not recorded:
                    self._records.add_stuck_write(write)
        if not ended:
            raise Stuck(
                f"the kernel has not finished writing {write.text!r} to {write.path} (pid {pid})",
                hint=f"cat /proc/{pid}/stack shows where it waits; a program still holds {write.gpu}",
                pid=pid,
                path=write.path,
                gpu=write.gpu,
                deadline_seconds=deadline_seconds,
            )
        reply = os.read(reader, 16)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        if recorded:
            self._records.remove_stuck_write(write)
        return int(reply) if reply.strip().isdigit() else _EIO

    def _reap_children(self) -> None:
        """Reap the children that ended after their deadline."""
        for pid in tuple(self._unreaped_pids):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    continue
            with contextlib.suppress(ValueError):  # another thread has just reaped it
                self._unreaped_pids.remove(pid)


def _spawn_writer(path: str, text: str, writer: int) -> int:
    """Start the writing child and return its pid."""
    python = sys.executable or "/usr/bin/python3"
    null_in = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    null_err = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
    return os.posix_spawn(
        python,
        [python, "-I", "-S", "-c", _CHILD_PROGRAM, path, text],
        {"PATH": "/usr/bin:/bin"},
        file_actions=[null_in, (os.POSIX_SPAWN_DUP2, writer, 1), null_err],
        setsid=True,
        setsigmask=signal.valid_signals(),
    )


def _wait_readable(descriptor: int, seconds: float) -> bool:
    """Wait until a pipe is readable or its other end is closed."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0, int(seconds * 1000))))
