# SPDX-License-Identifier: Apache-2.0
"""The requests of a run, generated from a seed. They are the same for every policy."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import log
from random import Random
from typing import NamedTuple

from tests.bench.placement.fleets import Setting, framebuffer_gib

LOADS = (60, 80, 100, 130)
"""The demand in percent of the fleet's framebuffer: in total, or in churn on average at any time."""
WARM_UP_LIVES, MEASURED_LIVES = 3.0, 4.0
"""Churn, in mean lifetimes of a vGPU: the warm-up that does not count, and the measured time."""


class Arrivals(NamedTuple):
    """The requested profiles in order, and how many of them make up each load."""

    profiles: list[str]
    until: dict[int, int]


class Visit(NamedTuple):
    """A request in churn: when it arrives, when it leaves if it is admitted, and its profile."""

    comes: float
    goes: float
    profile: str


def sizes_gib(setting: Setting) -> dict[str, int]:
    """Return the framebuffer in GiB of every profile. It is the same on every card."""
    return {profile: size for card in setting.cards for profile, size in card.sizes.items()}


def arrivals(setting: Setting, gpus: int, seed: int) -> Arrivals:
    """Return as many requests as the greatest load allows. A smaller load uses the first of them."""
    sizes, fleet_gib = sizes_gib(setting), framebuffer_gib(setting, gpus)
    profiles: list[str] = []
    until: dict[int, int] = {}
    requested_gib = 0
    for profile in _drawn(setting.demand, Random(f"arrivals {setting.asked} {gpus} {seed}")):
        requested_gib += sizes[profile]
        for load in LOADS:
            if load not in until and requested_gib * 100 > fleet_gib * load:
                until[load] = len(profiles)
        if len(until) == len(LOADS):
            break
        profiles.append(profile)
    return Arrivals(profiles, until)


def visits(setting: Setting, gpus: int, load: int, seed: int) -> Iterator[Visit]:
    """Yield requests that arrive at random, at the rate of this load, and stay for one lifetime on average."""
    random = Random(f"churn {setting.asked} {gpus} {load} {seed}")
    drawn = _drawn(setting.demand, random)
    sizes, total = sizes_gib(setting), sum(setting.demand.values())
    mean_gib = sum(sizes[profile] * weight for profile, weight in setting.demand.items()) / total
    rate = framebuffer_gib(setting, gpus) * load / 100 / mean_gib
    now = -log(1 - random.random()) / rate
    while now < WARM_UP_LIVES + MEASURED_LIVES:
        yield Visit(now, now - log(1 - random.random()), next(drawn))
        now -= log(1 - random.random()) / rate


def _drawn(demand: Mapping[str, float], random: Random) -> Iterator[str]:
    """Yield profiles without end, each as often as its weight says."""
    profiles = sorted(demand)
    bounds = list(accumulate(demand[profile] for profile in profiles))
    while True:
        yield profiles[bisect(bounds, random.random() * bounds[-1])]
