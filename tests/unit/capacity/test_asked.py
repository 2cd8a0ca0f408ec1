# SPDX-License-Identifier: Apache-2.0
"""Profiles in the words of who asks: one name for what several models serve, and nothing else where nobody asks so."""

from __future__ import annotations

from tests.values import A4C, A5C, a100, snapshot, t4
from vgpuctl.capacity.asked import as_asked
from vgpuctl.capacity.kinds import fleet_of
from vgpuctl.capacity.profiles import find
from vgpuctl.value import replace

SMALL, LARGE = t4(), a100(types=(replace(A4C, name="NVIDIA A100-4Q", profile="A100-4Q"), A5C))
LOOK = snapshot(LARGE, SMALL)
NUMBERS = fleet_of(LOOK, LOOK.gpus)


def asked(*texts):
    return as_asked(NUMBERS, {text: find(LOOK, LOOK.gpus, text) for text in texts})


def left(fleet, name):
    return [fleet.kind(g).left(g.state, name) for g in (fleet.group_of(0), fleet.group_of(1))]


def test_what_one_model_alone_has_leaves_the_fleet_as_it_was():
    same = asked("5C", "T4-2Q")
    assert (same.fleet, same.names) == (NUMBERS.fleet, {"5C": "A100-5C", "T4-2Q": "T4-2Q"})
    assert same.weights({"A100-5C": 2}) == {"A100-5C": 2}


def test_a_profile_of_any_model_has_one_name_and_room_on_each():
    for text in ("4Q", "A100-4Q|T4-4Q"):
        one = asked(text, "A100-5C")
        assert one.names == {text: "4Q", "A100-5C": "A100-5C"}
        assert left(one.fleet, "4Q") == [10, 4]
        assert left(one.fleet, "A100-5C") == [8, 0]


def test_what_models_are_asked_for_together_is_asked_for_so_often():
    assert asked("4Q").weights({"A100-4Q": 1, "T4-4Q": 2, "A100-5C": 5}) == {"4Q": 3, "A100-5C": 5, "T4-2Q": 0}
    assert "T4-4Q" not in asked("4Q").weights({"T4-4Q": 2})
