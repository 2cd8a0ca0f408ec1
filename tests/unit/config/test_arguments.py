# SPDX-License-Identifier: Apache-2.0
"""Choices and limits that no option checks when a program calls the library.

Moments in the past, as people write them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

import vgpuctl
from vgpuctl.config.arguments import parse_past_time
from vgpuctl.errors import InvalidInput
from vgpuctl.library import GpuHost

GPU = "0000:3b:00.0"
WRONG: list[tuple[Callable[[GpuHost], object], str]] = [
    (lambda host: host.create_vm(profil="A100-4C"), "profil: unknown field"),  # type: ignore[call-arg]
    (lambda host: host.create_vm(profile="A100-4C", wait_for="moon"), "wait_for: 'moon' is not guest"),
    (lambda host: host.create_vms("vdi-{}", 0, profile="A100-4C"), "count: 0 is not a whole number from 1 to 1000"),
    (lambda host: host.create_vms("vdi-{}", True, profile="A100-4C"), "count: True is not"),
    (lambda host: host.create_vms("vdi-{}", 2, parallel=0, profile="A100-4C"), "parallel: 0 is not"),
    (lambda host: host.ensure_vm("a", state="gone", profile="A100-4C"), "'gone' is not present, absent, started or"),
    (lambda host: host.ensure_vm("a", file="/nowhere"), "specify either the name or a spec file"),
    (lambda host: host.ensure_vgpu("a", state="maybe", profile="A100-4C"), "'maybe' is not present or absent"),
    (lambda host: host.set_mode(GPU, "fast"), "mode: 'fast' is not vgpu, sriov, passthrough or unmanaged"),
    (lambda host: host.set_mode(GPU, "sriov", vfs=0), "vfs: 0 is not a whole number of at least 1"),
    (lambda host: host.set_scheduler(GPU, "fair"), "'fair' is not best_effort"),
    (lambda host: host.fits(), "specify either --profile"),
    (lambda host: host.move_vms("A100-4C", max_moves=-1), "max_moves: -1 is not"),
    (lambda host: host.move_vms(), "specify one of"),
    (lambda host: host.apply(undo=0), "undo: 0 is not"),
    (lambda host: host.attach_vgpu("a"), "profile: not set"),  # type: ignore[call-arg]
    (lambda host: host.set_vm("a", profile=()), "nothing to change is given"),
    (lambda host: host.attach_vgpu("a", profile="A100-4C", memory="1GiB"), "memory: this takes gpu, "),  # type: ignore[call-arg]
    (lambda host: host.create_vgpu("a", profile="A100-4C", vcpus=2), "vcpus: this takes gpu, "),  # type: ignore[call-arg]
    (lambda host: host.ensure_vgpu(None, profile="A100-4C"), "name: None is not a text"),  # type: ignore[arg-type]
    (lambda host: host.set_mixed_size(GPU, on="off"), "on: 'off' is not True or False"),  # type: ignore[arg-type]
    (lambda host: host.detach_vgpu("a", []), "vgpus: the list is empty; None means the VM's only vGPU"),
    (lambda host: host.apply(file="/nowhere", undo=1), "undo and file cannot be combined"),
    (lambda host: host.apply(undo=11), "undo: 11 is not a whole number from 1 to 10"),
    (lambda host: host.fits(["A100-4C"]), "is not a text or several"),  # type: ignore[arg-type]
    (lambda host: host.doctor(["iommu"]), "is not a text or several"),  # type: ignore[arg-type]
    (lambda host: host.set_mig(GPU, 19), "is not a text or several"),  # type: ignore[arg-type]
    (
        lambda host: host.create_vm(profile="A100-4C", wait_for="guest", wait_timeout=-1),
        "-1 is not a number of seconds",
    ),
    (lambda host: vgpuctl.open_host("sim:a100-40", wait_seconds=-5), "wait_seconds: -5 is not a number of seconds"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_argument_is_refused_and_nothing_is_changed(
    call: Callable[[GpuHost], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    host = vgpuctl.open_host("sim:a100-40")
    with pytest.raises(InvalidInput, match=message):
        call(host)
    assert host.list_vms().data == host.list_vgpus().data == ()


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
