"""Kinds of GPUs in numbers, against trying every order of every place."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.policy import Breadth, Depth, FirstFit

A40 = EqualSizeKind(
    "A40", 49152, {"1B": 1024, "2B": 2048, "2Q": 2048, "8Q": 8192}, {"1B": 32, "2B": 24, "2Q": 24, "8Q": 6}
)
UNEVEN = EqualSizeKind("RTX8000", 49152, {"4C": 4096, "4Q": 4096, "8Q": 8192}, {"4C": 2, "4Q": 4, "8Q": 3})
A40_OLD = EqualSizeKind("A40", 49152, {"2B": 2048, "2Q": 2048}, {"2B": 24, "2Q": 20}, one_type=True)
H100_MIG = SliceKind(
    "H100",
    81920,
    {"1g": 10240, "1g+me": 10240, "2g": 20480, "3g": 40960, "4g": 40960, "7g": 81920},
    {
        "1g": Footprint(tuple(range(7)), 1),
        "1g+me": Footprint(tuple(range(7)), 1, ((0, 1),)),
        "2g": Footprint((0, 2, 4), 2),
        "3g": Footprint((0, 4), 4),
        "4g": Footprint((0,), 4),
        "7g": Footprint((0,), 8),
    },
    slices=8,
    pools=(1,),
)
GVT = SliceKind(
    "i915",
    1024,
    {"V5_4": 128, "V5_8": 64},
    {"V5_4": Footprint((), 0, ((0, 2),)), "V5_8": Footprint((), 0, ((0, 1),))},
    pools=(8,),
)
KINDS = [A40, UNEVEN, A40_OLD, H100_MIG, GVT]


def every_way(kind: GpuKind, state: State, wanted: Counter[str]) -> bool:
    """Say whether they fit, by trying every order and every place."""
    if not wanted:
        return True
    return any(
        every_way(kind, move.state_after, wanted - Counter([profile]))
        for profile in wanted
        for move in kind.placements(state, profile)
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@given(data=st.data())
def test_what_fits_together_is_what_some_order_and_some_places_take(kind: GpuKind, data: st.DataObject) -> None:
    state = grown(kind, data)
    wanted = Counter(data.draw(st.lists(st.sampled_from(sorted(kind.sizes)), max_size=4)))
    assert kind.fits(state, wanted) == every_way(kind, state, wanted)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@given(data=st.data())
def test_as_many_are_left_as_fit_and_one_more_does_not(kind: GpuKind, data: st.DataObject) -> None:
    state = grown(kind, data)
    profile = data.draw(st.sampled_from(sorted(kind.sizes)))
    left = kind.count_remaining(state, profile)
    assert kind.fits(state, {profile: left})
    assert not kind.fits(state, {profile: left + 1})
    assert kind.count_each(state, (profile,)) == [left]


def test_the_sizes_in_use_are_those_that_the_state_has() -> None:
    assert A40.sizes_in_use(A40.empty) == frozenset()
    assert A40.sizes_in_use((8192, 2)) == {8192}
    assert A40_OLD.sizes_in_use(("2Q", 3)) == {2048}
    assert H100_MIG.sizes_in_use(0b11) == frozenset()


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@given(data=st.data())
def test_a_vgpu_taken_away_again_leaves_the_state_as_it_was(kind: GpuKind, data: st.DataObject) -> None:
    state = grown(kind, data)
    for profile in kind.sizes:
        for move in kind.placements(state, profile):
            assert kind.remove(move.state_after, profile, move.place) == state
            assert kind.add(state, profile, move.place) == move.state_after
            assert kind.add(move.state_after, profile, move.place) in (
                None,
                *(m.state_after for m in kind.placements(move.state_after, profile)),
            )
    assert kind.add(state, "nothing", 0) is None


def grown(kind: GpuKind, data: st.DataObject) -> State:
    """Return the state after some vGPUs, wherever they were put."""
    state = kind.empty
    for profile in data.draw(st.lists(st.sampled_from(sorted(kind.sizes)), max_size=6)):
        moves = kind.placements(state, profile)
        state = data.draw(st.sampled_from(moves)).state_after if moves else state
    return state


def test_a_fleet_groups_equal_gpus_and_names_the_lowest() -> None:
    fleet = Fleet([A40, H100_MIG], [GpuGroup(1, 0), GpuGroup(0, (0, 0)), GpuGroup(0, (0, 0)), GpuGroup(1, 0)])
    first = FirstFit().choose(fleet, "8Q")
    assert first is not None
    assert (first.gpu, first.placement) == (1, (0, (8192, 1)))
    fleet.add_vgpu(first.gpu, first.placement)
    assert {(g, n) for g, n in fleet.groups()} == {
        (GpuGroup(1, 0), 2),
        (GpuGroup(0, (8192, 1)), 1),
        (GpuGroup(0, (0, 0)), 1),
    }
    depth, breadth = Depth().choose(fleet, "8Q"), Breadth().choose(fleet, "8Q")
    assert depth is not None
    assert breadth is not None
    assert (depth.gpu, breadth.gpu) == (1, 2)
    assert FirstFit().choose(fleet, "2B") == breadth._replace(placement=(0, (2048, 1)))
    fleet.remove_vgpu(1, "8Q", 0)
    assert dict(fleet.groups()) == {GpuGroup(1, 0): 2, GpuGroup(0, (0, 0)): 2}
    assert fleet.first_gpu(GpuGroup(0, (0, 0))) == 1
    assert FirstFit().choose(fleet, "nothing") is None
