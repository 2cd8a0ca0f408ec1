# SPDX-License-Identifier: Apache-2.0
"""When a VM that moves may stand still for longer, and when its move is given up."""

from __future__ import annotations

import pytest

from vgpuctl.errors import Failed
from vgpuctl.model.migration import MigrationProgress
from vgpuctl.operations.plans.migration_pace import LAST_STALL_SECONDS, STALL_SECONDS, Pace

MIB = 1 << 20


def at(seconds: float, left_mib: int, **more: int) -> MigrationProgress:
    return MigrationProgress(elapsed_ms=int(1000 * seconds), memory_remaining_bytes=left_mib * MIB, **more)


def test_a_move_that_gets_on_keeps_its_limit() -> None:
    pace = Pace("vdi-1", (500, 1000))
    assert [pace(at(second, 1000 - second)) for second in range(120)] == [None] * 120
    assert pace.limit_ms == 500


def test_the_limit_rises_when_what_is_left_does_not_become_less() -> None:
    pace = Pace("vdi-1", (500, 1000, 2000))
    pace(at(0, 100))
    assert pace(at(STALL_SECONDS - 1, 300)) is None
    assert pace(at(STALL_SECONDS, 300)) == 1000
    assert pace(at(STALL_SECONDS + 1, 300)) is None
    assert pace(at(2 * STALL_SECONDS, 101)) == 2000
    assert pace.limit_ms == 2000


def test_less_disk_counts_as_well() -> None:
    pace = Pace("vdi-1", (500, 1000))
    for second in range(0, 100, 5):
        assert pace(at(second, 100, disk_remaining_bytes=(1000 - second) * MIB)) is None


def test_it_is_given_up_at_the_last_limit_with_the_numbers_seen() -> None:
    pace = Pace("vdi-1", (500,))
    pace(at(0, 64))
    last = at(LAST_STALL_SECONDS, 64, expected_downtime_ms=1500, device_bytes=2048 * MIB)
    with pytest.raises(
        Failed,
        match=r"vdi-1 was not moved: it would stand still for 1\.5 s \(memory, and 2 GiB of vGPU state\); 0\.5 s are",
    ) as it:
        pace(last)
    assert it.value.hint == "run it again with --max-downtime 3.0, or when the guest is less busy"


def test_without_limits_qemu_decides_and_a_stall_ends_it() -> None:
    pace = Pace("vdi-1", ())
    pace(at(0, 64))
    assert pace(at(LAST_STALL_SECONDS - 1, 64)) is None
    with pytest.raises(
        Failed, match=r"64 MiB are left and do not become less; 0\.3 s \(QEMU's own limit\) are allowed"
    ):
        pace(at(LAST_STALL_SECONDS, 64))


def test_what_qemu_does_not_say_changes_nothing() -> None:
    pace = Pace("vdi-1", (500, 1000))
    assert pace(MigrationProgress()) is None
    assert pace(MigrationProgress(elapsed_ms=10**6)) is None
