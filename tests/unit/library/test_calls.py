# SPDX-License-Identifier: Apache-2.0
"""What all calls share: cancellation before anything is done, and audit entries of one host's several calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vgpuctl
from vgpuctl.errors import Interrupted, NotFound


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def entries(tmp_path: Path) -> list[dict[str, object]]:
    text = (tmp_path / "vgpuctl" / "a100-40" / "audit.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_a_call_that_is_cancelled_at_once_does_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    vgpuctl.open_host("sim:a100-40").create_vm("vm", profile="A100-4C")
    before = vgpuctl.open_host("sim:a100-40").list_vms().data
    cancelled = vgpuctl.open_host("sim:a100-40", cancelled=lambda: True)
    for call in (
        lambda: cancelled.delete_vm("vm"),
        lambda: cancelled.create_vm("other", profile="A100-4C"),
        lambda: cancelled.create_vms("vdi-{}", 3, profile="A100-4C", parallel=2),
        lambda: cancelled.stop_vm("vm", force=True),
    ):
        with pytest.raises(Interrupted) as stopped:
            call()
        assert (stopped.value.left, stopped.value.changed) == ([], False)
    assert cancelled.list_vms().data == before
    assert [entry["changed"] for entry in entries(tmp_path)] == [True, False, False, False, False]


def test_an_entry_has_its_own_calls_steps(tmp_path: Path) -> None:
    host = vgpuctl.open_host("sim:a100-40", command_line=("a", "program"))
    host.create_vm("vm", profile="A100-4C")
    with pytest.raises(NotFound):
        host.delete_vm("nobody")
    made, refused = entries(tmp_path)
    assert (made["arguments"], made["result"], refused["result"]) == ("a program", "ok", "not-found")
    assert made["plan"]
    assert refused["plan"] == []
