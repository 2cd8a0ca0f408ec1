# SPDX-License-Identifier: Apache-2.0
"""When something is tried again after errors: after 5 s, and twice as long each time, at most 5 minutes.

What waits for a person counts as no error, and is tried once a minute.
"""

from __future__ import annotations

from vgpuctl.controller.model import Desktop
from vgpuctl.controller.planning.phase import MOVE_CODE
from vgpuctl.errors import NeedsBlob

FIRST_WAIT, LONGEST_WAIT = 5.0, 300.0
WAITING_CODES = frozenset((NeedsBlob.code, MOVE_CODE))
"""Errors of a host that a person ends, as by a file there."""
WAITING_SECONDS = 60.0


def wait_after(errors: int) -> float:
    """Return how many seconds to wait after so many errors that followed each other."""
    return min(FIRST_WAIT * 2.0 ** min(max(errors - 1, 0), 10), LONGEST_WAIT) if errors > 0 else 0.0


def next_try(errors: int, now: float, code: str = "") -> float:
    """Return `not_before` of a desktop whose `errors`-th error happens now; `code`: the error's."""
    return now + (WAITING_SECONDS if code in WAITING_CODES else wait_after(errors))


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
