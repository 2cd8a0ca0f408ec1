# SPDX-License-Identifier: Apache-2.0
"""Several VMs with one command: options, pages, documents, and a signal in the middle."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran, Run, child_environment

FIVE = "create-vm 'vdi-{:03}' --count 5 --profile A100-4C"
NAMES = [f"vdi-{n:03d}" for n in range(1, 6)]
FAULTY = "version: 1\ngpus: [{model: A100}]\nfaults:\n"


def names(sim: Run) -> list[str]:
    return [vm["name"] for vm in sim("list-vms --json").document["data"]]


def test_create_vm_makes_them_and_then_leaves_them(sim: Run) -> None:
    data = sim(f"{FIVE} --parallel 2 --json").document["data"]
    assert [(vm["name"], vm["changed"]) for vm in data["vms"]] == [(name, True) for name in NAMES]
    assert data["failed"] == []
    again = sim(f"{FIVE} --json").document
    assert again["changed"] is False
    assert [vm["changed"] for vm in again["data"]["vms"]] == [False] * 5


def test_ensure_vm_reads_the_pattern_from_the_spec(sim: Run) -> None:
    spec = "name: vdi-{:03}\nprofile: A100-4C\nvcpus: 1\n"
    made = sim("ensure-vm -f - --count 3 --json", text=spec).document["data"]["vms"]
    assert [vm["name"] for vm in made] == NAMES[:3]
    differs = sim("ensure-vm -f - --count 4 --json", text=spec.replace("vcpus: 1", "vcpus: 2"))
    assert differs.status == 3
    assert [vm["vm"] for vm in differs.document["error"]["facts"]["vms"]] == NAMES[:3]
    plain = sim("ensure-vm -f - --count 4", text="name: vdi\nprofile: A100-4C\n")
    assert (plain.status, "vdi-{:03}" in plain.err) == (2, True)


@pytest.fixture
def bring(sim: Run) -> Run:
    """Return a function that brings vdi-001 to vdi-003 to a state."""
    spec = "name: vdi-{:03}\nprofile: A100-4C\n"

    def run(state: str, words: str = "--yes", host: str = "a100-40") -> Ran:
        return sim(f"ensure-vm -f - --count 3 --state {state} --json {words}", host, spec)

    return run


def results(ran: Ran) -> dict[str, tuple[str, str]]:
    return {vm["name"]: (vm["state"], vm["result"]) for vm in ran.document["data"]["vms"]}


def test_each_state_of_several_is_reached_once(sim: Run, bring: Run) -> None:
    first, others = NAMES[0], NAMES[1:3]
    assert sim(f"create-vm {first} --profile A100-4C").status == 0
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
    assert names(sim) == []


def test_those_that_exist_are_deleted_after_confirmation_and_others_are_left_alone(sim: Run, bring: Run) -> None:
    assert sim(FIVE).status == 0
    assert sim("delete-vm vdi-002 --yes").status == 0
    refused = bring("absent", "")
    assert (refused.status, "Delete 2 VMs?" in refused.document["error"]["message"]) == (2, True)
    assert names(sim) == [NAMES[0], *NAMES[2:]]
    assert results(bring("absent")) == {name: ("absent", "deleted") for name in ("vdi-001", "vdi-003")}
    assert names(sim) == NAMES[3:]


def test_one_that_cannot_be_stopped_is_named_and_the_others_are_stopped(
    scenario: Callable[[str], Run], bring: Run, tmp_path: Path
) -> None:
    run = scenario(f"{FAULTY}  - {{on: shutdown, match: vdi-002, code: 38}}\n")
    host = str(tmp_path / "host.yaml")
    assert bring("started", host=host).status == 0
    ran = bring("stopped", host=host)
    assert (ran.document["error"]["code"], ran.document["changed"]) == ("some-targets-failed", True)
    assert [target["ok"] for target in ran.document["data"]["targets"]] == [True, False, True]
    states = [vm["state"] for vm in run("list-vms --json").document["data"]]
    assert states == ["stopped", "running", "stopped"]
    assert bring("stopped", host=host).document["changed"] is False


def test_people_see_a_line_for_each_and_a_table(sim: Run) -> None:
    ran = sim(FIVE)
    assert ran.out.splitlines()[0].split() == ["NAME", "STATE", "RESULT", "VGPUS"]
    assert "5 VMs, 5 created" in ran.out
    lines = [line for line in ran.err.splitlines() if line.startswith("[")]
    assert [line.split("]")[0] for line in lines] == [f"[{n}/5" for n in range(1, 6)]
    assert {line.split()[1] for line in lines} == {f"{name}:" for name in NAMES}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("vdi --count 2", "'vdi-{:03}' --count 2"),
        ("--count 2", "'vdi-{:03}' --count 2"),
        ("vdi-{} --count 0", "--count"),
        ("q-{}", "--count N makes N of them"),
        ("q-{:03}", "--count N makes N of them"),
        ("q-{:d}", "--count N makes N of them"),
        ("vdi --parallel 2", "--count"),
        ("v-{} --count 2 --wait-for guest", "--wait-for"),
        ("vdi-{} --count 2 --print-xml", "--print-xml"),
    ],
)
def test_invalid_option_values_are_refused(sim: Run, words: str, says: str) -> None:
    ran = sim(f"create-vm {words} --profile A100-4C")
    assert (ran.status, says in ran.err) == (2, True)


def test_some_that_fail_are_named_with_the_reason_and_the_others_are_there(scenario: Callable[[str], Run]) -> None:
    run = scenario(f"{FAULTY}  - {{on: start, match: vdi-002, code: 38}}\n")
    ran = run(f"{FIVE} --json")
    assert ran.status == 1
    error = ran.document["error"]
    assert (ran.document["changed"], error["code"], error["left"]) == (True, "some-failed", [])
    assert [(f["name"], f["code"]) for f in error["facts"]["failed"]] == [("vdi-002", "libvirt-failed")]
    assert [vm["name"] for vm in error["facts"]["vms"]] == [n for n in NAMES if n != "vdi-002"]
    text = run(FIVE)
    assert "1 of 5 VMs could not be created" in text.err
    assert "vdi-002: cannot start VM vdi-002" in text.err


def test_what_cannot_be_undone_is_status_5_and_says_what_is_left(scenario: Callable[[str], Run]) -> None:
    faults = "".join(f"  - {{on: {call}, match: vdi-002, code: 38}}\n" for call in ("start", "undefine"))
    ran = scenario(f"{FAULTY}{faults}")(f"{FIVE} --json")
    assert ran.status == 5
    assert all(line.startswith("vdi-002: ") for line in ran.document["error"]["left"])


ROOMY = "version: 1\nstorage: {filesystem_gib: 100000}\ngpus:\n  - {model: A16, count: 12, profiles: [A16-1Q]}\n"
MANY = "create-vm 'vdi-{:03}' --count 150 --profile A16-1Q"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_leaves_whole_vms_and_the_same_command_goes_on(
    scenario: Callable[[str], Run], tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """There are enough VMs that the signal, sent after the first, arrives long before the last."""
    run = scenario(ROOMY)
    host = f"--host sim:{tmp_path / 'host.yaml'}"
    command = [sys.executable, "-m", "vgpuctl", *shlex.split(f"{host} -v --json {MANY} --parallel 1")]
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
    listed = run("list-vms --json").document["data"]
    assert [(vm["name"], vm["state"]) for vm in listed] == [(name, "running") for name in there]
    assert run("reconcile-host --dry-run --json").document["data"]["findings"] == []
    assert len(run(f"{MANY} --json").document["data"]["vms"]) == 150


def test_more_are_defined_than_fit_and_the_page_says_so(sim: Run) -> None:
    twenty = "create-vm 'vdi-{:03}' --count 20 --profile A100-4C --reserve running --no-start --json"
    assert sim(twenty).status == 0
    free = sim("list-profiles --json").document["data"]
    assert next(p["free"] for p in free if p["profile"] == "A100-4C") == 10
    assert {vm["reserve"] for vm in sim("list-vms --json").document["data"]} == {"running"}
    assert "A100-4C (reserved only while the VM runs)" in sim("list-vms").out
    assert "reserve: running" in " ".join(sim("show-vm vdi-001").out.split())


def test_ensure_vm_changes_what_a_vm_reserves(sim: Run) -> None:
    line, spec = "ensure-vm -f - --state stopped", "name: vdi\nprofile: A100-4C\nreserve: running\n"
    made = sim(f"{line} --dry-run --json", text=spec).document["data"]
    assert made["sources"]["reserve"] == {"value": "running", "source": "given"}
    assert [v["present"] for v in made["after"]["vgpus"]] == [False]
    assert sim(line, text=spec).status == 0
    changed = sim("ensure-vm -f - --json", text="name: vdi\nreserve: always\n").document["data"]
    assert (changed["before"]["reserve"], changed["after"]["reserve"]) == ("running", "always")
    assert [v["present"] for v in changed["vgpus"]] == [True]
