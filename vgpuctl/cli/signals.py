# SPDX-License-Identifier: Apache-2.0
"""What SIGINT, SIGTERM and SIGHUP (a lost terminal) do while a command runs.

The first raises Interrupted in the main thread, and the engine undoes what it did. The second raises
KeyboardInterrupt, which stops the undo. Once the result is being printed signals change nothing any more: the
document stays one document.

Python loses an exception that a handler raises inside a weak reference's callback or a finaliser, and code
that tries one thing after another may take Interrupted for a failure of one of them. So `Guard.check` is called
before every step, and stops there what the first signal did not.
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


class Guard:
    """The handlers of this process. `received` lists the signals that came."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.handles: tuple[signal.Signals, ...] = ()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise Interrupted for the first signal and KeyboardInterrupt for later ones."""
        self.received.append(number)
        if len(self.received) == 1:
            raise self._interrupted()
        raise KeyboardInterrupt(f"stopped again by {signal.Signals(number).name}")

    def check(self) -> None:
        """Raise Interrupted when a signal came.

        Raises:
            Interrupted: it did, and whoever was running then went on.
        """
        if self.received:
            raise self._interrupted()

    def close(self) -> None:
        """From here on signals change nothing, not even while the interpreter ends."""
        for number in self.handles:
            signal.signal(number, signal.SIG_IGN)
        self.handles = ()

    @property
    def status(self) -> int:
        """The exit status of a command that the first signal stopped."""
        return 128 + (self.received[0] if self.received else int(signal.SIGINT))

    def _interrupted(self) -> Interrupted:
        first = self.received[0]
        return Interrupted(f"stopped by {signal.Signals(first).name}", signal_number=first)


_active: list[Guard] = []


def install() -> Guard:
    """Handle signals from here to the end of the process; outside the main thread there is nothing to handle."""
    guard = Guard()
    if threading.current_thread() is threading.main_thread():
        found = tuple(n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN)
        guard.handles = found
        for number in found:
            signal.signal(number, guard.handle)
        sys.unraisablehook = _quiet
        _active.append(guard)
    return guard


@contextmanager
def handled() -> Iterator[Guard]:
    """Handle signals inside the block, with the guard that is active already if there is one."""
    if _active and threading.current_thread() is threading.main_thread():
        yield _active[-1]
        return
    before = [(number, signal.getsignal(number)) for number in SIGNALS]
    hook = sys.unraisablehook
    guard = install()
    try:
        yield guard
    finally:
        if guard in _active:
            _active.remove(guard)
            sys.unraisablehook = hook
            for number, handler in before:
                signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Keep signals waiting inside the block: a package whose import was broken off cannot be imported again as a whole.

    Python sets a submodule as its package's attribute only when it loads it, and what was loaded stays loaded.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _quiet(lost: UnraisableHookArgs) -> None:
    """Say nothing about an interruption that Python lost: `Guard.check` raises it again."""
    if not isinstance(lost.exc_value, (Interrupted, KeyboardInterrupt)):
        sys.__unraisablehook__(lost)
