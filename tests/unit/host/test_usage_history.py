# SPDX-License-Identifier: Apache-2.0
"""The history of the use of vGPUs: what is kept, for how long, and what happens to a damaged or unwritable file."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from vgpuctl.host import usage_history
from vgpuctl.host.usage_history import UsageHistoryFile
from vgpuctl.model.gpu import Backend
from vgpuctl.model.results.usage import UsageResult, VgpuUsageResult
from vgpuctl.model.usage import EngineUse, VgpuUse
from vgpuctl.model.usage_history import DAY_SECONDS, HOUR_SECONDS
from vgpuctl.model.vm import VmState
from vgpuctl.value import replace

MIB = 1 << 20
START = 1_790_000_000 // DAY_SECONDS * DAY_SECONDS
ROW = VgpuUsageResult(
    vm="vdi-1",
    vm_uuid="u1",
    name=None,
    index=0,
    carrier="c",
    gpu="0000:3b:00.0",
    profile="A100-4C",
    backend=Backend.VENDOR_VF,
    framebuffer_mib=4096,
    gi_id=None,
    vm_state=VmState.RUNNING,
    managed=True,
    owner="ada",
    labels={"team": "cad"},
    present=True,
    time_share=None,
    share_used=None,
    peak_memory_bytes=None,
    guest_driver_fit=None,
    hint=None,
    use=None,
)


def row(used: int | None = 100 * MIB, sm: float | None = 0.5, **changes: object) -> VgpuUsageResult:
    """Return a vGPU with this use."""
    use = VgpuUse("0000:3b:00.0", ("c",), memory_used_bytes=used, engines=EngineUse(sm=sm), guest_driver="550.90.07")
    return replace(ROW, use=use, **changes)


def sample(time: float, *rows: VgpuUsageResult) -> UsageResult:
    """Return a sample of one host."""
    return UsageResult("h", time, 0.0, 0.0, None, (), rows)


@pytest.fixture
def history(tmp_path: Path) -> UsageHistoryFile:
    """A history that has no file yet."""
    return UsageHistoryFile(tmp_path / "state" / "usage.sqlite")


def fill(history: UsageHistoryFile, start: float, count: int, *rows: VgpuUsageResult) -> None:
    """Add so many samples, 15 seconds apart."""
    for number in range(count):
        history.add(sample(start + 15 * number, *rows))


def test_an_hour_of_a_vgpu(history: UsageHistoryFile) -> None:
    fill(history, START, 241, row())
    history.add(sample(START + 1800.5, row(300 * MIB)))
    history.flush()
    (vgpu,) = history.read()
    assert (vgpu.vm_uuid, vgpu.index, vgpu.vm, vgpu.profile) == ("u1", 0, "vdi-1", "A100-4C")
    assert (vgpu.framebuffer_mib, vgpu.gpu, vgpu.owner, vgpu.labels) == (4096, "0000:3b:00.0", "ada", {"team": "cad"})
    first = vgpu.hours[0]
    assert (first.start, first.peak_bytes, first.peak_time) == (START, 300 * MIB, START + 1800.5)
    assert (first.sm, first.seen_seconds, first.on_seconds, first.sm_seconds) == (0.5, 3585.0, 3585.0, 1792.5)
    assert history.peaks() == {("u1", 0): 300 * MIB}
    assert stat.S_IMODE(os.stat(history._path).st_mode) == 0o600


def test_what_is_written_again_is_added_and_the_peak_stays(history: UsageHistoryFile) -> None:
    fill(history, START, 41, row(300 * MIB, sm=0.75))
    history.flush()
    fill(history, START + 615, 40, row(200 * MIB, sm=0.25))
    history.flush()
    history.flush()
    (hour,) = history.read()[0].hours
    assert (hour.peak_bytes, hour.sm, hour.on_seconds) == (300 * MIB, 0.75, 1200.0)
    (day,) = history.read(days=True)[0].hours
    assert (day.start, day.peak_bytes, day.on_seconds) == (START, 300 * MIB, 1200.0)


def test_unknown_is_not_zero(history: UsageHistoryFile) -> None:
    fill(history, START, 30, row(None, None))
    history.flush()
    (hour,) = history.read()[0].hours
    assert (hour.peak_bytes, hour.sm, hour.on_seconds) == (None, None, 435.0)
    assert history.peaks() == {}


def test_a_vm_that_is_off_or_has_no_driver_is_not_seen(history: UsageHistoryFile) -> None:
    fill(history, START, 10, replace(row(), use=None, vm_state=VmState.STOPPED))
    history.flush()
    assert history.read() == (), "a VM that was never on has no history"
    without = row()
    assert without.use is not None
    fill(history, START, 10, replace(without, use=replace(without.use, guest_driver=None)))
    history.flush()
    (hour,) = history.read()[0].hours
    assert (hour.seen_seconds, hour.on_seconds) == (0.0, 135.0)


def test_a_gap_and_a_clock_that_steps_back_count_little_and_nothing(history: UsageHistoryFile) -> None:
    for time in (START, START + 3000, START + 100, START + 100):
        history.add(sample(time, row(int(time - START + 1) * MIB)))
    history.flush()
    (hour,) = history.read()[0].hours
    assert (hour.on_seconds, hour.peak_bytes) == (usage_history.LONGEST_STEP_SECONDS, 3001 * MIB)


def test_another_profile_begins_again(history: UsageHistoryFile) -> None:
    fill(history, START, 20, row(900 * MIB))
    history.flush()
    fill(history, START + HOUR_SECONDS, 20, row(100 * MIB, profile="A100-8C", framebuffer_mib=8192))
    history.flush()
    (vgpu,) = history.read()
    assert (vgpu.profile, [hour.peak_bytes for hour in vgpu.hours]) == ("A100-8C", [100 * MIB])
    assert history.peaks() == {("u1", 0): 100 * MIB}
    fill(history, START + 2 * HOUR_SECONDS, 3, row(7000 * MIB, profile="A100-8C", framebuffer_mib=8192))
    fill(history, START + 2 * HOUR_SECONDS + 60, 3, row(50 * MIB))
    history.flush()
    assert history.peaks() == {("u1", 0): 50 * MIB}, "what waited was of the former profile"


def test_hours_go_after_35_days_and_days_after_400(history: UsageHistoryFile) -> None:
    for day in (0, 300, 370, 401, 401):
        fill(history, START + day * DAY_SECONDS, 2, row())
        history.flush()
    (vgpu,), (with_days,) = history.read(), history.read(days=True)
    assert [(hour.start - START) // DAY_SECONDS for hour in vgpu.hours] == [370, 401]
    assert [(day.start - START) // DAY_SECONDS for day in with_days.hours] == [300, 370, 401]


def test_above_its_size_the_oldest_hours_go(history: UsageHistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(vm_uuid=f"u{number}") for number in range(300)]
    for day in range(3):
        fill(history, START + day * DAY_SECONDS, 2, *rows)
        history.flush()
    assert {len(vgpu.hours) for vgpu in history.read()} == {3}
    monkeypatch.setattr(usage_history, "MAX_BYTES", 1000)
    history.flush()
    assert {len(vgpu.hours) for vgpu in history.read()} == {2}
    assert {len(vgpu.hours) for vgpu in history.read(days=True)} == {3}
    for _ in range(3):
        history.flush()
    assert {len(vgpu.hours) for vgpu in history.read()} == {1}, "the hours of the last day stay"
    assert {len(vgpu.hours) for vgpu in history.read(days=True)} == {1}, "then the oldest days go"


def test_a_clock_that_is_far_ahead_for_a_moment_costs_no_history(history: UsageHistoryFile) -> None:
    for day in range(30):
        fill(history, START + day * DAY_SECONDS, 2, row())
    history.flush()
    fill(history, START + 3000 * DAY_SECONDS, 2, row())
    history.flush()
    fill(history, START + 30 * DAY_SECONDS, 2, row())
    history.flush()
    assert len(history.read()[0].hours) == 32
    fill(history, 86400, 2, row())
    history.flush()
    assert len(history.read()[0].hours) == 33, "nor does one that is far behind"


def test_a_damaged_file_is_set_aside(history: UsageHistoryFile) -> None:
    fill(history, START, 20, row())
    history._path.parent.mkdir()
    history._path.write_bytes(b"this is no database" * 1000)
    assert history.read() == ()
    assert history.peaks() == {}
    history.flush()
    assert "damaged" in str(history.problem)
    assert (history._path.parent / "usage.sqlite.damaged").read_bytes().startswith(b"this is")
    history.add(sample(START + 285, row()))
    assert history.problem is None, "the next sample begins another file"
    (hour,) = history.read()[0].hours
    assert hour.on_seconds == 285.0


@pytest.mark.skipif(os.geteuid() != 0, reason="a file of another user needs root")
def test_a_directory_that_cannot_be_made_pauses_it_and_nothing_is_lost(history: UsageHistoryFile) -> None:
    blocker = history._path.parent
    blocker.write_text("no directory")
    fill(history, START, 20, row())
    history.flush()
    assert str(history._path) in str(history.problem)
    fill(history, START + 300, 20, row())
    blocker.unlink()
    history.flush()
    assert history.problem is None
    (hour,) = history.read()[0].hours
    assert hour.on_seconds == 585.0


def test_a_file_that_is_locked_pauses_it(history: UsageHistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(history, START, 20, row())
    history.flush()
    monkeypatch.setattr(usage_history, "BUSY_SECONDS", 0.05)
    fill(history, START + 300, 20, row())
    with closing(sqlite3.connect(history._path)) as other:
        other.execute("BEGIN IMMEDIATE")
        history.flush()
        assert "locked" in str(history.problem)
    history.flush()
    assert history.problem is None
    assert history.read()[0].hours[0].on_seconds == 585.0


def test_it_is_written_by_itself(history: UsageHistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(history, START, 2, row())
    assert history.read() == ()
    monkeypatch.setattr(history, "_next_flush", 0.0)
    fill(history, START + 30, 1, row())
    assert len(history.read()) == 1


def test_what_waits_is_bounded(history: UsageHistoryFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_history, "MAX_WAITING_HOURS", 3)
    for hour in range(10):
        fill(history, START + hour * HOUR_SECONDS, 2, row())
    assert len(history._waiting) == 3
