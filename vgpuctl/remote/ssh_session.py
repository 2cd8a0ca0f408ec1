# SPDX-License-Identifier: Apache-2.0
"""A login at another host and the command that runs in it, over the channels of a given transport.

There is no remote terminal: it would mix stdout with stderr. So a local Ctrl-C does not reach the remote command. A
second command of the same login sends SIGINT to the first, and the remote vgpuctl undoes its work, as at a terminal.
SSH's own signals would not do: OpenSSH forwards them only where no command is forced and sudo is not between, and
paramiko has no call for them.

Only this module builds a command line for another host's shell: sshd passes a command to the user's shell as text. So
every word is quoted, and a fixed /bin/sh script gets the words as its arguments. The script prints its process id
first: that line ends the output of a noisy ~/.bashrc, and Ctrl-C becomes a SIGINT to that process.
"""

from __future__ import annotations

import contextlib
import re
import select
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from vgpuctl.errors import Unreachable
from vgpuctl.remote.dialled import GRACE_SECONDS, DialledSocket
from vgpuctl.remote.session import (
    ABANDONED,
    MAX_NOISE_BYTES,
    MAX_REPLY_BYTES,
    ROOT,
    TOO_LONG,
    TOO_NOISY,
    RemoteCommand,
    RemoteOutput,
    RunControl,
)

MAX_DIALS = 8
"""So many connections to the agent at once: sshd allows ten channels of one login (MaxSessions)."""
OPEN_SECONDS = 20.0
"""So long a connection waits for sshd to take it."""
_NO_MORE_SESSIONS = 2
"""SSH_OPEN_CONNECT_FAILED (RFC 4254), which sshd says when a login has as many channels as MaxSessions."""
MAX_STOPS = 3
"""The first stop starts the undo, the second ends the undo, the third ends the waiting."""
MAX_STDERR_BYTES = 1 << 20
MAX_STDERR_LINES = 10_000
"""How much of a host's stderr is shown. Creating 1,000 VMs prints 7,000 lines of progress."""
_SHELL_STATUS = 113
"""What a shell is asked to end with, and `vgpuctl agent dial` does not."""
_POLL_SECONDS = 0.1
_SEND_SECONDS = 0.01
_TAIL_BYTES = 64 << 10
_CHUNK_BYTES = 64 << 10
_AFTER_EXIT_SECONDS = 5.0
EXTRA_PATH = "/usr/local/bin:/usr/local/sbin:/opt/vgpuctl/bin"
"""Directories of vgpuctl besides the login's PATH; sudo's secure_path often lacks the first."""
OLDEST_PYTHON = (3, 11)
_PYTHON_CANDIDATES = "/usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11"
"""Candidates for Python; the first is the distribution's, which has its libvirt module."""
_PID_MARKER = "vgpuctl-over-ssh"
_PID_LINE = re.compile(_PID_MARKER.encode() + rb" ([0-9]{1,10})\r?\n")
_PID_LINE_BYTES = 64
"""The maximum length of the line in which a script prints its process id."""
_PREAMBLE = f'PATH="$PATH:{EXTRA_PATH}"; export PATH; echo "{_PID_MARKER} $$"'
_SCRIPT = f'{_PREAMBLE}; exec vgpuctl "$@"'
_PYTHON_SCRIPT = (
    f"{_PREAMBLE}; for python in {_PYTHON_CANDIDATES}; do"
    f' "$python" -I -c "import sys; sys.exit(sys.version_info < {OLDEST_PYTHON})" 2>/dev/null'
    ' && exec "$python" -I -c "$1" "$2"; done;'
    ' echo "/usr/bin/python3 is $(/usr/bin/python3 -V 2>&1)" >&2; exit 127'
)
_LOADER = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])))"
"""The program comes through standard input: sudo logs command lines, and shells limit their length."""


