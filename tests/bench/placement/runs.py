# SPDX-License-Identifier: Apache-2.0
"""One run of a policy on a fleet with a seed, and its results as rows of the CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from tests.bench.placement.bounds import Packing, offline_gib, with_free_migration
from tests.bench.placement.fgd import Fgd
from tests.bench.placement.fleets import BY_NAME, Setting, counts_of, fleet_of, framebuffer_gib
from tests.bench.placement.peers import (
    BestFit,
    LeastLoaded,
    LeastVram,
    NodeThenGpu,
    OneTypePerCard,
    RandomGpu,
    XenBreadth,
    XenDepth,
)
from tests.bench.placement.requests import (
    MEASURED_LIVES,
    WARM_UP_LIVES,
    arrivals,
    sizes_gib,
    visits,
)
from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.least_waste import LeastWaste
from vgpuctl.placement.migrations import Migration, PlacedVgpu, apply_order
from vgpuctl.placement.moves import MovableFleet, plan_room
from vgpuctl.placement.policy import Breadth, Depth, FirstFit, PlacementPolicy

ARRIVALS, CHURN = "arrivals", "churn"
OFFERED, OFFLINE, MIGRATION = "offered", "B1", "B2"
"""Rows that are not policies: the requested vGPUs, and the two references."""
OURS = "least-waste"
UNRANKED = "one-type-per-card"
MOVING, MOST_MOVES = "least-waste and moves", 2
"""Least-waste; if no GPU has room, also what plan-moves proposes, with at most this many moves for the request."""
SAVING, MOVES_PER_100 = "least-waste and saved moves", 15
"""The same, but each request so far adds 0.15 move to a budget. Later requests may use what is left."""
MOVERS: dict[str, Callable[[int, int], int]] = {
    MOVING: lambda requests, made: MOST_MOVES,
    SAVING: lambda requests, made: requests * MOVES_PER_100 // 100 - made,
}
"""The maximum number of moves for a request, given the number of requests and moves so far."""

POLICIES: dict[str, Callable[[Setting, int], PlacementPolicy]] = {
    OURS: lambda setting, seed: LeastWaste(setting.demand),
    "first-fit": lambda setting, seed: FirstFit(),
    "depth": lambda setting, seed: Depth(),
    "breadth": lambda setting, seed: Breadth(),
    "random": lambda setting, seed: RandomGpu(seed),
    "xen-depth": lambda setting, seed: XenDepth(),
    "xen-breadth": lambda setting, seed: XenBreadth(),
    "least-loaded": lambda setting, seed: LeastLoaded(),
    "least-vram": lambda setting, seed: LeastVram(),
    "hami-binpack": lambda setting, seed: NodeThenGpu("binpack", "binpack"),
    "hami-spread": lambda setting, seed: NodeThenGpu("spread", "spread"),
    "hami-default": lambda setting, seed: NodeThenGpu("binpack", "spread"),
    "best-fit": lambda setting, seed: BestFit(),
    "fgd": lambda setting, seed: Fgd(setting.demand),
    "fgd-best-fit": lambda setting, seed: Fgd(setting.demand, best_fit=True),
    "fgd-finer": lambda setting, seed: Fgd(setting.demand, finer=True),
    UNRANKED: lambda setting, seed: OneTypePerCard(),
}


class Run(NamedTuple):
    """What to run. In churn, each load is a separate run. Arrivals of all loads are one run, with `load` 0."""

    setting: str
    gpus: int
    workload: str
    load: int
    seed: int
    policy: str


class Row(NamedTuple):
    """The result of a run at a load: the framebuffer in percent of the fleet's, and the number of each profile.

    For `arrivals`, both are from the end of the run. In churn, the framebuffer is the average over the measured time,
    and `counts` is of all admitted requests that arrive in that time. `counts` is in the order of the profiles' names.
    `moves`: how many vGPUs the `MOVERS` stopped and started elsewhere.
    """

    setting: str
    gpus: int
    workload: str
    load: int
    seed: int
    policy: str
    framebuffer_percent: str
    counts: str
    moves: int = 0


def rows_of(run: Run) -> list[Row]:
    """Do a run and return its rows."""
    if run.workload == CHURN:
        return [_churn(run)]
    setting = BY_NAME[run.setting]
    moves: list[int] = []
    requests = arrivals(setting, run.gpus, run.seed)
    if run.policy == OFFLINE:
        packing = packing_of(setting, run.gpus)
        sizes = sizes_gib(setting)
        result = ((load, offline_gib(packing, sizes, requests.profiles[:n])) for load, n in requests.until.items())
        return [_row(run, load, setting, gib, ()) for load, gib in result]
    if run.policy == OFFERED:
        admitted = [True] * len(requests.profiles)
    elif run.policy == MIGRATION:
        admitted = with_free_migration(packing_of(setting, run.gpus), requests.profiles)
    elif run.policy in MOVERS:
        moves, admitted = _with_moves(setting, run.gpus, requests.profiles, MOVERS[run.policy])
    else:
        policy = POLICIES[run.policy](setting, run.seed)
        fleet = fleet_of(setting, run.gpus)
        admitted = [placed(fleet, policy, profile) is not None for profile in requests.profiles]
    rows = []
    for load, until in requests.until.items():
        taken = [p for p, is_admitted in zip(requests.profiles[:until], admitted, strict=False) if is_admitted]
        row = _row(run, load, setting, sum(sizes_gib(setting)[p] for p in taken), taken)
        rows.append(row._replace(moves=sum(moves[:until])))
    return rows


def _with_moves(
    setting: Setting, gpus: int, profiles: Sequence[str], most: Callable[[int, int], int]
) -> tuple[list[int], list[bool]]:
    """Return how many moves each request used, and whether it was admitted."""
    fleet, policy = fleet_of(setting, gpus), LeastWaste(setting.demand)
    placed_vgpus: list[PlacedVgpu] = []
    moves, admitted = [], []
    for number, profile in enumerate(profiles, 1):
        position, order = placed(fleet, policy, profile), ()
        if position is None:
            plan = plan_room(MovableFleet(fleet, tuple(placed_vgpus)), [profile], most(number, sum(moves)))
            order = plan.order if plan is not None else ()
            apply_order(fleet, placed_vgpus, order)
            position = placed(fleet, policy, profile) if order else None
        if position is not None:
            placed_vgpus.append(PlacedVgpu(position[0], profile, position[1]))
        moves.append(sum(isinstance(entry, Migration) for entry in order))
        admitted.append(position is not None)
    return moves, admitted


def placed(fleet: Fleet, policy: PlacementPolicy, profile: str) -> tuple[int, int] | None:
    """Place one vGPU where the policy chooses; return its GPU and its placement, or None."""
    choice = policy.choose(fleet, profile)
    if choice is None:
        return None
    fleet.add_vgpu(choice.gpu, choice.placement)
    return choice.gpu, choice.placement.place


def packing_of(setting: Setting, gpus: int) -> Packing:
    """Return the fleet's cards in the form that the two references use."""
    return Packing(setting.cards, counts_of(setting, gpus), sorted(setting.demand))


