# SPDX-License-Identifier: Apache-2.0
"""Moments in the past, as people write them."""

from __future__ import annotations

from datetime import datetime

import pytest

from vgpuctl.config.time_text import parse_past_time
from vgpuctl.errors import InvalidInput

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
