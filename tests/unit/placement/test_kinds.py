"""Kinds of GPUs in numbers, against trying every order of every place."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.placement.fleet import Fleet, Group
from vgpuctl.placement.kind import Kind, State
from vgpuctl.placement.one_size import OneSize
from vgpuctl.placement.policy import Breadth, Depth, FirstFit
from vgpuctl.placement.slots import Slots, Takes

A40 = OneSize("A40", 49152, {"1B": 1024, "2B": 2048, "2Q": 2048, "8Q": 8192}, {"1B": 32, "2B": 24, "2Q": 24, "8Q": 6})
UNEVEN = OneSize("RTX8000", 49152, {"4C": 4096, "4Q": 4096, "8Q": 8192}, {"4C": 2, "4Q": 4, "8Q": 3})
A40_OLD = OneSize("A40", 49152, {"2B": 2048, "2Q": 2048}, {"2B": 24, "2Q": 20}, one_type=True)
H100_MIG = Slots(
    "H100",
    81920,
    {"1g": 10240, "1g+me": 10240, "2g": 20480, "3g": 40960, "4g": 40960, "7g": 81920},
    {
        "1g": Takes(tuple(range(7)), 1),
        "1g+me": Takes(tuple(range(7)), 1, ((0, 1),)),
        "2g": Takes((0, 2, 4), 2),
        "3g": Takes((0, 4), 4),
        "4g": Takes((0,), 4),
        "7g": Takes((0,), 8),
    },
    slices=8,
    pools=(1,),
)
GVT = Slots(
    "i915",
    1024,
    {"V5_4": 128, "V5_8": 64},
    {"V5_4": Takes((), 0, ((0, 2),)), "V5_8": Takes((), 0, ((0, 1),))},
    pools=(8,),
)
KINDS = [A40, UNEVEN, A40_OLD, H100_MIG, GVT]


def every_way(kind: Kind, state: State, wanted: Counter[str]) -> bool:
    """Say whether they fit, by trying every order and every place."""
    if not wanted:
        return True
    return any(
        every_way(kind, move.after, wanted - Counter([profile]))
        for profile in wanted
        for move in kind.moves(state, profile)
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@given(data=st.data())
def test_what_fits_together_is_what_some_order_and_some_places_take(kind: Kind, data: st.DataObject) -> None:
    state = grown(kind, data)
    wanted = Counter(data.draw(st.lists(st.sampled_from(sorted(kind.sizes)), max_size=4)))
    assert kind.fits(state, wanted) == every_way(kind, state, wanted)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@given(data=st.data())
def test_as_many_are_left_as_fit_and_one_more_does_not(kind: Kind, data: st.DataObject) -> None:
    state = grown(kind, data)
    profile = data.draw(st.sampled_from(sorted(kind.sizes)))
    left = kind.left(state, profile)
    assert kind.fits(state, {profile: left})
    assert not kind.fits(state, {profile: left + 1})


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@given(data=st.data())
def test_a_vgpu_taken_away_again_leaves_the_state_as_it_was(kind: Kind, data: st.DataObject) -> None:
    state = grown(kind, data)
    for profile in kind.sizes:
        for move in kind.moves(state, profile):
            assert kind.without(move.after, profile, move.place) == state
            assert kind.at(state, profile, move.place) == move.after
            assert kind.at(move.after, profile, move.place) in (
                None,
                *(m.after for m in kind.moves(move.after, profile)),
            )
    assert kind.at(state, "nothing", 0) is None


def grown(kind: Kind, data: st.DataObject) -> State:
    """Return the state after some vGPUs, wherever they were put."""
    state = kind.empty
    for profile in data.draw(st.lists(st.sampled_from(sorted(kind.sizes)), max_size=6)):
        moves = kind.moves(state, profile)
        state = data.draw(st.sampled_from(moves)).after if moves else state
    return state


def test_a_fleet_groups_equal_gpus_and_names_the_lowest() -> None:
    fleet = Fleet([A40, H100_MIG], [Group(1, 0), Group(0, (0, 0)), Group(0, (0, 0)), Group(1, 0)])
    first = FirstFit().choose(fleet, "8Q")
    assert first is not None
    assert (first.gpu, first.move) == (1, (0, (8192, 1)))
    fleet.put(first.gpu, first.move)
    assert {(g, n) for g, n in fleet.groups()} == {
        (Group(1, 0), 2),
        (Group(0, (8192, 1)), 1),
        (Group(0, (0, 0)), 1),
    }
    depth, breadth = Depth().choose(fleet, "8Q"), Breadth().choose(fleet, "8Q")
    assert depth is not None
    assert breadth is not None
    assert (depth.gpu, breadth.gpu) == (1, 2)
    assert FirstFit().choose(fleet, "2B") == breadth._replace(move=(0, (2048, 1)))
    fleet.take(1, "8Q", 0)
    assert dict(fleet.groups()) == {Group(1, 0): 2, Group(0, (0, 0)): 2}
    assert fleet.first(Group(0, (0, 0))) == 1
    assert FirstFit().choose(fleet, "nothing") is None
