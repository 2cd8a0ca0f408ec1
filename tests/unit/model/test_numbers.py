# SPDX-License-Identifier: Apache-2.0
"""Numbers in files of the kernel, of drivers and of other programs.

Sizes: what is taken, what is refused with the text to write, and that rendering reads back.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.model.numbers import (
    MAX_SIZE_MIB,
    count_text,
    format_bytes,
    format_mib,
    format_milliseconds,
    format_size,
    parse_disk_size,
    parse_integer,
    parse_memory_size,
)


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


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(1, "0.001 s"), (99, "0.099 s"), (100, "0.1 s"), (569, "0.6 s"), (119_000, "119.0 s"), (1_024_000, "17 min")],
)
def test_durations(milliseconds, text):
    assert format_milliseconds(milliseconds) == text


@given(st.integers(0, 1 << 40))
def test_no_size_has_an_exponent_or_loses_anything(mib):
    number, unit = re.fullmatch(r"([0-9]+) (MiB|GiB)", format_mib(mib)).groups()
    assert int(number) * (1024 if unit == "GiB" else 1) == mib


@pytest.mark.parametrize(("count", "text"), [(0, "0 vGPUs"), (1, "1 vGPU"), (2, "2 vGPUs")])
def test_a_number_has_the_noun_that_it_needs(count, text):
    assert count_text(count, "vGPU") == text


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("8GiB", 8192),
        ("8G", 8192),
        ("512m", 512),
        ("2T", 2 << 20),
        ("8gib", 8192),
        ("8 GiB", 8192),
        (" 512MiB ", 512),
        ("2TiB", 2 << 20),
        ("1.5GiB", 1536),
        ("0.25TiB", 256 << 10),
        ("4096", 4096),
        ("007MiB", 7),
    ],
)
def test_memory_is_read(text: str, mib: int) -> None:
    assert parse_memory_size(text) == mib


def test_a_bare_number_is_gib_for_a_disk() -> None:
    assert parse_disk_size("100") == 100 * 1024
    assert parse_disk_size("1.5") == 1536
    assert parse_disk_size("100MiB") == 100


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("8GB", "write 8GiB"),
        ("8K", "write 8MiB"),
        ("512mb", "write 512MiB"),
        ("1.50TB", "write 1.50TiB"),
        ("8XB", "write 8GiB"),
        ("8GiBs", "write 8GiB"),
        ("", "like 8GiB"),
        ("much", "like 8GiB"),
        ("-1GiB", "like 8GiB"),
        ("1e3", "like 8GiB"),
        ("٣GiB", "like 8GiB"),
        ("9" * 5000, "like 8GiB"),
        ("0", "above zero"),
        ("0GiB", "above zero"),
        ("1.5", "write 1MiB"),
        ("0.1GiB", "write 102MiB"),
        ("1025TiB", "more than 1024TiB"),
    ],
)
def test_what_is_refused_says_what_to_write(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match="'") as caught:
        parse_memory_size(text)
    assert advice in str(caught.value)


@given(st.integers(1, MAX_SIZE_MIB))
def test_rendering_reads_back(mib: int) -> None:
    assert parse_memory_size(format_size(mib)) == mib
    assert parse_disk_size(format_size(mib)) == mib


@pytest.mark.parametrize(("mib", "text"), [(8192, "8GiB"), (1536, "1536MiB"), (1 << 20, "1TiB"), (1, "1MiB")])
def test_rendering_is_short(mib: int, text: str) -> None:
    assert format_size(mib) == text


@given(st.text(max_size=30))
def test_any_text_gives_a_size_or_value_error(text: str) -> None:
    try:
        mib = parse_memory_size(text)
    except ValueError:
        return
    assert 1 <= mib <= MAX_SIZE_MIB
