# SPDX-License-Identifier: Apache-2.0
"""Every command that may have changed the host leaves one entry in the host's audit journal."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Run
from vgpuctl.cli.commands.log import log_command
from vgpuctl.library import audit, open_ports
from vgpuctl.model.outcome import Outcome, Subjects
from vgpuctl.model.results.host import LogEntryResult
from vgpuctl.value import replace


@pytest.fixture
def entries(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """The entries of the simulated host's audit journal."""
    path = tmp_path / "state" / "vgpuctl" / "a100-40" / "audit.jsonl"
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_change_is_noted_with_who_what_and_how_it_ended(
    sim: Run, entries: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    (entry,) = entries()
    assert entry["arguments"] == "vgpuctl --host sim:a100-40 create-vm vdi-001 --profile A100-4C"
    assert (entry["command"], entry["host"], entry["sudo_user"]) == ("create-vm", "sim:a100-40", "ada")
    assert (entry["result"], entry["exit_status"], entry["changed"]) == ("ok", 0, True)
    assert any("start VM vdi-001" in line for line in entry["plan"])
    assert entry["duration_seconds"] >= 0


def test_only_changing_commands_write_an_audit_entry(sim: Run, entries: Any) -> None:
    lines = (
        "create-vm vdi-001 --profile A100-4C",
        "stop-vm vdi-001",
        "start-vm vdi-001",
        "list-vms",
        "show-vm vdi-001",
        "plan-moves --defragment",
        "delete-vm vdi-001 --yes",
        "reconcile-host",
    )
    for line in lines:
        assert sim(line).status == 0
    assert [e["command"] for e in entries()] == ["create-vm", "stop-vm", "start-vm", "delete-vm", "reconcile-host"]
    assert [e["changed"] for e in entries()] == [True, True, True, True, False]


def test_a_dry_run_leaves_none(sim: Run, entries: Any) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C --dry-run").status == 0
    assert sim("start-vm nobody --dry-run").status == 2
    assert sim("plan-moves --profile A100-40C:2").status == 4
    assert entries() == []


def test_a_failure_is_noted_with_its_code(sim: Run, entries: Any) -> None:
    assert sim("delete-vm nobody --yes").status == 2
    assert sim("create-vm 'vdi-{:03}' --count 11 --profile A100-4C --json").status == 4
    missing, full = entries()
    assert (missing["result"], missing["exit_status"], missing["changed"]) == ("not-found", 2, False)
    assert (full["result"], full["exit_status"]) == ("no-capacity", 4)
    assert "10 fit now" in full["message"]


def test_a_plan_that_failed_is_noted_with_what_was_undone(scenario: Callable[[str], Run], tmp_path: Path) -> None:
    run = scenario("version: 1\ngpus: [{model: A100}]\nfaults:\n  - {on: start, code: 38, message: no}\n")
    assert run("create-vm vdi-001 --profile A100-4C").status == 1
    (path,) = (tmp_path / "state" / "vgpuctl").glob("host-*/audit.jsonl")
    entry = json.loads(path.read_text())
    assert entry["result"] == "libvirt-failed"
    assert (len(entry["plan"]), entry["plan"][-1]) == (7, "start VM vdi-001")
    assert len(entry["undone"]) == 6  # a start that failed started nothing
    assert entry["left"] == []


def test_secrets_are_not_noted(sim: Run, entries: Any) -> None:
    sim("delete-vm https://ada:hunter2@example.org/vm --yes")
    assert "hunter2" not in json.dumps(entries())
    assert "https://***@example.org/vm" in entries()[0]["arguments"]


def test_a_reset_forgets_the_entries(sim: Run, entries: Any) -> None:
    sim("delete-vm nobody --yes")
    sim("sim reset --yes")
    assert entries() == []


def test_a_reboot_of_a_simulated_host_is_noted_with_its_vms(sim: Run, entries: Any) -> None:
    sim("create-vm vdi-001 --profile A100-4C")
    assert sim("sim reboot").status == 0
    entry = entries()[-1]
    assert (entry["command"], entry["vms"], entry["changed"]) == ("sim-reboot", ["vdi-001"], True)
    assert sim("log --vm vdi-001").out.splitlines()[-1].endswith("  sim reboot")


def test_a_command_line_in_the_log_runs_as_pasted(sim: Run, entries: Any) -> None:
    sim("create-vm 'cad-{:03}' --count 2 --profile A100-4C --label 'why=new desk'")
    assert shlex.split(entries()[0]["arguments"])[-1] == "why=new desk"
    assert "create-vm 'cad-{:03}' --count 2" in entries()[0]["arguments"]


@pytest.mark.parametrize(
    "words", [("--host", "sim:a100-40", "stop-vm", "x y"), ("stop-vm", "x y", "--host=sim:a100-40")]
)
def test_the_table_of_the_log_shows_commands_without_the_host(words: tuple[str, ...], vgpuctl: Run, sim: Run) -> None:
    vgpuctl(*words)
    assert sim("log --columns command --no-headers").out == "stop-vm 'x y'\n"


def test_a_command_line_that_was_cut_is_shown_as_it_is() -> None:
    entry = {name: None for name in LogEntryResult._fields}
    assert log_command(LogEntryResult(**{**entry, "arguments": "vgpuctl --host sim:x a 'b"})) == "--host sim:x a 'b"


def test_the_log_is_a_list_and_its_wide_table_has_the_error(sim: Run) -> None:
    sim("create-vm vdi-001 --profile A100-4C --no-start")
    sim("start-vm nobody")
    assert "there is no VM nobody" in sim("log -o wide").out.splitlines()[2]
    csv = sim("log -o csv --columns vms,gpus,result --filter result=ok")
    assert csv.out == "vms,gpus,result\nvdi-001,0000:3b:00.0,ok\n"
    names = sim("log -o name").out.splitlines()
    assert [line.split()[1] for line in names] == ["create-vm", "start-vm"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "no commands in the log"),
        ("--vm nosuch", "no commands in the log for VM nosuch"),
        ("--failed --gpu 0000:3b:00.0", "no failed commands in the log for GPU 0000:3b:00.0"),
        ("--user ada --since 7d", "no commands in the log of user ada since 7d"),
        ("--filter result=ok", "nothing matches --filter result=ok"),
    ],
)
def test_a_log_without_entries_says_of_what(words: str, text: str, sim: Run) -> None:
    ran = sim(f"log {words}")
    assert (ran.status, ran.out, ran.err) == (0, "", f"{text}\n")


class _Broken:
    def write_entry(self, entry: object) -> None:
        raise RuntimeError("the journal is on fire")


DONE: Outcome[None] = Outcome(True, None, tuple(f"step {n}" for n in range(8)))


def test_a_journal_that_fails_fails_no_command() -> None:
    ports = replace(open_ports("sim:a100-40"), audit_log=_Broken())
    audit.Call("create-vm", "vgpuctl create-vm", Subjects()).succeeded(ports, DONE)


def test_an_entry_costs_less_than_a_millisecond(entries: Any) -> None:
    ports, call = open_ports("sim:a100-40"), audit.Call("create-vm", "vgpuctl create-vm", Subjects())
    call.succeeded(ports, DONE)
    begun = time.process_time()
    for _ in range(100):
        call.succeeded(ports, DONE)
    assert (time.process_time() - begun) / 100 < 0.001
    assert len(entries()) == 101


def test_doctor_notes_only_what_it_mends(sim: Run, entries: Any) -> None:
    sim("doctor")
    sim("doctor --fix --dry-run")
    assert entries() == []
    sim("doctor --fix --yes")
    assert [e["command"] for e in entries()] == ["doctor"]
