# SPDX-License-Identifier: Apache-2.0
"""In which order vGPUs go to other places: each when its new place is free, and those that wait for others at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations
from typing import NamedTuple

from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.gpu_kind import State
from vgpuctl.placement.migrations import FreeFunctions, PlacedVgpu, count_free_after

PAIRS = 2
"""The most pairs that one order exchanges; where that is not enough all go at once."""


class Change(NamedTuple):
    """A vGPU that is here goes there."""

    here: PlacedVgpu
    to: PlacedVgpu


class Now(NamedTuple):
    """GPUs by number between two rounds: their states, and their free functions."""

    states: dict[int, State]
    spare: FreeFunctions


def rounds_of(fleet: Fleet, changes: Sequence[Change], spare: FreeFunctions) -> tuple[tuple[int, ...], ...] | None:
    """Return an order, of changes by number, in which each finds its place free: alone or with one other if that goes.

    All of them at once always can, for together they are a fleet that there may be, unless functions are lacking.
    """
    dead: set[tuple[frozenset[int], int]] = set()

    def go(now: Now, done: frozenset[int], pairs: int) -> tuple[tuple[int, ...], ...] | None:
        if len(done) == len(changes):
            return ()
        if (done, pairs) in dead:
            return None
        waiting = [n for n in range(len(changes)) if n not in done]
        for one in chain(combinations(waiting, 1), combinations(waiting, 2) if pairs else ()):
            then = after(fleet, now, [changes[n] for n in one])
            rest = go(then, done.union(one), pairs + 1 - len(one)) if then is not None else None
            if rest is not None:
                return (one, *rest)
        dead.add((done, pairs))
        return None

    now = before(fleet, changes, spare)
    for pairs in range(min(PAIRS, len(changes) // 2) + 1):
        order = go(now, frozenset(), pairs)
        if order is not None:
            return order
    return (tuple(range(len(changes))),) if after(fleet, now, changes) is not None else None


def before(fleet: Fleet, changes: Sequence[Change], spare: FreeFunctions) -> Now:
    """Return how the GPUs are that change."""
    return Now({gpu: fleet.group_of(gpu).state for here, to in changes for gpu in (to.gpu, here.gpu)}, spare)


def after(fleet: Fleet, now: Now, changes: Sequence[Change]) -> Now | None:
    """Return how the GPUs are when all of these have left and then are at their new places; None: that cannot be."""
    spare = count_free_after(now.spare, [here.gpu for here, _ in changes], [to.gpu for _, to in changes])
    if spare is None:
        return None
    states = dict(now.states)
    for here, _ in changes:
        states[here.gpu] = fleet.kind_of(fleet.group_of(here.gpu)).remove(states[here.gpu], here.profile, here.place)
    for _, to in changes:
        states[to.gpu] = fleet.kind_of(fleet.group_of(to.gpu)).add(states[to.gpu], to.profile, to.place)
        if states[to.gpu] is None:
            return None
    return Now(states, spare)
