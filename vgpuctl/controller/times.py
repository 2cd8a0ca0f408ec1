# SPDX-License-Identifier: Apache-2.0
"""Times in the answers of the controller's API."""

from __future__ import annotations

import datetime

from vgpuctl.errors import InvalidInput


def time_text(seconds: float | None) -> str | None:
    """Return a time as UTC, RFC 3339; None: never, or not known."""
    if seconds is None:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def day_start(name: str, text: str) -> float:
    """Return when a day like 2026-11-01 begins, in UTC. `name`: of what has it.

    Raises:
        InvalidInput: it is none.
    """
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{name}: {text[:60]!a} is no day like 2026-11-01") from None
    return datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp()
