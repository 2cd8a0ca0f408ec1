# SPDX-License-Identifier: Apache-2.0
"""Orders of changes: each where its place is free; as few as possible wait without a place, functions counted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.placement.fleets import TINY, every_place, filled, with_one
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.migrations import (
    FreeFunctions,
    Leave,
    Migration,
    PlacedVgpu,
    add_placed_vgpu,
    apply_order,
    copy_fleet,
    count_free_after_order,
)
from vgpuctl.placement.order import Change, Order, Turn, order_of
from vgpuctl.value import EMPTY_MAPPING


def fleet_of(*placed: PlacedVgpu, gpus: int = 2) -> Fleet:
    fleet = Fleet([TINY], [GpuGroup(0, TINY.empty)] * gpus)
    for vgpu in placed:
        add_placed_vgpu(fleet, vgpu)
    return fleet


SMALL, LARGE = PlacedVgpu(0, "1T", 0b010), PlacedVgpu(1, "2T", 0b011)
SWAP = [Change(SMALL, PlacedVgpu(1, "1T", 0b001)), Change(LARGE, PlacedVgpu(0, "2T", 0b110))]


def test_what_has_to_leave_first_goes_first() -> None:
    leaving = PlacedVgpu(0, "1T", 0b100)
    changes = [Change(SMALL, leaving), Change(leaving, PlacedVgpu(1, "1T", 0b100))]
    assert order_of(fleet_of(SMALL, leaving), changes, EMPTY_MAPPING) == ((1, False), (0, False))


def test_of_two_that_wait_for_each_other_one_gives_up_its_place() -> None:
    assert order_of(fleet_of(SMALL, LARGE), SWAP, EMPTY_MAPPING) == ((0, True), (1, False), (0, False))


def test_a_vm_that_is_off_waits_rather_than_one_that_runs() -> None:
    fleet = fleet_of(SMALL, LARGE)
    for runs, waits in (({0}, 1), ({1}, 0), ({0, 1}, 0)):
        order = order_of(fleet, SWAP, EMPTY_MAPPING, frozenset(runs))
        assert order is not None
        assert order[0] == (waits, True)


def test_the_one_waits_for_which_most_others_wait() -> None:
    """Two small ones go where the large one is, and it goes where they are."""
    smalls = [PlacedVgpu(0, "1T", 0b001), PlacedVgpu(0, "1T", 0b010)]
    changes = [
        Change(smalls[0], PlacedVgpu(1, "1T", 0b001)),
        Change(smalls[1], PlacedVgpu(1, "1T", 0b010)),
        Change(LARGE, PlacedVgpu(0, "2T", 0b011)),
    ]
    order = order_of(fleet_of(*smalls, LARGE), changes, EMPTY_MAPPING)
    assert order == ((2, True), (0, False), (1, False), (2, False))


def test_what_leaves_gives_up_its_function_too() -> None:
    fleet = fleet_of(SMALL, LARGE)
    for spare in ({0: 1, 1: 1}, {0: 0, 1: 0}):
        assert order_of(fleet, SWAP, spare) == ((0, True), (1, False), (0, False))


def test_a_function_is_left_to_who_needs_it_first() -> None:
    """Both go to the second GPU, which has one function more. Only the second change frees the function after that."""
    here = [PlacedVgpu(0, "1T", 0b001), PlacedVgpu(0, "1T", 0b010), PlacedVgpu(1, "1T", 0b001)]
    changes = [
        Change(here[0], PlacedVgpu(1, "1T", 0b010)),
        Change(here[1], PlacedVgpu(1, "1T", 0b100)),
        Change(here[2], PlacedVgpu(0, "1T", 0b010)),
    ]
    order = order_of(fleet_of(*here), changes, {0: 1, 1: 1})
    assert order == ((1, False), (2, False), (0, False))


def test_without_a_function_or_a_place_in_the_end_there_is_no_order() -> None:
    other = PlacedVgpu(1, "1T", 0b100)
    assert order_of(fleet_of(SMALL, other), [Change(SMALL, other)], EMPTY_MAPPING) is None
    free = PlacedVgpu(1, "1T", 0b010)
    assert order_of(fleet_of(SMALL, other), [Change(SMALL, free)], {1: 0}) is None


def test_what_would_take_too_long_is_ordered_all_the_same() -> None:
    """Forty pairs change places: half of them leave."""
    fleet = Fleet([TINY], [GpuGroup(0, 0b011)] * 80)
    changes = []
    for pair in range(0, 80, 2):
        first, second = PlacedVgpu(pair, "2T", 0b011), PlacedVgpu(pair + 1, "2T", 0b011)
        changes += [Change(first, second), Change(second, first)]
    order = order_of(fleet, changes, {gpu: 0 for gpu in range(80)})
    assert order is not None
    assert sum(turn.leaves for turn in order) == 40
    assert len(order) == 120


def carried_out(fleet: Fleet, changes: Sequence[Change], spare: FreeFunctions, order: Order) -> bool:
    """Carry an order out; return whether each vGPU found its place and a function."""
    placed = [change.here for change in changes]
    entries = [Leave(n) if leaves else Migration(n, changes[n].to.gpu, changes[n].to.place) for n, leaves in order]
    try:
        apply_order(copy_fleet(fleet), placed, entries)
    except ValueError:
        return False
    return count_free_after_order(spare, [change.here for change in changes], entries) is not None


def fewest_leaves(
    fleet: Fleet, changes: Sequence[Change], spare: FreeFunctions, running: frozenset[int]
) -> tuple[int, int] | None:
    """Return the least that any order costs, by trying all."""
    costs = []
    moves = [Turn(n) for n in range(len(changes))]
    for order in permutations([*moves, *(Turn(n, leaves=True) for n in range(len(changes)))]):
        first = {turn.number: at for at, turn in reversed(list(enumerate(order)))}
        kept = tuple(t for at, t in enumerate(order) if not t.leaves or (first[t.number] == at and at + 1 < len(order)))
        leaves = [t.number for t in kept if t.leaves]
        cost = (len(leaves), len(running.intersection(leaves)))
        if (not costs or cost < min(costs)) and carried_out(fleet, changes, spare, kept):
            costs.append(cost)
    return min(costs, default=None)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_each_finds_its_place_and_no_order_costs_less(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled(most_gpus=3, most_vgpus=4))
    moving = placed[:3]
    bare = copy_fleet(fleet)
    for vgpu in moving:
        bare.remove_vgpu(vgpu.gpu, vgpu.profile, vgpu.place)
    changes = []
    for vgpu in moving:
        places = list(every_place(bare, vgpu.profile))
        if not places:
            return
        changes.append(Change(vgpu, data.draw(st.sampled_from(places))))
        bare = with_one(bare, changes[-1].to)
    spare = data.draw(st.dictionaries(st.integers(0, len(fleet) - 1), st.integers(0, 2)))
    running = frozenset(data.draw(st.sets(st.integers(0, 2)))) & frozenset(range(len(changes)))
    order = order_of(fleet, changes, spare, running)
    fewest = fewest_leaves(fleet, changes, spare, running)
    if order is None:
        assert fewest is None
        return
    assert carried_out(fleet, changes, spare, order)
    leaves = [turn.number for turn in order if turn.leaves]
    assert (len(leaves), len(running.intersection(leaves))) == fewest
