# SPDX-License-Identifier: Apache-2.0
"""The driver's lines in the kernel log, as its versions write them."""

from __future__ import annotations

import pytest

from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.scheduler.log_line import parse_scheduler_log

GPU = "0000:41:00.0"


@pytest.mark.parametrize(
    ("end", "policy"),
    [
        ("DISABLED with policy BEST_EFFORT.", SchedulerPolicy.BEST_EFFORT),
        ("ENABLED with policy EQUAL_SHARE.", SchedulerPolicy.EQUAL_SHARE),
        ("ENABLED with policy FIXED_SHARE on GR", SchedulerPolicy.FIXED_SHARE),
        ("DISABLED with policy NONE.", None),
    ],
)
def test_both_spellings_are_understood(end, policy):
    line = f"[   12.345678] NVRM: GPU at 0000:41:00.0 has software scheduler {end}"
    state = parse_scheduler_log([line], GPU)
    assert state is not None
    assert (state.policy, state.source) == (policy, "kernel log")


def test_the_last_line_of_this_gpus_graphics_counts():
    head = "NVRM: GPU at"
    lines = [
        f"{head} 0000:41:00.0 has software scheduler ENABLED with policy EQUAL_SHARE on GR",
        f"{head} 0000:41:00.0 has software scheduler ENABLED with policy BEST_EFFORT on NVENC0",
        f"{head} 0000:42:00.0 has software scheduler ENABLED with policy FIXED_SHARE on GR",
        "NVRM: something else",
    ]
    state = parse_scheduler_log(lines, GPU)
    assert state is not None
    assert state.policy is SchedulerPolicy.EQUAL_SHARE
    assert parse_scheduler_log(lines, "0000:43:00.0") is None
