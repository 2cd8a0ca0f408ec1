# SPDX-License-Identifier: Apache-2.0
"""Kinds of GPUs in numbers: what fits, what is left and what is taken away, against trying every order and place."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.gpu_instances import InstanceNeed, SharedInstanceKind
from vgpuctl.gpu.gpu_kind import GpuKind, Placement, State
from vgpuctl.gpu.slice_kind import Footprint, Shape, SliceKind, Together
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
SHARED = SharedInstanceKind(
    "RTX PRO 6000",
    98304,
    {"1-24Q": 24576, "1-12Q": 12288, "1-12A": 12288, "2-48Q": 49152, "2-24Q": 24576},
    {
        "1-24Q": InstanceNeed(47, 1),
        "1-12Q": InstanceNeed(47, 2),
        "1-12A": InstanceNeed(47, 1),
        "2-48Q": InstanceNeed(35, 1),
        "2-24Q": InstanceNeed(35, 2),
    },
    instances=(35, 47, 47),
    carriers=4,
)
KINDS = [A40, UNEVEN, A40_OLD, H100_MIG, GVT, SHARED]


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
            again = kind.add(move.state_after, profile, move.place)
            assert kind is SHARED or again in (  # of equal instances only the first is offered
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
    assert (first.gpu, first.placement) == (1, (0, (8192, 1)))
    fleet.add_vgpu(first.gpu, first.placement)
    assert {(g, n) for g, n in fleet.groups()} == {
        (GpuGroup(1, 0), 2),
        (GpuGroup(0, (8192, 1)), 1),
        (GpuGroup(0, (0, 0)), 1),
    }
    depth, breadth = Depth().choose(fleet, "8Q"), Breadth().choose(fleet, "8Q")
    assert (depth.gpu, breadth.gpu) == (1, 2)
    assert FirstFit().choose(fleet, "2B") == breadth._replace(placement=(0, (2048, 1)))
    fleet.remove_vgpu(1, "8Q", 0)
    assert dict(fleet.groups()) == {GpuGroup(1, 0): 2, GpuGroup(0, (0, 0)): 2}
    assert fleet.first_gpu(GpuGroup(0, (0, 0))) == 1
    assert FirstFit().choose(fleet, "nothing") is None


def test_the_first_of_equal_instances_is_taken() -> None:
    assert [m.place for m in SHARED.placements(SHARED.empty, "1-12Q")] == [1]
    assert SHARED.add(SHARED.empty, "1-12Q", 2) == (1, ((0, 0), (0, 0), (12288, 1)))
    assert SHARED.add(SHARED.empty, "1-12Q", 0) is None
    assert SHARED.placements(SHARED.empty, "nothing") == ()
    assert SHARED.count_remaining(SHARED.empty, "nothing") == 0
    assert not SHARED.fits(SHARED.empty, {"nothing": 1})


class CountingInstances(SharedInstanceKind):
    """A GPU that counts the places that are tried on it."""

    tried = 0

    def moves(self, state: State, profile: str) -> tuple[Placement, ...]:
        self.tried += 1
        return super().placements(state, profile)


def test_many_small_ones_are_counted_and_not_placed_one_by_one() -> None:
    sizes = {f"1-{gib}{series}": gib * 1024 for gib in (2, 3, 4, 6, 8, 12, 24) for series in "AQ"}
    needs = {profile: InstanceNeed(47, 24576 // mib) for profile, mib in sizes.items()}
    kind = CountingInstances("RTX PRO 6000", 98304, sizes, needs, instances=(47,) * 4, carriers=48)
    assert kind.fits(kind.empty, {"1-2A": 12, "1-2Q": 11, "1-3A": 4, "1-3Q": 4, "1-4Q": 6})
    assert not kind.fits(kind.empty, {"1-2A": 12, "1-2Q": 13, "1-3A": 4, "1-3Q": 4, "1-4Q": 6})
    assert not kind.fits(kind.empty, {"1-2A": 12, "1-2Q": 12, "1-3A": 8, "1-3Q": 9, "1-4Q": 6})
    assert kind.tried == 0


SLICES = 9
shapes = st.tuples(st.integers(1, 4), st.sets(st.integers(0, SLICES - 1), min_size=1)).map(
    lambda drawn: (drawn[0], tuple(sorted(start for start in drawn[1] if start + drawn[0] <= SLICES)))
)
requests = st.dictionaries(shapes, st.integers(0, 3), min_size=1, max_size=4)


def every_place(free: int, wanted: Counter[Shape]) -> bool:
    """Return whether they fit, by trying every placement of each."""
    if not wanted:
        return True
    shape = min(wanted)
    places = [((1 << shape[0]) - 1) << start for start in shape[1]]
    return any(every_place(free & ~place, wanted - Counter([shape])) for place in places if not place & ~free)


@given(st.integers(0, (1 << SLICES) - 1), st.lists(requests, min_size=1, max_size=4))
def test_they_fit_whenever_some_placement_takes_them(free: int, asked: list[dict[Shape, int]]) -> None:
    together = Together(free)
    for wanted in asked:
        assert together.fit(wanted) == every_place(free, +Counter(wanted))


def mixed(slices: int = 96, functions: int = 48) -> GpuKind:
    """Return a GPU with mixed sizes as an RTX PRO 6000 has them, a slice for each GiB."""
    sizes = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    takes = {f"{n}Q": Footprint(tuple(range(0, slices - n + 1, n)), n, ((0, 1),)) for n in sizes}
    mib = {f"{n}Q": n * 1024 for n in sizes}
    return SliceKind("mixed", slices * 1024, mib, takes, slices=slices, pools=(functions,))


def test_what_does_not_fit_on_a_large_gpu_is_known_without_trying_every_place_of_each() -> None:
    """Trying every placement of 24 vGPUs on 96 slices would never end in practice."""
    kind = mixed()
    assert kind.fits(kind.empty, {"2Q": 24, "48Q": 1})
    assert not kind.fits(kind.empty, {"2Q": 25, "48Q": 1})
    assert not kind.fits(kind.empty, {"2Q": 8, "3Q": 8, "4Q": 1, "6Q": 2, "8Q": 1, "16Q": 1, "24Q": 1})
    few = mixed(functions=6)
    assert few.fits(few.empty, {"2Q": 5, "48Q": 1})
    assert not few.fits(few.empty, {"2Q": 6, "48Q": 1})
