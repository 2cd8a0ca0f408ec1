# SPDX-License-Identifier: Apache-2.0
"""Commands on several VMs, vGPUs or GPUs: ranges, globs, labels, one confirmation, one tally, the worst status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from vgpuctl.cli.schemas import result_type
from vgpuctl.model.result_reader import read_result
from vgpuctl.model.results import TargetsResult


@pytest.fixture
def three(sim: Run) -> Run:
    """Return the program on a host with vdi-001 to vdi-003, which run."""
    made = sim("create-vm 'vdi-{:03}' --count 3 --profile A100-4C --label team=cad")
    assert made.status == 0
    return sim


def states(sim: Run) -> dict[str, str]:
    return {vm["name"]: vm["state"] for vm in sim("list-vms --json").document["data"]}


def test_a_range_stops_its_vms_alone_and_the_tally_tells_who_was_off(three: Run, tmp_path: Path) -> None:
    first = three("stop-vm 'vdi-{002..003}' vdi-002 --json").document
    assert isinstance(read_result(result_type("stop-vm"), first).data, TargetsResult)
    targets = [(t["name"], t["ok"], t["data"]["state"]) for t in first["data"]["targets"]]
    assert targets == [("vdi-002", True, "stopped"), ("vdi-003", True, "stopped")]
    assert states(three) == {"vdi-001": "running", "vdi-002": "stopped", "vdi-003": "stopped"}
    again = three("stop-vm 'vdi-*'")
    assert again.status == 0
    assert again.out.endswith("\n1 stopped, 2 already off\n")
    entries = (tmp_path / "state/vgpuctl/a100-40/audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["command"] for line in entries] == ["create-vm", "stop-vm", "stop-vm"]


def test_one_plain_name_keeps_its_own_document(three: Run) -> None:
    assert three("stop-vm vdi-001 --json").document["data"]["name"] == "vdi-001"


def test_every_missing_name_is_told_before_anything_changes(three: Run) -> None:
    ran = three("stop-vm 'vdi-{001..005}' 'x-*' --json")
    assert (ran.status, ran.document["error"]["facts"]["missing"]) == (2, ["vdi-004", "vdi-005", "x-*"])
    assert three("stop-vm --all --dry-run").out.endswith("3 would be stopped\n")
    assert set(states(three).values()) == {"running"}


@pytest.mark.parametrize(
    "command", ["delete-vm", "stop-vm", "show-vm", "delete-vgpu", "cordon", "set-mode --all sriov"]
)
@pytest.mark.parametrize(
    ("pattern", "instead"), [("vdi-00[1:3]", "vdi-00{1..3}"), ("vdi-[01-02]", "vdi-{01..02}"), ("A[a:c]", "A{a,b,c}")]
)
def test_a_range_in_brackets_is_refused_with_what_to_write(
    three: Run, command: str, pattern: str, instead: str
) -> None:
    verb, _, words = command.partition(" ")
    ran = three(f"{verb} '{pattern}' {words} --yes --json")
    assert (ran.status, ran.document["error"]["code"], ran.document["changed"]) == (2, "invalid-input", False)
    assert ran.document["error"]["hint"] == f"write '{instead}'"
    assert set(states(three).values()) == {"running"}


def test_what_a_pattern_selected_is_listed_in_full_before_the_question_and_after_yes(sim: Run) -> None:
    sim("create-vm 'vdi-{}' --count 12 --profile L40S-2B --no-start", "l40s-x4")
    names = [f"vdi-{number}" for number in range(1, 13)]
    error = sim("delete-vm 'vdi-*' --keep-disks --json", "l40s-x4").document["error"]
    assert f"also: {', '.join(names)}" in error["facts"]["lines"]
    done = sim("delete-vm 'vdi-*' --yes", "l40s-x4")
    assert [line.split()[0] for line in done.out.splitlines() if line.startswith("vdi-")] == names


def test_one_question_for_all_before_the_first_change(three: Run) -> None:
    three("stop-vm vdi-003 --force")
    refused = three("delete-vm --label team=cad --json")
    assert refused.status == 2
    assert "Delete 3 VMs (vdi-001, vdi-002, vdi-003)? 2 of them are running." in refused.document["error"]["message"]
    lines = refused.document["error"]["facts"]["lines"]
    assert {line.partition(":")[0] for line in lines} == {"vdi-001", "vdi-002", "vdi-003"}
    assert len([line for line in lines if "delete disk" in line]) == 3
    assert len(states(three)) == 3
    assert three("delete-vm --label team=cad --yes").out.endswith("3 deleted\n")
    assert states(three) == {}
    assert three("delete-vm --label team=cad --yes").status == 2


def test_before_many_are_deleted_only_what_is_lost_is_listed(sim: Run) -> None:
    sim("create-vm 'vdi-{:03}' --count 5 --profile A100-4C --owner sales")
    sim("create-vm other --profile A100-4C --owner cad")
    refused = sim("delete-vm --owner sales --json").document["error"]
    assert "Delete 5 VMs (vdi-001, vdi-002, vdi-003, vdi-004, vdi-005)?" in refused["message"]
    assert refused["facts"]["lines"] == [
        "delete 5 disks of vdi-001, vdi-002, vdi-003, vdi-004, vdi-005",
        "--dry-run shows every step, with the paths",
    ]
    assert sim("delete-vm --owner sales --yes").status == 0
    assert sim("list-vms -o name").out == "other\n"
    assert "no VM has the owner sales" in sim("stop-vm --owner sales").err


def test_a_pattern_for_one_vm_that_fails_has_that_vms_error(sim: Run) -> None:
    sim("create-vm vdi-1 --profile A100-4C")
    failed = sim("set-vm 'vdi-*' --profile A100-8C --json").document
    assert (failed["error"]["code"], failed["data"]["tally"]["failed"]) == ("in-use", 1)
    assert failed["error"]["hint"] == "vgpuctl stop-vm vdi-1, then run the command again; or add --drain"
    assert failed["data"]["targets"][0]["error"]["state"] == "running"


def test_one_failure_leaves_the_others_and_gives_the_worst_status(three: Run) -> None:
    three("stop-vm vdi-001")
    ran = three("set-vm 'vdi-*' --profile A100-4C:2 --json")
    reply = ran.document
    assert (ran.status, reply["ok"], reply["changed"]) == (3, False, True)
    assert ran.document["data"]["tally"] == {"changed": 1, "unchanged": 0, "failed": 2}
    assert [t["error"] and t["error"]["code"] for t in ran.document["data"]["targets"]] == [None, "in-use", "in-use"]
    page = three("set-vm 'vdi-*' --profile A100-4C:2")
    assert page.status == 3
    assert "1 unchanged, 2 failed\n" in page.out
    assert "hint: vgpuctl stop-vm vdi-002, then run the command again" in page.err


def test_a_pattern_changes_no_unmanaged_vm_and_says_so(sim: Run) -> None:
    ran = sim("stop-vm 'old-*'", "mixed")
    assert (ran.status, "vgpuctl manages no VM that matches; unmanaged: old-desktop" in ran.err) == (2, True)
    assert sim("create-vm old-one --profile T4-4Q", "mixed").status == 0
    assert "1 unmanaged VM skipped: old-desktop" in sim("stop-vm 'old-*'", "mixed").err
    failed = sim("migrate-vm --all --to sim:a100-40 --insecure-network", "mixed")  # no GPU there has the profile
    assert (failed.status != 0, "note: 1 unmanaged VM skipped: old-desktop" in failed.err) == (True, True)
    shown = sim("show-vm 'old-*' --json", "mixed").document["data"]["targets"]
    assert [t["name"] for t in shown] == ["old-desktop", "old-one"]


def test_ensure_vm_changes_labels_of_a_running_vm(three: Run, tmp_path: Path) -> None:
    spec = tmp_path / "vm.yaml"
    spec.write_text("name: vdi-001\nlabels: {team: sim}\nowner: sim-team\n")
    ran = three(f"ensure-vm -f {spec} --json")
    assert (ran.status, ran.document["changed"]) == (0, True)
    assert ran.document["data"]["before"]["labels"] == {"team": "cad"}
    assert (ran.document["data"]["after"]["labels"], ran.document["data"]["after"]["owner"]) == (
        {"team": "sim"},
        "sim-team",
    )
    assert three(f"ensure-vm -f {spec} --json").document["changed"] is False


def test_gpus_by_glob_model_and_all(sim: Run) -> None:
    assert "--all" in sim("cordon L40S", "l40s-x4").err
    assert sim("cordon L40S --all", "l40s-x4").out.endswith("4 cordoned\n")
    assert sim("uncordon '0000:3*'", "l40s-x4").out.endswith("2 uncordoned\n")
    assert len(sim("show-gpu --all --json", "l40s-x4").document["data"]["targets"]) == 4
    assert sim("set-mode --all vgpu --dry-run", "l40s-x4").status == 0


def test_vgpus_without_a_vm_go_together(sim: Run) -> None:
    for name in ("spare-1", "spare-2"):
        assert sim(f"create-vgpu {name} --profile A100-4C").status == 0
    assert "Remove 2 vGPUs (spare-1, spare-2)?" in sim("delete-vgpu 'spare-*'").err
    assert sim("delete-vgpu 'spare-{1..2}' --yes").out.endswith("2 deleted\n")


@pytest.mark.parametrize("line", ["stop-vm", "stop-vm --all x", "delete-vgpu", "set-mig --off"])
def test_naming_nothing_or_too_much_is_a_usage_error(sim: Run, line: str) -> None:
    assert sim(line).status == 2


def test_vms_on_several_gpus_are_named_in_one_question_before_any_gpu_changes(sim: Run) -> None:
    line = "set-scheduler --all --policy fixed_share --drain"
    policies = "list-gpus --columns scheduler --no-headers"
    for name, gpu in (("one", "0000:3f:00.0"), ("two", "0000:47:00.0")):
        assert sim(f"create-vm {name} --profile L40S-8Q --gpu {gpu}", "l40s-x4").status == 0
    refused = sim(f"{line} --json", "l40s-x4").document["error"]
    message = "Shut down the running VMs on 2 GPUs (0000:3f:00.0, 0000:47:00.0), and start them again afterwards?"
    assert message in refused["message"]
    assert [entry.partition(": ")[2] for entry in refused["facts"]["lines"]] == [
        "VM one on 0000:3f:00.0 is shut down, and started again",
        "VM two on 0000:47:00.0 is shut down, and started again",
    ]
    assert sim(policies, "l40s-x4").out.split() == ["best_effort"] * 4
    assert sim(f"{line} --yes", "l40s-x4").out.endswith("\n4 changed\n")
    assert sim(policies, "l40s-x4").out.split() == ["fixed_share"] * 4
    assert [vm["state"] for vm in sim("list-vms --json", "l40s-x4").document["data"]] == ["running"] * 2


def test_several_vms_reboot_wait_and_get_larger_disks_in_one_command(sim: Run) -> None:
    image = "/srv/images/ubuntu-24.04.qcow2"
    assert sim(f"create-vm 'vdi-{{:03}}' --count 3 --profile A100-4C --image {image} --label team=cad").status == 0
    ran = sim("reboot-vm 'vdi-{001..003}' --force")
    assert (ran.status, ran.out.splitlines()[-1]) == (0, "3 rebooted")
    assert sim("wait 'vdi-*' --for running").status == 0
    ran = sim("resize-disk --label team=cad 40GiB --json")
    assert ran.document["data"]["tally"] == {"changed": 3, "unchanged": 0, "failed": 0}
    assert sim("resize-disk 'vdi-*' 40GiB").out.splitlines()[-1] == "3 already as large"
    ran = sim("wait vdi-001 vdi-009 --for running")
    assert (ran.status, "vdi-009" in ran.err) == (2, True)