class SshSession:
    """A login, see `session.Session`. `host_key`: the host's key, as `TYPE SHA256:...`."""

    def __init__(
        self,
        name: str,
        user: str,
        transport: Any,
        deadline: float,
        log_out: Callable[[], None],
        host_key: str | None = None,
    ) -> None:
        self.name = name
        self.user = user
        self.host_key = host_key
        self._transport = transport
        self._log_out = log_out
        self._dials = threading.Semaphore(MAX_DIALS)
        self._opening = threading.Lock()
        """paramiko keeps one reason why sshd takes no more channels, and of several threads only the first gets it."""
        max_seconds = max(0.0, deadline - time.monotonic()) + GRACE_SECONDS + _AFTER_EXIT_SECONDS
        self._watchdog = threading.Timer(max_seconds, transport.close)  # paramiko waits for some responses forever
        self._watchdog.daemon = True
        self._watchdog.start()

    def run(self, command: RemoteCommand, control: RunControl) -> RemoteOutput:
        """Run vgpuctl there, see `session.Session`."""
        if command.program_bytes is None:
            channel = self._start_command(vgpuctl_line(command.arguments, self.user))
        else:
            channel = self._start_command(python_line(command.program_bytes, self.user))
        try:
            return _RunningCommand(self, channel, control, command.stdin).wait()
        finally:
            with contextlib.suppress(Exception):
                channel.close()

    def dial(self, control: RunControl | None = None) -> DialledSocket:
        """Return a connection to the host agent there, see `session.Session`."""
        self._dials.acquire()
        try:
            channel = self._open_when_possible(_dial_line(), control)
            return DialledSocket(self.name, channel, control, self._dials.release)
        except BaseException:
            self._dials.release()
            raise

    def _open_when_possible(self, line: str, control: RunControl | None) -> Any:
        """Start a command when sshd takes one more: one whose channel is closed counts there until it has ended."""
        end = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                return self._start_command(line)
            except Unreachable as error:
                is_stopped = control is not None and control.interrupt_count() > 0
                if getattr(error.__cause__, "code", None) != _NO_MORE_SESSIONS or is_stopped or time.monotonic() > end:
                    raise
            time.sleep(_POLL_SECONDS)

    def runs_commands(self) -> bool:
        """Return whether the key of this login runs any command, and not the one alone that sshd has for it.

        Raises:
            Unreachable: the connection broke.
        """
        channel = self._start_command(f"exit {_SHELL_STATUS}")
        with contextlib.closing(channel):
            with contextlib.suppress(OSError, EOFError):  # it has ended already
                channel.shutdown_write()
            return bool(channel.status_event.wait(OPEN_SECONDS)) and channel.exit_status == _SHELL_STATUS

    def close(self) -> None:
        """Log out."""
        self._watchdog.cancel()
        self._log_out()

    def keep_open(self) -> None:
        """Let the login last as long as the program, whatever its deadline was: for a service."""
        self._watchdog.cancel()

    def is_active(self) -> bool:
        """Return whether the connection is still open."""
        return bool(self._transport.is_active())

    def interrupt(self, pid: int) -> bool:
        """Send SIGINT to the command without waiting for the result; return whether it could be sent."""
        try:
            self._start_command(stop_line(pid, self.user))
        except Unreachable:
            return False
        return True

    def _start_command(self, line: str) -> Any:
        try:
            with self._opening:
                channel = self._transport.open_session()
            channel.exec_command(line)
        except Exception as exc:  # paramiko's own, EOFError and OSError alike: the connection is unusable
            why = str(exc) or type(exc).__name__
            raise Unreachable(f"{self.name}: the connection broke before the command started: {why}") from exc
        return channel


