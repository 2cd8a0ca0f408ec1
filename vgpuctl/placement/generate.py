# SPDX-License-Identifier: Apache-2.0
"""Requests that nobody recorded, of four patterns, for a fleet; the same chance gives the same requests.

They are made up, with round numbers, to compare policies and fleets by; they are no measurement of anybody's users.
What outlives the days that are generated has no departure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import cos, exp, log, tau
from typing import Protocol

from vgpuctl.placement.requests import Ask, Request
from vgpuctl.value import Value

HOUR = 3600.0
DAY = 24 * HOUR
LOG_ON = (8 * HOUR, 9.5 * HOUR)
LATE_UNTIL, LATE_SHARE = 11 * HOUR, 0.1
LUNCH, LUNCH_SHARE = (11.75 * HOUR, 12.75 * HOUR), 0.5
LUNCH_MINUTES = (30, 60)
LOG_OFF, LOG_OFF_DEVIATION, LAST = 17 * HOUR, 0.75 * HOUR, 22 * HOUR

AI_DEVIATION = 1.2
"""Of the logarithm of a life: most are short, some very long."""


class Chance(Protocol):
    """Random numbers, as random.Random gives them."""

    def random(self) -> float:
        """Return a number from 0 up to 1."""

    def gauss(self, mu: float, sigma: float) -> float:
        """Return a normally distributed number."""


class Part(Value):
    """A share of the demand. `mib`: what one takes, on the model where that is least; `life_hours`: see the pattern."""

    ask: Ask
    weight: float
    mib: int
    life_hours: float


class Size(Value):
    """How much is generated: `number` users or requests, or what asks for a `load` of the fleet's framebuffer."""

    days: int
    framebuffer_mib: int
    load: float = 1.0
    number: int | None = None


Pattern = Callable[[Chance, Sequence[Part], Size], Iterator[Request]]


def vdi_day(chance: Chance, parts: Sequence[Part], size: Size) -> Iterator[Request]:
    """Yield the sessions of desktops: log-on from 08:00 to 09:30, half of them off at lunch, log-off about 17:00.

    Each desktop has one profile on all days. The load is what all ask for together.
    """
    number = size.number or _at_least_one(size.load * size.framebuffer_mib / _mean_mib(parts))
    width = len(str(number))
    desktops = [_drawn(chance, parts) for _ in range(number)]
    for day in range(size.days):
        midnight = day * DAY
        for place, part in enumerate(desktops, 1):
            for begin, end in _sessions(chance):
                yield _request(midnight + begin, midnight + end, part, size, f"desktop-{place:0{width}}")


def _sessions(chance: Chance) -> list[tuple[float, float]]:
    late = chance.random() < LATE_SHARE
    begin = _between(chance, LOG_ON[1], LATE_UNTIL) if late else _between(chance, *LOG_ON)
    end = min(max(chance.gauss(LOG_OFF, LOG_OFF_DEVIATION), LUNCH[1] + HOUR), LAST)
    if chance.random() >= LUNCH_SHARE:
        return [(begin, end)]
    lunch = _between(chance, *LUNCH)
    return [(begin, lunch), (lunch + _between(chance, *LUNCH_MINUTES) * 60, end)]


def ai(chance: Chance, parts: Sequence[Part], size: Size) -> Iterator[Request]:
    """Yield notebooks, inference and training: more in the afternoon than at night, lives log-normal."""
    factor = exp(AI_DEVIATION**2 / 2)  # the mean of a log-normal over its median

    def life(part: Part) -> float:
        return part.life_hours * HOUR * exp(AI_DEVIATION * chance.gauss(0, 1))

    def rate(at: float) -> float:
        return (1 - 0.6 * cos(tau * (at / DAY - 0.125))) / 1.6  # the most at 15:00

    for begin, part in _arrivals(chance, parts, size, factor, rate):
        yield _request(begin, begin + life(part), part, size)


def churn(chance: Chance, parts: Sequence[Part], size: Size) -> Iterator[Request]:
    """Yield requests that come at any time with the same chance, and stay for exponential lives."""
    for begin, part in _arrivals(chance, parts, size, 1.0, lambda at: 1.0):
        yield _request(begin, begin + _exponential(chance, part.life_hours * HOUR), part, size)


def _arrivals(
    chance: Chance, parts: Sequence[Part], size: Size, mean_life: float, rate: Callable[[float], float]
) -> Iterator[tuple[float, Part]]:
    """Yield times and parts. `mean_life`: in units of a part's own; `rate`: of the most at a time, at most 1.

    As many come as keep the load on average, or `size.number` of them, whatever time that takes.
    """
    weights = sum(part.weight for part in parts)
    each = sum(part.weight * part.mib * part.life_hours * HOUR * mean_life for part in parts) / weights
    span = size.days * DAY
    average = sum(rate(DAY * n / 96) for n in range(96)) / 96
    wanted = size.number / span if size.number else size.load * size.framebuffer_mib / each
    at, left = 0.0, size.number
    while left is None or left > 0:
        at += _exponential(chance, average / wanted)
        if left is None and at >= span:
            return
        if chance.random() < rate(at):
            left = None if left is None else left - 1
            yield at, _drawn(chance, parts)


def _request(begin: float, end: float, part: Part, size: Size, name: str = "") -> Request:
    """Return a request in whole seconds, at least one long."""
    begin, end = float(round(begin)), float(max(round(end), round(begin) + 1))
    return Request(begin, end if end < size.days * DAY else None, part.ask, 1, name)


def _drawn(chance: Chance, parts: Sequence[Part]) -> Part:
    at = chance.random() * sum(part.weight for part in parts)
    for part in parts:
        at -= part.weight
        if at < 0:
            return part
    return parts[-1]


def _mean_mib(parts: Sequence[Part]) -> float:
    return sum(part.weight * part.mib for part in parts) / sum(part.weight for part in parts)


def _exponential(chance: Chance, mean: float) -> float:
    return -mean * log(1 - chance.random())


def _between(chance: Chance, least: float, most: float) -> float:
    return least + (most - least) * chance.random()


def _at_least_one(number: float) -> int:
    return max(1, round(number))
