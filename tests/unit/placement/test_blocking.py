"""The fewest vGPUs that have to leave a GPU so that one more fits."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import examples
from tests.unit.gpu.test_kinds import A40, GVT
from tests.unit.placement.fleets import MIXED, filled
from vgpuctl.gpu.shared_instances import InstanceNeed, SharedInstanceKind
from vgpuctl.placement.blocking import find_fewest_blocking


@settings(deadline=None, max_examples=examples(150))
@given(data=st.data())
def test_no_fewer_are_in_the_way_of_one_more_on_a_gpu(data: st.DataObject) -> None:
    fleet, placed = data.draw(filled(1, 6))
    group = fleet.group_of(0)
    kind = fleet.kind_of(group)
    profile = data.draw(st.sampled_from(sorted(kind.sizes)))
    allocated = [(vgpu.profile, vgpu.place) for vgpu in placed]
    result = find_fewest_blocking(kind, group.state, allocated, profile)
    assert result is not None
    for number in range(len(placed) + 1):
        for gone in combinations(range(len(placed)), number):
            state = group.state
            for which in gone:
                state = kind.remove(state, *allocated[which])
            if kind.placements(state, profile):
                assert len(result) == number
                return
    raise AssertionError("it would fit on the empty GPU")


def test_all_of_another_size_are_in_the_way_and_one_of_its_own_where_it_is_full() -> None:
    assert find_fewest_blocking(A40, (1024, 3), [("1B", 0)] * 3, "8Q") == (0, 1, 2)
    assert find_fewest_blocking(A40, (8192, 6), [("8Q", 0)] * 6, "8Q") == (0,)
    assert find_fewest_blocking(A40, (8192, 5), [("8Q", 0)] * 5, "8Q") == ()


def test_of_those_that_share_a_pool_the_large_ones_go() -> None:
    assert find_fewest_blocking(GVT, 8, [*[("V5_8", 1)] * 4, *[("V5_4", 2)] * 2], "V5_4") == (4,)
    assert find_fewest_blocking(GVT, 8, [("V5_8", 1)] * 8, "V5_4") == (0, 1)


def test_what_would_not_fit_on_the_empty_gpu_is_blocked_by_nobody() -> None:
    assert find_fewest_blocking(MIXED, 0b11, [], "9Z") is None
    assert find_fewest_blocking(MIXED, 0b1111_1111, [("4Q", 0b1111)], "4Q") == (0,)
    assert find_fewest_blocking(MIXED, 0b1111_1111, [], "4Q") is None


def test_of_instances_that_are_alike_the_emptier_is_cleared() -> None:
    needs = {"8A": InstanceNeed(47, 3), "24A": InstanceNeed(47, 1)}
    kind = SharedInstanceKind("", 98304, {"8A": 8192, "24A": 24576}, needs, instances=(47, 47), carriers=8)
    state = (3, ((8192, 2), (8192, 1)))
    assert find_fewest_blocking(kind, state, [("8A", 0), ("8A", 1), ("8A", 0)], "24A") == (1,)
