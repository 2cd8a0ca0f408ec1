"""Moves where every GPU has one size at a time: GPUs are cleared, the cheapest first."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.placement.fleets import MIXED, after, assert_room, every_place, fewest_moves, with_one
from tests.unit.placement.test_kinds import A40, UNEVEN
from vgpuctl.placement.cleared import TooManyError, room_by_clearing, sizes_of
from vgpuctl.placement.equal_size import EqualSizeKind
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.migration_search import plan_migrations
from vgpuctl.placement.migrations import PlacedVgpu

SMALL = EqualSizeKind("small", 4096, {"1B": 1024, "2B": 2048, "4B": 4096}, {"1B": 3, "2B": 2, "4B": 1})
LARGE = EqualSizeKind("large", 8192, {"1B": 1024, "2B": 2048, "4B": 4096}, {"1B": 5, "2B": 4, "4B": 2})
OTHER = EqualSizeKind("other", 4096, {"1B": 1024, "2B": 2048, "2Q": 2048}, {"1B": 4, "2B": 2, "2Q": 2})


@st.composite
def filled(draw: st.DrawFn) -> tuple[Fleet, tuple[PlacedVgpu, ...]]:
    """Return up to four GPUs of one or two models, and the vGPUs on them."""
    kinds = draw(st.sampled_from([[SMALL], [OTHER], [SMALL, LARGE], [LARGE, SMALL]]))
    numbers = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=4))
    fleet = Fleet(kinds, [GpuGroup(n, kinds[n].empty) for n in numbers])
    placed = []
    for profile in draw(st.lists(st.sampled_from(sorted(kinds[0].sizes)), max_size=7)):
        places = list(every_place(fleet, profile))
        if places:
            placed.append(draw(st.sampled_from(places)))
            fleet = with_one(fleet, placed[-1])
    return fleet, tuple(placed)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_no_plan_of_fewer_moves_makes_room(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled())
    stay = data.draw(st.sets(st.sampled_from(range(len(placed))), max_size=1)) if placed else set()
    movable = [vgpu for n, vgpu in enumerate(placed) if n not in stay]
    wanted = data.draw(st.lists(st.sampled_from(sorted(fleet.kinds[0].sizes)), min_size=1, max_size=3))
    sizes = sizes_of(fleet, [*wanted, *(vgpu.profile for vgpu in movable)])
    assert sizes is not None
    result = room_by_clearing(fleet, sizes, movable, wanted, 4, 50_000)
    fewest = fewest_moves(fleet, movable, Counter(wanted), 4)
    assert fewest == (None if result is None else len(result.migrations))
    if result is None:
        return
    assert_room(fleet, movable, result, wanted)


def test_a_gpu_is_cleared_by_many_moves_where_no_fewer_make_room() -> None:
    """Each of ten GPUs is half full, and so closed to another size."""
    fleet = Fleet([A40], [GpuGroup(0, (2048, 12 + n)) for n in range(10)])
    placed = [PlacedVgpu(n, "2B", 0) for n in range(10) for _ in range(12 + n)]
    result = plan_migrations(fleet, placed, ["8Q"] * 6 + ["1B"])
    assert result is not None
    assert (len(result.migrations), result.is_minimal) == (12 + 13, True)
    assert {placed[s.vgpu_index].gpu for s in result.migrations} == {0, 1}
    now = after(fleet, placed, result.order)
    assert [now.group_of(gpu).state for gpu in (0, 1)] == [(0, 0)] * 2
    assert plan_migrations(fleet, placed, ["8Q"] * 7, 24) is None


def test_where_profiles_of_one_size_differ_in_number_some_of_a_gpu_may_go() -> None:
    assert sizes_of(Fleet([MIXED], [GpuGroup(0, 0)]), ["1Q"]) is None
    fleet = Fleet([UNEVEN], [GpuGroup(0, (4096, 2)), GpuGroup(0, (4096, 2))])
    assert sizes_of(fleet, ["4C", "4Q"]) is None
    result = plan_migrations(fleet, [PlacedVgpu(0, "4Q", 0)] * 2, ["4C"])
    assert result is not None
    assert len(result.migrations) == 1


def test_too_many_sets_of_gpus_are_not_tried() -> None:
    fleet = Fleet([A40], [GpuGroup(0, (2048, 20 + n % 3)) for n in range(10)])
    placed = [PlacedVgpu(n, "2B", 0) for n in range(10) for _ in range(20 + n % 3)]
    sizes = sizes_of(fleet, ["2B", "8Q"])
    assert sizes is not None
    with pytest.raises(TooManyError):
        room_by_clearing(fleet, sizes, placed, ["8Q"] * 2, 200, 3)
    assert plan_migrations(fleet, placed, ["8Q"], max_tries=3) is None
