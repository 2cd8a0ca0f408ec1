# SPDX-License-Identifier: Apache-2.0
"""The host's clock."""

from __future__ import annotations

import time


class HostClock:
    """Real time, as `seams.Clock`."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that never jumps."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Sleep; callers keep it short, because a signal is only seen by what they do next."""
        time.sleep(seconds)
