# SPDX-License-Identifier: Apache-2.0
"""The placement rule, one sentence of it at a time, on small fleets that can be followed by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gpu.test_kinds import KINDS, grown
from vgpuctl.config.arguments import PLACEMENT_POLICIES
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.gpu_kind import GpuKind, RoomLost, RoomLostByKind
from vgpuctl.gpu.mixed_size import placement_id_of
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice
from vgpuctl.placement.policy import POLICIES, FirstFit, LeastWaste, PlacementPolicy

SIZES = {"1B": 1024, "2B": 2048, "4Q": 4096, "8Q": 8192}
A40 = EqualSizeKind("A40", 49152, SIZES, {"1B": 32, "2B": 24, "4Q": 12, "8Q": 6})
A16 = EqualSizeKind("A16", 16384, SIZES, {"1B": 16, "2B": 8, "4Q": 4, "8Q": 2})
BLACKWELL_MOST = {"2Q": 32, "3Q": 32, "4Q": 24, "6Q": 16, "8Q": 12, "12Q": 8, "16Q": 6, "24Q": 4, "32Q": 3, "48Q": 2}
BLACKWELL = SliceKind(
    "RTX PRO 6000",
    98304,
    {p: int(p[:-1]) * 1024 for p in BLACKWELL_MOST},
    {p: Footprint(tuple(96 * j // n for j in range(n)), max(3, int(p[:-1]))) for p, n in BLACKWELL_MOST.items()},
    slices=96,
)
HALVED = SliceKind(
    "mixed A16",
    16384,
    {"1Q": 1024, "2Q": 2048, "4Q": 4096, "8Q": 8192},
    {p: Footprint(tuple(range(0, 16, n)), n) for p, n in (("1Q", 1), ("2Q", 2), ("4Q", 4), ("8Q", 8))},
    slices=16,
)


def empty_fleet(*kinds: GpuKind) -> Fleet:
    """Return a fleet with one empty GPU of each kind, in this order."""
    distinct = list(dict.fromkeys(kinds))
    return Fleet(distinct, [GpuGroup(distinct.index(kind), kind.empty) for kind in kinds])


def place(fleet: Fleet, *profiles: str, policy: PlacementPolicy | None = None) -> list[tuple[int, int]]:
    """Place vGPUs in turn; return the GPU of each with its lowest slice, or -1 where it has no slices."""
    policy = policy or LeastWaste()
    placed = []
    for profile in profiles:
        choice = policy.choose(fleet, profile)
        fleet.add_vgpu(choice.gpu, choice.placement)
        placed.append((choice.gpu, placement_id_of(choice.placement.place) if choice.placement.place else -1))
    return placed


def gpus(fleet: Fleet, *profiles: str, policy: PlacementPolicy | None = None) -> list[int]:
    return [gpu for gpu, _ in place(fleet, *profiles, policy=policy)]


def test_a_gpu_in_use_comes_before_an_empty_one_and_the_fullest_of_its_size_first() -> None:
    fleet = Fleet([A40], [GpuGroup(0, state) for state in ((0, 0), (4096, 2), (4096, 5), (2048, 9))])
    assert gpus(fleet, "4Q", "4Q") == [2, 2]
    assert gpus(fleet, "2B", "8Q") == [3, 0]


def test_of_empty_gpus_the_model_that_the_profile_fills_best_is_opened() -> None:
    """32 of 1B take 32 GiB of an A40's 48, and 16 of them all of an A16."""
    assert gpus(empty_fleet(A40, A16), "1B") == [1]
    assert gpus(empty_fleet(A16, A40), "1B") == [0]


def test_of_models_that_it_fills_alike_the_largest_is_opened_whatever_the_order_of_addresses() -> None:
    assert gpus(empty_fleet(A16, A40), "2B", "2B") == [1, 1]
    assert gpus(empty_fleet(A40, A16), "2B", "2B") == [0, 0]


