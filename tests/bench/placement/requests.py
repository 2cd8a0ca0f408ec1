# SPDX-License-Identifier: Apache-2.0
"""The requests of a run: made from a seed, the same for every policy."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import log
from random import Random
from typing import NamedTuple

from tests.bench.placement.fleets import Setting, framebuffer_gib

LOADS = (60, 80, 100, 130)
"""Percent of the fleet's framebuffer: what is asked for in all, or in churn on average at a time."""
WARM_UP_LIVES, MEASURED_LIVES = 3.0, 4.0
"""Churn, in mean lives of a vGPU: time that does not count, and time that does."""


class Arrivals(NamedTuple):
    """Profiles in order, and how many of them make up each load."""

    profiles: list[str]
    until: dict[int, int]


class Visit(NamedTuple):
    """A request of churn: when it comes, when it goes if it was admitted, and what it asks for."""

    comes: float
    goes: float
    profile: str


def sizes_gib(setting: Setting) -> dict[str, int]:
    """Return the framebuffer of every profile; cards that have it agree."""
    return {profile: size for card in setting.cards for profile, size in card.sizes.items()}


def arrivals(setting: Setting, gpus: int, seed: int) -> Arrivals:
    """Return as many requests as fit into the greatest load; a smaller load is the beginning of them."""
    sizes, whole = sizes_gib(setting), framebuffer_gib(setting, gpus)
    profiles: list[str] = []
    until: dict[int, int] = {}
    asked = 0
    for profile in _drawn(setting.demand, Random(f"arrivals {setting.asked} {gpus} {seed}")):
        asked += sizes[profile]
        for load in LOADS:
            if load not in until and asked * 100 > whole * load:
                until[load] = len(profiles)
        if len(until) == len(LOADS):
            break
        profiles.append(profile)
    return Arrivals(profiles, until)


def visits(setting: Setting, gpus: int, load: int, seed: int) -> Iterator[Visit]:
    """Return requests that come at random, as often as keeps the load up, and stay for one life on average."""
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
    """Return profiles for ever, each as often as its weight says."""
    profiles = sorted(demand)
    bounds = list(accumulate(demand[profile] for profile in profiles))
    while True:
        yield profiles[bisect(bounds, random.random() * bounds[-1])]
