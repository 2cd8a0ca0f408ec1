# SPDX-License-Identifier: Apache-2.0
"""The host's clock."""

from __future__ import annotations

import time
from collections.abc import Callable


class HostClock:
    """Real time; implements `ports.Clock`. `after_sleep` is called after each sleep; it may raise to end a wait."""

    def __init__(self, after_sleep: Callable[[], None] = lambda: None) -> None:
        self._after_sleep = after_sleep

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep; callers keep it short, because they notice a signal only afterwards."""
        time.sleep(seconds)
        self._after_sleep()