def test_a_model_is_kept_for_a_size_in_use_that_it_alone_offers() -> None:
    large = EqualSizeKind("L40S", 49152, {**SIZES, "48Q": 49152}, {"1B": 32, "2B": 24, "4Q": 12, "8Q": 6, "48Q": 1})
    empty, with_48, with_8 = (0, 0), (49152, 1), (8192, 6)
    for state, goes in ((with_48, 2), (with_8, 1)):
        fleet = Fleet([large, A16], [GpuGroup(0, state), GpuGroup(0, empty), GpuGroup(1, empty)])
        assert gpus(fleet, "2B") == [goes]


def test_a_small_gpu_in_use_comes_before_a_large_empty_one() -> None:
    fleet = Fleet([A16, A40], [GpuGroup(0, (2048, 1)), GpuGroup(1, (0, 0))])
    assert gpus(fleet, "2B") == [0]


def test_sizes_that_do_not_line_up_are_kept_apart() -> None:
    """A 2 GiB vGPU covers 3 slices from a multiple of 3, one of 4 GiB 4 slices from a multiple of 4."""
    assert place(empty_fleet(BLACKWELL), "2Q", "2Q", "2Q", "4Q", "4Q", "2Q") == [
        (0, 0), (0, 3), (0, 6), (0, 12), (0, 16), (0, 9),
    ]  # fmt: skip


def test_a_vgpu_fills_the_gap_beside_its_like_and_leaves_the_large_places() -> None:
    assert place(empty_fleet(HALVED), "1Q", "4Q", "2Q", "1Q", "8Q") == [(0, 0), (0, 4), (0, 2), (0, 1), (0, 8)]


def test_the_place_is_the_cheapest_and_not_the_lowest() -> None:
    """Slices 8 and 9 are taken: a vGPU of one slice beside them costs no place of 4 or 8."""
    state = 0b11 << 8
    for name in PLACEMENT_POLICIES:
        assert place(Fleet([HALVED], [GpuGroup(0, state)]), "1Q", "4Q", policy=POLICIES[name]()) == [(0, 10), (0, 12)]


def test_of_gpus_in_use_the_one_that_loses_the_least_room_comes_before_the_fullest() -> None:
    """Beside a vGPU of 2 slices one slice costs 1 + 2 GiB; the fuller GPU would lose its last place of 8."""
    fleet = Fleet([HALVED], [GpuGroup(0, 0xFF), GpuGroup(0, 0b11)])
    assert place(fleet, "1Q", "8Q") == [(1, 2), (0, 8)]


def test_a_gpu_with_gpu_instances_in_use_comes_before_an_empty_one() -> None:
    """The one large instance has the most room; once it is used, the others do."""
    takes = {"1g": Footprint((), 0, ((0, 1), (1, 1))), "3g": Footprint((), 0, ((0, 1), (2, 1)))}
    mig = SliceKind("MIG", 81920, {"1g": 10240, "3g": 40960}, takes, pools=(16, 2, 1))
    assert gpus(empty_fleet(mig, mig), "3g", "1g", "1g", "1g", "3g") == [0, 0, 0, 1, 1]


def test_a_gpu_in_use_whose_driver_reports_no_units_does_not_count_as_empty() -> None:
    pool = SliceKind("pool", 24576, {"V": 3072}, {"V": Footprint((), 0, ((0, 1),))}, pools=(7,))
    assert gpus(Fleet([pool], [GpuGroup(0, 0), GpuGroup(0, 0)], [1, 0]), "V") == [0]


def test_sizes_that_do_not_line_up_go_to_gpus_of_their_own_while_one_is_empty() -> None:
    fleet = empty_fleet(BLACKWELL, BLACKWELL)
    assert place(fleet, "2Q", "4Q", "8Q", "48Q", "48Q", "2Q") == [(0, 0), (1, 0), (1, 8), (0, 48), (1, 48), (0, 3)]


