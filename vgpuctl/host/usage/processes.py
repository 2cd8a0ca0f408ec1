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
from typing import IO

from vgpuctl.host.commands import PATH

_CHUNK_BYTES = 1 << 16
_REAP_SECONDS = 1.0
_ERROR_LENGTH = 200


def read_output(
    argv: Sequence[str], *, user: str | None, deadline_seconds: float, max_bytes: int, quote_error: bool = False
) -> bytes:
    """Return what a command prints. `user`: as whom it runs, None: as this process.

    `quote_error`: the first line of its errors is in the exception where it failed; else they are not read.

    Raises:
        OSError: there is no such user, it could not be started, prints too much, or ended with another status than 0.
        TimeoutError: the deadline passed; the command was killed with what it started.
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
        stderr=subprocess.PIPE if quote_error else subprocess.DEVNULL,
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
        output, errors = _read_to_end(child.stdout, child.stderr, deadline, max_bytes)
        status = child.wait(max(0.1, deadline - time.monotonic()))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise TimeoutError(f"it did not end within {deadline_seconds:g} s") from None
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)  # also what it left behind in its session
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_REAP_SECONDS)
    if status:
        raise OSError(f"it ended with status {status}{_first_line(errors)}")
    return output


def _first_line(errors: bytes) -> str:
    """Return what a command complained about, without control characters."""
    lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
    text = "".join(c if c.isprintable() else "?" for c in lines[0].strip()[:_ERROR_LENGTH]) if lines else ""
    return f": {text}" if text else ""


def _is_readable(descriptor: int, seconds: float) -> bool:
    """Wait until something can be read; select(2) takes no descriptor above 1,023."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _read_to_end(pipe: IO[bytes], error_pipe: IO[bytes] | None, deadline: float, max_bytes: int) -> tuple[bytes, bytes]:
    """Return what comes from a pipe, and the beginning of what comes from the other one."""
    texts = {one.fileno(): b"" for one in (pipe, error_pipe) if one is not None}
    poll = select.poll()  # select(2) takes no descriptor above 1,023
    for descriptor in texts:
        poll.register(descriptor, select.POLLIN)
    is_open = set(texts)
    while is_open:
        remaining = deadline - time.monotonic()
        ready = poll.poll(1000 * remaining) if remaining > 0 else []
        if not ready:
            raise TimeoutError
        for descriptor, _ in ready:
            chunk = os.read(descriptor, _CHUNK_BYTES)
            if not chunk:
                is_open.discard(descriptor)
                poll.unregister(descriptor)
            elif descriptor == pipe.fileno():
                texts[descriptor] += chunk
            else:
                texts[descriptor] = (texts[descriptor] + chunk)[:_CHUNK_BYTES]
        if len(texts[pipe.fileno()]) > max_bytes:
            raise OSError(f"it prints more than {max_bytes} bytes")
    return texts[pipe.fileno()], texts[error_pipe.fileno()] if error_pipe is not None else b""


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
