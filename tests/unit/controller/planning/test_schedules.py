# SPDX-License-Identifier: Apache-2.0
"""How many desktops are ready at a time: weekdays and hours are those of the pool's time zone, in summer and winter."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from tests.unit.controller.planning.fleets import pool_of
from vgpuctl.controller.model import Schedule
from vgpuctl.controller.planning.schedules import clock_problem, clock_shifts, wanted_spare, zone_of

BERLIN = ZoneInfo("Europe/Berlin")
OFFICE = Schedule((0, 1, 2, 3, 4), 420, 1080, 20, 30)


def spec_of(*schedules: Schedule, zone: str = "Europe/Berlin", spare: int = 2, maximum: int = 50):
    return pool_of(maximum=maximum, spare=spare, schedules=schedules, time_zone=zone).spec


def at(text: str, zone: tzinfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


@pytest.mark.parametrize(
    ("moment", "wanted"),
    [
        ("2027-01-11 06:29:59", 2), ("2027-01-11 06:30", 20), ("2027-01-11 17:59:59", 20), ("2027-01-11 18:00", 2),
        ("2027-07-12 06:29:59", 2), ("2027-07-12 06:30", 20), ("2027-07-12 18:00", 2), ("2027-01-10 12:00", 2),
    ],
)  # fmt: skip
def test_hours_are_local_in_winter_and_summer(moment, wanted):
    assert wanted_spare(spec_of(OFFICE), at(moment)) == wanted


def test_of_several_that_hold_the_last_one_counts():
    spec = spec_of(OFFICE, Schedule((0,), 600, 660, 1))
    assert [wanted_spare(spec, at(f"2027-01-11 {hour}:30")) for hour in ("09", "10", "11")] == [20, 1, 20]
    assert wanted_spare(spec_of(OFFICE, maximum=10), at("2027-01-11 09:00")) == 10
    assert wanted_spare(spec_of(), at("2027-01-11 09:00")) == 2


def test_a_lead_begins_on_the_day_before_and_is_elapsed_time():
    early = Schedule((0,), 30, 120, 9, 60)  # Monday 00:30, from Sunday 23:30 on
    assert [wanted_spare(spec_of(early), at(f"2027-01-10 23:{minute}")) for minute in ("29", "30")] == [2, 9]
    summer = Schedule((6,), 210, 300, 9, 60)  # 03:30 on the day whose 02:00 to 03:00 are skipped: from 01:30 on
    assert [wanted_spare(spec_of(summer), at(f"2027-03-28 01:{minute}")) for minute in ("29", "30")] == [2, 9]


def test_a_day_ends_at_midnight_also_when_the_clock_changes():
    whole = Schedule((6,), 0, 1440, 9)
    for day in ("2027-03-28", "2027-10-31"):
        begin, end = at(f"{day} 00:00"), at(f"{day} 23:59:59") + 1
        assert [wanted_spare(spec_of(whole), m) for m in (begin - 1, begin, end - 1, end)] == [2, 9, 9, 2]
    assert at("2027-10-31 23:59:59") - at("2027-10-31 00:00") > 86400


def test_clock_changes_of_a_zone():
    shifts = clock_shifts("Europe/Berlin")
    assert (shifts[0].start, shifts[0].end, shifts[0].skipped) == (
        datetime(2026, 3, 29, 2), datetime(2026, 3, 29, 3), True
    )  # fmt: skip
    assert (shifts[1].start, shifts[1].skipped) == (datetime(2026, 10, 25, 2), False)
    assert clock_shifts("UTC") == ()
    assert clock_problem(Schedule((6,), 60, 150, 1), "until", "Europe/Berlin") is not None
    assert clock_problem(Schedule((5,), 60, 150, 1), "until", "Europe/Berlin") is None
    assert clock_problem(Schedule((6,), 0, 1440, 1), "from", "America/Havana") is None
    assert clock_problem(Schedule((6,), 30, 1440, 1), "from", "America/Havana") is not None


def test_a_machine_without_time_zones_is_told_the_package():
    def nothing(name: str) -> tzinfo:
        raise ZoneInfoNotFoundError(name)

    assert zone_of("UTC", nothing) is UTC
    with pytest.raises(ValueError, match="install the package tzdata"):
        zone_of("Europe/Berlin", nothing)
