# SPDX-License-Identifier: Apache-2.0
"""Several VMs with one command: options, pages, documents, and a signal in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from tests.unit.cli.conftest import Ran, child_environment
from vgpuctl.cli import schemas

HOST = ("--host", "sim:a100-40")
FIVE = ("create-vm", "vdi-{:03}", "--count", "5", "--profile", "A100-4C")
NAMES = [f"vdi-{n:03d}" for n in range(1, 6)]
Vgpuctl = Callable[..., Ran]


def test_create_vm_makes_them_and_then_leaves_them(vgpuctl: Vgpuctl) -> None:
    ran = vgpuctl(*HOST, "--json", *FIVE, "--parallel", "2")
    assert ran.status == 0
    jsonschema.validate(ran.document, schemas.document_schema("create-vm"))
    data = ran.document["data"]
    assert [(vm["name"], vm["changed"]) for vm in data["vms"]] == [(name, True) for name in NAMES]
    assert data["failed"] == []
    again = vgpuctl(*HOST, "--json", *FIVE).document
    assert again["changed"] is False
    assert [vm["changed"] for vm in again["data"]["vms"]] == [False] * 5


def test_ensure_vm_reads_the_pattern_from_the_spec(vgpuctl: Vgpuctl, tmp_path: Path) -> None:
    spec = tmp_path / "vdi.yaml"
    spec.write_text("name: vdi-{:03}\nprofile: A100-4C\nvcpus: 1\n")
    ran = vgpuctl(*HOST, "--json", "ensure-vm", "-f", str(spec), "--count", "3")
    jsonschema.validate(ran.document, schemas.document_schema("ensure-vm"))
    assert [vm["name"] for vm in ran.document["data"]["vms"]] == NAMES[:3]
    spec.write_text("name: vdi-{:03}\nprofile: A100-4C\nvcpus: 2\n")
    differs = vgpuctl(*HOST, "--json", "ensure-vm", "-f", str(spec), "--count", "4")
    assert differs.status == 3
    assert [vm["vm"] for vm in differs.document["error"]["facts"]["vms"]] == NAMES[:3]
    spec.write_text("name: vdi\nprofile: A100-4C\n")
    plain = vgpuctl(*HOST, "ensure-vm", "-f", str(spec), "--count", "4")
    assert plain.status == 2
    assert "vdi-{:03}" in plain.err


@pytest.mark.parametrize("name", ["q-{}", "q-{:03}", "q-{:d}"])
def test_a_pattern_without_a_number_of_vms_says_which_option_is_missing(vgpuctl: Vgpuctl, name: str) -> None:
    refused = vgpuctl(*HOST, "create-vm", name, "--profile", "A100-4C")
    assert (refused.status, "--count N makes N of them" in refused.err) == (2, True)


@pytest.fixture
def bring(vgpuctl: Vgpuctl, tmp_path: Path) -> Callable[..., Ran]:
    """Return a function that brings vdi-001 to vdi-003 to a state."""
    spec = tmp_path / "vdi.yaml"
    spec.write_text("name: vdi-{:03}\nprofile: A100-4C\n")

    def run(state: str, *words: str, host: tuple[str, ...] = HOST) -> Ran:
        ran = vgpuctl(*host, "--json", "--yes", "ensure-vm", "-f", str(spec), "--count", "3", "--state", state, *words)
        jsonschema.validate(ran.document, schemas.document_schema("ensure-vm"))
        return ran

    return run


def results(ran: Ran) -> dict[str, tuple[str, str]]:
    return {vm["name"]: (vm["state"], vm["result"]) for vm in ran.document["data"]["vms"]}


def test_each_state_of_several_is_reached_once(vgpuctl: Vgpuctl, bring: Callable[..., Ran]) -> None:
    first, others = NAMES[0], NAMES[1:3]
    assert vgpuctl(*HOST, "create-vm", first, "--profile", "A100-4C").status == 0
    every: tuple[tuple[str, str, str], ...] = (
        ("stopped", "stopped", "stopped"),
        ("started", "running", "started"),
        ("absent", "absent", "deleted"),
    )
    for state, word, result in every:
        expected = dict.fromkeys(NAMES[:3], (word, result))
        if state == "stopped":
            expected |= dict.fromkeys(others, (word, "created"))
        planned = bring(state, "--dry-run").document
        assert (planned["changed"], [vm["result"] for vm in planned["data"]["vms"]]) == (
            True,
            [result for _, result in expected.values()],
        )
        done = bring(state)
        assert (done.document["changed"], results(done)) == (True, expected)
        assert done.document["data"]["steps"] == planned["data"]["steps"] or state == "stopped"
        again = bring(state)
        assert (again.document["changed"], again.document["data"]["steps"]) == (False, [])
    assert results(bring("absent")) == {}
    assert vgpuctl(*HOST, "--json", "list-vms").document["data"] == []


def test_more_than_exist_are_deleted_and_others_are_left_alone(vgpuctl: Vgpuctl, bring: Callable[..., Ran]) -> None:
    assert vgpuctl(*HOST, *FIVE).status == 0
    assert vgpuctl(*HOST, "--yes", "delete-vm", "vdi-002").status == 0
    assert results(bring("absent")) == {name: ("absent", "deleted") for name in ("vdi-001", "vdi-003")}
    assert [vm["name"] for vm in vgpuctl(*HOST, "--json", "list-vms").document["data"]] == NAMES[3:]


def test_several_are_deleted_only_after_confirmation(vgpuctl: Vgpuctl, tmp_path: Path) -> None:
    assert vgpuctl(*HOST, *FIVE).status == 0
    spec = tmp_path / "vdi.yaml"
    spec.write_text("name: vdi-{:03}\n")
    ran = vgpuctl(*HOST, "ensure-vm", "-f", str(spec), "--count", "5", "--state", "absent")
    assert ran.status == 2
    assert "Delete 5 VMs?" in ran.err
    assert len(vgpuctl(*HOST, "--json", "list-vms").document["data"]) == 5


def test_one_that_cannot_be_stopped_is_named_and_the_others_are_stopped(
    vgpuctl: Vgpuctl, bring: Callable[..., Ran], tmp_path: Path
) -> None:
    scenario = tmp_path / "broken.yaml"
    scenario.write_text("version: 1\ngpus: [{model: A100}]\nfaults:\n  - {on: shutdown, match: vdi-002, code: 38}\n")
    host = ("--host", f"sim:{scenario}")
    assert bring("started", host=host).status == 0
    ran = bring("stopped", host=host)
    assert (ran.document["error"]["code"], ran.document["changed"]) == ("some-targets-failed", True)
    assert [target["ok"] for target in ran.document["data"]["targets"]] == [True, False, True]
    states = {vm["name"]: vm["state"] for vm in vgpuctl(*host, "--json", "list-vms").document["data"]}
    assert states == {"vdi-001": "stopped", "vdi-002": "running", "vdi-003": "stopped"}
    assert bring("stopped", host=host).document["changed"] is False


def test_people_see_a_line_for_each_and_a_table(vgpuctl: Vgpuctl) -> None:
    ran = vgpuctl(*HOST, *FIVE)
    assert ran.out.splitlines()[0].split() == ["NAME", "STATE", "RESULT", "VGPUS"]
    assert "5 VMs, 5 created" in ran.out
    lines = [line for line in ran.err.splitlines() if line.startswith("[")]
    assert [line.split("]")[0] for line in lines] == [f"[{n}/5" for n in range(1, 6)]
    assert {line.split()[1] for line in lines} == {f"{name}:" for name in NAMES}


def test_a_dry_run_shows_the_plan_for_all(vgpuctl: Vgpuctl) -> None:
    ran = vgpuctl(*HOST, "--json", *FIVE, "--dry-run")
    jsonschema.validate(ran.document, schemas.document_schema("create-vm"))
    assert [vm["state"] for vm in ran.document["data"]["vms"]] == ["absent"] * 5
    assert vgpuctl(*HOST, "--json", "list-vms").document["data"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create-vm", "vdi", "--count", "2", "--profile", "A100-4C"), "'vdi-{:03}' --count 2"),
        (("create-vm", "--count", "2", "--profile", "A100-4C"), "'vdi-{:03}' --count 2"),
        (("create-vm", "vdi-{}", "--count", "0", "--profile", "A100-4C"), "--count"),
        (("create-vm", "vdi-{}", "--profile", "A100-4C"), "--count N makes N of them"),
        (("create-vm", "vdi", "--parallel", "2", "--profile", "A100-4C"), "--count"),
        (("create-vm", "v-{}", "--count", "2", "--wait-for", "guest", "--profile", "A100-4C"), "--wait-for"),
        (("create-vm", "vdi-{}", "--count", "2", "--print-xml", "--profile", "A100-4C"), "--print-xml"),
    ],
)
def test_invalid_option_values_are_refused(vgpuctl: Vgpuctl, words: tuple[str, ...], says: str) -> None:
    ran = vgpuctl(*HOST, *words)
    assert ran.status == 2
    assert says in ran.err


def test_some_that_fail_are_named_with_the_reason_and_the_others_are_there(vgpuctl: Vgpuctl, tmp_path: Path) -> None:
    scenario = tmp_path / "broken.yaml"
    scenario.write_text("version: 1\ngpus: [{model: A100}]\nfaults:\n  - {on: start, match: vdi-002, code: 38}\n")
    host = ("--host", f"sim:{scenario}")
    ran = vgpuctl(*host, "--json", *FIVE)
    assert ran.status == 1
    jsonschema.validate(ran.document, schemas.document_schema("create-vm"))
    error = ran.document["error"]
    assert (ran.document["changed"], error["code"], error["left"]) == (True, "some-failed", [])
    assert [(f["name"], f["code"]) for f in error["facts"]["failed"]] == [("vdi-002", "libvirt-failed")]
    assert [vm["name"] for vm in error["facts"]["vms"]] == [n for n in NAMES if n != "vdi-002"]
    text = vgpuctl(*host, *FIVE)
    assert "1 of 5 VMs could not be created" in text.err
    assert "vdi-002: cannot start VM vdi-002" in text.err


def test_what_cannot_be_undone_is_status_5_and_says_what_is_left(vgpuctl: Vgpuctl, tmp_path: Path) -> None:
    scenario = tmp_path / "broken.yaml"
    faults = "  - {on: start, match: vdi-002, code: 38}\n  - {on: undefine, match: vdi-002, code: 38}\n"
    scenario.write_text(f"version: 1\ngpus: [{{model: A100}}]\nfaults:\n{faults}")
    ran = vgpuctl("--host", f"sim:{scenario}", "--json", *FIVE)
    assert ran.status == 5
    assert all(line.startswith("vdi-002: ") for line in ran.document["error"]["left"])


ROOMY = "version: 1\nstorage: {filesystem_gib: 100000}\ngpus:\n  - {model: A16, count: 12, profiles: [A16-1Q]}\n"
MANY = ("create-vm", "vdi-{:03}", "--count", "150", "--profile", "A16-1Q")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_leaves_whole_vms_and_the_same_command_goes_on(
    vgpuctl: Vgpuctl, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """There are enough VMs that the signal, sent after the first, arrives long before the last."""
    (tmp_path / "roomy.yaml").write_text(ROOMY)
    host = ("--host", f"sim:{tmp_path / 'roomy.yaml'}")
    command = [sys.executable, "-m", "vgpuctl", *host, "-v", "--json", *MANY, "--parallel", "1"]
    with subprocess.Popen(
        command, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("[  1/150]")
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    document = json.loads(out)
    assert process.returncode == status
    assert document["error"]["code"] == "interrupted"
    assert document["error"]["left"] == []
    there = [vm["name"] for vm in document["error"]["facts"]["vms"]]
    assert 1 <= len(there) < 150
    listed = vgpuctl(*host, "--json", "list-vms").document["data"]
    assert [(vm["name"], vm["state"]) for vm in listed] == [(name, "running") for name in there]
    assert vgpuctl(*host, "--json", "reconcile-host", "--dry-run").document["data"]["findings"] == []
    assert len(vgpuctl(*host, "--json", *MANY).document["data"]["vms"]) == 150


def test_more_are_defined_than_fit_and_as_many_start_as_do(vgpuctl: Vgpuctl) -> None:
    twenty = ("create-vm", "vdi-{:03}", "--count", "20", "--profile", "A100-4C", "--reserve", "running", "--no-start")
    ran = vgpuctl(*HOST, "--json", *twenty)
    assert ran.status == 0
    jsonschema.validate(ran.document, schemas.document_schema("create-vm"))
    free = vgpuctl(*HOST, "--json", "list-profiles").document["data"]
    assert next(p["free"] for p in free if p["profile"] == "A100-4C") == 10
    shown = vgpuctl(*HOST, "--json", "list-vms").document
    jsonschema.validate(shown, schemas.document_schema("list-vms"))
    assert {vm["reserve"] for vm in shown["data"]} == {"running"}
    assert "A100-4C (reserved only while the VM runs)" in vgpuctl(*HOST, "list-vms").out
    assert "reserve: running" in " ".join(vgpuctl(*HOST, "show-vm", "vdi-001").out.split())
    for number in range(20, 10, -1):
        assert vgpuctl(*HOST, "start-vm", f"vdi-{number:03}").status == 0
    full = vgpuctl(*HOST, "--json", "start-vm", "vdi-001")
    assert full.status == 4
    stopped = vgpuctl(*HOST, "--json", "stop-vm", "vdi-020")
    jsonschema.validate(stopped.document, schemas.document_schema("stop-vm"))
    assert vgpuctl(*HOST, "start-vm", "vdi-001").status == 0
    assert "no room" in vgpuctl(*HOST, "start-vm", "vdi-020").err


def test_ensure_vm_changes_what_a_vm_reserves(vgpuctl: Vgpuctl, tmp_path: Path) -> None:
    spec = tmp_path / "vdi.yaml"
    spec.write_text("name: vdi\nprofile: A100-4C\nreserve: running\n")
    made = vgpuctl(*HOST, "--json", "ensure-vm", "-f", str(spec), "--state", "stopped", "--dry-run").document
    assert made["data"]["sources"]["reserve"] == {"value": "running", "source": "command-line"}
    assert [v["present"] for v in made["data"]["after"]["vgpus"]] == [False]
    assert vgpuctl(*HOST, "ensure-vm", "-f", str(spec), "--state", "stopped").status == 0
    spec.write_text("name: vdi\nreserve: always\n")
    changed = vgpuctl(*HOST, "--json", "ensure-vm", "-f", str(spec)).document
    jsonschema.validate(changed, schemas.document_schema("ensure-vm"))
    assert (changed["data"]["before"]["reserve"], changed["data"]["after"]["reserve"]) == ("running", "always")
    assert [v["present"] for v in changed["data"]["vgpus"]] == [True]
