# SPDX-License-Identifier: Apache-2.0
"""The time by which a controller works: this machine's, or in the demonstration one that goes on when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

POLL_SECONDS = 0.005


class ControllerClock:
    """This machine's time."""

    def now(self) -> float:
        """Return the seconds since 1970."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that nobody sets back."""
        return time.monotonic()

    def wait(self, wait: Callable[[float], object], seconds: float) -> None:
        """Call a function that waits for something, such as `Event.wait`, for at most so many seconds."""
        wait(seconds)


class SteppedClock(ControllerClock):
    """A time that goes on by `advance` alone; who waits on it sees that soon."""

    def __init__(self, start: float) -> None:
        self._seconds = start
        self._lock = threading.Lock()

    def advance(self, seconds: float) -> None:
        """Let time go on."""
        with self._lock:
            self._seconds += seconds

    def now(self) -> float:
        """Return the seconds since 1970."""
        return self._seconds

    def monotonic(self) -> float:
        """Return the same: nobody sets it back."""
        return self._seconds

    def wait(self, wait: Callable[[float], object], seconds: float) -> None:
        """Wait until the function says that it has happened, or the time is over."""
        end = self._seconds + seconds
        while self._seconds < end and not wait(POLL_SECONDS):
            pass
