# SPDX-License-Identifier: Apache-2.0
"""Which profile a vGPU's use asks for: the highest framebuffer use of 35 days, with a margin.

A recommender for memory that decays, such as Kubernetes' VPA, forgets the peak of last month's end, and a guest that
runs out of framebuffer fails. So the peak counts, however old within 35 days. On synthetic traces of eight kinds, at
most one VM in twenty reached the advised size in the next sixty days (tests/unit/monitoring/test_right_sizing.py).

A smaller profile also shrinks a fixed share of the GPU's time. What nobody knows is said: with MIG there is no use of
engines, and Windows keeps framebuffer that it does not use.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from vgpuctl.model.numbers import count_text
from vgpuctl.model.usage_history import DAY_SECONDS, HOURS_KEPT_DAYS, SizeVerdict, UsedHour, VgpuHistory
from vgpuctl.value import Value

MARGIN_RATIO, MARGIN_BYTES = 1.15, 256 << 20
FULL_RATIO = 0.9
"""From this part of its framebuffer on, a vGPU should have more."""
FEWEST_DAYS, DAYS_OF_A_MONTH = 10, 31
MOST_OF_SHARE = 0.8
"""A smaller profile must leave this part of its guaranteed time unused."""
IDLE_DAYS, IDLE_SM = 5, 0.02
_MIB = 1 << 20
_WEEKS, _RISE_RATIO = 3, 1.02
_P95 = 0.95
_SHORT_SECONDS = 300
"""An hour with less than this has no mean over five minutes."""


class ProfileSize(Value):
    """A profile of a series. `time_share`: what it is guaranteed of the GPU's time, None for nothing or unknown."""

    profile: str
    framebuffer_mib: int
    time_share: float | None = None


class Sizing(Value):
    """The advice for one vGPU. `profile`: the advised one, None for none. `reason`: why, or why not.

    `peak_bytes`, `peak_time`: the highest use, None if it was never seen. `days`: with a running guest driver.
    `confidence`: high if a month's end was seen. `sm`: the 95th percentile of the cores' use over five minutes.
    """

    verdict: SizeVerdict
    profile: str | None
    reason: str
    peak_bytes: int | None
    peak_time: float | None
    days: int
    confidence: str | None
    sm: float | None


def size_profile(
    history: VgpuHistory, series: Sequence[ProfileSize], *, now: float, is_windows: bool = False
) -> Sizing:
    """Return the advice for a vGPU. `series`: what its GPU offers of its series, its own profile among them."""
    hours = [hour for hour in history.hours if hour.start > now - HOURS_KEPT_DAYS * DAY_SECONDS]
    peak_hour = max((h for h in hours if h.peak_bytes is not None), key=lambda h: h.peak_bytes or 0, default=None)
    days = len({hour.start // DAY_SECONDS for hour in hours if hour.seen_seconds > 0})
    peak = None if peak_hour is None else peak_hour.peak_bytes
    verdict, profile, reason = _decide(history, sorted(series, key=lambda one: one.framebuffer_mib), hours, peak, days)
    is_sure = days >= DAYS_OF_A_MONTH
    if verdict is SizeVerdict.SMALLER:
        reason += "" if is_sure else "; no month's end was seen"
        reason += "; Windows keeps framebuffer that it does not use" if is_windows else ""
        is_sure = is_sure and not is_windows
    confidence = None if profile is None else "high" if is_sure else "low"
    peak_time = None if peak_hour is None else peak_hour.peak_time
    return Sizing(verdict, profile, reason, peak, peak_time, days, confidence, load_of(hours))


def _decide(
    history: VgpuHistory, ordered: Sequence[ProfileSize], hours: Sequence[UsedHour], peak: int | None, days: int
) -> tuple[SizeVerdict, str | None, str]:
    """Return the verdict, the profile and the reason. `ordered`: the smallest profile first."""
    if peak is None:
        return SizeVerdict.NONE, None, "its framebuffer use was never seen"
    size = history.framebuffer_mib * _MIB
    if peak >= FULL_RATIO * size:
        larger = next((one for one in ordered if one.framebuffer_mib > history.framebuffer_mib), None)
        percent = f"it used {peak * 100 // size} % of its framebuffer"
        if larger is None:
            return SizeVerdict.NONE, None, f"{percent}, and its GPU has no larger profile of this series"
        return SizeVerdict.LARGER, larger.profile, percent
    if days < FEWEST_DAYS:
        return (
            SizeVerdict.NONE,
            None,
            f"seen with a running driver on {count_text(days, 'day')} of {FEWEST_DAYS} that are needed",
        )
    needed = peak * MARGIN_RATIO + MARGIN_BYTES
    fitting = next((one for one in ordered if one.framebuffer_mib * _MIB >= needed), None)
    if fitting is None or fitting.framebuffer_mib >= history.framebuffer_mib:
        return SizeVerdict.KEEP, None, "its peak with a margin needs this profile"
    if is_rising(hours):
        return SizeVerdict.NONE, None, f"its weekly peaks have risen for {_WEEKS} weeks"
    sm, share = load_of(hours), fitting.time_share
    if sm is not None and share and sm / share > MOST_OF_SHARE:
        text = f"{fitting.profile} would be guaranteed {share:.0%} of the GPU's time, and it uses {sm:.0%}"
        return SizeVerdict.KEEP, None, text
    return SizeVerdict.SMALLER, fitting.profile, "its peak with a margin fits"


def load_of(hours: Sequence[UsedHour]) -> float | None:
    """Return the 95th percentile of the hours' highest five-minute means of the cores' use; None if all are unknown."""
    loads = sorted(hour.sm for hour in hours if hour.sm is not None)
    return loads[min(len(loads) - 1, int(len(loads) * _P95))] if loads else None


def is_rising(hours: Sequence[UsedHour]) -> bool:
    """Return whether each of the last weekly peaks was higher than the one before."""
    if not hours:
        return False
    last = hours[-1].start
    weeks: list[int] = []
    for number in range(_WEEKS + 1):
        end, start = last - number * 7 * DAY_SECONDS, last - (number + 1) * 7 * DAY_SECONDS
        peaks = [hour.peak_bytes for hour in hours if start < hour.start <= end and hour.peak_bytes is not None]
        if not peaks:
            return False
        weeks.append(max(peaks))
    return all(newer > older * _RISE_RATIO for newer, older in pairwise(weeks))


def is_idle(history: VgpuHistory, *, now: float) -> bool:
    """Return whether a vGPU's VM was on for days, all hours of them, and hardly used the cores."""
    hours = [hour for hour in history.hours if hour.start > now - IDLE_DAYS * DAY_SECONDS]
    on_seconds = sum(hour.on_seconds for hour in hours)
    is_known = all(hour.sm is not None for hour in hours if hour.on_seconds >= _SHORT_SECONDS)
    load = load_of(hours)
    return on_seconds > 0.9 * IDLE_DAYS * DAY_SECONDS and is_known and load is not None and load < IDLE_SM
