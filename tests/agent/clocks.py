# SPDX-License-Identifier: Apache-2.0
"""A clock that stands still until a test moves it."""

from __future__ import annotations


class StandingClock:
    """2026-11-27 05:00:00 UTC, until `pass_seconds`."""

    def __init__(self) -> None:
        self.seconds = 1_795_755_600.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds
