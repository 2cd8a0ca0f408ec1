# SPDX-License-Identifier: Apache-2.0
"""Vendor and QEMU commands: the one place that starts a program and reads what it prints.

Never through a shell, always by absolute path, in the C locale (their text is read), in a session of its own
(Ctrl-C at the terminal must not hit it half-way), and never without a deadline.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence

from vgpuctl.value import Value

_DIRECTORIES = ("/usr/bin", "/usr/local/bin", "/bin", "/usr/sbin", "/sbin", "/usr/libexec")
_REAP_SECONDS = 2.0
_SLOW_SECONDS = 0.5
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class Result(Value):
    """What a command that ended by itself left."""

    rc: int
    stdout: str
    stderr: str

    @property
    def complaint(self) -> str:
        """Return the last line it wrote on stderr, which is where tools put the reason."""
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with status {self.rc}"


class GoesOn(Exception):
    """A command was not waited for any longer and runs on alone, as process `pid`."""

    def __init__(self, text: str, pid: int) -> None:
        super().__init__(text)
        self.pid = pid


def find_command(name: str) -> str | None:
    """Return where a command is installed, looking only where the system installs commands."""
    return next((p for d in _DIRECTORIES if os.access(p := f"{d}/{name}", os.X_OK)), None)


def run(argv: Sequence[str], *, deadline_seconds: float, stdin: str | None = None) -> Result:
    """Run a command to its end.

    Raises:
        OSError: it could not be started.
        TimeoutError: the deadline passed; the child was killed, what it started itself was not.
    """
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
        _end(child)
        raise TimeoutError(f"{argv[0]} did not end within {deadline_seconds:g} seconds") from None
    except BaseException:
        _end(child)
        raise
    return Result(child.returncode, stdout, stderr)


def run_to_end(argv: Sequence[str], *, deadline_seconds: float, slow: Callable[[int], None]) -> Result:
    """Run a command that must not be stopped half-way: it takes devices from their drivers and gives them back.

    It is never signalled. An interruption of this process is raised when the command has ended; a second one leaves
    the command to itself. Both streams are in `stdout`. `slow` is told the pid of a command that does not end soon, so
    that it can be written down, and always before the command is left; it is told again when it was interrupted.

    Raises:
        OSError: it could not be started.
        GoesOn: the deadline passed, or a second interruption came.
    """
    import tempfile

    if not os.path.isabs(argv[0]):
        raise ValueError(f"not an absolute path: {argv[0]}")
    with tempfile.TemporaryFile() as output:  # not a pipe: who writes to a closed one is killed
        child = subprocess.Popen(  # noqa: S603 - a list and no shell, by absolute path
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"LC_ALL": "C", "PATH": _PATH},
            start_new_session=True,
        )
        interruption = _wait(child, argv[0], deadline_seconds, slow)
        if interruption is not None:
            raise interruption
        output.seek(0)
        return Result(child.returncode, output.read().decode(errors="replace"), "")


def _wait(
    child: subprocess.Popen[bytes], name: str, deadline_seconds: float, slow: Callable[[int], None]
) -> BaseException | None:
    """Wait for a child's end and return the interruption that came meanwhile."""
    until = time.monotonic() + deadline_seconds
    interruption: BaseException | None = None
    late = told = False
    while True:
        try:
            if late and not told:
                slow(child.pid)
                told = True
            left = max(0.0, until - time.monotonic())
            child.wait(timeout=left if told else min(left, _SLOW_SECONDS))
            return interruption
        except subprocess.TimeoutExpired:
            if told:
                text = f"{name} has not ended after {deadline_seconds:g} seconds; it goes on as process {child.pid}"
                raise GoesOn(text, child.pid) from interruption
            late = True
        except BaseException as error:
            if interruption is not None:
                if not told:
                    slow(child.pid)
                raise GoesOn(f"{name} was not waited for; it goes on as process {child.pid}", child.pid) from error
            interruption = error


def _end(child: subprocess.Popen[str]) -> None:
    """Kill a child and let go of its pipes; a grandchild may keep them open for ever."""
    child.kill()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:
                continue
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=_REAP_SECONDS)  # one that the kernel holds does not die; never wait for it
