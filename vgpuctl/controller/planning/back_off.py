# SPDX-License-Identifier: Apache-2.0
"""When something is tried again after errors: after 5 s, and twice as long each time, at most 5 minutes."""

from __future__ import annotations

from vgpuctl.controller.model import Desktop

FIRST_WAIT, LONGEST_WAIT = 5.0, 300.0


def wait_after(errors: int) -> float:
    """Return how many seconds to wait after so many errors that followed each other."""
    return min(FIRST_WAIT * 2.0 ** min(max(errors - 1, 0), 10), LONGEST_WAIT) if errors > 0 else 0.0


def next_try(errors: int, now: float) -> float:
    """Return `not_before` of a desktop whose `errors`-th error happens now."""
    return now + wait_after(errors)


def error_times(desktop: Desktop) -> tuple[float, ...]:
    """Return when a desktop's errors that followed each other happened at the latest, the last one first.

    Only the last one's time is known: `not_before` less its wait. Each of the others was at least its wait earlier.
    """
    times = []
    moment = desktop.not_before
    for number in range(min(desktop.errors, 20), 0, -1):
        moment -= wait_after(number)
        times.append(moment)
    return tuple(times)
