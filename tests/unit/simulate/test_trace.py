# SPDX-License-Identifier: Apache-2.0
"""Requests as CSV: accepted as a whole, or refused with every wrong line."""

from __future__ import annotations

import pytest

from vgpuctl.errors import InvalidInput
from vgpuctl.simulate import trace
from vgpuctl.simulate.trace import TraceRequest

HEADER = "arrival_seconds,departure_seconds,profile"


def test_own_columns_in_any_order() -> None:
    result = trace.parse_trace(
        "profile,name,arrival_seconds,departure_seconds,number\n2B,ann,5,9.5,2\n\nA16-8Q,,7,,\n", "f"
    )
    assert result == (
        TraceRequest(5.0, 9.5, "2B", 2, "ann", 2),
        TraceRequest(7.0, None, "A16-8Q", 1, "", 4),
    )
    assert trace.parse_trace(f"\ufeff{HEADER}\r\n1,2,2B\r\n", "f")[0].profile == "2B"


def test_what_is_written_reads_the_same_again() -> None:
    wanted = (
        TraceRequest(5.0, 9.5, "2B|H100-4C", 2, "ann"),
        TraceRequest(12537496.0, 12537497.25, "8Q"),
    )
    again = trace.parse_trace("".join(trace.format_trace(wanted)), "f")
    assert [(r.arrival_seconds, r.departure_seconds, r.profile, r.vgpu_count, r.name) for r in again] == [
        (r.arrival_seconds, r.departure_seconds, r.profile, r.vgpu_count, r.name) for r in wanted
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f is empty"),
        ("\n", "f is empty"),
        (HEADER, "f has no requests: it has no line but the header"),
        ("when,what\n1,2", "f:1: .* the columns of requests; missing: arrival_seconds, .*unknown: when, what"),
        (f"{HEADER},profile\n", "repeated: profile"),
        (f"{HEADER},colour\n", "unknown: colour"),
        (f"{HEADER}\n1,2\n", "f:2: 2 columns, and the header has 3"),
        (f"{HEADER}\n1,2,3,4\n", "f:2: 4 columns"),
        (f"{HEADER}\nsoon,2,2B\n", "f:2: arrival_seconds: 'soon' is not a number of seconds"),
        (f"{HEADER}\n-1,2,2B\n", "f:2: arrival_seconds: '-1'"),
        (f"{HEADER}\nnan,2,2B\n", "f:2: arrival_seconds: 'nan'"),
        (f"{HEADER}\n5,2,2B\n", "f:2: departure_seconds: 2 is before arrival_seconds, 5"),
        (f"{HEADER}\n1,2,\n", "f:2: profile: it is empty"),
        (f"{HEADER}\n1,2,a b\n", "f:2: profile: 'a b' is not a profile"),
        (f"{HEADER},number\n1,2,2B,0\n", "f:2: number: '0' is not a number from 1 to 64"),
        (f'{HEADER}\n1,2,"2B\n', "it is not CSV"),
    ],
)  # fmt: skip
def test_an_invalid_trace_has_its_line(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        trace.parse_trace(text, "f")


def test_wrong_lines_are_listed_up_to_a_limit() -> None:
    with pytest.raises(InvalidInput) as caught:
        trace.parse_trace(HEADER + "\n1,,2B" + "\nx,,2B" * 30, "f")
    lines = caught.value.message.splitlines()
    assert lines[0] == "f has 30 invalid lines"
    assert lines[1].startswith("f:3: ")
    assert lines[-1] == "and 10 more lines"
    assert len(caught.value.facts["problems"]) == trace.MAX_REPORTED_LINES  # type: ignore[arg-type]
