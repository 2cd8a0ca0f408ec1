# SPDX-License-Identifier: Apache-2.0
"""Profiles by the requested names: one name for what several models offer; other requests change nothing."""

from __future__ import annotations

from tests.values import A4C, A5C, a100, snapshot, t4
from vgpuctl.gpu.profiles import find_types
from vgpuctl.placement.fleet_by_profile import fleet_by_profile
from vgpuctl.placement.fleet_state import build_fleet_state
from vgpuctl.value import replace

SMALL, LARGE = t4(), a100(types=(replace(A4C, name="NVIDIA A100-4Q", profile="A100-4Q"), A5C))
SNAPSHOT = snapshot(LARGE, SMALL)
NUMBERS = build_fleet_state(SNAPSHOT, SNAPSHOT.gpus)


def fleet_for(*texts):
    return fleet_by_profile(NUMBERS, {text: find_types(SNAPSHOT, SNAPSHOT.gpus, text) for text in texts})


def left(fleet, name):
    return [fleet.kind_of(g).count_remaining(g.state, name) for g in (fleet.group_of(0), fleet.group_of(1))]


def test_what_one_model_alone_has_leaves_the_fleet_as_it_was():
    same = fleet_for("5C", "T4-2Q")
    assert (same.fleet, same.name_by_text) == (NUMBERS.fleet, {"5C": "A100-5C", "T4-2Q": "T4-2Q"})


def test_a_profile_of_any_model_has_one_name_and_room_on_each():
    for text in ("4Q", "A100-4Q|T4-4Q"):
        one = fleet_for(text, "A100-5C")
        assert one.name_by_text == {text: "4Q", "A100-5C": "A100-5C"}
        assert left(one.fleet, "4Q") == [10, 4]
        assert left(one.fleet, "A100-5C") == [8, 0]


def test_the_other_profiles_are_in_it_too():
    assert set(fleet_for("4Q").fleet.kinds[0].sizes) == {"4Q", "A100-5C"}
