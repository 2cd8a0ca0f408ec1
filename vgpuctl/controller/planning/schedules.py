# SPDX-License-Identifier: Apache-2.0
"""When a pool has more spare desktops. A schedule is a level: what should hold now, whatever happened before."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from vgpuctl.controller.model import PoolSpec
from vgpuctl.value import Value

DAY_MINUTES = 24 * 60
_YEAR = 2027
"""Whose clock changes are looked at: zones that change do so each year."""


class ClockChange(Value):
    """A day on which a zone's clock skips or repeats a time: `word` says which."""

    day: date
    word: str


def wanted_spare(spec: PoolSpec, now: float) -> int:
    """Return how many desktops without a user should be ready at a time, in seconds since 1970."""
    local = datetime.fromtimestamp(now, UTC).astimezone(ZoneInfo(spec.time_zone))
    spare = spec.spare
    for schedule in spec.schedules:
        for offset in (0, 1):  # the lead of a schedule early in the morning begins on the day before
            day = local.date() + timedelta(days=offset)
            minutes = local.hour * 60 + local.minute - offset * DAY_MINUTES
            if day.weekday() in schedule.days and schedule.start - schedule.lead_minutes <= minutes < schedule.until:
                spare = schedule.spare
    return spare


def find_clock_change(zone_name: str, days: Collection[int], minutes: int) -> ClockChange | None:
    """Return a day on which this time of day does not exist or exists twice; None: there is no such day."""
    zone = ZoneInfo(zone_name)
    if minutes == DAY_MINUTES:
        minutes = 0
        days = {(day + 1) % 7 for day in days}
    day = date(_YEAR, 1, 1)
    while day.year == _YEAR:
        if day.weekday() in days:
            naive = datetime(day.year, day.month, day.day, minutes // 60, minutes % 60)
            first, second = naive.replace(tzinfo=zone), naive.replace(tzinfo=zone, fold=1)
            if first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != naive:
                return ClockChange(day, "skips")
            if first.utcoffset() != second.utcoffset():
                return ClockChange(day, "repeats")
        day += timedelta(days=1)
    return None
