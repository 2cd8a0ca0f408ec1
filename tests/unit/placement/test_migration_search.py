"""Moves that make room: the fewest, in an order in which each finds its place free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.placement.fleets import MIXED, SMALL, after, assert_room, fewest_moves, filled, fit
from tests.unit.placement.test_kinds import A40
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.migration_search import find_fewest_blocking, find_migrations, plan_migrations
from vgpuctl.placement.migrations import Leave, Migration, PlacedVgpu, count_free_after_order
from vgpuctl.placement.shared_instances import InstanceNeed, SharedInstanceKind
from vgpuctl.placement.slice_kind import Footprint, SliceKind


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_no_plan_of_fewer_moves_makes_room(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled())
    may = data.draw(st.sets(st.sampled_from(range(len(placed))))) if placed else set()
    movable = [placed[n] for n in sorted(may)]
    profiles = sorted({p for kind in fleet.kinds for p in kind.sizes})
    wanted = data.draw(st.lists(st.sampled_from(profiles), min_size=1, max_size=2))
    result = plan_migrations(fleet, movable, wanted, 3)
    fewest = fewest_moves(fleet, movable, Counter(wanted), 3)
    assert fewest == (None if result is None else len(result.migrations))
    if result is None:
        return
    assert result.is_minimal
    assert_room(fleet, movable, result, wanted)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_each_move_finds_a_free_function(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled())
    profiles = sorted({p for kind in fleet.kinds for p in kind.sizes})
    wanted = data.draw(st.lists(st.sampled_from(profiles), min_size=1, max_size=2))
    spare = data.draw(st.dictionaries(st.integers(0, len(fleet) - 1), st.integers(0, 2)))
    result = plan_migrations(fleet, placed, wanted, 3, free_functions=spare)
    freely = plan_migrations(fleet, placed, wanted, 3)
    if result is None:
        assert freely is None or count_free_after_order(spare, placed, freely.order) is None
        return
    assert freely is not None
    assert len(result.migrations) >= len(freely.migrations)
    assert not result.is_minimal or len(result.migrations) == len(freely.migrations)
    assert_room(fleet, placed, result, wanted)
    assert count_free_after_order(spare, placed, result.order) is not None


def test_a_migration_gives_its_function_up_when_it_is_made_and_a_leave_before() -> None:
    placed = [PlacedVgpu(0, "1Q", 0), PlacedVgpu(1, "1Q", 0)]
    swap = (Leave(0), Migration(1, 0, 0), Migration(0, 1, 0))
    assert count_free_after_order({0: 0, 1: 0}, placed, swap) == {0: 0, 1: 0}
    assert count_free_after_order({0: 0, 1: 0}, placed, swap[1:]) is None
    assert count_free_after_order({0: 0, 1: 1}, placed, (Migration(0, 1, 0), Migration(1, 0, 0))) == {0: 0, 1: 1}
    assert count_free_after_order({0: 0}, placed, (Migration(0, 0, 1),)) is None
    assert count_free_after_order({}, placed, swap) == {}


def test_a_gpu_locked_to_another_size_by_one_vgpu_is_cleared_by_moving_it() -> None:
    fleet = Fleet([A40], [GpuGroup(0, (1024, 1)), GpuGroup(0, (1024, 5))])
    placed = [PlacedVgpu(0, "1B", 0), *[PlacedVgpu(1, "1B", 0)] * 5]
    assert find_migrations(fleet, placed, "8Q") == ((0, 1, 0),)
    assert find_migrations(fleet, placed[1:], "8Q") is None
    assert find_migrations(fleet, placed, "1B") == ()
    assert find_migrations(fleet, placed, "8Q", max_migrations=0) is None


def test_what_gives_way_may_need_another_to_give_way_before() -> None:
    """The 2Q in the way of a 4Q has its only place where a 1Q is, and that on the last slice that is free."""
    fleet = Fleet([MIXED], [GpuGroup(0, 0b1111_0011), GpuGroup(0, 0b1111_1101), GpuGroup(0, 0b0111_1111)])
    placed = [PlacedVgpu(0, "2Q", 0b11), PlacedVgpu(1, "1Q", 0b1)]
    result = find_migrations(fleet, placed, "4Q")
    assert result == ((1, 2, 0b1000_0000), (0, 1, 0b11))
    assert fit(after(fleet, placed, result), Counter(["4Q"]))


def test_of_two_that_wait_for_each_other_one_leaves_first() -> None:
    """Where one of them has a third place to go to, none has to."""
    two, second = Footprint((0,), 2), Footprint((1,), 1)
    here = SliceKind("here", 2, {"V": 2, "U": 1, "R": 1}, {"V": two, "U": second, "R": Footprint((0,), 1)}, slices=2)
    there = SliceKind("there", 2, {"V": 2, "U": 1}, {"V": two, "U": second}, slices=2)
    fleet = Fleet([here, there], [GpuGroup(0, 0b11), GpuGroup(1, 0b10)])
    placed = [PlacedVgpu(0, "V", 0b11), PlacedVgpu(1, "U", 0b10)]
    result = find_migrations(fleet, placed, "R")
    assert result is not None
    assert result == (Leave(0), (1, 0, 0b10), (0, 1, 0b11))
    assert fit(after(fleet, placed, result), Counter("R"))
    assert find_migrations(fleet, placed, "R", 1) is None
    assert plan_migrations(fleet, placed, ["R"], free_functions={0: 1, 1: 1}) is not None
    assert plan_migrations(fleet, placed, ["R"], free_functions={0: 0, 1: 0}) is not None
    third = Fleet([here, there], [GpuGroup(0, 0b11), GpuGroup(1, 0b10), GpuGroup(1, 0b01)])
    assert find_migrations(third, placed, "R") == ((1, 2, 0b10), (0, 1, 0b11))


def test_room_for_many_is_made_one_after_the_other_where_too_much_would_have_to_be_tried() -> None:
    gpus = [GpuGroup(0, (1024, 1)), GpuGroup(0, (1024, 1)), GpuGroup(0, (1024, 1))]
    placed = [PlacedVgpu(n, "1B", 0) for n in range(3)]
    fleet = Fleet([SMALL], gpus)
    exact = plan_migrations(fleet, placed, ["2B"] * 4)
    assert exact is not None
    assert (len(exact.migrations), exact.is_minimal) == (2, True)
    quick = plan_migrations(fleet, placed, ["2B"] * 4, max_tries=5)
    assert quick is not None
    assert (len(quick.migrations), quick.is_minimal) == (2, False)
    assert plan_migrations(fleet, placed, ["2B"], max_tries=1) is None


def test_a_plan_counts_only_where_it_leads_to_something_better() -> None:
    fleet = Fleet([SMALL], [GpuGroup(0, (1024, 1)), GpuGroup(0, (1024, 1)), GpuGroup(0, (2048, 1))])
    placed = [PlacedVgpu(0, "1B", 0), PlacedVgpu(1, "1B", 0)]
    asked: list[frozenset[tuple[GpuGroup, GpuGroup]]] = []

    def never(changes: Sequence[tuple[GpuGroup, GpuGroup]]) -> bool:
        asked.append(frozenset(changes))
        return False

    cleared, filled_up = (GpuGroup(0, (1024, 1)), GpuGroup(0, (0, 0))), (GpuGroup(0, (1024, 1)), GpuGroup(0, (1024, 2)))
    assert plan_migrations(fleet, placed, ["2B", "2B"], is_better=never) is None
    assert asked == [{cleared, filled_up}]
    result = plan_migrations(fleet, placed, ["2B", "2B"], is_better=lambda changes: filled_up in changes)
    assert result is not None
    assert result.migrations == ((0, 1, 0),)


def test_what_many_plans_lead_to_is_judged_once() -> None:
    """Two that are alike can go to two places in two ways, and what is wanted can be in several places then."""
    fleet = Fleet([MIXED], [GpuGroup(0, 0b0001_0001), GpuGroup(0, 0b1100_1100)])
    placed = [PlacedVgpu(0, "1Q", 0b1), PlacedVgpu(0, "1Q", 0b1_0000)]
    asked: list[frozenset[tuple[GpuGroup, GpuGroup]]] = []

    def never(changes: Sequence[tuple[GpuGroup, GpuGroup]]) -> bool:
        asked.append(frozenset(changes))
        return False

    assert plan_migrations(fleet, placed, ["4Q"], is_better=never) is None
    assert asked
    assert len(asked) == len(set(asked))


def test_vgpus_in_instances_that_are_alike_are_moved_each_from_its_own() -> None:
    """`moves` names the first of them alone, and the second was not free for what was to go there."""
    kind = SharedInstanceKind(
        "RTX PRO 6000",
        98304,
        {"8A": 8192, "24A": 24576},
        {"8A": InstanceNeed(47, 3), "24A": InstanceNeed(47, 1)},
        instances=(47, 47),
        carriers=8,
    )
    fleet = Fleet([kind], [GpuGroup(0, (1, ((0, 0), (8192, 1)))), GpuGroup(0, (2, ((8192, 1), (8192, 1))))])
    placed = [PlacedVgpu(1, "8A", 1), PlacedVgpu(0, "8A", 1), PlacedVgpu(1, "8A", 0)]
    assert find_fewest_blocking(fleet, placed, 1, "24A") == (2,)
    order = [Migration(0, 0, 0), Migration(1, 1, 1)]
    assert after(fleet, placed, order).group_of(1).state == (2, ((8192, 1), (8192, 1)))
    result = plan_migrations(fleet, placed, ["24A", "24A"])
    assert result is not None
    assert len(result.migrations) == 1
    assert_room(fleet, placed, result, ["24A", "24A"])


def test_a_place_that_is_taken_is_refused() -> None:
    fleet = Fleet([MIXED], [GpuGroup(0, 0b11)])
    with pytest.raises(ValueError, match="not free"):
        after(fleet, [PlacedVgpu(0, "2Q", 0b11)], [Migration(0, 0, 0b111)])


def test_where_the_driver_chooses_the_place_nothing_moves_within_a_gpu() -> None:
    fleet = Fleet([MIXED], [GpuGroup(0, 0b0001_0011)])
    placed = [PlacedVgpu(0, "2Q", 0b11)]
    result = find_migrations(fleet, placed, "4Q")
    assert result is not None
    assert result[0] == Migration(0, 0, 0b1100_0000)
    assert plan_migrations(fleet, placed, ("4Q",), fixed_gpus=frozenset({0})) is None
    two = Fleet([MIXED], [GpuGroup(0, 0b0001_0011), GpuGroup(0, 0b1111_0011)])
    elsewhere = plan_migrations(two, placed, ("4Q",), fixed_gpus=frozenset({0}))
    assert elsewhere is not None
    assert elsewhere.migrations[0].gpu == 1


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_no_fewer_are_in_the_way_of_one_more_on_a_gpu(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled(1, 6))
    (kind,) = {fleet.kind_of(group).name: fleet.kind_of(group) for group, _ in fleet.groups()}.values()
    profile = data.draw(st.sampled_from(sorted(kind.sizes)))
    result = find_fewest_blocking(fleet, placed, 0, profile)
    assert result is not None
    for number in range(len(placed) + 1):
        for gone in combinations(range(len(placed)), number):
            state = fleet.group_of(0).state
            for which in gone:
                state = kind.remove(state, placed[which].profile, placed[which].place)
            if kind.placements(state, profile):
                assert len(result) == number
                return
    raise AssertionError("it would fit on the empty GPU")
