# SPDX-License-Identifier: Apache-2.0
"""What one more vGPU costs at each place, in MiB of room."""

from __future__ import annotations

from tests.unit.placement.test_policy import BLACKWELL, HALVED
from vgpuctl.gpu.gpu_kind import RoomLost, RoomLostByKind
from vgpuctl.gpu.mixed_size import placement_id_of
from vgpuctl.gpu.slice_kind import Footprint, SliceKind


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
