# SPDX-License-Identifier: Apache-2.0
"""Runs vendor and QEMU commands: the only place that starts a program and reads its output.

A command never runs through a shell. It always runs by absolute path, in the C locale (vgpuctl parses its output), in
its own session (Ctrl-C at the terminal must not interrupt it half-way), and with a deadline.
"""

from __future__ import annotations

import contextlib
import os
import select
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING

from vgpuctl.value import Value

if TYPE_CHECKING:
    import subprocess

_DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/sbin", "/usr/libexec")
_OUTPUT_BYTES = 64 << 10
_REAP_SECONDS = 2.0
_SLOW_SECONDS = 0.5
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class CompletedCommand(Value):
    """The result of a command that ended by itself."""

    status: int
    stdout: str
    stderr: str

    @property
    def error_line(self) -> str:
        """Return the last line on stderr, where tools print the reason."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with status {self.status}"


class StillRunning(Exception):
    """vgpuctl stopped waiting for a command, which continues as process `pid`."""

    def __init__(self, text: str, pid: int) -> None:
        super().__init__(text)
        self.pid = pid


def find_command(name: str) -> str | None:
    """Return a command's path, searching only the system's own directories."""
    return next((p for d in _DIRECTORIES if os.access(p := f"{d}/{name}", os.X_OK)), None)


def run_command(argv: Sequence[str], *, deadline_seconds: float, stdin: str | None = None) -> CompletedCommand:
    """Run a command to its end.

    Raises:
        OSError: it could not be started.
        TimeoutError: the deadline passed; the child was killed, its own children were not.
    """
    import subprocess  # slow to load, and commands that only read start no program

    if not os.path.isabs(argv[0]):
        raise ValueError(f"not an absolute path: {argv[0]}")
    child = subprocess.Popen(  # noqa: S603 - a list and no shell, by absolute path
        list(argv),
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={"LC_ALL": "C", "PATH": _PATH},
        start_new_session=True,
    )
    try:
        stdout, stderr = child.communicate(stdin, timeout=deadline_seconds)
    except subprocess.TimeoutExpired:
        _kill(child)
        raise TimeoutError(f"{argv[0]} did not end within {deadline_seconds:g} seconds") from None
    except BaseException:
        _kill(child)
        raise
    return CompletedCommand(child.returncode, stdout, stderr)


def run_watched(argv: Sequence[str], report: Callable[[str], None]) -> CompletedCommand:
    """Run a command that takes as long as it takes; `report` gets its latest output about twice a second.

    When `report` raises, or a signal arrives, the command is killed before the exception goes on.

    Raises:
        OSError: it could not be started.
    """
    import subprocess  # slow to load, and commands that only read start no program

    if not os.path.isabs(argv[0]):
        raise ValueError(f"not an absolute path: {argv[0]}")
    with tempfile.TemporaryFile() as errors:  # not a pipe: nobody reads it before the end
        child = subprocess.Popen(  # noqa: S603 - a list and no shell, by absolute path
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={"LC_ALL": "C", "PATH": _PATH},
            start_new_session=True,
        )
        try:
            while child.stdout is not None and (output := _read_output(child.stdout)) != b"":
                report(output.decode(errors="replace") if output is not None else "")
            child.wait()
        except BaseException:
            _kill(child)
            raise
        errors.seek(0)
        return CompletedCommand(child.returncode, "", errors.read().decode(errors="replace"))


def _read_output(pipe: IO[bytes]) -> bytes | None:
    """Return what arrived in a pipe, None if nothing arrived for half a second, and no bytes at its end."""
    readable, _, _ = select.select([pipe], [], [], _SLOW_SECONDS)
    return os.read(pipe.fileno(), _OUTPUT_BYTES) if readable else None


def run_uninterrupted(
    argv: Sequence[str], *, deadline_seconds: float, report_slow: Callable[[int], None]
) -> CompletedCommand:
    """Run a command that must not be stopped half-way: it unbinds devices from their drivers and binds them again.

    It is never signalled. An interruption of this process is raised once the command has ended; a second one stops
    waiting for the command. Both streams are in `stdout`. `report_slow` gets the pid of a command that does not end
    soon, so that the caller can record it, and always before the wait is abandoned. An interrupted call is repeated.

    Raises:
        OSError: it could not be started.
        StillRunning: the deadline passed, or a second interruption came.
    """
    import subprocess  # slow to load, and commands that only read start no program

    if not os.path.isabs(argv[0]):
        raise ValueError(f"not an absolute path: {argv[0]}")
    with tempfile.TemporaryFile() as output:  # not a pipe: a process that writes to a closed pipe is killed
        child = subprocess.Popen(  # noqa: S603 - a list and no shell, by absolute path
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"LC_ALL": "C", "PATH": _PATH},
            start_new_session=True,
        )
        interruption = _wait_for_child(child, argv[0], deadline_seconds, report_slow)
        if interruption is not None:
            raise interruption
        output.seek(0)
        return CompletedCommand(child.returncode, output.read().decode(errors="replace"), "")


def _wait_for_child(
    child: subprocess.Popen[bytes], name: str, deadline_seconds: float, report_slow: Callable[[int], None]
) -> BaseException | None:
    """Wait for a child's end and return the interruption that came meanwhile, if any."""
    import subprocess  # slow to load, and commands that only read start no program

    deadline = time.monotonic() + deadline_seconds
    interruption: BaseException | None = None
    is_slow = reported = False
    while True:
        try:
            if is_slow and not reported:
                report_slow(child.pid)
                reported = True
            remaining = max(0.0, deadline - time.monotonic())
            child.wait(timeout=remaining if reported else min(remaining, _SLOW_SECONDS))
            return interruption
        except subprocess.TimeoutExpired:
            if reported:
                text = f"{name} has not ended after {deadline_seconds:g} seconds; it continues as process {child.pid}"
                raise StillRunning(text, child.pid) from interruption
            is_slow = True
        except BaseException as error:
            if interruption is not None:
                if not reported:
                    report_slow(child.pid)
                raise StillRunning(
                    f"{name} was not waited for; it continues as process {child.pid}", child.pid
                ) from error
            interruption = error


def _kill(child: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Kill a child and close its pipes; a grandchild may keep them open forever."""
    import subprocess  # slow to load, and commands that only read start no program

    child.kill()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_REAP_SECONDS)  # a process that hangs in the kernel does not die; never wait for it
