# SPDX-License-Identifier: Apache-2.0
"""Numbers in files of the kernel, of drivers and of other programs."""

import pytest

from vgpuctl.model.numbers import parse_integer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16\n", 16),
        ("-1", -1),
        ("007", 7),
        ("0x1F", 31),
        ("", None),
        ("none", None),
        ("9" * 5000, None),
        ("1_000", None),
        ("²", None),
        ("٣", None),
        ("1 2", None),
        ("0x", None),
    ],
)
def test_a_number_is_one_or_it_is_unknown(text, number):
    assert parse_integer(text) == number
