# SPDX-License-Identifier: Apache-2.0
"""Every command that may have changed the host leaves one entry in the host's audit journal."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Ran
from vgpuctl.library import audit, open_ports
from vgpuctl.model.outcome import Outcome
from vgpuctl.value import replace

HOST = ("--host", "sim:a100-40")
Vgpuctl = Callable[..., Ran]


@pytest.fixture
def entries(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """The entries of the simulated host's audit journal."""
    path = tmp_path / "state" / "vgpuctl" / "a100-40" / "audit.jsonl"
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_change_is_noted_with_who_what_and_how_it_ended(
    vgpuctl: Vgpuctl, entries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    assert vgpuctl(*HOST, "create-vm", "vdi-001", "--profile", "A100-4C").status == 0
    (entry,) = entries()
    assert entry["arguments"] == "vgpuctl --host sim:a100-40 create-vm vdi-001 --profile A100-4C"
    assert (entry["command"], entry["host"], entry["sudo_user"]) == ("create-vm", "sim:a100-40", "ada")
    assert (entry["result"], entry["exit_status"], entry["changed"]) == ("ok", 0, True)
    assert any("start VM vdi-001" in line for line in entry["plan"])
    assert entry["duration_seconds"] >= 0


def test_only_changing_commands_write_an_audit_entry(vgpuctl: Vgpuctl, entries: Any) -> None:
    lines = (
        ("create-vm", "vdi-001", "--profile", "A100-4C"),
        ("stop-vm", "vdi-001"),
        ("start-vm", "vdi-001"),
        ("list-vms",),
        ("show-vm", "vdi-001"),
        ("plan-moves", "--defragment"),
        ("delete-vm", "vdi-001", "--yes"),
        ("reconcile-host",),
    )
    for words in lines:
        assert vgpuctl(*HOST, *words).status == 0
    assert [e["command"] for e in entries()] == ["create-vm", "stop-vm", "start-vm", "delete-vm", "reconcile-host"]
    assert [e["changed"] for e in entries()] == [True, True, True, True, False]


def test_a_dry_run_leaves_none(vgpuctl: Vgpuctl, entries: Any) -> None:
    assert vgpuctl(*HOST, "create-vm", "vdi-001", "--profile", "A100-4C", "--dry-run").status == 0
    assert vgpuctl(*HOST, "start-vm", "nobody", "--dry-run").status == 2
    assert vgpuctl(*HOST, "plan-moves", "--profile", "A100-40C:2").status == 4
    assert entries() == []


def test_a_failure_is_noted_with_its_code(vgpuctl: Vgpuctl, entries: Any) -> None:
    assert vgpuctl(*HOST, "delete-vm", "nobody", "--yes").status == 2
    assert vgpuctl(*HOST, "--json", "create-vm", "vdi-{:03}", "--count", "11", "--profile", "A100-4C").status == 4
    missing, full = entries()
    assert (missing["result"], missing["exit_status"], missing["changed"]) == ("not-found", 2, False)
    assert (full["result"], full["exit_status"]) == ("no-capacity", 4)
    assert "10 fit now" in full["message"]


def test_a_plan_that_failed_is_noted_with_what_was_undone(vgpuctl: Vgpuctl, tmp_path: Path) -> None:
    text = "version: 1\ngpus: [{model: A100}]\nfaults:\n  - {on: start, code: 38, message: no}\n"
    scenario = tmp_path / "broken.yaml"
    scenario.write_text(text)
    assert vgpuctl("--host", f"sim:{scenario}", "create-vm", "vdi-001", "--profile", "A100-4C").status == 1
    (path,) = (tmp_path / "state" / "vgpuctl").glob("broken-*/audit.jsonl")
    entry = json.loads(path.read_text())
    assert entry["result"] == "libvirt-failed"
    assert (len(entry["plan"]), entry["plan"][-1]) == (7, "start VM vdi-001")
    assert len(entry["undone"]) == 6  # a start that failed started nothing
    assert entry["left"] == []


def test_secrets_are_not_noted(vgpuctl: Vgpuctl, entries: Any) -> None:
    vgpuctl(*HOST, "delete-vm", "https://ada:hunter2@example.org/vm", "--yes")
    assert "hunter2" not in json.dumps(entries())
    assert "https://***@example.org/vm" in entries()[0]["arguments"]


def test_a_reset_forgets_the_entries(vgpuctl: Vgpuctl, entries: Any) -> None:
    vgpuctl(*HOST, "delete-vm", "nobody", "--yes")
    vgpuctl(*HOST, "sim", "reset", "--yes")
    assert entries() == []


class _Broken:
    def write_entry(self, entry: object) -> None:
        raise RuntimeError("the journal is on fire")


DONE: Outcome[None] = Outcome(True, None, tuple(f"step {n}" for n in range(8)))


def test_a_journal_that_fails_fails_no_command() -> None:
    ports = replace(open_ports("sim:a100-40"), audit_log=_Broken())
    audit.Call("create-vm", "vgpuctl create-vm").succeeded(ports, DONE)


def test_an_entry_costs_less_than_a_millisecond(entries: Any) -> None:
    ports, call = open_ports("sim:a100-40"), audit.Call("create-vm", "vgpuctl create-vm")
    call.succeeded(ports, DONE)
    begun = time.process_time()
    for _ in range(100):
        call.succeeded(ports, DONE)
    assert (time.process_time() - begun) / 100 < 0.001
    assert len(entries()) == 101


def test_doctor_notes_only_what_it_mends(vgpuctl: Vgpuctl, entries: Any) -> None:
    vgpuctl(*HOST, "doctor")
    vgpuctl(*HOST, "doctor", "--fix", "--dry-run")
    assert entries() == []
    vgpuctl(*HOST, "doctor", "--fix", "--yes")
    assert [e["command"] for e in entries()] == ["doctor"]
