# SPDX-License-Identifier: Apache-2.0
"""Numbers in files of the kernel, of drivers and of other programs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.numbers import format_bytes, format_count, format_mib, parse_integer


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


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 MiB"), (1, "1 KiB"), (383_000, "375 KiB"), (1 << 20, "1 MiB"), (3 << 29, "1536 MiB"), (20 << 30, "20 GiB"),
     (900 << 40, "921600 GiB")],
)  # fmt: skip
def test_bytes(size, text):
    assert format_bytes(size) == text


@given(st.integers(0, 1 << 40))
def test_no_size_has_an_exponent_or_loses_anything(mib):
    number, unit = re.fullmatch(r"([0-9]+) (MiB|GiB)", format_mib(mib)).groups()
    assert int(number) * (1024 if unit == "GiB" else 1) == mib


def test_a_count_of_one_has_no_plural():
    assert [format_count(count, "VM") for count in (0, 1, 2)] == ["0 VMs", "1 VM", "2 VMs"]
