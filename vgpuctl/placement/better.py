# SPDX-License-Identifier: Apache-2.0
"""Moves that leave larger pieces free: what departures have scattered is put together again.

One fleet is better than another when more of the largest profile fit on it; when that is the same, more of the next
one; and so on. Each step is the fewest moves that make it better, for the largest profile of which more can be made to
fit; the steps together are not the fewest for the best that could be reached.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.placement.fleet import Fleet, Group
from vgpuctl.placement.moves import room_for, size_of
from vgpuctl.placement.shifts import Placed, Room, Round, Spare, copied, moved, renumbered, spared_by_all
from vgpuctl.value import NOTHING

STEP = 4
"""The most moves of one step: what needs more is left as it is."""
TRIES = 10_000


def by_size(fleet: Fleet) -> list[str]:
    """Return the profiles, the largest first; of one size by name."""
    names = {profile for kind in fleet.kinds for profile in kind.sizes}
    return sorted(names, key=lambda profile: (-size_of(fleet, profile), profile))


def improvement(
    fleet: Fleet,
    placed: Sequence[Placed],
    most: int | None = None,
    fixed: frozenset[int] = frozenset(),
    spare: Spare = NOTHING,
) -> tuple[Round, ...]:
    """Return moves after which the fleet is better, no more than `most`; none when no step makes it better.

    `fixed`, `spare`: as for `room_for`.
    """
    now, there = copied(fleet), list(placed)
    rounds: list[Round] = []
    while True:
        done = {shift.which for one in rounds for shift in one}
        still = [n for n in range(len(placed)) if n not in done]
        left = STEP if most is None else min(STEP, most - len(done))
        free = spared_by_all(spare, placed, rounds)
        found = _step(now, [there[n] for n in still], left, fixed, free) if free is not None else None
        if found is None:
            return tuple(rounds)
        for one in renumbered(found.rounds, still):
            moved(now, there, one)
            rounds.append(one)


def _step(fleet: Fleet, placed: Sequence[Placed], most: int, fixed: frozenset[int], spare: Spare) -> Room | None:
    """Return the fewest moves that make it better, for the largest profile for which there are some."""
    sorts: dict[object, str] = {}
    for profile in by_size(fleet):
        sorts.setdefault(tuple(kind.takes(profile) for kind in fleet.kinds), profile)

    def better(changes: Sequence[tuple[Group, Group]]) -> bool:
        more = (_more(fleet, profile, changes) for profile in sorts.values())
        return next((number for number in more if number), 0) > 0

    for profile in by_size(fleet):
        found = room_for(fleet, placed, (profile,), most, tries=TRIES, fixed=fixed, spare=spare, better=better)
        if found is not None and found.rounds:
            return found
    return None


def _more(fleet: Fleet, profile: str, changes: Sequence[tuple[Group, Group]]) -> int:
    """Return how many more of a profile fit after GPUs have changed from one group to another."""
    return sum(
        fleet.kind(new).left(new.state, profile) - fleet.kind(old).left(old.state, profile) for old, new in changes
    )
