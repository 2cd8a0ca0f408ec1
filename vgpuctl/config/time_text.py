# SPDX-License-Identifier: Apache-2.0
"""Reads a moment in the past as people write it: `2h`, `yesterday`, `2026-11-25`, `2026-11-25 13:30`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from vgpuctl.errors import InvalidInput

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGO = re.compile(r"([0-9]{1,6})\s*([smhdw])", re.ASCII)
_DAYS = {"today": 0, "yesterday": 1}


def parse_past_time(argument: str, text: str, now: float) -> float:
    """Return the moment as seconds since the epoch; a time without a zone is this machine's local time.

    Raises:
        InvalidInput: it is no such text, or out of range.
    """
    stripped = text.strip()
    ago = _AGO.fullmatch(stripped)
    if ago is not None:
        return max(0.0, now - int(ago[1]) * _UNITS[ago[2]])
    try:
        if stripped in _DAYS:
            day = datetime.fromtimestamp(now) - timedelta(days=_DAYS[stripped])
            return day.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        return max(0.0, datetime.fromisoformat(stripped).timestamp())
    except (ValueError, OverflowError, OSError):
        raise InvalidInput(
            f"{argument}: '{text}' is not a time",
            hint="write 30m, 2h, 7d, today, yesterday, 2026-11-25 or '2026-11-25 13:30'",
            value=text,
        ) from None
