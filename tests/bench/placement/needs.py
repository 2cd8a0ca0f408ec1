# SPDX-License-Identifier: Apache-2.0
"""How many moves a request would need that least-waste refuses, each by itself, in the state in which it is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.bench.placement import kept
from tests.bench.placement.fleets import BY_NAME, fleet_of
from tests.bench.placement.requests import arrivals
from tests.bench.placement.runs import packing_of, placed
from vgpuctl.placement.least_waste import LeastWaste
from vgpuctl.placement.migration_search import find_migrations
from vgpuctl.placement.migrations import PlacedVgpu

GPUS, LOAD, SEEDS = 16, 100, range(1, 11)
UP_TO = (2, 5, 10, 20, 40)
"""The last number of moves of each column."""


class Needs(NamedTuple):
    """Of a fleet: requests, how many are refused, and of those how many by the moves that each would need.

    `found` is in the order of `UP_TO`. `more`: no moves were found that make room, but it fits when everything may be
    moved. `never`: it does not fit then either.
    """

    setting: str
    requests: int
    refused: int
    found: str
    more: int
    never: int


def needs_of(name: str) -> Needs:
    """Return the needs of a fleet, over all seeds."""
    setting = BY_NAME[name]
    packing = packing_of(setting, GPUS)
    requests = 0
    counted: Counter[int | None] = Counter()
    never = 0
    for seed in SEEDS:
        asked = arrivals(setting, GPUS, seed)
        fleet, policy = fleet_of(setting, GPUS), LeastWaste(setting.demand)
        there: list[PlacedVgpu] = []
        for profile in asked.profiles[: asked.until[LOAD]]:
            requests += 1
            where = placed(fleet, policy, profile)
            if where is not None:
                there.append(PlacedVgpu(where[0], profile, where[1]))
                continue
            counts = Counter([profile, *(vgpu.profile for vgpu in there)])
            if not packing.fits([counts[p] for p in packing.profiles]):
                never += 1
                continue
            rounds = find_migrations(fleet, there, profile, UP_TO[-1])
            moves = None if rounds is None else sum(len(one) for one in rounds)
            counted[None if moves is None else next(most for most in UP_TO if moves <= most)] += 1
    found = " ".join(str(counted[most]) for most in UP_TO)
    return Needs(name, requests, sum(counted.values()) + never, found, counted[None], never)


def write(path: Path, head: list[str], found: list[Needs]) -> None:
    """Keep what was found."""
    kept.write(path, head, Needs._fields, found)


def read(path: Path) -> list[Needs]:
    """Return what was found; nothing when there is no file."""
    rows = kept.read(path)
    return [Needs(s, int(n), int(refused), found, int(more), int(never)) for s, n, refused, found, more, never in rows]
