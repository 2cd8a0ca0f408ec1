# SPDX-License-Identifier: Apache-2.0
"""What people are told while memory is sent."""

from __future__ import annotations

import pytest

from vgpuctl.model.migration import MigrationProgress
from vgpuctl.operations.steps.migration import describe_progress, percent_done

MIB = 1 << 20


@pytest.mark.parametrize(
    ("progress", "text", "percent"),
    [
        (MigrationProgress(), "", 0.0),
        (MigrationProgress(memory_total_bytes=400 * MIB, memory_remaining_bytes=100 * MIB), "100 MiB left", 75.0),
        (
            MigrationProgress(
                memory_total_bytes=400 * MIB,
                memory_remaining_bytes=100 * MIB,
                disk_total_bytes=400 * MIB,
                disk_remaining_bytes=300 * MIB,
                dirty_bytes_per_second=20 * MIB,
                bandwidth_bytes_per_second=100 * MIB,
                device_bytes=5 * MIB,
            ),
            "400 MiB left, 5 MiB of devices sent, the guest writes 20 MiB/s, about 5 s",
            50.0,
        ),
        (
            MigrationProgress(
                memory_total_bytes=400 * MIB,
                memory_remaining_bytes=100 * MIB,
                dirty_bytes_per_second=200 * MIB,
                bandwidth_bytes_per_second=100 * MIB,
            ),
            "100 MiB left, the guest writes 200 MiB/s, no end at this speed",
            75.0,
        ),
    ],
)
def test_progress_says_what_is_left_and_for_how_long(progress: MigrationProgress, text: str, percent: float) -> None:
    assert (describe_progress(progress), percent_done(progress)) == (text, percent)
