# SPDX-License-Identifier: Apache-2.0
"""Generated requests of four patterns, for a fleet; the same random source gives the same requests.

They are invented, with round numbers, to compare policies and fleets; they do not measure real users. A request that
outlives the generated days has no departure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import cos, exp, log, tau
from typing import Protocol

from vgpuctl.placement.trace_request import ProfileSelector, TraceRequest
from vgpuctl.value import Value

HOUR = 3600.0
DAY = 24 * HOUR
LOG_ON = (8 * HOUR, 9.5 * HOUR)
LATE_LOG_ON_END, LATE_LOG_ON_SHARE = 11 * HOUR, 0.1
LUNCH, LUNCH_SHARE = (11.75 * HOUR, 12.75 * HOUR), 0.5
LUNCH_MINUTES = (30, 60)
LOG_OFF, LOG_OFF_DEVIATION, LATEST_LOG_OFF = 17 * HOUR, 0.75 * HOUR, 22 * HOUR

AI_LIFE_DEVIATION = 1.2
"""Of the logarithm of a lifetime: most are short, some very long."""


class RandomSource(Protocol):
    """Random numbers, as random.Random gives them."""

    def random(self) -> float:
        """Return a number from 0 up to 1."""

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a normally distributed number."""


class WorkloadPart(Value):
    """A share of the demand. `mib`: of one vGPU, on the model where it is smallest; `life_hours`: see the pattern."""

    selector: ProfileSelector
    weight: float
    mib: int
    life_hours: float


class WorkloadSize(Value):
    """How much to generate: `count` users or requests, or enough for a `load` of the fleet's framebuffer."""

    days: int
    framebuffer_mib: int
    load: float = 1.0
    count: int | None = None


Pattern = Callable[[RandomSource, Sequence[WorkloadPart], WorkloadSize], Iterator[TraceRequest]]


def generate_vdi_day(
    random_source: RandomSource, parts: Sequence[WorkloadPart], size: WorkloadSize
) -> Iterator[TraceRequest]:
    """Yield the sessions of desktops: log-on from 08:00 to 09:30, half of them off at lunch, log-off about 17:00.

    Each desktop has one profile on all days. The load is the demand of all desktops together.
    """
    user_count = size.count or _at_least_one(size.load * size.framebuffer_mib / _mean_mib(parts))
    width = len(str(user_count))
    desktops = [_draw_part(random_source, parts) for _ in range(user_count)]
    for day in range(size.days):
        midnight = day * DAY
        for index, part in enumerate(desktops, 1):
            for start, end in _draw_sessions(random_source):
                yield _make_request(midnight + start, midnight + end, part, size, f"desktop-{index:0{width}}")


def _draw_sessions(random_source: RandomSource) -> list[tuple[float, float]]:
    late = random_source.random() < LATE_LOG_ON_SHARE
    start = _draw_uniform(random_source, LOG_ON[1], LATE_LOG_ON_END) if late else _draw_uniform(random_source, *LOG_ON)
    end = min(max(random_source.gauss(LOG_OFF, LOG_OFF_DEVIATION), LUNCH[1] + HOUR), LATEST_LOG_OFF)
    if random_source.random() >= LUNCH_SHARE:
        return [(start, end)]
    lunch = _draw_uniform(random_source, *LUNCH)
    return [(start, lunch), (lunch + _draw_uniform(random_source, *LUNCH_MINUTES) * 60, end)]


def generate_ai(
    random_source: RandomSource, parts: Sequence[WorkloadPart], size: WorkloadSize
) -> Iterator[TraceRequest]:
    """Yield notebooks, inference and training: more in the afternoon than at night, log-normal lifetimes."""
    factor = exp(AI_LIFE_DEVIATION**2 / 2)  # the mean of a log-normal over its median

    def life(part: WorkloadPart) -> float:
        return part.life_hours * HOUR * exp(AI_LIFE_DEVIATION * random_source.gauss(0, 1))

    def rate(seconds: float) -> float:
        return (1 - 0.6 * cos(tau * (seconds / DAY - 0.125))) / 1.6  # the peak is at 15:00

    for start, part in _draw_arrivals(random_source, parts, size, factor, rate):
        yield _make_request(start, start + life(part), part, size)


def generate_churn(
    random_source: RandomSource, parts: Sequence[WorkloadPart], size: WorkloadSize
) -> Iterator[TraceRequest]:
    """Yield requests that arrive at a constant rate, and stay for exponential lifetimes."""
    for start, part in _draw_arrivals(random_source, parts, size, 1.0, lambda seconds: 1.0):
        yield _make_request(start, start + _draw_exponential(random_source, part.life_hours * HOUR), part, size)


def _draw_arrivals(
    random_source: RandomSource,
    parts: Sequence[WorkloadPart],
    size: WorkloadSize,
    mean_life: float,
    rate: Callable[[float], float],
) -> Iterator[tuple[float, WorkloadPart]]:
    """Yield times and parts. `mean_life`: in units of a part's own; `rate`: relative to the peak rate, at most 1.

    The number of arrivals keeps the load on average, or is `size.count`, whatever time that takes.
    """
    weights = sum(part.weight for part in parts)
    mean_demand = sum(part.weight * part.mib * part.life_hours * HOUR * mean_life for part in parts) / weights
    span = size.days * DAY
    average = sum(rate(DAY * n / 96) for n in range(96)) / 96
    arrival_rate = size.count / span if size.count else size.load * size.framebuffer_mib / mean_demand
    seconds, remaining = 0.0, size.count
    while remaining is None or remaining > 0:
        seconds += _draw_exponential(random_source, average / arrival_rate)
        if remaining is None and seconds >= span:
            return
        if random_source.random() < rate(seconds):
            remaining = None if remaining is None else remaining - 1
            yield seconds, _draw_part(random_source, parts)


def _make_request(start: float, end: float, part: WorkloadPart, size: WorkloadSize, name: str = "") -> TraceRequest:
    """Return a request in whole seconds, at least one long."""
    start, end = float(round(start)), float(max(round(end), round(start) + 1))
    return TraceRequest(start, end if end < size.days * DAY else None, part.selector, 1, name)


def _draw_part(random_source: RandomSource, parts: Sequence[WorkloadPart]) -> WorkloadPart:
    position = random_source.random() * sum(part.weight for part in parts)
    for part in parts:
        position -= part.weight
        if position < 0:
            return part
    return parts[-1]


def _mean_mib(parts: Sequence[WorkloadPart]) -> float:
    return sum(part.weight * part.mib for part in parts) / sum(part.weight for part in parts)


def _draw_exponential(random_source: RandomSource, mean: float) -> float:
    return -mean * log(1 - random_source.random())


def _draw_uniform(random_source: RandomSource, minimum: float, maximum: float) -> float:
    return minimum + (maximum - minimum) * random_source.random()


def _at_least_one(number: float) -> int:
    return max(1, round(number))
