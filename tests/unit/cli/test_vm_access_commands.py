# SPDX-License-Identifier: Apache-2.0
"""wait, reboot-vm and log, as they are typed."""

from __future__ import annotations

import os
import re

import pytest

from tests.unit.cli.conftest import Run

IMAGE = "--image /srv/images/ubuntu-24.04.qcow2"


@pytest.fixture
def two(sim: Run) -> Run:
    """A host with vdi-001, which has a system, and bare, which is off."""
    assert sim(f"create-vm vdi-001 --profile A100-4C {IMAGE}").status == 0
    assert sim("create-vm bare --profile A100-4C --no-start").status == 0
    return sim


def test_wait_returns_when_all_are_there(two: Run) -> None:
    ran = two("wait vdi-001 --for running")
    assert (ran.status, ran.out, ran.err) == (0, "vdi-001: running\n", "")
    (vm,) = two("wait vdi-001 --for address --json").document["data"]
    assert (vm["state"], vm["guest"]["source"]) == ("running", "lease")
    address = vm["guest"]["addresses"][0]["address"]
    assert two("wait vdi-001 --for guest").out == f"vdi-001: running, {address}\n"
    assert two("wait bare --for off --json").document["data"][0]["guest"] is None


def test_wait_ends_with_75_and_shows_the_state(two: Run) -> None:
    late = two("wait vdi-001 bare --for running --timeout 0 --json")
    assert (late.status, late.document["changed"]) == (75, False)
    error = late.document["error"]
    assert (error["code"], error["facts"]["lines"]) == ("busy", ["bare is still stopped"])
    assert "bare is still stopped" in two("wait vdi-001 bare --for running --timeout 0").err
    assert two("wait bare --for guest --timeout 0").status == 3
    assert two("wait nobody --for running").status == 2


@pytest.mark.parametrize("line", ["wait --for off", "wait a", "wait a --for lunch", "wait a --for off --timeout never"])
def test_wait_without_an_event_or_a_vm_is_refused(sim: Run, line: str) -> None:
    ran = sim(line)
    assert ran.status == 2
    assert ran.err.count("\n") == 2


def test_create_vm_waits_for_an_address_too(sim: Run) -> None:
    made = sim(f"create-vm a --profile A100-4C {IMAGE} --wait-for address --json").document["data"]
    assert made["steps"][-1] == "wait until the guest of a has an address (at most 300 s)"
    assert made["guest"]["addresses"]
    ran = sim("create-vm b --profile A100-4C --wait-for address --wait-timeout 0 --json")
    assert (ran.status, ran.document["changed"]) == (75, True)
    late = ran.document["error"]
    assert late["message"] == "b was created and runs, but its guest has got no address within 0 s"
    assert late["hint"] == "vgpuctl wait b --for address waits longer"
    assert sim("show-vm b --json").document["data"]["state"] == "running"
    for line in ("--wait-for guest --no-start", "--wait-timeout 5", "--wait-for guest --wait-timeout nan"):
        assert sim(f"create-vm c --profile A100-4C {line}").status == 2


def test_reboot_vm(two: Run) -> None:
    ran = two("reboot-vm vdi-001")
    assert (ran.status, ran.err) == (0, "reboot VM vdi-001\n")
    assert ran.out.startswith("vdi-001: running\n  vgpu  A100-4C on GPU ")
    assert two("reboot-vm vdi-001 --force --json").document["data"]["steps"] == ["reset VM vdi-001"]


def test_log_has_when_who_what_and_the_result(two: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    assert two("start-vm nobody").status == 2
    monkeypatch.delenv("SUDO_USER")
    assert two("cordon A100").status == two("cordon A100").status == 0
    assert two("stop-vm vdi-001 --dry-run").status == 0
    header, *lines = two("log").out.splitlines()
    assert header.split() == ["TIME", "USER", "RESULT", "SECONDS", "COMMAND"]
    shape = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  \S+ +(ok|no change|not-found) +\d+\.\d  (.*)"
    rows = [re.fullmatch(shape, line) for line in lines]
    assert [(m[1], m[2].split()[0]) for m in rows if m] == [
        ("ok", "create-vm"), ("ok", "create-vm"), ("not-found", "start-vm"), ("ok", "cordon"), ("no change", "cordon"),
    ]  # fmt: skip
    (failed,) = two("log --failed --json").document["data"]
    assert (failed["user"], failed["uid"], failed["exit_status"]) == ("ada", os.getuid(), 2)
    assert (failed["vms"], failed["changed"], failed["error"]) == (["nobody"], False, "there is no VM nobody")
    assert [e["command"] for e in two("log --user ada --json").document["data"]] == ["start-vm"]
    assert [e["vms"] for e in two("log --vm vdi-001 --json").document["data"]] == [["vdi-001"]]
    assert [e["command"] for e in two("log --gpu 3b:00.0 --lines 2 --json").document["data"]] == ["cordon", "cordon"]
    assert len(two("log --since 1h --json").document["data"]) == 5
    assert two("log --since 2999-01-01").err == "no commands in the log since 2999-01-01\n"


@pytest.mark.parametrize("line", ["log --since soon", "log --lines 0", "log --gpu 17"])
def test_log_refuses_what_it_cannot_read(sim: Run, line: str) -> None:
    assert sim(line).status == 2


def test_a_batch_is_in_the_log_of_each_vm(sim: Run) -> None:
    assert sim("create-vm 'p-{}' --count 3 --profile A100-4C").status == 0
    assert sim("create-vm 'p-{}' --count 30 --profile A100-4C").status == 4
    for name, results in (("p-2", ["ok", "no-capacity"]), ("p-30", ["no-capacity"]), ("p-31", [])):
        assert [e["result"] for e in sim(f"log --vm {name} --json").document["data"]] == results
