# SPDX-License-Identifier: Apache-2.0
"""The rule of right-sizing: on synthetic traces of eight kinds, on random ones, and each of its parts."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests import EVERYTHING
from vgpuctl.model.usage_history import DAY_SECONDS, HOUR_SECONDS, SizeVerdict, UsedHour, VgpuHistory
from vgpuctl.monitoring.right_sizing import ProfileSize, Sizing, is_idle, is_rising, load_of, size_profile

GIB = 1 << 30
SIZES = (1, 2, 3, 4, 6, 8, 12)
SERIES = tuple(ProfileSize(f"X-{size}Q", size * 1024) for size in SIZES)
DAYS_BEFORE, DAYS_AFTER, VMS = 60, 60, 60 if EVERYTHING else 15
RANDOM_VMS = 200 if EVERYTHING else 60
NOW = DAYS_BEFORE * DAY_SECONDS
Trace = Callable[[random.Random, int, int], float | None]
"""From a VM's random numbers, the day and the hour: the peak of that hour in GiB, None while it is off."""


def _work(hour: int) -> bool:
    return 8 <= hour < 18


def office(r: random.Random, day: int, hour: int) -> float | None:
    """A desktop that is used by day."""
    return min(1.5, 0.5 + 0.2 * r.random() + (0.6 * r.random() if _work(hour) and day % 7 < 5 else 0))


def month_end(r: random.Random, day: int, hour: int) -> float | None:
    """Small, and large on the last two days of each 30."""
    return 6.2 - 0.3 * r.random() if day % 30 >= 28 and _work(hour) else 1.0 + 0.3 * r.random()


def weekly(r: random.Random, day: int, hour: int) -> float | None:
    """A job once a week, for two hours."""
    return 4.6 + 0.3 * r.random() if day % 7 == 2 and hour in (3, 4) else 1.2 * r.random()


def grows(r: random.Random, day: int, hour: int) -> float | None:
    """Data that grows through all 120 days."""
    return 2.0 + 4.0 * day / (DAYS_BEFORE + DAYS_AFTER) + 0.1 * r.random()


def rare(r: random.Random, day: int, hour: int) -> float | None:
    """A peak about once in 45 days."""
    return 5.0 + 0.2 * r.random() if r.random() < 1 / (45 * 24) else 0.8 + 0.3 * r.random()


def mostly_off(r: random.Random, day: int, hour: int) -> float | None:
    """On for six days of the last 60."""
    return 1.0 + 0.5 * r.random() if day % 10 == 0 else None


def steady(r: random.Random, day: int, hour: int) -> float | None:
    """A server that always has the same."""
    return 5.5 + 0.05 * r.random()


def bursty(r: random.Random, day: int, hour: int) -> float | None:
    """Any value up to half of it at any time."""
    return 3.2 * r.random()


KINDS: dict[str, Trace] = {
    "office": office,
    "month end": month_end,
    "weekly": weekly,
    "grows": grows,
    "rare": rare,
    "mostly off": mostly_off,
    "steady": steady,
    "bursty": bursty,
}


def history(trace: Trace, seed: int, *, first: int = 0, days: int = DAYS_BEFORE) -> VgpuHistory:
    """Return a VM's hours by a trace."""
    r = random.Random(f"{trace.__name__} {seed}")
    hours: list[UsedHour] = []
    for day in range(days):
        for hour in range(24):
            gib = trace(r, day, hour)
            if gib is not None and day >= first:
                start = day * DAY_SECONDS + hour * HOUR_SECONDS
                hours.append(UsedHour(start, int(gib * GIB), start + 60.0, 0.1, 3600.0, 3600.0, 360.0))
    return VgpuHistory("uuid", 0, "vm", "X-8Q", 8192, "0000:3b:00.0", hours=tuple(hours))


def advised_gib(sizing: Sizing) -> float:
    """Return the size that a VM would have after the advice."""
    return 8.0 if sizing.profile is None else next(s for s in SIZES if sizing.profile == f"X-{s}Q")


def would_hit(trace: Trace, seed: int) -> tuple[float, bool]:
    """Return the advised size, and whether the VM would have reached it in the days after."""
    whole = history(trace, seed, days=DAYS_BEFORE + DAYS_AFTER)
    before = VgpuHistory(
        "uuid", 0, "vm", "X-8Q", 8192, "g", hours=tuple(hour for hour in whole.hours if hour.start < NOW)
    )
    size = advised_gib(size_profile(before, SERIES, now=NOW))
    after = max((hour.peak_bytes or 0 for hour in whole.hours if hour.start >= NOW), default=0)
    return size, after > size * GIB


def test_few_vms_reach_the_advised_size_and_much_is_won() -> None:
    results = {name: [would_hit(trace, seed) for seed in range(VMS)] for name, trace in KINDS.items()}
    hits = {name: sum(hit for _, hit in rows) for name, rows in results.items()}
    sizes = [size for rows in results.values() for size, _ in rows]
    assert sum(hits.values()) <= 0.05 * len(sizes), hits
    assert sum(sizes) / len(sizes) <= 7.1
    assert hits["office"] == hits["month end"] == hits["weekly"] == hits["mostly off"] == 0


