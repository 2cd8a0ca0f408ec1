# SPDX-License-Identifier: Apache-2.0
"""Requests as CSV: accepted as a whole, or refused with every wrong line."""

from __future__ import annotations

import pytest

from vgpuctl.errors import InvalidInput
from vgpuctl.placement import trace_csv
from vgpuctl.placement.trace_request import ProfileSelector, TraceRequest

HEADER = "arrival_seconds,departure_seconds,profile"
ALIBABA = ",".join(trace_csv.ALIBABA_COLUMNS)


def test_own_columns_in_any_order() -> None:
    result = trace_csv.parse_trace(
        "profile,name,arrival_seconds,departure_seconds,number\n2B,ann,5,9.5,2\n\nA16-8Q,,7,,\n", "f"
    )
    assert result.requests == (
        TraceRequest(5.0, 9.5, ProfileSelector("2B"), 2, "ann", 2),
        TraceRequest(7.0, None, ProfileSelector("A16-8Q"), 1, "", 4),
    )
    assert trace_csv.parse_trace(f"\ufeff{HEADER}\r\n1,2,2B\r\n", "f").requests[0].selector == ProfileSelector("2B")


def test_what_is_written_reads_the_same_again() -> None:
    wanted = (
        TraceRequest(5.0, 9.5, ProfileSelector("2B|H100-4C"), 2, "ann"),
        TraceRequest(12537496.0, 12537497.25, ProfileSelector("8Q")),
    )
    again = trace_csv.parse_trace("".join(trace_csv.format_trace(wanted)), "f").requests
    assert [(r.arrival_seconds, r.departure_seconds, r.selector, r.vgpu_count, r.name) for r in again] == [
        (r.arrival_seconds, r.departure_seconds, r.selector, r.vgpu_count, r.name) for r in wanted
    ]


def test_the_columns_of_the_alibaba_gpu_trace() -> None:
    rows = [
        "openb-pod-0,8000,30517,1,440,,LS,Running,0,12537496,",
        "openb-pod-1,8000,30517,1,1000,T4|V100M16,LS,Succeeded,10,20,11",
        "openb-pod-2,88000,327680,8,1000,,LS,Running,20,,20",
        "openb-pod-3,3152,1024,0,0,,BE,Failed,30,40,",
    ]
    result = trace_csv.parse_trace("\n".join([ALIBABA, *rows]), "f")
    assert [(r.selector, r.vgpu_count, r.departure_seconds, r.line) for r in result.requests] == [
        (ProfileSelector(gpu_milli=440), 1, 12537496.0, 2),
        (ProfileSelector(gpu_milli=1000, models=("T4", "V100M16")), 1, 20.0, 3),
        (ProfileSelector(gpu_milli=1000), 8, None, 4),
    ]
    assert result.skipped_count == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "f is empty"),
        ("\n", "f is empty"),
        (HEADER, "f has no requests: it has no line but the header"),
        (f"{ALIBABA}\na,1,1,0,0,,LS,Running,0,1,", r"f has no requests: no task in it wants a GPU \(1 without\)"),
        ("when,what\n1,2", "f:1: its columns are not those of requests: no arrival.*unknown: when, what"),
        (f"{HEADER},profile\n", "there twice: profile"),
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
        (f"{ALIBABA}\na,1,1,2,500,,LS,Running,0,1,", "f:2: gpu_milli: 500 of each of 2 GPUs"),
        (f"{ALIBABA}\na,1,1,1,1001,,LS,Running,0,1,", "f:2: gpu_milli: '1001' is not a number from 0 to 1000"),
        (f"{ALIBABA}\na,1,1,1,500,,LS,Running,9,1,", "f:2: deletion_time: 1 is before creation_time, 9"),
    ],
)  # fmt: skip
def test_an_invalid_trace_has_its_line(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        trace_csv.parse_trace(text, "f")


def test_wrong_lines_are_listed_up_to_a_limit() -> None:
    with pytest.raises(InvalidInput) as caught:
        trace_csv.parse_trace(HEADER + "\n1,,2B" + "\nx,,2B" * 30, "f")
    lines = caught.value.message.splitlines()
    assert lines[0] == "f has 30 lines that are wrong"
    assert lines[1].startswith("f:3: ")
    assert lines[-1] == "and 10 lines more"
    assert len(caught.value.facts["problems"]) == trace_csv.MAX_REPORTED_LINES  # type: ignore[arg-type]
