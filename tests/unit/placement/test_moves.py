"""Moves that make room: the fewest, in an order in which each finds its place free."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.placement.fleets import MIXED, SMALL, after, fewest_moves, filled, fit, with_one
from tests.unit.placement.test_kinds import A40, H100_MIG
from vgpuctl.placement.fleet import Fleet, Group
from vgpuctl.placement.moves import Placed, Shift, moves_for, room_for


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_no_plan_of_fewer_moves_makes_room(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled())
    may = data.draw(st.sets(st.sampled_from(range(len(placed))))) if placed else set()
    movable = [placed[n] for n in sorted(may)]
    profiles = sorted({p for kind in fleet.kinds for p in kind.sizes})
    wanted = data.draw(st.lists(st.sampled_from(profiles), min_size=1, max_size=2))
    found = room_for(fleet, movable, wanted, 3)
    fewest = fewest_moves(fleet, movable, Counter(wanted), 3)
    assert fewest == (None if found is None else len(found.shifts))
    if found is None:
        return
    assert found.fewest
    assert len({s.which for s in found.shifts}) == len(found.shifts)
    now = after(fleet, movable, found.shifts)
    assert [p.profile for p in found.places] == wanted
    for place in found.places:
        now = with_one(now, place)


def test_a_gpu_locked_to_another_size_by_one_vgpu_is_cleared_by_moving_it() -> None:
    fleet = Fleet([A40], [Group(0, (1024, 1)), Group(0, (1024, 5))])
    placed = [Placed(0, "1B", 0), *[Placed(1, "1B", 0)] * 5]
    assert moves_for(fleet, placed, "8Q") == ((0, 1, 0),)
    assert moves_for(fleet, placed[1:], "8Q") is None
    assert moves_for(fleet, placed, "1B") == ()
    assert moves_for(fleet, placed, "8Q", most=0) is None


def test_what_gives_way_may_need_another_to_give_way() -> None:
    """The 4Q needs half a GPU: the 2Q of one goes to the other, whose 1Q goes where the first's has been."""
    gpus = [Group(0, 0b0011_0011), Group(0, 0b1111_0001)]
    placed = [Placed(0, "2Q", 0b11), Placed(1, "1Q", 0b1)]
    fleet = Fleet([MIXED], gpus)
    found = moves_for(fleet, placed, "4Q")
    assert found is not None
    assert [s.which for s in found] == [0]
    assert fit(after(fleet, placed, found), Counter(["4Q"]))


def test_two_that_wait_for_each_other_are_no_plan() -> None:
    """On one MIG GPU a 3g and the 2g at 4 could change places, had they a third to be at meanwhile."""
    fleet = Fleet([H100_MIG], [Group(0, 0b1111_0000 | 0b11)])
    placed = [Placed(0, "3g", 0b1111_0000), Placed(0, "2g", 0b11)]
    assert fewest_moves(fleet, placed, Counter(["4g"]), 2) is None
    assert moves_for(fleet, placed, "4g") is None


def test_room_for_many_is_made_one_after_the_other_where_too_much_would_have_to_be_tried() -> None:
    gpus = [Group(0, (1024, 1)), Group(0, (1024, 1)), Group(0, (1024, 1))]
    placed = [Placed(n, "1B", 0) for n in range(3)]
    fleet = Fleet([SMALL], gpus)
    exact = room_for(fleet, placed, ["2B"] * 4)
    assert exact is not None
    assert (len(exact.shifts), exact.fewest) == (2, True)
    quick = room_for(fleet, placed, ["2B"] * 4, tries=6)
    assert quick is not None
    assert (len(quick.shifts), quick.fewest) == (2, False)
    assert room_for(fleet, placed, ["2B"], tries=1) is None


def test_a_plan_counts_only_where_it_leads_to_something_better() -> None:
    fleet = Fleet([SMALL], [Group(0, (1024, 1)), Group(0, (1024, 1)), Group(0, (2048, 1))])
    placed = [Placed(0, "1B", 0), Placed(1, "1B", 0)]
    asked: list[Fleet] = []

    def never(now: Fleet) -> bool:
        asked.append(now)
        return False

    assert room_for(fleet, placed, ["2B", "2B"], better=never) is None
    assert {now.group_of(0).state for now in asked} == {(0, 0)}
    found = room_for(fleet, placed, ["2B", "2B"], better=lambda now: now.group_of(1).state == (1024, 2))
    assert found is not None
    assert found.shifts == ((0, 1, 0),)


def test_a_place_that_is_taken_is_refused() -> None:
    fleet = Fleet([MIXED], [Group(0, 0b11)])
    with pytest.raises(ValueError, match="not free"):
        after(fleet, [Placed(0, "2Q", 0b11)], [Shift(0, 0, 0b111)])
