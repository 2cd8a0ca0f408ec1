# SPDX-License-Identifier: Apache-2.0
"""How many desktops a pool keeps ready at a time, by weekday in the pool's time zone.

A schedule says what should hold now; it is no list of things to do. So nothing is lost where the clock is set, where
summer time begins, or where the controller was off. `from` and `until` are local times, a lead is elapsed time. Time
zones are the IANA's, from the system's package tzdata or PyPI's (Python's zoneinfo).
"""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache

from vgpuctl.controller.model import PoolSpec, Schedule
from vgpuctl.value import Value

DAY_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 1440
FIRST_CHECKED, CHECKED_DAYS = datetime(2026, 1, 1, tzinfo=UTC), 15 * 366
"""Schedules are checked against the clock changes of these years: one that begins later is not known anyway."""

_ZONE_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}", re.ASCII)


class ClockShift(Value):
    """Local times that a time zone skips or has twice: from `start` up to, but not at, `end`, both without a zone."""

    start: datetime
    end: datetime
    skipped: bool


def zone_of(name: str, load: Callable[[str], tzinfo] = zoneinfo.ZoneInfo) -> tzinfo:
    """Return a time zone by its IANA name.

    Raises:
        ValueError: there is none of this name, or this machine has no time zones.
    """
    if name == "UTC":
        return UTC
    zone = _load(name, load) if len(name) <= 64 and _ZONE_PATTERN.fullmatch(name) else None
    if zone is not None:
        return zone
    if _load("Europe/London", load) is None:
        raise ValueError("this machine has no time zones but UTC: install the package tzdata (apt install tzdata)")
    similar = difflib.get_close_matches(name[:64], sorted(zoneinfo.available_timezones()), 1, 0.6)
    suggestion = f" (did you mean '{similar[0]}'?)" if similar else ""
    raise ValueError(f"{name[:64]!a} is not a time zone like Europe/Berlin{suggestion}")


def _load(name: str, load: Callable[[str], tzinfo]) -> tzinfo | None:
    try:
        return load(name)
    except (LookupError, OSError, ValueError):  # no such file, a folder of the database, a file that is none
        return None


def wanted_spare(spec: PoolSpec, now: float) -> int:
    """Return how many desktops should be ready without a user: of the last schedule that holds, else `spare`."""
    wanted = spec.spare
    zone = zone_of(spec.time_zone) if spec.schedules else UTC
    for schedule in spec.schedules:
        if any(begin <= now < end for begin, end in _periods(schedule, zone, now)):
            wanted = schedule.spare
    return min(wanted, spec.maximum)


def _periods(schedule: Schedule, zone: tzinfo, now: float) -> Iterator[tuple[float, float]]:
    """Yield when a schedule holds, from today to nine days on."""
    today = datetime.fromtimestamp(now, zone).date()
    for day in (today + timedelta(days) for days in range(10)):
        if day.weekday() in schedule.days:
            begin = _moment(day, schedule.start, zone) - 60 * schedule.lead_minutes
            yield begin, _moment(day, schedule.until, zone)


def _moment(day: date, minutes: int, zone: tzinfo) -> float:
    """Return a local time in seconds since 1970; of a midnight that is skipped or repeated the day's first moment."""
    return _wall_time(day, minutes).replace(tzinfo=zone).timestamp()


def _wall_time(day: date, minutes: int) -> datetime:
    return datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)


@lru_cache(64)
def clock_shifts(zone_name: str) -> tuple[ClockShift, ...]:
    """Return a zone's clock changes in the years that schedules are checked against."""
    zone = zone_of(zone_name)
    shifts = []
    for number in range(CHECKED_DAYS):
        first = FIRST_CHECKED + timedelta(number)
        last = first + timedelta(1)
        if _offset(first, zone) == _offset(last, zone):
            continue
        while last - first > timedelta(minutes=1):
            middle = first + (last - first) // timedelta(minutes=2) * timedelta(minutes=1)
            first, last = (middle, last) if _offset(middle, zone) == _offset(first, zone) else (first, middle)
        before, after = (last.replace(tzinfo=None) + _offset(moment, zone) for moment in (first, last))
        shifts.append(ClockShift(min(before, after), max(before, after), before < after))
    return tuple(shifts)


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def clock_problem(schedule: Schedule, key: str, zone_name: str) -> str | None:
    """Return why the time of a schedule's `from` or `until` is no moment, or two, on one of its days; None: it is one.

    Midnight is a moment always: where it is skipped or repeated, a day begins with the clock change, or the first time.
    """
    minutes = schedule.start if key == "from" else schedule.until
    for shift in clock_shifts(zone_name) if minutes % DAY_MINUTES else ():
        for day in {shift.start.date(), shift.end.date()}:
            if day.weekday() in schedule.days and shift.start <= _wall_time(day, minutes) < shift.end:
                what = "does not exist" if shift.skipped else "happens twice"
                verb = "skips" if shift.skipped else "repeats"
                return (
                    f"{clock_text(minutes)} {what} on {DAY_NAMES[day.weekday()]} {day} in {zone_name}: "
                    f"summer time {verb} {shift.start:%H:%M} to {shift.end:%H:%M}"
                )
    return None


def clock_text(minutes: int) -> str:
    """Return minutes after midnight as people write them: 07:00."""
    return f"{minutes // 60:02}:{minutes % 60:02}"
