# SPDX-License-Identifier: Apache-2.0
"""Moves that leave larger pieces free: what departures have scattered is put together again.

One fleet is better than another when more of the largest profile fit on it; when that is the same, more of the next
one; and so on. Each step is the fewest moves that make it better, for the largest profile of which more can be made to
fit; the steps together are not the fewest for the best that could be reached.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.migration_search import max_framebuffer_mib, plan_migrations
from vgpuctl.placement.migrations import (
    FreeFunctions,
    Leave,
    Migration,
    MigrationPlan,
    PlacedVgpu,
    apply_order,
    copy_fleet,
    count_free_after_order,
    renumber_order,
)
from vgpuctl.value import EMPTY_MAPPING

STEP = 4
"""The most moves of one step: what needs more is left as it is."""
TRIES = 10_000


def by_size(fleet: Fleet) -> list[str]:
    """Return the profiles, the largest first; of one size by name."""
    names = {profile for kind in fleet.kinds for profile in kind.sizes}
    return sorted(names, key=lambda profile: (-max_framebuffer_mib(fleet, profile), profile))


def improvement(
    fleet: Fleet,
    placed: Sequence[PlacedVgpu],
    most: int | None = None,
    fixed: frozenset[int] = frozenset(),
    spare: FreeFunctions = EMPTY_MAPPING,
) -> tuple[Migration | Leave, ...]:
    """Return moves after which the fleet is better, no more than `most`; none when no step makes it better.

    `fixed`, `spare`: as for `room_for`.
    """
    now, there = copy_fleet(fleet), list(placed)
    order: list[Migration | Leave] = []
    while True:
        moved = {entry.vgpu_index for entry in order}
        unmoved = [n for n in range(len(placed)) if n not in moved]
        left = STEP if most is None else min(STEP, most - len(moved))
        free = count_free_after_order(spare, placed, order)
        found = _step(now, [there[n] for n in unmoved], left, fixed, free) if free is not None else None
        if found is None:
            return tuple(order)
        added = renumber_order(found.order, unmoved)
        apply_order(now, there, added)
        order += added


def _step(
    fleet: Fleet, placed: Sequence[PlacedVgpu], most: int, fixed: frozenset[int], spare: FreeFunctions
) -> MigrationPlan | None:
    """Return the fewest moves that make it better, for the largest profile for which there are some."""
    sorts: dict[object, str] = {}
    for profile in by_size(fleet):
        sorts.setdefault(tuple(kind.footprint(profile) for kind in fleet.kinds), profile)

    def better(changes: Sequence[tuple[GpuGroup, GpuGroup]]) -> bool:
        more = (_more(fleet, profile, changes) for profile in sorts.values())
        return next((number for number in more if number), 0) > 0

    for profile in by_size(fleet):
        found = plan_migrations(
            fleet, placed, (profile,), most, max_tries=TRIES, fixed_gpus=fixed, free_functions=spare, is_better=better
        )
        if found is not None and found.order:
            return found
    return None


def _more(fleet: Fleet, profile: str, changes: Sequence[tuple[GpuGroup, GpuGroup]]) -> int:
    """Return how many more of a profile fit after GPUs have changed from one group to another."""
    return sum(
        fleet.kind_of(new).count_remaining(new.state, profile) - fleet.kind_of(old).count_remaining(old.state, profile)
        for old, new in changes
    )
