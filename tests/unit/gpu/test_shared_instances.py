# SPDX-License-Identifier: Apache-2.0
"""Instances that take several vGPUs of one size each, against trying every order and every instance."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gpu.test_kinds import every_way, grown
from vgpuctl.gpu.gpu_instances import InstanceNeed, SharedInstanceKind
from vgpuctl.gpu.gpu_kind import Placement, State

KIND = SharedInstanceKind(
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


@given(data=st.data())
def test_what_fits_together_is_what_some_order_and_some_instances_take(data: st.DataObject) -> None:
    state = grown(KIND, data)
    wanted = Counter(data.draw(st.lists(st.sampled_from(sorted(KIND.sizes)), max_size=4)))
    assert KIND.fits(state, wanted) == every_way(KIND, state, wanted)


@given(data=st.data())
def test_as_many_are_left_as_fit_and_one_more_does_not(data: st.DataObject) -> None:
    state = grown(KIND, data)
    profile = data.draw(st.sampled_from(sorted(KIND.sizes)))
    left = KIND.count_remaining(state, profile)
    assert KIND.fits(state, {profile: left})
    assert not KIND.fits(state, {profile: left + 1})


@given(data=st.data())
def test_a_vgpu_taken_away_again_leaves_the_state_as_it_was(data: st.DataObject) -> None:
    state = grown(KIND, data)
    for profile in KIND.sizes:
        for move in KIND.placements(state, profile):
            assert KIND.remove(move.state_after, profile, move.place) == state


def test_the_first_of_equal_instances_is_taken() -> None:
    assert [m.place for m in KIND.placements(KIND.empty, "1-12Q")] == [1]
    assert KIND.add(KIND.empty, "1-12Q", 2) == (1, ((0, 0), (0, 0), (12288, 1)))
    assert KIND.add(KIND.empty, "1-12Q", 0) is None
    assert KIND.placements(KIND.empty, "nothing") == ()
    assert KIND.count_remaining(KIND.empty, "nothing") == 0
    assert not KIND.fits(KIND.empty, {"nothing": 1})


class Counting(SharedInstanceKind):
    """A GPU that counts the places that are tried on it."""

    tried = 0

    def moves(self, state: State, profile: str) -> tuple[Placement, ...]:
        self.tried += 1
        return super().placements(state, profile)


def test_many_small_ones_are_counted_and_not_placed_one_by_one() -> None:
    sizes = {f"1-{gib}{series}": gib * 1024 for gib in (2, 3, 4, 6, 8, 12, 24) for series in "AQ"}
    needs = {profile: InstanceNeed(47, 24576 // mib) for profile, mib in sizes.items()}
    kind = Counting("RTX PRO 6000", 98304, sizes, needs, instances=(47,) * 4, carriers=48)
    assert kind.fits(kind.empty, {"1-2A": 12, "1-2Q": 11, "1-3A": 4, "1-3Q": 4, "1-4Q": 6})
    assert not kind.fits(kind.empty, {"1-2A": 12, "1-2Q": 13, "1-3A": 4, "1-3Q": 4, "1-4Q": 6})
    assert not kind.fits(kind.empty, {"1-2A": 12, "1-2Q": 12, "1-3A": 8, "1-3Q": 9, "1-4Q": 6})
    assert kind.tried == 0