def test_few_random_vms_reach_the_advised_size() -> None:
    def random_trace(seed: int) -> Trace:
        choice = random.Random(seed)
        base, swing, every = choice.uniform(0.2, 4), choice.uniform(0, 3), choice.choice((1, 3, 7, 14, 30))

        def trace(r: random.Random, day: int, hour: int) -> float | None:
            return base + (swing * r.random() if day % every == 0 else 0.2 * r.random())

        return trace

    hits = sum(would_hit(random_trace(seed), seed)[1] for seed in range(RANDOM_VMS))
    assert hits <= 0.05 * RANDOM_VMS


def flat(gib: float, days: int = 40, sm: float | None = 0.1) -> VgpuHistory:
    """Return a VM that always uses the same."""
    hours = tuple(
        UsedHour(n * HOUR_SECONDS, int(gib * GIB), n * HOUR_SECONDS + 1.0, sm, 3600.0, 3600.0, 0.0)
        for n in range(days * 24)
    )
    return VgpuHistory("uuid", 0, "vm", "X-8Q", 8192, "g", hours=hours)


def size_of(vgpu: VgpuHistory, series: tuple[ProfileSize, ...] = SERIES, *, is_windows: bool = False) -> Sizing:
    """Return the advice a moment after the last hour."""
    now = vgpu.hours[-1].start + HOUR_SECONDS if vgpu.hours else 0.0
    return size_profile(vgpu, series, now=now, is_windows=is_windows)


@pytest.mark.parametrize(
    ("vgpu", "verdict", "profile", "confidence"),
    [
        (flat(1.0), SizeVerdict.SMALLER, "X-2Q", "high"),
        (flat(1.0, days=12), SizeVerdict.SMALLER, "X-2Q", "low"),
        (flat(1.0, days=9), SizeVerdict.NONE, None, None),
        (flat(1.52), SizeVerdict.SMALLER, "X-2Q", "high"),
        (flat(1.53), SizeVerdict.SMALLER, "X-3Q", "high"),
        (flat(6.0), SizeVerdict.KEEP, None, None),
        (flat(7.19), SizeVerdict.KEEP, None, None),
        (flat(7.25), SizeVerdict.LARGER, "X-12Q", "high"),
        (flat(7.25, days=1), SizeVerdict.LARGER, "X-12Q", "low"),
        (flat(0.0, days=0), SizeVerdict.NONE, None, None),
    ],
)
def test_the_parts_of_the_rule(
    vgpu: VgpuHistory, verdict: SizeVerdict, profile: str | None, confidence: str | None
) -> None:
    sizing = size_of(vgpu)
    assert (sizing.verdict, sizing.profile, sizing.confidence) == (verdict, profile, confidence)
    assert sizing.reason


def test_what_is_older_than_35_days_does_not_count() -> None:
    old = flat(1.0, days=60)
    high = UsedHour(0, 5 * GIB, 1.0, 0.1, 3600.0, 3600.0, 0.0)
    sizing = size_of(VgpuHistory("uuid", 0, "vm", "X-8Q", 8192, "g", hours=(high, *old.hours[1:])))
    assert sizing.profile == "X-2Q"
    assert sizing.peak_bytes == GIB


def test_the_largest_profile_cannot_grow() -> None:
    sizing = size_of(flat(7.9), tuple(one for one in SERIES if one.framebuffer_mib <= 8192))
    assert (sizing.verdict, sizing.profile) == (SizeVerdict.NONE, None)
    assert "98 %" in sizing.reason


def test_a_smaller_share_of_time_is_looked_at() -> None:
    shares = tuple(ProfileSize(one.profile, one.framebuffer_mib, one.framebuffer_mib / 49152) for one in SERIES)
    assert size_of(flat(1.0, sm=0.03), shares).profile == "X-2Q"
    refused = size_of(flat(1.0, sm=0.04), shares)
    assert (refused.verdict, refused.profile) == (SizeVerdict.KEEP, None)
    assert "X-2Q would be guaranteed 4% of the GPU's time, and it uses 4%" in refused.reason
    assert size_of(flat(1.0, sm=None), shares).profile == "X-2Q", "with MIG the use of the cores is unknown"


def test_windows_makes_a_smaller_profile_less_sure() -> None:
    sizing = size_of(flat(1.0), is_windows=True)
    assert (sizing.profile, sizing.confidence) == ("X-2Q", "low")
    assert "Windows" in sizing.reason
    assert size_of(flat(7.5), is_windows=True).confidence == "high"


def test_rising_peaks_prevent_a_smaller_profile() -> None:
    rising = history(grows, 1)
    assert is_rising(rising.hours)
    assert size_of(rising).verdict is SizeVerdict.NONE
    assert not is_rising(flat(1.0).hours)
    assert not is_rising(())


def test_idle_vms() -> None:
    idle, busy, unknown = flat(1.0, sm=0.01), flat(1.0, sm=0.03), flat(1.0, sm=None)
    now = idle.hours[-1].start + HOUR_SECONDS
    assert is_idle(idle, now=now)
    assert not is_idle(busy, now=now)
    assert not is_idle(unknown, now=now)
    assert not is_idle(flat(1.0, days=3, sm=0.01), now=3 * DAY_SECONDS)
    assert load_of(()) is None
