# SPDX-License-Identifier: Apache-2.0
"""What room for each profile is worth in a fleet: the prices of a linear program over the states of its GPUs.

The program fills every GPU so that as much framebuffer as can be is given out, while no profile gets more than its
share of the demand; vGPUs may be parts of one, so the GPUs of one group are a single number. A profile's price is its
framebuffer less what one more request for it would gain: what a place for it is worth to the fleet. A profile that
finds room everywhere is worth little; one that only few GPUs can still take is worth all its framebuffer.

The ways to fill the fleet are far too many to list. One is made at a time, the best at the prices so far, until no
other can be better by more than `gap` (column generation).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.simplex import Simplex

_MOST_WAYS = 60
"""Eight mixed sizes on 16 GPUs needed 25, twenty profiles on two models 30. The best prices so far do, too."""


def sizes_of(kinds: Sequence[GpuKind]) -> dict[str, int]:
    """Return the framebuffer in MiB of every profile; of the first kind that offers it."""
    sizes: dict[str, int] = {}
    for kind in kinds:
        for profile, mib in kind.sizes.items():
            sizes.setdefault(profile, mib)
    return sizes


def demand_of(fleet: Fleet, mix: Mapping[str, float]) -> dict[str, float]:
    """Return how many requests for each profile of the mix ask together for all that can still be given out."""
    sizes = sizes_of(fleet.kinds)
    room, _ = _fill(fleet.kinds, sorted(fleet.groups(), key=_order), {p: float(sizes[p]) for p in mix})
    asked = sum(weight * sizes[p] for p, weight in mix.items())
    return {p: room * weight / asked for p, weight in mix.items()}


def prices(
    fleet: Fleet, demand: Mapping[str, float], before: Mapping[str, float], *, gap: float = 1e-3
) -> dict[str, float]:
    """Return the price in MiB of each profile of the demand: requests to come, of each profile some or of none any.

    `before`: prices to begin with. `gap`: how far the program's value may be from the best, as a share of it.
    """
    groups = sorted(fleet.groups(), key=_order)
    of = sizes_of(fleet.kinds)
    sizes = {p: float(of[p]) for p in sorted(demand)}
    unit = sum(demand[p] * sizes[p] for p in sizes)
    if not unit:
        return sizes
    program = Simplex([1.0] * (len(sizes) + 1))
    now = best = {p: before.get(p, sizes[p]) for p in sizes}
    bound = float("inf")
    for _ in range(_MOST_WAYS):
        worth, counts = _fill(fleet.kinds, groups, now)
        here = worth + sum(demand[p] * (sizes[p] - now[p]) for p in sizes)
        if here < bound:
            bound, best = here, now
        column = [counts.get(p, 0.0) / demand[p] for p in sizes]
        program.add([*column, 1.0], sum(sizes[p] * number for p, number in counts.items()) / unit)
        program.solve()
        if bound - program.value * unit <= gap * bound:
            break
        gains = zip(sizes, program.duals()[:-1], strict=True)
        now = {p: max(0.0, sizes[p] - max(0.0, gain) * unit / demand[p]) for p, gain in gains}
    return best


def alike(fleet: Fleet, profiles: Iterable[str]) -> dict[str, str]:
    """Return for each profile the first of those that are as large and of which as many are left everywhere.

    A40-4Q and A40-4C are such two: they have one price.
    """
    groups = sorted(fleet.groups(), key=_order)
    first: dict[tuple[object, ...], str] = {}
    found = {}
    for profile in sorted(profiles):
        sizes = [kind.sizes.get(profile) for kind in fleet.kinds]
        left = [fleet.kind_of(group).count_remaining(group.state, profile) for group, _ in groups]
        found[profile] = first.setdefault((*sizes, *left), profile)
    return found


def _order(entry: tuple[GpuGroup, int]) -> tuple[int, str]:
    """Equal fleets give equal prices, to the last bit, in whatever order their states came about."""
    return entry[0].kind_index, repr(entry[0].state)


def _fill(
    kinds: Sequence[GpuKind], groups: Sequence[tuple[GpuGroup, int]], worth: Mapping[str, float]
) -> tuple[float, dict[str, float]]:
    """Return what all GPUs filled up are worth together, and how many of each profile they have."""
    fillings = [kind.best_filling(worth) for kind in kinds]
    total = 0.0
    counts: dict[str, float] = {}
    for group, number in groups:
        filling = fillings[group.kind_index]
        total += number * filling.value(group.state)
        for profile, count in filling.counts(group.state).items():
            counts[profile] = counts.get(profile, 0.0) + float(number * count)
    return total, counts
