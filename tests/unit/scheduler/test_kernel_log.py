# SPDX-License-Identifier: Apache-2.0
"""The driver's lines in the kernel log, as its versions write them."""

from __future__ import annotations

import pytest

from vgpuctl.model.scheduler import Policy
from vgpuctl.scheduler.kernel_log import logged

GPU = "0000:41:00.0"


@pytest.mark.parametrize(
    ("end", "policy"),
    [
        ("DISABLED with policy BEST_EFFORT.", Policy.BEST_EFFORT),
        ("ENABLED with policy EQUAL_SHARE.", Policy.EQUAL_SHARE),
        ("ENABLED with policy FIXED_SHARE on GR", Policy.FIXED_SHARE),
        ("DISABLED with policy NONE.", None),
    ],
)
def test_both_spellings_are_understood(end, policy):
    line = f"[   12.345678] NVRM: GPU at 0000:41:00.0 has software scheduler {end}"
    state = logged([line], GPU)
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
    state = logged(lines, GPU)
    assert state is not None
    assert state.policy is Policy.EQUAL_SHARE
    assert logged(lines, "0000:43:00.0") is None
