# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl console` on a real pseudo-terminal: both directions, and the terminal's mode after every way out."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran, child, child_environment, is_readable
from vgpuctl.cli.console_session import MAX_UNSENT_BYTES, ConsoleSession
from vgpuctl.errors import HostCannot

Sim = Callable[..., Ran]
IMAGE = "/srv/images/ubuntu-24.04.qcow2"
LINE = ("--host", "sim:a100-40", "console", "vdi-001")
DEADLINE_SECONDS = 30.0


class Terminal:
    """A pseudo-terminal with a `vgpuctl console` on it."""

    def __init__(self, *more: str) -> None:
        self.master, self.slave = pty.openpty()
        self.mode = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vgpuctl", *LINE, *more],
            stdin=self.slave, stdout=self.slave, stderr=self.slave, env=child_environment(),
        )  # fmt: skip
        self.seen = b""

    def read_until(self, pattern: bytes) -> bytes:
        """Read what is shown until it matches; forget everything up to the end of the match."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (match := re.search(pattern, self.seen, re.DOTALL)) is None:
            assert is_readable(self.master, deadline - time.monotonic()), self.seen
            self.seen += os.read(self.master, 4096)
        self.seen = self.seen[match.end() :]
        return match[0]

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def end(self) -> int:
        """Return the exit status; the terminal has its mode back."""
        status = self.process.wait(DEADLINE_SECONDS)
        assert termios.tcgetattr(self.slave) == self.mode
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def opened(sim: Sim) -> Iterator[Callable[..., Terminal]]:
    """Open consoles of vdi-001, which runs."""
    assert sim(f"create-vm vdi-001 --profile A100-4C --image {IMAGE}").status == 0
    terminals: list[Terminal] = []

    def open_console(*more: str) -> Terminal:
        terminals.append(Terminal(*more))
        terminals[-1].read_until(rb"connected to vdi-001.*vdi-001 login: ")
        return terminals[-1]

    yield open_console
    for terminal in terminals:
        terminal.close()


def test_typing_reaches_the_guest_and_ctrl_bracket_leaves(opened: Callable[..., Terminal]) -> None:
    terminal = opened()
    assert termios.tcgetattr(terminal.slave)[3] & (termios.ICANON | termios.ISIG | termios.ECHO) == 0
    terminal.type(b"root\r")
    assert terminal.read_until(rb".*login: ") == b"root\r\n\r\nLogin incorrect\r\nvdi-001 login: "
    terminal.type(b"\x03")  # Ctrl-C goes to the guest
    terminal.type(b"x")
    terminal.read_until(b"x")
    terminal.type(b"\x1dignored")
    assert terminal.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
def test_a_signal_ends_it_and_the_terminal_is_restored(opened: Callable[..., Terminal], number: signal.Signals) -> None:
    terminal = opened()
    terminal.process.send_signal(number)
    assert terminal.end() == 128 + number
    terminal.read_until(f"stopped by {number.name}".encode())


def test_while_it_is_stopped_the_terminal_is_as_before(opened: Callable[..., Terminal]) -> None:
    terminal = opened()
    terminal.process.send_signal(signal.SIGTSTP)
    os.waitpid(terminal.process.pid, os.WUNTRACED)
    assert termios.tcgetattr(terminal.slave) == terminal.mode
    terminal.process.send_signal(signal.SIGCONT)
    terminal.type(b"\r")
    terminal.read_until(b"login: ")
    assert termios.tcgetattr(terminal.slave) != terminal.mode
    terminal.type(b"\x1d")
    assert terminal.end() == 0


def test_a_vm_that_goes_off_ends_it(opened: Callable[..., Terminal], sim: Sim) -> None:
    terminal = opened()
    assert sim("stop-vm vdi-001 --force").status == 0
    assert terminal.end() == 0
    terminal.read_until(b"vdi-001 is stopped")


def test_a_second_session_is_refused_and_takes_over_with_force(opened: Callable[..., Terminal], sim: Sim) -> None:
    first = opened()
    refused = child(*LINE)
    assert refused.returncode == 3
    assert "another session has the console of vdi-001" in refused.stderr
    assert "hint: end it there, or take the console over: vgpuctl console vdi-001 --force\n" in refused.stderr
    second = opened("--force")
    assert first.end() == 3
    first.read_until(b"another session took over")
    second.type(b"\x1d")
    assert second.end() == 0
    third = opened()
    third.type(b"\x1d")
    assert third.end() == 0


def test_without_a_terminal_both_streams_are_copied_until_the_vm_is_off(
    opened: Callable[..., Terminal], sim: Sim
) -> None:
    copied = subprocess.Popen(
        [sys.executable, "-m", "vgpuctl", *LINE],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment(),
    )  # fmt: skip
    assert copied.stdin is not None
    assert copied.stdout is not None
    copied.stdin.write(b"a\x1db\n")
    copied.stdin.close()
    text = b""
    while b"Login incorrect\r\nvdi-001 login: " not in text:
        text += os.read(copied.stdout.fileno(), 4096)
    assert text.startswith(b"\r\nvdi-001 login: ab\r\n")
    assert sim("stop-vm vdi-001 --force").status == 0
    assert copied.wait(DEADLINE_SECONDS) == 0
    assert copied.stderr is not None
    assert copied.stderr.read() == b"note: vdi-001 is stopped\n"
    copied.stdout.close()
    copied.stderr.close()


def test_what_has_no_console_is_refused(sim: Sim, vgpuctl: Callable[..., Ran], tmp_path: Path) -> None:
    assert sim("create-vm off --profile A100-4C --no-start").status == 0
    off = sim("console off")
    assert (off.status, "hint: vgpuctl start-vm off\n" in off.err) == (3, True)
    assert sim("console nobody").status == 2
    assert vgpuctl("console", "--json", "vdi-001").document["error"]["code"] == "usage"
    assert vgpuctl("--root", str(tmp_path), "console", "vdi-001").status == 2


class Guest:
    """A console that gives these answers in turn: bytes, None for its end, or an exception."""

    def __init__(self, *answers: bytes | Exception | None, unsent: int = 0) -> None:
        self.answers = list(answers)
        self.unsent = unsent
        self.sent = b""
        self.read_end, self.write_end = os.pipe()
        os.write(self.write_end, b"!")  # there is always something to receive

    def fileno(self) -> int:
        return self.read_end

    def receive(self) -> bytes | None:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def send(self, data: bytes) -> int:
        self.sent += data
        return self.unsent


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    master, slave = pty.openpty()
    yield master, slave
    os.close(master)
    os.close(slave)


def test_a_libvirt_that_goes_away_leaves_the_terminal_as_it_was(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    mode = termios.tcgetattr(slave)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGQUIT)]
    session = ConsoleSession(Guest(b"one", HostCannot("the connection to libvirt broke")), slave, slave)
    with pytest.raises(HostCannot):
        session.run()
    assert os.read(master, 10) == b"one"
    assert termios.tcgetattr(slave) == mode
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGQUIT)] == handlers


def test_a_reader_that_is_gone_ends_it(terminal: tuple[int, int]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    assert ConsoleSession(Guest(b"x", b"y"), terminal[1], write_end).run()
    os.close(write_end)


def test_nothing_more_is_read_while_much_is_unsent(terminal: tuple[int, int]) -> None:
    master, slave = terminal
    tty.setraw(slave)
    os.write(master, b"\x1d")
    guest = Guest(b"", b"", None, unsent=MAX_UNSENT_BYTES + 1)
    assert not ConsoleSession(guest, slave, slave).run()
    assert guest.sent == b""
