# SPDX-License-Identifier: Apache-2.0
"""The version of the loaded driver is read from either file, in the forms that NVIDIA's modules print."""

from __future__ import annotations

import pytest

from vgpuctl.scheduler.driver_version import parse_driver_version

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
