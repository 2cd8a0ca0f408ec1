# SPDX-License-Identifier: Apache-2.0
"""Orders of changes: each alone where its place is free, at once where they wait for each other, functions counted."""

from __future__ import annotations

from tests.unit.placement.fleets import TINY
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.migrations import PlacedVgpu, add_placed_vgpu
from vgpuctl.placement.order import Change, rounds_of
from vgpuctl.value import EMPTY_MAPPING


def fleet_of(*placed: PlacedVgpu) -> Fleet:
    fleet = Fleet([TINY], [GpuGroup(0, TINY.empty), GpuGroup(0, TINY.empty)])
    for vgpu in placed:
        add_placed_vgpu(fleet, vgpu)
    return fleet


SMALL, LARGE = PlacedVgpu(0, "1T", 0b010), PlacedVgpu(1, "2T", 0b011)
SWAP = [Change(SMALL, PlacedVgpu(1, "1T", 0b001)), Change(LARGE, PlacedVgpu(0, "2T", 0b110))]


def test_what_has_to_leave_first_goes_first() -> None:
    leaving = PlacedVgpu(0, "1T", 0b100)
    changes = [Change(SMALL, leaving), Change(leaving, PlacedVgpu(1, "1T", 0b100))]
    assert rounds_of(fleet_of(SMALL, leaving), changes, EMPTY_MAPPING) == ((1,), (0,))


def test_two_that_wait_for_each_other_go_at_once() -> None:
    assert rounds_of(fleet_of(SMALL, LARGE), SWAP, EMPTY_MAPPING) == ((0, 1),)


def test_both_need_a_function_that_is_free_before() -> None:
    fleet = fleet_of(SMALL, LARGE)
    assert rounds_of(fleet, SWAP, {0: 1, 1: 1}) == ((0, 1),)
    assert rounds_of(fleet, SWAP, {0: 1, 1: 0}) is None


def test_where_a_place_is_taken_by_another_there_is_no_order() -> None:
    other = PlacedVgpu(1, "1T", 0b100)
    assert rounds_of(fleet_of(SMALL, other), [Change(SMALL, other)], EMPTY_MAPPING) is None
