# SPDX-License-Identifier: Apache-2.0
"""Programs of the operator that print something once, and a process that answers line by line."""

from __future__ import annotations

import os
import pwd
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING

from vgpuctl.host.commands import PATH

if TYPE_CHECKING:
    import subprocess

_CHUNK_BYTES = 1 << 16
_REAP_SECONDS = 1.0


class LateProgram(TimeoutError):
    """A program did not end in time. It was killed; one that hangs in the kernel ends when the kernel lets it."""

    def __init__(self, text: str, child: subprocess.Popen[bytes]) -> None:
        super().__init__(text)
        self.pid = child.pid
        self._child = child

    @property
    def has_ended(self) -> bool:
        """Whether it has ended meanwhile."""
        return self._child.poll() is not None


def read_output(argv: Sequence[str], *, user: str | None, deadline_seconds: float, max_bytes: int) -> bytes:
    """Return what a command prints. `user`: as whom it runs, None: as this process. Its errors are not read.

    Raises:
        OSError: there is no such user, it could not be started, prints too much, or ended with another status than 0.
        LateProgram: the deadline passed; the command was killed with what it started.
    """
    import subprocess  # slow to load

    account = None
    if user is not None:
        try:
            account = pwd.getpwnam(user)
        except KeyError:
            raise OSError(f"there is no user {user}") from None
    switches = account if os.geteuid() == 0 else None
    child = subprocess.Popen(  # noqa: S603 - a list and no shell, by absolute path
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"LC_ALL": "C", "PATH": PATH},
        cwd="/",
        start_new_session=True,
        user=None if switches is None else switches.pw_uid,
        group=None if switches is None else switches.pw_gid,
        extra_groups=None if switches is None else (),
    )
    assert child.stdout is not None
    deadline = time.monotonic() + deadline_seconds
    try:
        output = _read_to_end(child.stdout, deadline, max_bytes)
        status = child.wait(max(0.1, deadline - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise LateProgram(f"it did not end within {deadline_seconds:g} s", child) from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # also what it left behind in its session
        child.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_REAP_SECONDS)
    if status:
        raise OSError(f"it ended with status {status}" if status > 0 else f"signal {-status} ended it")
    return output


def _is_readable(descriptor: int, seconds: float) -> bool:
    """Wait until something can be read; select(2) takes no descriptor above 1,023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _read_to_end(pipe: IO[bytes], deadline: float, max_bytes: int) -> bytes:
    """Return what comes from a pipe until it is closed."""
    output = b""
    while True:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not _is_readable(pipe.fileno(), remaining):
            raise TimeoutError
        chunk = os.read(pipe.fileno(), _CHUNK_BYTES)
        if not chunk:
            return output
        output += chunk
        if len(output) > max_bytes:
            raise OSError(f"it prints more than {max_bytes} bytes")


class LineProcess:
    """A process that answers each line on its input with one line.

    Raises, when it is made:
        OSError: it could not be started.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        import subprocess  # slow to load

        self._unread = b""
        self._child = subprocess.Popen(  # noqa: S603 - a list and no shell
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        self.pid = self._child.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._child.poll() is not None

    def ask(self, line: bytes, *, deadline_seconds: float, max_bytes: int) -> bytes:
        """Send a line and return the answer.

        Raises:
            TimeoutError: it did not come in time.
            OSError: the process has ended, or its answer is too long.
        """
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        deadline, file = time.monotonic() + deadline_seconds, self._child.stdout.fileno()
        self._child.stdin.write(line)
        self._child.stdin.flush()
        while b"\n" not in self._unread:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not _is_readable(file, remaining):
                raise TimeoutError(f"no answer within {deadline_seconds:g} s")
            chunk = os.read(file, _CHUNK_BYTES)
            if not chunk:
                raise OSError(f"it ended with status {self._child.wait()}")
            if len(self._unread) > max_bytes:
                raise OSError("its answer is too long")
            self._unread += chunk
        answer, _, self._unread = self._unread.partition(b"\n")
        return answer

    def end(self) -> None:
        """End it. One that hangs in the kernel ends when the kernel lets it."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self._child.kill()