def _row(run: Run, load: int, setting: Setting, gib: float, taken: Iterable[str]) -> Row:
    share = f"{100 * gib / framebuffer_gib(setting, run.gpus):.3f}"
    counts = Counter(taken)
    each = " ".join(str(counts[profile]) for profile in sorted(setting.demand)) if counts else ""
    return Row(run.setting, run.gpus, run.workload, load, run.seed, run.policy, share, each)


def _churn(run: Run) -> Row:
    """Let vGPUs arrive and leave; average the framebuffer in use over the measured time."""
    setting = BY_NAME[run.setting]
    sizes = sizes_gib(setting)
    fleet = fleet_of(setting, run.gpus)
    policy = None if run.policy == OFFERED else POLICIES[run.policy](setting, run.seed)
    departures: list[tuple[float, int, int, str]] = []
    taken, gib_lives = [], 0.0
    for visit in visits(setting, run.gpus, run.load, run.seed):
        while departures and departures[0][0] <= visit.comes:
            _, gpu, place, profile = heappop(departures)
            fleet.remove_vgpu(gpu, profile, place)
        if policy is None:
            position: tuple[int, int] | None = (0, 0)
        else:
            position = placed(fleet, policy, visit.profile)
            if position is not None:
                heappush(departures, (visit.goes, *position, visit.profile))
        if position is not None:
            end = WARM_UP_LIVES + MEASURED_LIVES
            gib_lives += sizes[visit.profile] * max(0.0, min(visit.goes, end) - max(visit.comes, WARM_UP_LIVES))
            if visit.comes >= WARM_UP_LIVES:
                taken.append(visit.profile)
    return _row(run, run.load, setting, gib_lives / MEASURED_LIVES, taken)
