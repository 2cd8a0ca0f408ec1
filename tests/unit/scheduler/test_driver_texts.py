# SPDX-License-Identifier: Apache-2.0
"""The version of the loaded driver is read from either file, in the forms that NVIDIA's modules print."""

from __future__ import annotations

import pytest

from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.scheduler.driver_texts import parse_driver_version, parse_scheduler_log

GCC = "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.05  Thu May 16 11:00:00 UTC 2024",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.90.05  Release Build  (dvs@U16-I3-B16-3-4)",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.05",
    ],
)
def test_the_version_is_read_from_proc(line: str) -> None:
    assert parse_driver_version(None, f"{line}\n{GCC}") == "550.90.05"
    assert parse_driver_version("", f"{line}\n{GCC}") == "550.90.05"
    assert parse_driver_version("535.161.05\n", f"{line}\n{GCC}") == "535.161.05"


@pytest.mark.parametrize("text", [None, "", GCC, "NVRM version: NVIDIA UNIX x86_64 Kernel Module\n" + GCC])
def test_other_text_has_no_version(text: str | None) -> None:
    assert parse_driver_version(None, text) is None


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
