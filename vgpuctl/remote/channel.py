# SPDX-License-Identifier: Apache-2.0
"""A login at another host and the command that runs in it, over whatever channels it is given.

There is no terminal there: one would mix stdout with stderr. So nothing there notices Ctrl-C here. A second command
of the same login sends SIGINT to the first, and vgpuctl there takes back what it began, as at a terminal.
"""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable
from typing import Any

from vgpuctl.errors import Unreachable
from vgpuctl.remote import remote_command
from vgpuctl.remote.ran import (
    MOST_ANSWER_BYTES,
    MOST_NOISE_BYTES,
    NOT_WAITED,
    TOO_LONG,
    TOO_NOISY,
    Asked,
    Ran,
    Watch,
)

GRACE_SECONDS = 30.0
"""How long a command that was told to stop because it is late has to take back what it began."""
STOPS_TO_LEAVE = 3
"""The first stop undoes, the second ends the undo there, the third does not wait any longer."""
MOST_STDERR_BYTES = 1 << 20
MOST_STDERR_LINES = 10_000
"""How much of a host's stderr is shown. Making 1,000 VMs tells 7,000 lines of progress."""
_LOOK_SECONDS = 0.1
_SEND_SECONDS = 0.01
_TAIL = 64 << 10
_PIECE = 64 << 10
_LINE = 64
"""No line of remote_command's script that says its process id is longer."""
_AFTER_EXIT_SECONDS = 5.0


class SshSession:
    """A login, see `ran.Session`."""

    def __init__(self, name: str, user: str, transport: Any, until: float, log_out: Callable[[], None]) -> None:
        self.name = name
        self.user = user
        self._transport = transport
        self._log_out = log_out
        longest = max(0.0, until - time.monotonic()) + GRACE_SECONDS + _AFTER_EXIT_SECONDS
        self._watchdog = threading.Timer(longest, log_out)  # paramiko waits for some answers without an end
        self._watchdog.daemon = True
        self._watchdog.start()

    def run(self, asked: Asked, watch: Watch) -> Ran:
        """Run vgpuctl there, see `ran.Session`."""
        made = None if asked.program_bytes is None else remote_command.python_line(asked.program_bytes, self.user)
        channel = self._begin(made or remote_command.line(asked.words, self.user))
        try:
            return _Running(self, channel, watch, asked.stdin).wait()
        finally:
            with contextlib.suppress(Exception):
                channel.close()

    def close(self) -> None:
        """Log out."""
        self._watchdog.cancel()
        self._log_out()

    def active(self) -> bool:
        """Say whether the connection still stands."""
        return bool(self._transport.is_active())

    def stop(self, pid: int) -> bool:
        """Send SIGINT to the command, not waiting for what comes of it, and say whether that was possible."""
        try:
            self._begin(remote_command.stop_line(pid, self.user))
        except Unreachable:
            return False
        return True

    def _begin(self, line: str) -> Any:
        try:
            channel = self._transport.open_session()
            channel.exec_command(line)
        except Exception as exc:  # paramiko's own, EOFError and OSError alike: the connection is of no use any more
            why = str(exc) or type(exc).__name__
            raise Unreachable(f"{self.name}: the connection broke before the command began: {why}") from exc
        return channel


