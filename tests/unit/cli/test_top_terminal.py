# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl top` in a real terminal: it follows its size, ends with it, leaves it as it was; and what it needs."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from vgpuctl.cli import live
from vgpuctl.cli.global_options import Settings


class Terminal:
    """A pseudo-terminal with `vgpuctl top` in it. Its size counts, not what the environment says."""

    def __init__(self, state: Path, size: tuple[int, int], host: str = "sim:t4", **environment: str) -> None:
        self.master, self._slave = os.openpty()
        self.resize(*size)
        self.before = termios.tcgetattr(self._slave)
        self.output = b""
        own = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vgpuctl", "--host", host, "top"],
            stdin=self._slave, stdout=self._slave, stderr=self._slave, start_new_session=True,
            env={**own, "XDG_STATE_HOME": str(state), "TERM": "xterm", **environment},
        )  # fmt: skip

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def read_until(self, text: bytes) -> bytes:
        """Return what comes up to the text, within two minutes; what came before is forgotten."""
        seen = b""
        end = time.monotonic() + 120
        while text not in seen:
            is_late = time.monotonic() > end or not self.is_readable(60)
            assert not is_late, f"{text!r} did not come: {seen[-2000:]!r}"
            seen += os.read(self.master, 65536)
        self.output += seen
        return seen

    def is_readable(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self.master, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def end(self, keys: bytes = b"") -> int:
        """Return the exit status; the rest of the output is read, or the program could not write it.

        `keys`: typed each second until it ends, as a person does: a key that comes while it lays the screen out for
        another size may be lost.
        """
        quiet = 0
        while self.process.poll() is None or self.is_readable(0):
            if self.is_readable(0.05):
                self.output += os.read(self.master, 65536)
                continue
            quiet += 1
            assert quiet < 1200, f"it does not end: {self.output[-2000:]!r}"
            if keys and quiet % 20 == 1 and self.process.poll() is None:
                os.write(self.master, keys)
        return self.process.returncode

    def attributes(self) -> Any:
        return termios.tcgetattr(self._slave)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self._slave)


@pytest.mark.parametrize("ending", [b"q", b"\x03", signal.SIGINT, signal.SIGTERM])
def test_in_a_terminal_it_follows_a_resize_and_leaves_it_as_it_was(
    tmp_path: Path, ending: bytes | signal.Signals
) -> None:
    terminal = Terminal(tmp_path, (150, 40), COLUMNS="80", LINES="24")
    try:
        terminal.read_until(b"SCHEDULER")
        terminal.resize(60, 20)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.read_until(b"\x1b[20;1H\x1b[39;49mq quit")
        is_key = isinstance(ending, bytes)
        if not is_key:
            terminal.process.send_signal(ending)
        assert terminal.end(ending if is_key else b"") == (143 if ending == signal.SIGTERM else 0)
        assert terminal.attributes() == terminal.before
        assert terminal.output.rfind(b"\x1b[?1049l") > terminal.output.rfind(b"\x1b[?1049h") >= 0
        assert terminal.output.rfind(b"\x1b[?25h") > terminal.output.rfind(b"\x1b[?25l"), "the cursor is shown again"
        assert b"Traceback" not in terminal.output
    finally:
        terminal.close()


def test_it_ends_when_its_terminal_is_gone(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, (150, 40))
    try:
        terminal.read_until(b"SCHEDULER")
        os.close(terminal._slave)
        os.close(terminal.master)
        assert terminal.process.wait(60) == 128 + signal.SIGHUP
    finally:
        terminal.process.kill()


def test_a_terminal_that_can_do_nothing_gets_the_table(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, (150, 40), TERM="dumb")
    try:
        assert terminal.end() == 0
        assert b"2 GPUs, 0 vGPUs" in terminal.output
        assert b"\x1b[" not in terminal.output
    finally:
        terminal.close()


def test_the_live_screen_is_for_one_host(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, (150, 40), "ssh://gpu{01..02}")
    try:
        assert terminal.end() == 2
        assert b"the live screen of top is for one host" in terminal.output
        assert b"hint: add --once for a table of all hosts" in terminal.output
    finally:
        terminal.close()


def test_without_its_library_the_screen_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("textual", "vgpuctl.cli.live."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    assert live.run(Settings(host="sim:t4"), 5.0) == 6
    err = capsys.readouterr().err
    assert "vgpuctl: the Python library textual cannot be loaded" in err
    assert "(vgpuctl's extra top, pip's textual)" in err
    assert "pip install 'vgpuctl[top]'" in err
