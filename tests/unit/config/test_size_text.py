# SPDX-License-Identifier: Apache-2.0
"""Sizes and times: what is taken, what is refused with the text to write, and that rendering reads back."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.config.size_text import MAX_SIZE_MIB, format_size, parse_disk_size, parse_memory_size
from vgpuctl.config.time_text import parse_past_time
from vgpuctl.errors import InvalidInput


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


NOON = datetime(2026, 11, 25, 12).timestamp()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("90s", datetime(2026, 11, 25, 11, 58, 30)),
        ("30m", datetime(2026, 11, 25, 11, 30)),
        (" 2 h ", datetime(2026, 11, 25, 10)),
        ("7d", datetime(2026, 11, 18, 12)),
        ("1w", datetime(2026, 11, 18, 12)),
        ("today", datetime(2026, 11, 25)),
        ("yesterday", datetime(2026, 11, 24)),
        ("2026-11-01", datetime(2026, 11, 1)),
        ("2026-11-01 13:30", datetime(2026, 11, 1, 13, 30)),
        ("2026-11-01T13:30:05Z", datetime.fromisoformat("2026-11-01T13:30:05+00:00")),
    ],
)
def test_a_time_is_read(text: str, moment: datetime) -> None:
    assert parse_past_time("--since", text, NOON) == moment.timestamp()


def test_before_the_epoch_is_the_epoch() -> None:
    assert parse_past_time("--since", "999999w", NOON) == 0
    assert parse_past_time("--since", "1900-01-01", NOON) == 0


@pytest.mark.parametrize("text", ["", "soon", "2h ago", "-2h", "2026-13-01", "1" * 5000 + "h", "0001-01-01\0"])
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a time") as caught:
        parse_past_time("--since", text, NOON)
    assert "2h" in str(caught.value.hint)
