# SPDX-License-Identifier: Apache-2.0
"""Moves that make room, or larger pieces: the fewest, in an order in which each finds its place free; on one GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import examples
from tests.unit.gpu.test_kinds import A40, GVT
from tests.unit.placement.fleets import (
    FEW_VFS,
    MIXED,
    SMALL,
    after,
    assert_room,
    count_free_after_order,
    every_place,
    fewest_moves,
    filled,
    fit,
    with_one,
)
from vgpuctl.gpu.gpu_instances import InstanceNeed, SharedInstanceKind
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.placement.fit import total_left
from vgpuctl.placement.fleet import (
    Fleet,
    FreeFunctions,
    GpuGroup,
    Leave,
    Migration,
    MigrationPlan,
    PlacedVgpu,
    copy_fleet,
)
from vgpuctl.placement.moves import MovableFleet, find_fewest_blocking, plan_larger_pieces, plan_room, profiles_by_size

ALIKE = SharedInstanceKind(
    "RTX PRO 6000",
    98304,
    {"8A": 8192, "24A": 24576},
    {"8A": InstanceNeed(47, 3), "24A": InstanceNeed(47, 1)},
    instances=(47, 47),
    carriers=8,
)
"""Two GPU instances that are alike."""


def room(
    fleet: Fleet, placed: Sequence[PlacedVgpu], wanted: Sequence[str], most: int | None = None, **more: object
) -> MigrationPlan | None:
    return plan_room(MovableFleet(fleet, tuple(placed), **more), wanted, most)


def larger(fleet: Fleet, placed: Sequence[PlacedVgpu], most: int | None = None) -> MigrationPlan:
    return plan_larger_pieces(MovableFleet(fleet, tuple(placed)), most)


@settings(deadline=None, max_examples=examples(150))
@given(data=st.data())
def test_no_plan_of_fewer_moves_makes_room(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled())
    may = data.draw(st.sets(st.sampled_from(range(len(placed))))) if placed else set()
    movable = [placed[n] for n in sorted(may)]
    profiles = sorted({p for kind in fleet.kinds for p in kind.sizes})
    wanted = data.draw(st.lists(st.sampled_from(profiles), min_size=1, max_size=2))
    result = room(fleet, movable, wanted, 3)
    assert fewest_moves(fleet, movable, Counter(wanted), 3) == (None if result is None else len(result.migrations))
    if result is not None:
        assert result.is_minimal
        assert_room(fleet, movable, result, wanted)


@settings(deadline=None, max_examples=examples(150))
@given(data=st.data())
def test_each_move_finds_a_free_function_if_there_are_enough_in_the_end(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled())
    profiles = sorted({p for kind in fleet.kinds for p in kind.sizes})
    wanted = data.draw(st.lists(st.sampled_from(profiles), min_size=1, max_size=2))
    free = data.draw(st.dictionaries(st.integers(0, len(fleet) - 1), st.integers(0, 2)))
    result = room(fleet, placed, wanted, 3, free_functions=free)
    freely = room(fleet, placed, wanted, 3)
    if result is None:
        assert freely is None or any(number < 0 for number in functions_in_the_end(placed, freely, free).values())
        return
    assert len(result.migrations) == len(freely.migrations)
    assert_room(fleet, placed, result, wanted)
    assert count_free_after_order(free, placed, result.order) is not None


def functions_in_the_end(placed: Sequence[PlacedVgpu], plan: MigrationPlan, free: FreeFunctions) -> Counter[int]:
    left = Counter(free)
    for move in plan.migrations:
        left.update({placed[move.vgpu_index].gpu: 1, move.gpu: -1})
    return Counter({gpu: left[gpu] for gpu in free})


def rooms(fleet: Fleet) -> tuple[int, ...]:
    """Return how many of each profile fit alone, the largest first."""
    return tuple(total_left(fleet, profile) for profile in profiles_by_size(fleet))


@settings(deadline=None, max_examples=examples(150))
@given(data=st.data())
def test_no_fewer_moves_leave_more_room_for_the_first_profile_that_gains(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled(3, 4))
    most = data.draw(st.sampled_from([None, 1, 2]))
    plan = larger(fleet, placed, most)
    moves = len(plan.migrations)
    assert most is None or moves <= most
    assert len({move.vgpu_index for move in plan.migrations}) == moves
    best, fewest = most_room(fleet, placed, len(placed) if most is None else most)
    reached = rooms(after(fleet, placed, plan.order))
    assert reached[: len(best)] == best or (not moves and best == rooms(fleet))
    assert moves == fewest


def most_room(fleet: Fleet, placed: Sequence[PlacedVgpu], most: int) -> tuple[tuple[int, ...], int]:
    """Return the room up to the first profile of which more can be made to fit, and the fewest moves; by trying all."""
    now = rooms(fleet)
    ends: dict[tuple[int, ...], int] = {}
    for number in range(min(most, len(placed)) + 1):
        for gone in combinations(placed, number):
            bare = copy_fleet(fleet)
            for vgpu in gone:
                bare.remove_vgpu(vgpu.gpu, vgpu.profile, vgpu.place)
            for end in every_end(bare, [vgpu.profile for vgpu in gone]):
                ends.setdefault(rooms(end), number)
    for at in range(len(now)):
        kept = {room: number for room, number in ends.items() if all(map(int.__ge__, room[:at], now[:at]))}
        gain = max(room[at] for room in kept)
        if gain > now[at]:
            number, room_then = min((number, room) for room, number in kept.items() if room[at] == gain)
            return (*now[:at], gain) if room_then[:at] == now[:at] else room_then[: at + 1], number
    return now, 0


def every_end(fleet: Fleet, profiles: Sequence[str]) -> list[Fleet]:
    """Return the fleet with these vGPUs at all places that they can have."""
    if not profiles:
        return [fleet]
    places = list(every_place(fleet, profiles[0]))
    return [end for place in places for end in every_end(with_one(fleet, place), profiles[1:])]


def test_a_vm_that_is_off_moves_rather_than_one_that_runs() -> None:
    """Each of the GPUs is cleared by one move."""
    fleet = Fleet([SMALL], [GpuGroup(0, (1024, 1)), GpuGroup(0, (1024, 1))])
    placed = [PlacedVgpu(0, "1B", 0), PlacedVgpu(1, "1B", 0)]
    for running in (0, 1):
        plan = room(fleet, placed, ["2B"], running=frozenset({running}))
        assert [move.vgpu_index for move in plan.migrations] == [1 - running]


def test_of_two_that_wait_for_each_other_one_leaves_first() -> None:
    """Where one of them has a third place to go to, none has to."""
    two, second = Footprint((0,), 2), Footprint((1,), 1)
    here = SliceKind("here", 2, {"V": 2, "U": 1, "R": 1}, {"V": two, "U": second, "R": Footprint((0,), 1)}, slices=2)
    there = SliceKind("there", 2, {"V": 2, "U": 1}, {"V": two, "U": second}, slices=2)
    fleet = Fleet([here, there], [GpuGroup(0, 0b11), GpuGroup(1, 0b10)])
    placed = [PlacedVgpu(0, "V", 0b11), PlacedVgpu(1, "U", 0b10)]
    plan = room(fleet, placed, ["R"])
    assert plan.order == (Leave(0), (1, 0, 0b10), (0, 1, 0b11))
    assert fit(after(fleet, placed, plan.order), Counter("R"))
    assert room(fleet, placed, ["R"], 1) is None
    assert room(fleet, placed, ["R"], free_functions={0: 0, 1: 0}) is not None
    third = Fleet([here, there], [GpuGroup(0, 0b11), GpuGroup(1, 0b10), GpuGroup(1, 0b01)])
    shorter = room(third, placed, ["R"])
    assert shorter.order == ((1, 2, 0b10), (0, 1, 0b11))


def test_room_for_many_takes_the_fewest_moves_together() -> None:
    fleet = Fleet([SMALL], [GpuGroup(0, (1024, 1))] * 3)
    placed = [PlacedVgpu(n, "1B", 0) for n in range(3)]
    plan = room(fleet, placed, ["2B"] * 4)
    assert (len(plan.migrations), plan.is_minimal) == (2, True)
    assert room(fleet, placed, ["2B"] * 5) is None
    assert room(fleet, placed, ["2B"], 0) is None


def test_gpus_with_fewer_vfs_than_small_vgpus_fit_are_not_merged() -> None:
    """Together the two have four VFs, but the one without the large vGPU has only two for three small ones."""
    fleet = Fleet([FEW_VFS], [GpuGroup(0, FEW_VFS.empty)] * 2)
    assert room(fleet, [], ["1S", "1S", "1S", "4S"]) is None
    assert room(fleet, [], ["1S", "1S", "4S"]) is not None


def test_vgpus_in_instances_that_are_alike_are_moved_each_from_its_own() -> None:
    fleet = Fleet([ALIKE], [GpuGroup(0, (1, ((0, 0), (8192, 1)))), GpuGroup(0, (2, ((8192, 1), (8192, 1))))])
    placed = [PlacedVgpu(1, "8A", 1), PlacedVgpu(0, "8A", 1), PlacedVgpu(1, "8A", 0)]
    order = [Migration(0, 0, 0), Migration(1, 1, 1)]
    assert after(fleet, placed, order).group_of(1).state == (2, ((8192, 1), (8192, 1)))
    plan = room(fleet, placed, ["24A", "24A"])
    assert len(plan.migrations) == 1
    assert_room(fleet, placed, plan, ["24A", "24A"])


def test_where_the_driver_chooses_the_place_nothing_moves_within_a_gpu() -> None:
    fleet = Fleet([MIXED], [GpuGroup(0, 0b0001_0011)])
    placed = [PlacedVgpu(0, "2Q", 0b11)]
    plan = room(fleet, placed, ["4Q"])
    assert plan.order == (Migration(0, 0, 0b1100_0000),)
    assert room(fleet, placed, ["4Q"], fixed_gpus=frozenset({0})) is None
    two = Fleet([MIXED], [GpuGroup(0, 0b0001_0011), GpuGroup(0, 0b1111_0011)])
    elsewhere = room(two, placed, ["4Q"], fixed_gpus=frozenset({0}))
    assert elsewhere.migrations[0].gpu == 1


def test_vgpus_of_gpus_that_choose_the_place_change_gpus_with_each_other() -> None:
    """Each could stay on its GPU at another place; but no vGPU can be told to go to another place there."""
    fleet = Fleet([MIXED], [GpuGroup(0, 0b0001_0011), GpuGroup(0, 0b0001_0011)])
    placed = [PlacedVgpu(0, "2Q", 0b11), PlacedVgpu(1, "2Q", 0b11)]
    plan = room(fleet, placed, ["4Q", "4Q"], fixed_gpus=frozenset({0, 1}))
    assert [(placed[move.vgpu_index].gpu, move.gpu) for move in plan.migrations] in ([(0, 1), (1, 0)], [(1, 0), (0, 1)])
    assert_room(fleet, placed, plan, ["4Q", "4Q"])


def test_scattered_vgpus_leave_gpus_empty() -> None:
    fleet = Fleet([A40], [GpuGroup(0, (8192, 2)), GpuGroup(0, (8192, 2)), GpuGroup(0, (8192, 2))])
    placed = [PlacedVgpu(gpu, "8Q", 0) for gpu in (0, 0, 1, 1, 2, 2)]
    plan = larger(fleet, placed)
    assert [type(entry) for entry in plan.order] == [Migration] * 4
    sizes = sorted(after(fleet, placed, plan.order).group_of(gpu).state for gpu in range(3))
    assert sizes == [(0, 0), (0, 0), (8192, 6)]
    assert len(larger(fleet, placed, 3).order) == 2


@settings(deadline=None, max_examples=examples(150))
@given(data=st.data())
def test_no_fewer_are_in_the_way_of_one_more_on_a_gpu(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled(1, 6))
    group = fleet.group_of(0)
    kind = fleet.kind_of(group)
    profile = data.draw(st.sampled_from(sorted(kind.sizes)))
    allocated = [(vgpu.profile, vgpu.place) for vgpu in placed]
    result = find_fewest_blocking(kind, group.state, allocated, profile)
    for number in range(len(placed) + 1):
        for gone in combinations(range(len(placed)), number):
            state = group.state
            for which in gone:
                state = kind.remove(state, *allocated[which])
            if kind.placements(state, profile):
                assert len(result) == number
                return
    raise AssertionError("it would fit on the empty GPU")


def test_of_those_that_share_a_pool_the_large_ones_go() -> None:
    assert find_fewest_blocking(GVT, 8, [*[("V5_8", 1)] * 4, *[("V5_4", 2)] * 2], "V5_4") == (4,)
    assert find_fewest_blocking(GVT, 8, [("V5_8", 1)] * 8, "V5_4") == (0, 1)


def test_what_would_not_fit_on_the_empty_gpu_is_blocked_by_nobody() -> None:
    assert find_fewest_blocking(MIXED, 0b11, [], "9Z") is None
    assert find_fewest_blocking(MIXED, 0b1111_1111, [("4Q", 0b1111)], "4Q") == (0,)
    assert find_fewest_blocking(MIXED, 0b1111_1111, [], "4Q") is None


def test_of_instances_that_are_alike_the_emptier_is_cleared() -> None:
    state = (3, ((8192, 2), (8192, 1)))
    assert find_fewest_blocking(ALIKE, state, [("8A", 0), ("8A", 1), ("8A", 0)], "24A") == (1,)
