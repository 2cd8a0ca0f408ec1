# SPDX-License-Identifier: Apache-2.0
"""Commands on several VMs, vGPUs or GPUs: ranges, globs, labels, one confirmation, one tally, the worst status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.unit.cli.conftest import Ran
from vgpuctl.cli import schemas
from vgpuctl.cli.result_reader import read_result
from vgpuctl.cli.schemas import result_type
from vgpuctl.model.results import TargetsResult

HOST = ("--host", "sim:a100-40")
Vgpuctl = Callable[..., Ran]


@pytest.fixture
def three(vgpuctl: Vgpuctl) -> Vgpuctl:
    """Return the program on a host with vdi-001 to vdi-003, which run."""
    made = vgpuctl(*HOST, "create-vm", "vdi-{:03}", "--count", "3", "--profile", "A100-4C", "--label", "team=cad")
    assert made.status == 0
    return vgpuctl


def document(ran: Ran, kind: str) -> dict[str, Any]:
    jsonschema.validate(ran.document, schemas.document_schema(kind))
    return ran.document


def states(vgpuctl: Vgpuctl) -> dict[str, str]:
    return {vm["name"]: vm["state"] for vm in vgpuctl(*HOST, "--json", "list-vms").document["data"]}


def test_a_range_stops_its_vms_alone_and_the_tally_tells_who_was_off(three: Vgpuctl, tmp_path: Path) -> None:
    first = three(*HOST, "--json", "stop-vm", "vdi-{002..003}", "vdi-002")
    data = document(first, "stop-vm")["data"]
    assert isinstance(read_result(result_type("stop-vm"), first.document).data, TargetsResult)
    assert [(t["name"], t["ok"], t["data"]["state"]) for t in data["targets"]] == [
        ("vdi-002", True, "stopped"),
        ("vdi-003", True, "stopped"),
    ]
    assert states(three) == {"vdi-001": "running", "vdi-002": "stopped", "vdi-003": "stopped"}
    again = three(*HOST, "stop-vm", "vdi-*")
    assert again.status == 0
    assert again.out.endswith("\n1 stopped, 2 already off\n")
    entries = (tmp_path / "state/vgpuctl/a100-40/audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["command"] for line in entries] == ["create-vm", "stop-vm", "stop-vm"]


def test_one_plain_name_keeps_its_own_document(three: Vgpuctl) -> None:
    assert three(*HOST, "--json", "stop-vm", "vdi-001").document["data"]["name"] == "vdi-001"


def test_every_missing_name_is_told_before_anything_changes(three: Vgpuctl) -> None:
    ran = three(*HOST, "--json", "stop-vm", "vdi-{001..005}", "x-*")
    assert (ran.status, ran.document["error"]["facts"]["missing"]) == (2, ["vdi-004", "vdi-005", "x-*"])
    assert set(states(three).values()) == {"running"}


@pytest.mark.parametrize(
    "command", ["delete-vm", "stop-vm", "show-vm", "delete-vgpu", "cordon", "set-mode --all sriov"]
)
@pytest.mark.parametrize(
    ("pattern", "instead"), [("vdi-00[1:3]", "vdi-00{1..3}"), ("vdi-[01-02]", "vdi-{01..02}"), ("A[a:c]", "A{a,b,c}")]
)
def test_a_range_in_brackets_is_refused_with_what_to_write(
    three: Vgpuctl, command: str, pattern: str, instead: str
) -> None:
    verb, *words = command.split()
    ran = three(*HOST, "--yes", "--json", verb, pattern, *words)
    assert (ran.status, ran.document["error"]["code"], ran.document["changed"]) == (2, "invalid-input", False)
    assert ran.document["error"]["hint"] == f"write '{instead}'"
    assert set(states(three).values()) == {"running"}


def test_what_a_pattern_selected_is_listed_in_full_before_the_question_and_after_yes(vgpuctl: Vgpuctl) -> None:
    host = ("--host", "sim:l40s-x4")
    vgpuctl(*host, "create-vm", "vdi-{}", "--count", "12", "--profile", "L40S-2B", "--no-start")
    names = [f"vdi-{number}" for number in range(1, 13)]
    error = vgpuctl(*host, "--json", "delete-vm", "vdi-*", "--keep-disks").document["error"]
    assert f"also: {', '.join(names)}" in error["facts"]["lines"]
    done = vgpuctl(*host, "--yes", "delete-vm", "vdi-*")
    assert [line.split()[0] for line in done.out.splitlines() if line.startswith("vdi-")] == names


def test_one_question_for_all_before_the_first_change(three: Vgpuctl) -> None:
    three(*HOST, "stop-vm", "vdi-003", "--force")
    refused = three(*HOST, "--json", "delete-vm", "--label", "team=cad")
    assert refused.status == 2
    assert "Delete 3 VMs (vdi-001, vdi-002, vdi-003)? 2 of them are running." in refused.document["error"]["message"]
    lines = refused.document["error"]["facts"]["lines"]
    assert {line.partition(":")[0] for line in lines} == {"vdi-001", "vdi-002", "vdi-003"}
    assert len([line for line in lines if "delete disk" in line]) == 3
    assert len(states(three)) == 3
    assert three(*HOST, "--yes", "delete-vm", "--label", "team=cad").out.endswith("3 deleted\n")
    assert states(three) == {}
    assert three(*HOST, "--yes", "delete-vm", "--label", "team=cad").status == 2


def test_before_many_are_deleted_only_what_is_lost_is_listed(vgpuctl: Vgpuctl) -> None:
    vgpuctl(*HOST, "create-vm", "vdi-{:03}", "--count", "5", "--profile", "A100-4C", "--owner", "sales")
    vgpuctl(*HOST, "create-vm", "other", "--profile", "A100-4C", "--owner", "cad")
    refused = vgpuctl(*HOST, "--json", "delete-vm", "--owner", "sales").document["error"]
    assert "Delete 5 VMs (vdi-001, vdi-002, vdi-003, vdi-004, vdi-005)?" in refused["message"]
    assert refused["facts"]["lines"] == [
        "delete 5 disks of vdi-001, vdi-002, vdi-003, vdi-004, vdi-005",
        "--dry-run shows every step, with the paths",
    ]
    assert vgpuctl(*HOST, "--yes", "delete-vm", "--owner", "sales").status == 0
    assert vgpuctl(*HOST, "list-vms", "-o", "name").out == "other\n"
    assert "no VM has the owner sales" in vgpuctl(*HOST, "stop-vm", "--owner", "sales").err


def test_a_pattern_for_one_vm_that_fails_has_that_vms_error(vgpuctl: Vgpuctl) -> None:
    vgpuctl(*HOST, "create-vm", "vdi-1", "--profile", "A100-4C")
    failed = vgpuctl(*HOST, "--json", "set-vm", "vdi-*", "--profile", "A100-8C").document
    assert (failed["error"]["code"], failed["data"]["tally"]["failed"]) == ("in-use", 1)
    assert failed["error"]["hint"] == "vgpuctl stop-vm vdi-1, then run the command again; or add --drain"
    assert failed["data"]["targets"][0]["error"]["state"] == "running"


def test_one_failure_leaves_the_others_and_gives_the_worst_status(three: Vgpuctl) -> None:
    three(*HOST, "stop-vm", "vdi-001")
    ran = three(*HOST, "--json", "set-vm", "vdi-*", "--profile", "A100-4C:2")
    reply = document(ran, "set-vm")
    assert (ran.status, reply["ok"], reply["changed"]) == (3, False, True)
    assert ran.document["data"]["tally"] == {"changed": 1, "unchanged": 0, "failed": 2}
    assert [t["error"] and t["error"]["code"] for t in ran.document["data"]["targets"]] == [None, "in-use", "in-use"]
    page = three(*HOST, "set-vm", "vdi-*", "--profile", "A100-4C:2")
    assert page.status == 3
    assert "1 unchanged, 2 failed\n" in page.out
    assert "hint: vgpuctl stop-vm vdi-002, then run the command again" in page.err


def test_a_dry_run_shows_the_steps_of_all_and_changes_nothing(three: Vgpuctl) -> None:
    ran = three(*HOST, "stop-vm", "--all", "--dry-run")
    assert "vdi-003: shut down VM vdi-003" in ran.out
    assert ran.out.endswith("3 would be stopped\n")
    assert set(states(three).values()) == {"running"}


def test_a_pattern_changes_no_unmanaged_vm_and_says_so(vgpuctl: Vgpuctl) -> None:
    host = ("--host", "sim:mixed")
    ran = vgpuctl(*host, "stop-vm", "old-*")
    assert (ran.status, "vgpuctl manages no VM that matches; unmanaged: old-desktop" in ran.err) == (2, True)
    assert vgpuctl(*host, "create-vm", "old-one", "--profile", "T4-4Q").status == 0
    assert "1 unmanaged VM skipped: old-desktop" in vgpuctl(*host, "stop-vm", "old-*").err
    shown = vgpuctl(*host, "--json", "show-vm", "old-*").document["data"]["targets"]
    assert [t["name"] for t in shown] == ["old-desktop", "old-one"]


def test_labels_and_owner_change_while_the_vm_runs(three: Vgpuctl) -> None:
    assert (
        three(
            *HOST, "set-vm", "vdi-{001..002}", "--label", "team=sim", "--label", "room=2/14", "--owner", "Jane Doe"
        ).status
        == 0
    )
    assert three(*HOST, "set-vm", "vdi-001", "--label", "room-", "--owner", "").status == 0
    rows = {vm["name"]: vm for vm in three(*HOST, "--json", "list-vms").document["data"]}
    assert (rows["vdi-001"]["labels"], rows["vdi-001"]["owner"]) == ({"team": "sim"}, None)
    assert (rows["vdi-002"]["labels"], rows["vdi-002"]["owner"]) == ({"room": "2/14", "team": "sim"}, "Jane Doe")
    assert rows["vdi-002"]["state"] == "running"
    vgpus = {v["vm"]: v["owner"] for v in three(*HOST, "--json", "list-vgpus").document["data"]}
    assert vgpus["vdi-002"] == "Jane Doe"
    assert three(*HOST, "set-vm", "vdi-001", "--label", "te am=x").status == 2


def test_ensure_vm_changes_labels_of_a_running_vm(three: Vgpuctl, tmp_path: Path) -> None:
    spec = tmp_path / "vm.yaml"
    spec.write_text("name: vdi-001\nlabels: {team: sim}\nowner: sim-team\n")
    ran = three(*HOST, "--json", "ensure-vm", "-f", str(spec))
    assert (ran.status, ran.document["changed"]) == (0, True)
    assert ran.document["data"]["before"]["labels"] == {"team": "cad"}
    assert (ran.document["data"]["after"]["labels"], ran.document["data"]["after"]["owner"]) == (
        {"team": "sim"},
        "sim-team",
    )
    assert three(*HOST, "--json", "ensure-vm", "-f", str(spec)).document["changed"] is False


def test_gpus_by_glob_model_and_all(vgpuctl: Vgpuctl) -> None:
    host = ("--host", "sim:l40s-x4")
    assert "--all" in vgpuctl(*host, "cordon", "L40S").err
    assert vgpuctl(*host, "cordon", "L40S", "--all").out.endswith("4 cordoned\n")
    assert vgpuctl(*host, "uncordon", "0000:3*").out.endswith("2 uncordoned\n")
    assert len(vgpuctl(*host, "--json", "show-gpu", "--all").document["data"]["targets"]) == 4
    assert vgpuctl(*host, "set-mode", "--all", "vgpu", "--dry-run").status == 0


def test_vgpus_without_a_vm_go_together(vgpuctl: Vgpuctl) -> None:
    for name in ("spare-1", "spare-2"):
        assert vgpuctl(*HOST, "create-vgpu", name, "--profile", "A100-4C").status == 0
    assert "Remove 2 vGPUs (spare-1, spare-2)?" in vgpuctl(*HOST, "delete-vgpu", "spare-*").err
    assert vgpuctl(*HOST, "--yes", "delete-vgpu", "spare-{1..2}").out.endswith("2 deleted\n")


@pytest.mark.parametrize("words", [("stop-vm",), ("stop-vm", "--all", "x"), ("delete-vgpu",), ("set-mig", "--off")])
def test_naming_nothing_or_too_much_is_a_usage_error(vgpuctl: Vgpuctl, words: tuple[str, ...]) -> None:
    assert vgpuctl(*HOST, *words).status == 2


def test_vms_on_several_gpus_are_named_in_one_question_before_any_gpu_changes(vgpuctl: Vgpuctl) -> None:
    host = ("--host", "sim:l40s-x4")
    line = (*host, "set-scheduler", "--all", "--policy", "fixed_share", "--drain")
    for name, gpu in (("one", "0000:3f:00.0"), ("two", "0000:47:00.0")):
        assert vgpuctl(*host, "create-vm", name, "--profile", "L40S-8Q", "--gpu", gpu).status == 0
    refused = vgpuctl(*line, "--json").document["error"]
    message = "Shut down the running VMs on 2 GPUs (0000:3f:00.0, 0000:47:00.0), and start them again afterwards?"
    assert message in refused["message"]
    assert [entry.partition(": ")[2] for entry in refused["facts"]["lines"]] == [
        "VM one on 0000:3f:00.0 is shut down, and started again",
        "VM two on 0000:47:00.0 is shut down, and started again",
    ]
    policies = (*host, "list-gpus", "--columns", "scheduler", "--no-headers")
    assert vgpuctl(*policies).out.split() == ["best_effort"] * 4
    assert vgpuctl(*line, "--yes").out.endswith("\n4 changed\n")
    assert vgpuctl(*policies).out.split() == ["fixed_share"] * 4
    assert [vm["state"] for vm in vgpuctl(*host, "--json", "list-vms").document["data"]] == ["running"] * 2
