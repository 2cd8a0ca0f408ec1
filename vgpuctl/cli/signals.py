# SPDX-License-Identifier: Apache-2.0
"""What SIGINT and SIGTERM do while a command runs.

The first raises Interrupted in the main thread, and the engine undoes what it did. The second raises
KeyboardInterrupt, which stops the undo. Once the result is being printed signals change nothing any more: the
document stays one document.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vgpuctl.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Guard:
    """The handlers of one command. `received` lists the signals that came."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.closed = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise Interrupted for the first signal and KeyboardInterrupt for later ones."""
        if self.closed:
            return
        self.received.append(number)
        name = signal.Signals(number).name
        if len(self.received) == 1:
            raise Interrupted(f"stopped by {name}", signal_number=number)
        raise KeyboardInterrupt(f"stopped again by {name}")

    def close(self) -> None:
        """From here on signals change nothing."""
        self.closed = True

    @property
    def status(self) -> int:
        """The exit status of a command that the first signal stopped."""
        return 128 + (self.received[0] if self.received else int(signal.SIGINT))


@contextmanager
def handled() -> Iterator[Guard]:
    """Handle signals inside the block; outside the main thread there is nothing to handle."""
    guard = Guard()
    if threading.current_thread() is not threading.main_thread():
        yield guard
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, guard.handle)
    try:
        yield guard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
