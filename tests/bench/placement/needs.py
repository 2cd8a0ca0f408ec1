# SPDX-License-Identifier: Apache-2.0
"""How many moves each request that least-waste refuses would need, by itself, in the state in which it is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.bench.placement import kept
from tests.bench.placement.fleets import BY_NAME, fleet_of
from tests.bench.placement.requests import arrivals
from tests.bench.placement.runs import packing_of, placed
from vgpuctl.placement.least_waste import LeastWaste
from vgpuctl.placement.migrations import PlacedVgpu
from vgpuctl.placement.moves import MovableFleet, plan_room

GPUS, LOAD, SEEDS = 16, 100, range(1, 11)
UP_TO = (2, 5, 10, 20, 40)
"""The greatest number of moves in each column."""


class Needs(NamedTuple):
    """A fleet's requests, the number of refused ones, and the number of refused ones by the moves that they need.

    `by_moves` is in the order of `UP_TO`. `more`: the search finds no moves that make room, but the request fits if
    every vGPU may move. `never`: it does not fit even then.
    """

    setting: str
    requests: int
    refused: int
    by_moves: str
    more: int
    never: int


def needs_of(name: str) -> Needs:
    """Return the needs of a fleet, over all seeds."""
    setting = BY_NAME[name]
    packing = packing_of(setting, GPUS)
    requests = 0
    by_limit: Counter[int | None] = Counter()
    never = 0
    for seed in SEEDS:
        sequence = arrivals(setting, GPUS, seed)
        fleet, policy = fleet_of(setting, GPUS), LeastWaste(setting.demand)
        placed_vgpus: list[PlacedVgpu] = []
        for profile in sequence.profiles[: sequence.until[LOAD]]:
            requests += 1
            position = placed(fleet, policy, profile)
            if position is not None:
                placed_vgpus.append(PlacedVgpu(position[0], profile, position[1]))
                continue
            counts = Counter([profile, *(vgpu.profile for vgpu in placed_vgpus)])
            if not packing.fits([counts[p] for p in packing.profiles]):
                never += 1
                continue
            plan = plan_room(MovableFleet(fleet, tuple(placed_vgpus)), [profile], UP_TO[-1])
            moves = None if plan is None else len(plan.migrations)
            by_limit[None if moves is None else next(limit for limit in UP_TO if moves <= limit)] += 1
    by_moves = " ".join(str(by_limit[limit]) for limit in UP_TO)
    return Needs(name, requests, sum(by_limit.values()) + never, by_moves, by_limit[None], never)


def write(path: Path, head: list[str], result: list[Needs]) -> None:
    """Write the results to a file."""
    kept.write(path, head, Needs._fields, result)


def read(path: Path) -> list[Needs]:
    """Return the results in a file; an empty list if there is no file."""
    rows = kept.read(path)
    return [
        Needs(s, int(n), int(refused), result, int(more), int(never)) for s, n, refused, result, more, never in rows
    ]
