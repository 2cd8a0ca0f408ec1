# SPDX-License-Identifier: Apache-2.0
"""A connection to the host agent of another host, as a socket: the channel of `vgpuctl agent dial` there.

A read ends at a stop of the user and at the deadline, in whatever thread it waits: signals reach the main thread alone.
"""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Callable
from typing import Any

from vgpuctl.errors import DeadlineExceeded, Interrupted
from vgpuctl.remote.reply import last_line
from vgpuctl.remote.session import MAX_NOISE_BYTES, RunControl

GRACE_SECONDS = 30.0
"""How long a command that was stopped at its deadline may take to undo its work."""
_POLL_SECONDS = 0.2
_CHUNK_BYTES = 64 << 10
_ERROR_LINE = re.compile(r"^vgpuctl: (.{1,300}?)(?:   \[[a-z-]+\])?$", re.MULTILINE)
_HTTP = b"HTTP/1."
"""How the agent's answers begin, at the beginning of a line: a shell's ~/.bashrc may print before."""


class DialledSocket:
    """A channel with the methods of a socket that http.client uses: paramiko's own files have no `peek`."""

    def __init__(self, name: str, channel: Any, control: RunControl | None, on_close: Callable[[], None]) -> None:
        self.name = name
        self._channel = channel
        self._control = control
        self._on_close = on_close
        self._seconds: float | None = None
        self._errors = ""
        self._open_files = 0
        self._is_closed = False
        self._stops = 0 if control is None else control.interrupt_count()
        self._is_late = control is not None and time.monotonic() >= control.deadline

    def settimeout(self, seconds: float | None) -> None:
        """Set how long one read or write may take."""
        self._seconds = seconds

    def sendall(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            OSError: the connection broke.
        """
        self._channel.settimeout(self._seconds)
        end = None if self._seconds is None else time.monotonic() + self._seconds
        view = memoryview(data)  # paramiko's own copies what is left with each packet: 64 MiB took a minute
        while view:
            try:
                sent = self._channel.send(bytes(view[:_CHUNK_BYTES]))
            except TimeoutError:  # perhaps of a read in another thread, which has a shorter one
                if end is not None and time.monotonic() > end:
                    raise
                continue
            if not sent:
                raise ConnectionResetError("the connection is closed")
            view = view[sent:]

    def shutdown(self, how: int) -> None:
        """End both directions: who waits for bytes gets none."""
        channel = self._channel
        if channel is not None:
            with contextlib.suppress(Exception):  # it may be closed meanwhile
                channel.shutdown(how)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the bytes of an answer as a file. As a socket does, the connection stays until it is closed, too."""
        self._open_files += 1
        return io.BufferedReader(_AnswerReader(self.receive, self._close_file))

    def receive(self, limit: int) -> bytes:
        """Return what is there, or wait for it; nothing at the end.

        Raises:
            Interrupted, DeadlineExceeded: the user stopped the command, or its deadline passed, since the connection
                was made.
            TimeoutError: nothing came in time.
        """
        end = None if self._seconds is None else time.monotonic() + self._seconds
        self._channel.settimeout(_POLL_SECONDS)
        while True:
            try:
                data: bytes = self._channel.recv(limit)
                return data
            except TimeoutError:
                self._check(time.monotonic())
                if end is not None and time.monotonic() > end:
                    raise TimeoutError(f"nothing came within {self._seconds:.0f} s") from None

    def _check(self, now: float) -> None:
        if self._control is None:
            return
        if self._control.interrupt_count() > self._stops:
            raise Interrupted(f"{self.name}: stopped", signal_number=2)
        if self._is_late and now > self._control.deadline + GRACE_SECONDS:
            raise TimeoutError("it was signalled to stop, but did not")
        if not self._is_late and now > self._control.deadline:
            raise DeadlineExceeded(
                f"{self.name}: it had not finished at the deadline, and was stopped",
                hint="use a longer --host-deadline SECONDS",
            )

    def error_line(self) -> str:
        """Return why the program there has ended, as it says on stderr; nothing if it says nothing."""
        self._read_errors()
        match = _ERROR_LINE.search(self._errors)
        return match[1] if match else last_line(self._errors)

    def _read_errors(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(Exception):  # they are only an explanation
                self._channel.settimeout(_POLL_SECONDS)
                self._errors += self._channel.recv_stderr(_CHUNK_BYTES).decode(errors="replace")

    def close(self) -> None:
        """Close the connection, when its files are closed."""
        self._is_closed = True
        self._close_unless_used()

    def _close_file(self) -> None:
        self._open_files -= 1
        if self._is_closed:
            self._close_unless_used()

    def _close_unless_used(self) -> None:
        if not self._open_files and self._channel is not None:
            if self._channel.recv_stderr_ready():
                self._read_errors()
            channel, self._channel = self._channel, None
            with contextlib.suppress(Exception):
                channel.close()
            self._on_close()


class _AnswerReader(io.RawIOBase):
    """The bytes of an answer, without what the shell there printed before."""

    def __init__(self, receive: Callable[[int], bytes], on_close: Callable[[], None]) -> None:
        self._receive = receive
        self._on_close = on_close
        self._received = b""
        self._has_begun = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            super().close()
            self._on_close()

    def readinto(self, buffer: Any) -> int:
        """Read what is there, or wait for it; 0 at the end."""
        if not self._has_begun:
            self._received = self._skip_noise()
            self._has_begun = True
        data = self._received[: len(buffer)] or self._receive(len(buffer))
        self._received = self._received[len(data) :]
        buffer[: len(data)] = data
        return len(data)

    def _skip_noise(self) -> bytes:
        received = b""
        while len(received) <= MAX_NOISE_BYTES:
            start = 0 if received.startswith(_HTTP) else received.find(b"\n" + _HTTP) + 1
            if start or received.startswith(_HTTP):
                return received[start:]
            data = self._receive(_CHUNK_BYTES)
            if not data:
                return b""
            received += data
        raise OSError(f"it printed more than {MAX_NOISE_BYTES >> 20} MiB before an answer")
