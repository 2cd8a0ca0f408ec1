# SPDX-License-Identifier: Apache-2.0
"""The host's clock."""

from __future__ import annotations

import time


class HostClock:
    """Real time; implements `ports.Clock`."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep; callers keep it short, because they notice a signal only afterwards."""
        time.sleep(seconds)
