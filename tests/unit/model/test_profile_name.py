# SPDX-License-Identifier: Apache-2.0
"""The parts of NVIDIA's profile names, with the model and without; other makers' names have none."""

from __future__ import annotations

import pytest

from vgpuctl.model.profile_name import ProfileName, parse_profile_name, profile_of_type, strip_board


@pytest.mark.parametrize(
    ("profile", "parts"),
    [
        ("A100-4C", ProfileName("A100", "4C", 0, "C", exclusive=False)),
        ("A100-1-5C", ProfileName("A100", "1-5C", 1, "C", exclusive=False)),
        ("A100-1-5CME", ProfileName("A100", "1-5CME", 1, "C", exclusive=True)),
        ("T4-2B4", ProfileName("T4", "2B4", 0, "B", exclusive=True)),
        ("T4-16A", ProfileName("T4", "16A", 0, "A", exclusive=True)),
        ("RTX6000-Ada-4Q", ProfileName("RTX6000-Ada", "4Q", 0, "Q", exclusive=False)),
        ("6000D-1-42Q", ProfileName("6000D", "1-42Q", 1, "Q", exclusive=False)),
        ("4Q", ProfileName("", "4Q", 0, "Q", exclusive=False)),
        ("1-10C", ProfileName("", "1-10C", 1, "C", exclusive=False)),
    ],
)
def test_the_parts_of_nvidias_names(profile: str, parts: ProfileName) -> None:
    assert parse_profile_name(profile) == parts
    assert strip_board(profile) == parts.without_board


@pytest.mark.parametrize("profile", ["i915-GVTg_V5_4", "mtty-2", "", "A100", "VF", "468"])
def test_other_makers_names_have_no_parts_and_are_whole_without_a_model(profile: str) -> None:
    assert parse_profile_name(profile) is None
    assert strip_board(profile) == profile


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("GRID A100-4C", "A100-4C"),
        ("NVIDIA RTX6000-Ada-4Q", "RTX6000-Ada-4Q"),
        ("NVIDIA RTX 6000D-1-42Q", "6000D-1-42Q"),
        ("NVIDIA RTX Pro 4500 Blackwell DC-1-2", "DC-1-2"),
        ("NVIDIA GeForce RTX 3050", "NVIDIA GeForce RTX 3050"),
        ("nvidia-468", "nvidia-468"),
        ("", ""),
    ],
)
def test_a_profile_is_the_last_word_only_where_that_names_a_board(name: str, profile: str) -> None:
    assert profile_of_type(name) == profile
