# SPDX-License-Identifier: Apache-2.0
"""The requests of a run, generated from a seed. They are the same for every policy."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import log
from random import Random
from typing import NamedTuple

from tests.bench.placement.fleets import Setting

LOADS = (60, 80, 100, 130)
"""The demand in percent of the fleet's framebuffer: in total, or in churn on average at any time."""
WARM_UP_LIVES, MEASURED_LIVES = 3.0, 4.0
"""Churn, in mean lifetimes of a vGPU: the warm-up that does not count, and the measured time."""
SALT = "3d92cb1ed8735c2a"
"""Drawn when the rule was final: no request of the benchmark was seen while the rule was chosen."""


class Visit(NamedTuple):
    """A request in churn: when it arrives, when it leaves if it is admitted, and its profile."""

    comes: float
    goes: float
    profile: str


def arrivals(setting: Setting, gpus: int, seed: int) -> tuple[list[str], dict[int, int]]:
    """Return the profiles in the order of the requests, and how many of the requests make up each load."""
    sizes, fleet_mib = setting.sizes, setting.framebuffer_mib(gpus)
    profiles: list[str] = []
    until: dict[int, int] = {}
    requested_mib = 0
    for profile in _drawn(setting.demand, Random(f"{SALT} arrivals {setting.requests} {gpus} {seed}")):
        requested_mib += sizes[profile]
        for load in LOADS:
            if load not in until and requested_mib * 100 > fleet_mib * load:
                until[load] = len(profiles)
        if len(until) == len(LOADS):
            break
        profiles.append(profile)
    return profiles, until


def visits(setting: Setting, gpus: int, load: int, seed: int) -> Iterator[Visit]:
    """Yield requests that arrive at random, at the rate of this load, and stay for one lifetime on average."""
    random = Random(f"{SALT} churn {setting.requests} {gpus} {load} {seed}")
    drawn = _drawn(setting.demand, random)
    total = sum(setting.demand.values())
    mean_mib = sum(setting.sizes[profile] * weight for profile, weight in setting.demand.items()) / total
    rate = setting.framebuffer_mib(gpus) * load / 100 / mean_mib
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
