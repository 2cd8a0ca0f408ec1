# SPDX-License-Identifier: Apache-2.0
"""Lists of CPUs and NUMA nodes in the form of the kernel and libvirt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.numbers import format_ranges, parse_ranges


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        (" 4 , 2-2\n", {2, 4}),
        ("0-7,^5", {0, 1, 2, 3, 4, 6, 7}),
        ("", set()),
        ("x,-1,5-,3-1", set()),
        ("98-200", {98, 99}),
    ],
)
def test_a_list_is_read(text: str, numbers: set[int]) -> None:
    assert parse_ranges(text, 100) == numbers


@given(st.frozensets(st.integers(0, 99)))
def test_what_is_written_reads_back(numbers: frozenset[int]) -> None:
    assert parse_ranges(format_ranges(numbers), 100) == numbers


def test_the_shortest_form() -> None:
    assert format_ranges([9, 1, 2, 3]) == "1-3,9"
    assert format_ranges([]) == ""
