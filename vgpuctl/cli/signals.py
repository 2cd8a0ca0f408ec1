# SPDX-License-Identifier: Apache-2.0
"""What SIGINT, SIGTERM and SIGHUP (a lost terminal) do while a command runs.

The first raises Interrupted in the main thread, and the operation undoes the steps done so far. The second raises
KeyboardInterrupt, which stops the undo. Once the result is being printed, signals have no effect, so that the JSON
document is complete.

Python loses an exception that a handler raises inside a weak reference's callback or a finaliser. Code that catches
VgpuctlError to try an alternative may swallow Interrupted, which is one. So `SignalGuard.check` is called before every
step: it raises Interrupted again if a signal came.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from vgpuctl.errors import Interrupted

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalGuard:
    """The handlers of this process. `received` lists the signals that came."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.handled_signals: tuple[signal.Signals, ...] = ()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise Interrupted for the first signal and KeyboardInterrupt for later ones."""
        self.received.append(number)
        if len(self.received) == 1:
            raise self._interrupted()
        raise KeyboardInterrupt(f"stopped again by {signal.Signals(number).name}")

    def check(self) -> bool:
        """Return False: the work goes on. The library asks before each step.

        Raises:
            Interrupted: a signal came earlier, and its exception was lost.
        """
        if self.received:
            raise self._interrupted()
        return False

    def ignore_signals(self) -> None:
        """Ignore signals from here on, even while the interpreter exits."""
        for number in self.handled_signals:
            signal.signal(number, signal.SIG_IGN)
        self.handled_signals = ()

    @property
    def exit_status(self) -> int:
        """The exit status of a command that the first signal stopped; SIGINT's where no signal was received."""
        return 128 + (self.received[0] if self.received else int(signal.SIGINT))

    def _interrupted(self) -> Interrupted:
        first = self.received[0]
        return Interrupted(f"stopped by {signal.Signals(first).name}", signal_number=first)


_active: list[SignalGuard] = []


def install_handlers() -> SignalGuard:
    """Install the handlers, in the main thread; in another thread, return a guard that handles nothing."""
    guard = SignalGuard()
    if threading.current_thread() is threading.main_thread():
        handled = tuple(n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN)
        guard.handled_signals = handled
        for number in handled:
            signal.signal(number, guard.handle)
        sys.unraisablehook = _ignore_lost_interrupt
        _active.append(guard)
    return guard


@contextmanager
def handle_signals() -> Iterator[SignalGuard]:
    """Handle signals inside the block, with the active guard if there is one."""
    if _active and threading.current_thread() is threading.main_thread():
        yield _active[-1]
        return
    old_handlers = [(number, signal.getsignal(number)) for number in SIGNALS]
    old_hook = sys.unraisablehook
    guard = install_handlers()
    try:
        yield guard
    finally:
        if guard in _active:
            _active.remove(guard)
            sys.unraisablehook = old_hook
            for number, handler in old_handlers:
                signal.signal(number, handler)


@contextmanager
def block_signals() -> Iterator[None]:
    """Delay signals inside the block. Use it around imports.

    After an interrupted import, loaded submodules stay in `sys.modules`, and importing their package again does not set
    them as its attributes.
    """
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


def _ignore_lost_interrupt(lost: UnraisableHookArgs) -> None:
    """Print nothing about an interruption that Python lost: `SignalGuard.check` raises it again."""
    if not isinstance(lost.exc_value, (Interrupted, KeyboardInterrupt)):
        sys.__unraisablehook__(lost)
