# SPDX-License-Identifier: Apache-2.0
"""Kinds as data count what the kinds themselves count, and data that lie cost nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.gpu_instances import InstanceNeed, SharedInstanceKind
from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.gpu.kind_rules import data_of_state, kind_of, rule_of, state_of
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.model.documents import to_json_value
from vgpuctl.model.host_room import DivisionRule, ProfileRule
from vgpuctl.model.result_reader import read_value
from vgpuctl.value import replace

SLICED = SliceKind(
    "A30 with MIG", 24576, {"1g": 6144, "2g": 12288, "4g": 24576},
    {
        "1g": Footprint((0, 1, 2, 3), 1, ((0, 1),)),
        "2g": Footprint((0, 2), 2, ((0, 1), (1, 1))),
        "4g": Footprint((0,), 4, ((0, 1),)),
    },
    slices=4, pools=(3, 1),
)  # fmt: skip
ONE_SIZE = EqualSizeKind(
    "A16", 16384, {"A16-2Q": 2048, "A16-2B": 2048, "A16-4Q": 4096}, {"A16-2Q": 8, "A16-2B": 7, "A16-4Q": 4}
)
ONE_TYPE = EqualSizeKind("T4", 16384, {"T4-2Q": 2048, "T4-2B": 2048}, {"T4-2Q": 8, "T4-2B": 8}, one_type=True)
SHARED = SharedInstanceKind(
    "RTX PRO", 98304, {"4Q": 4096, "8Q": 8192}, {"4Q": InstanceNeed(9, 3), "8Q": InstanceNeed(9, 2)},
    instances=(9, 9, 14), carriers=5,
)  # fmt: skip
KINDS = [SLICED, ONE_SIZE, ONE_TYPE, SHARED]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=9))
def test_a_kind_that_was_sent_as_json_counts_and_places_alike(kind: GpuKind, steps) -> None:
    rule = read_value(DivisionRule, json.loads(json.dumps(to_json_value(rule_of(kind)))))
    other = kind_of(rule)
    assert other == kind_of(rule_of(other)), "the same rule is the same kind, however often it is sent"
    profiles = sorted(kind.sizes)
    state = kind.empty
    for profile_number, place_number in steps:
        profile = profiles[profile_number % len(profiles)]
        places = kind.placements(state, profile)
        sent = json.loads(json.dumps(to_json_value(data_of_state(kind, state))))
        read = state_of(rule, tuple(sent))
        assert read == state
        assert {p: other.count_remaining(read, p) for p in profiles} == {
            p: kind.count_remaining(state, p) for p in profiles
        }
        assert other.placements(read, profile) == places
        if places:
            state = places[place_number % len(places)].state_after


RULE = rule_of(SLICED)


@pytest.mark.parametrize(
    "change",
    [
        {"form": "round"},
        {"slices": 10**9},
        {"slices": -1},
        {"slices": 257},
        {"pools": (1,) * 251},
        {"pools": (3, 70000)},
        {"pools": (3, -1)},
        {"framebuffer_mib": -1},
        {"framebuffer_mib": 1 << 60},
        {"profiles": (RULE.profiles[0], RULE.profiles[0])},
        {"profiles": tuple(ProfileRule(str(n), 1, units=((0, 1),)) for n in range(251))},
        {"profiles": (ProfileRule("a", -5, units=((0, 1),)),)},
        {"profiles": (ProfileRule("a", 1),)},
        {"profiles": (ProfileRule("a", 1, units=((2, 1),)),)},
        {"profiles": (ProfileRule("a", 1, units=((0, 0),)),)},
        {"profiles": (ProfileRule("a", 1, units=((0,),)),)},
        {"profiles": (ProfileRule("a", 1, starts=(0, 4), size=1),)},
        {"profiles": (ProfileRule("a", 1, starts=(3,), size=2),)},
        {"profiles": tuple(ProfileRule(str(n), 1, starts=(0,) * 2001, size=1) for n in range(2))},
        {"profiles": (ProfileRule("A\x0016-2B", 1, units=((0, 1),)),)},
        {"profiles": (ProfileRule("A" * 101, 1, units=((0, 1),)),)},
        {"profiles": (ProfileRule("A\n", 1, units=((0, 1),)),)},
        {"profiles": (ProfileRule("", 1, units=((0, 1),)),)},
        {"profiles": (ProfileRule("a", 1, size=2, units=((0, 1),)),)},
        {"form": "instances", "instances": (1,) * 65},
        {"form": "instances", "carriers": -1},
        {"form": "one-size", "profiles": (ProfileRule("a", 1, maximum=70000),)},
    ],
    ids=range(27),
)
def test_a_rule_that_describes_no_gpu_is_refused(change):
    with pytest.raises(ValueError):  # noqa: PT011
        kind_of(replace(RULE, **change))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (SLICED, ()),
        (SLICED, ("",)),
        (SLICED, (0,)),
        (SLICED, ("f" * 5000,)),
        (SLICED, ("-1",)),
        (SLICED, ("x",)),
        (SLICED, ("0", "0")),
        (SLICED, (f"{1 << 36:x}",)),
        (ONE_SIZE, (2048,)),
        (ONE_SIZE, (2048, "1")),
        (ONE_SIZE, (2048, -1)),
        (SHARED, (1, 4096, 1)),
        (SHARED, (1, 4096, 1, 0, 0, 0, "0")),
        (SHARED, (1, 4096, 1, 0, 0, 0, -1)),
    ],
    ids=range(14),
)
def test_a_state_of_another_form_is_refused(kind, data):
    with pytest.raises(ValueError):  # noqa: PT011
        state_of(rule_of(kind), data)


def test_what_has_no_rule():
    with pytest.raises(TypeError):
        rule_of("no kind")