@pytest.mark.parametrize("name", PLACEMENT_POLICIES)
@settings(max_examples=15)
@given(data=st.data())
def test_every_policy_refuses_only_when_no_gpu_has_room(name: str, data: st.DataObject) -> None:
    groups = [GpuGroup(i, grown(kind, data)) for i, kind in enumerate(KINDS) for _ in range(2)]
    fleet = Fleet(KINDS, groups)
    offered = sorted({p for kind in KINDS for p in kind.sizes})
    policy = POLICIES[name]()
    for profile in data.draw(st.lists(st.sampled_from([*offered, "unknown"]), min_size=1, max_size=5)):
        again = POLICIES[name]().choose(fleet, profile)
        choice = policy.choose(fleet, profile)
        assert choice == again
        assert (choice is None) == (not any(fleet.kind_of(g).placements(g.state, profile) for g, _ in fleet.groups()))
        if choice is not None:
            assert choice.placement in fleet.kind_of(choice.group).placements(choice.group.state, profile)
            assert fleet.group_of(choice.gpu) == choice.group
            fleet.add_vgpu(choice.gpu, choice.placement)


class LowestPlace(FirstFit):
    """First-fit as a driver does it: the lowest free place."""

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        for gpu in range(len(fleet)):
            group = fleet.group_of(gpu)
            placements = fleet.kind_of(group).placements(group.state, profile)
            if placements:
                return PlacementChoice(gpu, group, min(placements, key=lambda p: p.place))
        return None


@pytest.mark.parametrize(
    ("kinds", "mix"),
    [((A40, A16), {"1B": 40, "2B": 35, "4Q": 20, "8Q": 5}), ((BLACKWELL,), {"2Q": 1, "4Q": 1, "8Q": 1})],
    ids=["two models", "mixed size"],
)
def test_it_admits_more_than_first_fit(kinds: Sequence[GpuKind], mix: dict[str, int]) -> None:
    ours = sum(admitted_mib(LeastWaste(), kinds, mix, seed) for seed in range(4))
    assert ours > sum(admitted_mib(LowestPlace(), kinds, mix, seed) for seed in range(4))


def admitted_mib(policy: PlacementPolicy, kinds: Sequence[GpuKind], mix: dict[str, int], seed: int) -> int:
    """Return the framebuffer that a policy admits on four GPUs of requests for more than there is."""
    each = 4 // len(kinds)
    fleet = Fleet(list(kinds), [GpuGroup(n, kind.empty) for n, kind in enumerate(kinds) for _ in range(each)])
    chance, admitted = random.Random(seed), 0
    for profile in chance.choices(list(mix), list(mix.values()), k=200):
        choice = policy.choose(fleet, profile)
        if choice is not None:
            fleet.add_vgpu(choice.gpu, choice.placement)
            admitted += kinds[0].sizes[profile]
    return admitted


def test_room_counts_once_for_profiles_that_take_the_same() -> None:
    footprint = Footprint(tuple(range(16)), 1)
    both = SliceKind("both", 16384, {"1Q": 1024, "1A": 1024}, {"1Q": footprint, "1A": footprint}, slices=16)
    one = SliceKind("one", 16384, {"1Q": 1024}, {"1Q": footprint}, slices=16)
    (lost, placement), *_ = RoomLostByKind(both).placements_by_cost(both.empty, "1A")
    assert (lost, placement.place) == (RoomLost(0, 1024), 1)
    assert RoomLostByKind(one).lost(one.empty, "1Q", 1) == lost


def test_the_cost_of_a_place_is_what_the_profiles_can_use_less() -> None:
    costs = RoomLostByKind(HALVED).placements_by_cost(HALVED.empty, "1Q")
    assert [placement_id_of(p.place) for _, p in costs] == list(range(16))
    assert costs[0][0] == RoomLost(0, 1024 + 2048 + 4096 + 8192)
    after_first = RoomLostByKind(HALVED).placements_by_cost(1, "1Q")
    assert after_first[0][0] == RoomLost(0, 1024)


def test_extra_is_what_the_largest_room_loses_more_than_on_an_empty_gpu() -> None:
    """Beside one of 3 slices the most room is that of 3Q, 93 GiB. A 4Q touches two places of it; then 4Q has 88."""
    room_lost = RoomLostByKind(BLACKWELL)
    assert room_lost.lost_when_empty("4Q") == 4096
    three = BLACKWELL.placements(BLACKWELL.empty, "3Q")[0].state_after
    by_place = {placement_id_of(p.place): cost for cost, p in room_lost.placements_by_cost(three, "4Q")}
    assert by_place[4].extra == 93 * 1024 - 88 * 1024 - 4096
