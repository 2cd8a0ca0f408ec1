# SPDX-License-Identifier: Apache-2.0
"""Connects this terminal, or any stdin and stdout, with a VM's serial console.

The terminal is in raw mode meanwhile, so that Ctrl-C and Ctrl-Z go to the guest. It gets its own mode back on every way
out. For that, signals do not raise an exception here, as they do elsewhere (`cli/signals.py`): they end the loop. Only
SIGKILL leaves the terminal raw; the command `reset` then helps.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import tty
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from vgpuctl.cli.signals import SIGNALS, block_signals

if TYPE_CHECKING:
    from vgpuctl.library.vms import ConsoleStream

ESCAPE = b"\x1d"
"""Ctrl-], as in virsh and telnet."""
POLL_MS = 1000
"""How often the console is asked whether it has ended: no descriptor tells when libvirt or the VM goes away."""
READ_BYTES = 4096
MAX_UNSENT_BYTES = 1 << 16
_ENDING_SIGNALS = (*SIGNALS, signal.SIGQUIT)


class ConsoleSession:
    """One session, in the main thread. `stdin`, `stdout`: descriptors; `stdin` None: nothing is typed.

    Where stdin is no terminal it is copied as it is: Ctrl-] has no meaning, and its end does not end the session.
    `received_signal`: the signal that ended the session.
    """

    def __init__(self, stream: ConsoleStream, stdin: int | None, stdout: int) -> None:
        self._stream = stream
        self._stdin = stdin
        self._stdout = stdout
        self._terminal = stdin if stdin is not None and os.isatty(stdin) else None
        self._saved_mode = None if self._terminal is None else termios.tcgetattr(self._terminal)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.received_signal: int | None = None

    @property
    def is_terminal(self) -> bool:
        """Whether somebody types at a terminal."""
        return self._terminal is not None

    def run(self) -> bool:
        """Copy in both directions. Returns True when the user or a signal ended it, False when the console ended.

        Raises:
            HostCannot: libvirt went away.
        """
        try:
            with self._signals_handled_here():
                try:
                    self._make_raw()
                    return self._copy()
                finally:
                    self._restore_mode(termios.TCSAFLUSH)
        finally:
            os.close(self._wake)

    @contextlib.contextmanager
    def _signals_handled_here(self) -> Iterator[None]:
        """Handle signals without exceptions inside the block, so that nothing interrupts the restoring of the mode."""
        handlers = dict.fromkeys(_ENDING_SIGNALS, self._on_ending_signal)
        handlers |= {} if self._terminal is None else {signal.SIGTSTP: self._on_stop, signal.SIGCONT: self._on_continue}
        with block_signals():
            former = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            with block_signals():
                for number, handler in former.items():
                    signal.signal(number, handler)

    def _on_ending_signal(self, number: int, frame: FrameType | None) -> None:
        self.received_signal = self.received_signal or number
        os.eventfd_write(self._wake, 1)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        """Stop as SIGTSTP does, and give the terminal back for that time. SIGCONT makes it raw again."""
        self._restore_mode(termios.TCSADRAIN)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _on_continue(self, number: int, frame: FrameType | None) -> None:
        self._make_raw()

    def _make_raw(self) -> None:
        if self._terminal is not None:
            tty.setraw(self._terminal, termios.TCSADRAIN)

    def _restore_mode(self, when: int) -> None:
        if self._terminal is not None and self._saved_mode is not None:
            with contextlib.suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._terminal, when, self._saved_mode)

    def _copy(self) -> bool:
        while self.received_signal is None:
            typing = self._stdin is not None and self._stream.send(b"") <= MAX_UNSENT_BYTES
            ready = self._poll(typing=typing)
            output = self._stream.receive()
            if output is None:
                return False
            if not self._write(output):
                return True
            if typing and self._stdin in ready and not self._read_typed():
                return True
        return True

    def _poll(self, *, typing: bool) -> set[int]:
        """Wait until there is something to copy, a signal came, or a second is over."""
        poller = select.poll()
        for descriptor in (self._stream.fileno(), self._wake):
            poller.register(descriptor, select.POLLIN)
        if typing and self._stdin is not None:
            poller.register(self._stdin, select.POLLIN)
        return {descriptor for descriptor, _ in poller.poll(POLL_MS)}

    def _read_typed(self) -> bool:
        """Send what was typed; return False if that ends the session."""
        if self._stdin is None:
            return True
        try:
            typed = os.read(self._stdin, READ_BYTES)
        except OSError:  # the terminal hung up
            typed = b""
        if not typed:
            self._stdin = None
            return self._terminal is None
        before, escape, _ = typed.partition(ESCAPE) if self._terminal is not None else (typed, b"", b"")
        self._stream.send(before)
        return not escape

    def _write(self, data: bytes) -> bool:
        """Write all of the guest's output; return False if nobody reads it any more."""
        while data:
            try:
                data = data[os.write(self._stdout, data) :]
            except BlockingIOError:
                select.select([], [self._stdout], [], POLL_MS / 1000)
                if self.received_signal is not None:
                    return False
            except OSError:
                return False
        return True
