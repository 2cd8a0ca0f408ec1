# SPDX-License-Identifier: Apache-2.0
"""Orders of changes: each alone where its place is free, at once where they wait for each other, functions counted."""

from __future__ import annotations

from tests.unit.placement.fleets import TINY
from vgpuctl.placement.fleet import Fleet, Group
from vgpuctl.placement.order import Change, rounds_of
from vgpuctl.placement.shifts import Placed, put
from vgpuctl.value import NOTHING


def fleet_of(*placed: Placed) -> Fleet:
    fleet = Fleet([TINY], [Group(0, TINY.empty), Group(0, TINY.empty)])
    for vgpu in placed:
        put(fleet, vgpu)
    return fleet


SMALL, LARGE = Placed(0, "1T", 0b010), Placed(1, "2T", 0b011)
SWAP = [Change(SMALL, Placed(1, "1T", 0b001)), Change(LARGE, Placed(0, "2T", 0b110))]


def test_what_has_to_leave_first_goes_first() -> None:
    leaving = Placed(0, "1T", 0b100)
    changes = [Change(SMALL, leaving), Change(leaving, Placed(1, "1T", 0b100))]
    assert rounds_of(fleet_of(SMALL, leaving), changes, NOTHING) == ((1,), (0,))


def test_two_that_wait_for_each_other_go_at_once() -> None:
    assert rounds_of(fleet_of(SMALL, LARGE), SWAP, NOTHING) == ((0, 1),)


def test_both_need_a_function_that_is_free_before() -> None:
    fleet = fleet_of(SMALL, LARGE)
    assert rounds_of(fleet, SWAP, {0: 1, 1: 1}) == ((0, 1),)
    assert rounds_of(fleet, SWAP, {0: 1, 1: 0}) is None


def test_where_a_place_is_taken_by_another_there_is_no_order() -> None:
    other = Placed(1, "1T", 0b100)
    assert rounds_of(fleet_of(SMALL, other), [Change(SMALL, other)], NOTHING) is None
