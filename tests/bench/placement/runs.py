# SPDX-License-Identifier: Apache-2.0
"""Runs of all policies with the same requests, and their means over many seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from math import sqrt
from statistics import mean, stdev
from typing import NamedTuple, Protocol

from tests.bench.placement.fleets import SETTINGS, Setting
from tests.bench.placement.peers import BestFit, Fgd, FirstFit
from tests.bench.placement.requests import LOADS, MEASURED_LIVES, WARM_UP_LIVES, arrivals, visits
from vgpuctl.placement.fleet import Fleet, PlacementChoice
from vgpuctl.placement.policy import LeastWaste

ARRIVALS, CHURN = "arrivals", "churn"
OURS, FIRST_FIT, BEST_FIT, FGD, FGD_BEST_FIT = "least-waste", "first-fit", "best-fit", "fgd", "fgd-best-fit"
WANTED_ERROR = 0.3
"""A cell gets more seeds until the standard error of every difference is at most this, in percentage points."""
BATCH = {ARRIVALS: 100, CHURN: 20}
MOST_SEEDS = {1: 1000, 2: 1000, 4: 1000, 8: 400, 16: 200}


class Chooser(Protocol):
    """A policy, of the product or a peer."""

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """Return where the next vGPU goes."""


POLICIES: Mapping[str, Callable[[Setting], Chooser]] = {
    OURS: lambda setting: LeastWaste(),
    FIRST_FIT: lambda setting: FirstFit(),
    BEST_FIT: lambda setting: BestFit(),
    FGD: lambda setting: Fgd(setting.demand),
    FGD_BEST_FIT: lambda setting: Fgd(setting.demand, best_fit=True),
}


class Cell(NamedTuple):
    """What is measured together: a fleet of this size under one workload, at all loads."""

    setting: str
    gpus: int
    workload: str


class Row(NamedTuple):
    """The mean framebuffer of a policy in percent of the fleet's, and least-waste less this policy, with its error."""

    setting: str
    gpus: int
    workload: str
    load: int
    policy: str
    seeds: int
    percent: float
    difference: float
    error: float


def measure(cell: Cell, until: float = float("inf"), most_seeds: int | None = None) -> list[Row]:
    """Run seeds until the errors are small enough, the most seeds are done, or the clock (`time.monotonic`) says so."""
    most_seeds = most_seeds or MOST_SEEDS[cell.gpus]
    batch = min(most_seeds, BATCH[cell.workload])
    setting = SETTINGS[cell.setting]
    policies = {name: make(setting) for name, make in POLICIES.items()}
    results: dict[tuple[int, str], list[float]] = {}
    seeds = 0
    while seeds < most_seeds:
        for seed in range(seeds + 1, seeds + batch + 1):
            for key, percent in run(cell, seed, policies):
                results.setdefault(key, []).append(percent)
        seeds += batch
        rows = list(rows_of(cell, results))
        if time.monotonic() > until or all(row.error <= WANTED_ERROR for row in rows):
            break
    return rows


def rows_of(cell: Cell, results: Mapping[tuple[int, str], list[float]]) -> Iterator[Row]:
    """Yield the means of the results by load and policy; the results of all policies are in the order of the seeds."""
    for (load, policy), percents in results.items():
        gaps = [ours - theirs for ours, theirs in zip(results[load, OURS], percents, strict=True)]
        error = stdev(gaps) / sqrt(len(gaps)) if len(gaps) > 1 else 0.0
        yield Row(*cell, load, policy, len(gaps), round(mean(percents), 3), round(mean(gaps), 3), round(error, 3))


def run(cell: Cell, seed: int, policies: Mapping[str, Chooser]) -> Iterator[tuple[tuple[int, str], float]]:
    """Yield the framebuffer in percent that each policy admits at each load. Policies only cache from run to run."""
    setting = SETTINGS[cell.setting]
    for name, policy in policies.items():
        if cell.workload == ARRIVALS:
            for load, percent in run_arrivals(setting, cell.gpus, seed, policy).items():
                yield (load, name), percent
        else:
            for load in LOADS:
                yield (load, name), run_churn(setting, cell.gpus, load, seed, policy)


def run_arrivals(setting: Setting, gpus: int, seed: int, policy: Chooser) -> dict[int, float]:
    """Place requests that stay; return the framebuffer in use at each load."""
    profiles, until = arrivals(setting, gpus, seed)
    fleet, sizes, admitted_mib = setting.fleet(gpus), setting.sizes, [0]
    for profile in profiles:
        placed = place(fleet, policy, profile)
        admitted_mib.append(admitted_mib[-1] + (sizes[profile] if placed is not None else 0))
    return {load: 100 * admitted_mib[number] / setting.framebuffer_mib(gpus) for load, number in until.items()}


def run_churn(setting: Setting, gpus: int, load: int, seed: int, policy: Chooser) -> float:
    """Let vGPUs arrive and leave; return the average framebuffer in use over the measured time."""
    fleet, sizes, used = setting.fleet(gpus), setting.sizes, 0.0
    departures: list[tuple[float, int, int, str]] = []
    end = WARM_UP_LIVES + MEASURED_LIVES
    for visit in visits(setting, gpus, load, seed):
        while departures and departures[0][0] <= visit.comes:
            _, gpu, position, profile = heappop(departures)
            fleet.remove_vgpu(gpu, profile, position)
        placed = place(fleet, policy, visit.profile)
        if placed is not None:
            heappush(departures, (visit.goes, *placed, visit.profile))
            used += sizes[visit.profile] * max(0.0, min(visit.goes, end) - max(visit.comes, WARM_UP_LIVES))
    return 100 * used / MEASURED_LIVES / setting.framebuffer_mib(gpus)


def place(fleet: Fleet, policy: Chooser, profile: str) -> tuple[int, int] | None:
    """Place one vGPU where the policy chooses; return its GPU and its place, or None."""
    choice = policy.choose(fleet, profile)
    if choice is None:
        return None
    fleet.add_vgpu(choice.gpu, choice.placement)
    return choice.gpu, choice.placement.place