class _Running:
    """One command while it runs."""

    def __init__(self, session: SshSession, channel: Any, watch: Watch, stdin: bytes) -> None:
        self.session = session
        self.channel = channel
        self.watch = watch
        self.stdin = stdin
        self.sent: int | None = 0
        self.out = bytearray()
        self.err = bytearray()
        self.told = 0
        self.lines_left, self.bytes_left = MOST_STDERR_LINES, MOST_STDERR_BYTES
        self.pid: int | None = None
        self.stopped = 0
        self.late_at: float | None = None

    def wait(self) -> Ran:
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        exited: float | None = None
        while True:
            sent, read = self._send(), self._read()
            if self.pid is None and len(self.out) > MOST_NOISE_BYTES:
                return self._ran(None, TOO_NOISY)
            if len(self.out) > MOST_ANSWER_BYTES:
                return self._ran(None, TOO_LONG)
            if self.channel.exit_status_ready():
                exited = exited or time.monotonic()
                over = self.channel.eof_received or self.channel.closed
                if not read and (over or time.monotonic() > exited + _AFTER_EXIT_SECONDS):
                    return self._ended()
            elif not read and not self.session.active():
                return self._ended()
            gave_up = self._stop_when_due()
            if gave_up:
                return self._ran(None, gave_up)
            if read or sent:
                continue
            if self.channel.eof_received:
                self.channel.status_event.wait(_LOOK_SECONDS)  # its descriptor is ready for ever now
            else:
                poll.poll((_LOOK_SECONDS if self.sent is None else _SEND_SECONDS) * 1000)

    def _ended(self) -> Ran:
        """Return what it left, or that nobody heard: paramiko has -1 for a signal and for a broken connection."""
        status = self.channel.recv_exit_status() if self.channel.exit_status_ready() else -1
        if status >= 0:
            return self._ran(status, None)
        return self._ran(None, "a signal killed it there" if self.session.active() else "the connection broke")

    def _send(self) -> bool:
        """Send a piece of the standard input when it is taken now, and say whether it was. After a stop none is."""
        if self.sent is None:
            return False
        try:
            if self.sent == len(self.stdin):
                self.sent = None
                self.channel.shutdown_write()
                return False
            if self.watch.stops() or not self.channel.send_ready():
                return False
            self.sent += self.channel.send(self.stdin[self.sent : self.sent + _PIECE])
            if self.watch.sent is not None:
                self.watch.sent(self.sent)
        except (OSError, EOFError):  # it ended without reading: its status tells why
            self.sent = None
        return self.sent is not None

    def _read(self) -> bool:
        """Take a piece of what has come, and say whether there was any: output without an end hinders no stop."""
        some = False
        if self.channel.recv_ready():
            self.out += self.channel.recv(_PIECE)
            some = True
        if some and self.pid is None:
            found = remote_command.split(bytes(self.out[-_PIECE - _LINE :]))
            self.pid = found[1] if found else None
        if self.channel.recv_stderr_ready():
            self.err += self.channel.recv_stderr(_PIECE)
            some = True
        self._tell(last=False)
        return some

    def _tell(self, *, last: bool) -> None:
        endless = len(self.err) - self.told > _TAIL
        end = len(self.err) if last or endless else self.err.rfind(b"\n") + 1
        if end > self.told:
            for line in bytes(self.err[self.told : end]).decode(errors="replace").splitlines():
                self._show(line)
            self.told = end
        if self.told > 2 * _TAIL:
            del self.err[: self.told - _TAIL]
            self.told = _TAIL

    def _show(self, line: str) -> None:
        """Hand a line on, until there were too many: a host must not fill the terminal of who asked it."""
        if self.lines_left < 0:
            return
        self.bytes_left -= len(line)
        self.lines_left -= 1
        if self.bytes_left < 0 or self.lines_left < 0:
            self.lines_left = -1
            line = "what it prints on stderr from here on is not shown"
        self.watch.told(line)

    def _stop_when_due(self) -> str | None:
        """Tell the command to stop when the user or the deadline says so; return why it is waited for no longer."""
        now, stops = time.monotonic(), self.watch.stops()
        if stops >= STOPS_TO_LEAVE or (stops and self.pid is None):
            return NOT_WAITED
        if stops > self.stopped and self.pid is not None:
            self.stopped += 1
            self.session.stop(self.pid)
        if now < self.watch.until:
            return None
        if self.late_at is None:
            self.late_at = now
            if self.pid is None:
                return "it had not begun"
            if not self.session.stop(self.pid):
                return "it could not be told to stop"
        return "it was told to stop, and did not" if now > self.late_at + GRACE_SECONDS else None

    def _ran(self, status: int | None, gave_up: str | None) -> Ran:
        self._tell(last=True)
        found = remote_command.split(bytes(self.out))
        noise = None if found is None else found[0].decode(errors="replace")
        out = bytes(self.out) if found is None else found[2]
        err = bytes(self.err[-_TAIL:]).decode(errors="replace")
        return Ran(status, out.decode(errors="replace"), err, noise, self.late_at is not None, gave_up)
