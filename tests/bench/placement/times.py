# SPDX-License-Identifier: Apache-2.0
"""The CPU time of a least-waste decision, on arrivals up to the greatest load.

A decision never waits, so on an idle machine this is also its duration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import NamedTuple

from tests.bench.placement import kept
from tests.bench.placement.figures import A40
from tests.bench.placement.fleets import BY_NAME, Setting, fleet_of
from tests.bench.placement.requests import arrivals
from vgpuctl.placement.least_waste import LeastWaste

MEDIAN_SETTINGS = tuple(BY_NAME)
AMORTISED_SETTINGS = ("a40", "a40-a16", "h100-mig", "h100-mig-uniform")


class Timed(NamedTuple):
    """What was timed, the milliseconds, and the promised limit. An empty limit means that there is none."""

    what: str
    milliseconds: str
    limit: str


def timed() -> Iterator[Timed]:
    """Time everything that has a promised limit."""
    for name in MEDIAN_SETTINGS:
        each = _decisions(BY_NAME[name], 16)
        yield Timed(f"{BY_NAME[name].title}: median decision, 16 GPUs", f"{median(each):.3f}", "1")
    for name in AMORTISED_SETTINGS:
        each = _decisions(BY_NAME[name], 1600)
        yield Timed(
            f"{BY_NAME[name].title}: amortised over all decisions, 1,600 GPUs", f"{sum(each) / len(each):.3f}", "0.2"
        )
    one_card = Setting("", "", (A40,), BY_NAME["a40"].demand)
    for what, before in (("all fit", 0), ("the eighth does not fit", 8 * A40.most["8Q"] - 7)):
        each = [_milliseconds(_together(one_card, before)) for _ in range(20)]
        yield Timed(f"A40: 8 vGPUs in one request on 8 GPUs, {what}: median", f"{median(each):.3f}", "10")


def _decisions(setting: Setting, gpus: int) -> list[float]:
    """Return the milliseconds of each decision."""
    fleet, policy = fleet_of(setting, gpus), LeastWaste(setting.demand)
    result = []
    for profile in arrivals(setting, gpus, 1).profiles:
        started = process_time()
        choice = policy.choose(fleet, profile)
        result.append((process_time() - started) * 1000)
        if choice is not None:
            fleet.add_vgpu(choice.gpu, choice.placement)
    return result


def _together(setting: Setting, before: int) -> Callable[[], None]:
    """Return a function that places eight vGPUs with a new policy, on GPUs that already hold `before` vGPUs."""
    fleet, earlier = fleet_of(setting, 8), LeastWaste(setting.demand)
    for _ in range(before):
        choice = earlier.choose(fleet, "8Q")
        assert choice is not None
        fleet.add_vgpu(choice.gpu, choice.placement)
    policy = LeastWaste(setting.demand)

    def place() -> None:
        for _ in range(8):
            choice = policy.choose(fleet, "8Q")
            if choice is None:
                return
            fleet.add_vgpu(choice.gpu, choice.placement)

    return place


def _milliseconds(work: Callable[[], None]) -> float:
    started = process_time()
    work()
    return (process_time() - started) * 1000


def write(path: Path, head: list[str], result: list[Timed]) -> None:
    """Write the times to a file."""
    kept.write(path, head, Timed._fields, result)


def read(path: Path) -> list[Timed]:
    """Return the times in a file; an empty list if there is no file."""
    return [Timed(*row) for row in kept.read(path)]