class _RunningCommand:
    """One command while it runs."""

    def __init__(self, session: SshSession, channel: Any, control: RunControl, stdin: bytes) -> None:
        self.session = session
        self.channel = channel
        self.control = control
        self.stdin = stdin
        self.sent_bytes: int | None = 0
        self.out = bytearray()
        self.err = bytearray()
        self.shown_bytes = 0
        self.lines_left, self.bytes_left = MAX_STDERR_LINES, MAX_STDERR_BYTES
        self.pid: int | None = None
        self.stops_sent = 0
        self.late_at: float | None = None

    def wait(self) -> RemoteOutput:
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        exited_at: float | None = None
        while True:
            sent, read = self._send(), self._read()
            if self.pid is None and len(self.out) > MAX_NOISE_BYTES:
                return self._output(None, TOO_NOISY)
            if len(self.out) > MAX_REPLY_BYTES:
                return self._output(None, TOO_LONG)
            if self.channel.exit_status_ready():
                exited_at = exited_at or time.monotonic()
                is_closed = self.channel.eof_received or self.channel.closed
                if not read and (is_closed or time.monotonic() > exited_at + _AFTER_EXIT_SECONDS):
                    return self._finish()
            elif not read and not self.session.is_active():
                return self._finish()
            abandon_reason = self._interrupt_when_due()
            if abandon_reason:
                return self._output(None, abandon_reason)
            if read or sent:
                continue
            if self.channel.eof_received:
                self.channel.status_event.wait(_POLL_SECONDS)  # its descriptor is always ready now
            else:
                can_send = self.sent_bytes is not None and self.pid is not None
                poll.poll((_SEND_SECONDS if can_send else _POLL_SECONDS) * 1000)

    def _finish(self) -> RemoteOutput:
        """Return its output, or that its end is unknown: paramiko uses -1 for a signal and for a broken connection."""
        status = self.channel.recv_exit_status() if self.channel.exit_status_ready() else -1
        if status >= 0:
            return self._output(status, None)
        return self._output(None, "a signal killed it there" if self.session.is_active() else "the connection broke")

    def _send(self) -> bool:
        """Send a chunk of standard input if the channel is ready; return whether it did. After a stop, send none.

        None is sent before the command has begun: a restricted key may have made `vgpuctl agent dial` of it, and a file
        must not become a request to the agent.
        """
        if self.sent_bytes is None or (self.stdin and self.pid is None):
            return False
        try:
            if self.sent_bytes == len(self.stdin):
                self.sent_bytes = None
                self.channel.shutdown_write()
                return False
            if self.control.interrupt_count() or not self.channel.send_ready():
                return False
            self.sent_bytes += self.channel.send(self.stdin[self.sent_bytes : self.sent_bytes + _CHUNK_BYTES])
            if self.control.report_sent is not None:
                self.control.report_sent(self.sent_bytes)
        except (OSError, EOFError):  # it ended without reading: its status says why
            self.sent_bytes = None
        return self.sent_bytes is not None

    def _read(self) -> bool:
        """Read one chunk of available output and return whether there was any: endless output must not block a stop."""
        has_data = False
        if self.channel.recv_ready():
            self.out += self.channel.recv(_CHUNK_BYTES)
            has_data = True
        if has_data and self.pid is None:
            parts = split_output(bytes(self.out[-_CHUNK_BYTES - _PID_LINE_BYTES :]))
            self.pid = parts[1] if parts else None
        if self.channel.recv_stderr_ready():
            self.err += self.channel.recv_stderr(_CHUNK_BYTES)
            has_data = True
        self._show_stderr(last=False)
        return has_data

    def _show_stderr(self, *, last: bool) -> None:
        is_too_long = len(self.err) - self.shown_bytes > _TAIL_BYTES
        end = len(self.err) if last or is_too_long else self.err.rfind(b"\n") + 1
        if end > self.shown_bytes:
            for line in bytes(self.err[self.shown_bytes : end]).decode(errors="replace").splitlines():
                self._show_line(line)
            self.shown_bytes = end
        if self.shown_bytes > 2 * _TAIL_BYTES:
            del self.err[: self.shown_bytes - _TAIL_BYTES]
            self.shown_bytes = _TAIL_BYTES

    def _show_line(self, line: str) -> None:
        """Report a line, up to the limits: a host must not flood the user's terminal."""
        if self.lines_left < 0:
            return
        self.bytes_left -= len(line)
        self.lines_left -= 1
        if self.bytes_left < 0 or self.lines_left < 0:
            self.lines_left = -1
            line = "further output on stderr is not shown"
        self.control.report_line(line)

    def _interrupt_when_due(self) -> str | None:
        """Send SIGINT at a stop of the user or at the deadline; return a reason if vgpuctl stops waiting."""
        now, stops = time.monotonic(), self.control.interrupt_count()
        if stops >= MAX_STOPS or (stops and self.pid is None):
            return ABANDONED
        if stops > self.stops_sent and self.pid is not None:
            self.stops_sent += 1
            self.session.interrupt(self.pid)
        if now < self.control.deadline:
            return None
        if self.late_at is None:
            self.late_at = now
            if self.pid is None:
                return "it had not started"
            if not self.session.interrupt(self.pid):
                return "it could not be signalled"
        return "it was signalled to stop, but did not" if now > self.late_at + GRACE_SECONDS else None

    def _output(self, status: int | None, abandon_reason: str | None) -> RemoteOutput:
        self._show_stderr(last=True)
        parts = split_output(bytes(self.out))
        noise = None if parts is None else parts[0].decode(errors="replace")
        out = bytes(self.out) if parts is None else parts[2]
        err = bytes(self.err[-_TAIL_BYTES:]).decode(errors="replace")
        return RemoteOutput(status, out.decode(errors="replace"), err, noise, self.late_at is not None, abandon_reason)


def _dial_line() -> str:
    """Return the command line that reaches the agent, as this user: who asks is what the agent's rights depend on."""
    return shlex.join(["/bin/sh", "-c", f'PATH="$PATH:{EXTRA_PATH}"; export PATH; exec vgpuctl agent dial'])


def vgpuctl_line(arguments: Sequence[str], user: str) -> str:
    """Return the line that runs vgpuctl with these words as root."""
    return shlex.join([*_sudo_prefix(user), "/bin/sh", "-c", _SCRIPT, "sh", *arguments])


def python_line(program_bytes: int, user: str) -> str:
    """Return the line that runs the first `program_bytes` bytes of its standard input with Python as root."""
    return shlex.join([*_sudo_prefix(user), "/bin/sh", "-c", _PYTHON_SCRIPT, "sh", _LOADER, str(program_bytes)])


def stop_line(pid: int, user: str) -> str:
    """Return the line that sends SIGINT to the command that printed this process id."""
    return shlex.join([*_sudo_prefix(user), "/bin/sh", "-c", 'kill -INT "$1"', "sh", str(pid)])


def split_output(out: bytes) -> tuple[bytes, int, bytes] | None:
    """Return the output before the command began, its process id, and its own output; None if it has not begun."""
    match = _PID_LINE.search(out)
    return None if match is None else (out[: match.start()], int(match[1]), out[match.end() :])


def _sudo_prefix(user: str) -> list[str]:
    """Return the sudo prefix for a user who is not root; sudo must not ask for a password."""
    return [] if user == ROOT else ["sudo", "-n", "--"]
