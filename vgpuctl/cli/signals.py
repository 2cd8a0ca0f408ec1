# SPDX-License-Identifier: Apache-2.0
"""What SIGINT, SIGTERM and SIGHUP (a lost terminal) do while a command runs.

The first raises Interrupted in the main thread, and the engine undoes what it did. The second raises
KeyboardInterrupt, which stops the undo. Once the result is being printed, signals have no effect: the document stays
complete.

Python loses an exception that a handler raises inside a weak reference's callback or a finaliser. Code that tries
several alternatives may take Interrupted for a failure of one of them. So `SignalGuard.check` is called before every
step, and stops there a command that the first signal did not stop.
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

    def check(self) -> None:
        """Raise Interrupted if a signal came.

        Raises:
            Interrupted: a signal came, and the code that was running then went on.
        """
        if self.received:
            raise self._interrupted()

    def close(self) -> None:
        """Ignore signals from here on, even while the interpreter exits."""
        for number in self.handled_signals:
            signal.signal(number, signal.SIG_IGN)
        self.handled_signals = ()

    @property
    def status(self) -> int:
        """The exit status of a command that the first signal stopped."""
        return 128 + (self.received[0] if self.received else int(signal.SIGINT))

    def _interrupted(self) -> Interrupted:
        first = self.received[0]
        return Interrupted(f"stopped by {signal.Signals(first).name}", signal_number=first)


_active: list[SignalGuard] = []


def install() -> SignalGuard:
    """Handle signals until the process ends; outside the main thread there is nothing to handle."""
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
    guard = install()
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
    """Hold signals back inside the block: a package whose import was interrupted cannot be imported again completely.

    Python sets a submodule as its package's attribute only when it loads it, and a loaded submodule stays loaded.
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
