# SPDX-License-Identifier: Apache-2.0
"""Hints of failures: of starts that libvirt or QEMU refuses, for unmanaged VMs, and for locks that another has."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from vgpuctl.model.symptoms import SYMPTOMS, find_hint

EXAMPLES = [text for symptom in SYMPTOMS for text in symptom.examples]


def refusing(scenario: Callable[[str], Run], code: int, message: str) -> Run:
    """Return what runs a line on a host whose libvirt refuses every start."""
    fault = json.dumps({"on": "start", "code": code, "message": message})
    return scenario(f"version: 1\nstorage: {{pools: [{{name: default}}]}}\ngpus: [{{model: A40}}]\nfaults: [{fault}]\n")


@pytest.mark.parametrize("text", EXAMPLES)
def test_create_vm_shows_the_remedy(scenario: Callable[[str], Run], text: str) -> None:
    run = refusing(scenario, 1, text)
    ran = run("--json create-vm web --profile A40-8Q")
    assert ran.status == 1
    assert ran.document["error"]["hint"] == find_hint(text) is not None
    assert text in ran.document["error"]["message"]
    assert run("create-vm web --profile A40-8Q --no-start").status == 0  # nothing of the refused VM is left


def test_start_vm_shows_the_remedy_too(scenario: Callable[[str], Run]) -> None:
    run = refusing(scenario, 55, "Requested operation is not valid: network 'lan' is not active")
    assert run("create-vm web --profile A40-8Q --no-start").status == 0
    ran = run("start-vm web")
    assert ran.status == 1
    assert "  hint: virsh net-start lan; virsh net-autostart lan" in ran.err.splitlines()


@pytest.mark.parametrize("dry_run", ["", " --dry-run"])
@pytest.mark.parametrize("running", ["", " --no-start"])
def test_of_several_vgpus_none_is_taken_that_was_not_named(sim: Run, running: str, dry_run: str) -> None:
    assert sim(f"create-vm vdi-1 --profile A100-4C:3{running}").status == 0
    carriers = [v["carrier"] for v in sim("show-vm vdi-1 --json").document["data"]["vgpus"]]
    for line in ("detach-vgpu vdi-1", "detach-vgpu 'vdi*'"):
        error = sim(f"{line}{dry_run} --yes --json").document["error"]
        assert (error["exit_status"], error["code"], error["facts"]["carriers"]) == (2, "invalid-input", carriers)
        assert all(carrier in error["message"] for carrier in carriers)
    assert len(sim("show-vm vdi-1 --json").document["data"]["vgpus"]) == 3
    command = error["hint"].partition("all of them: vgpuctl ")[2]
    assert sim(f"{command} --json").document["data"]["vgpus"] == []


UNMANAGED = """\
version: 1
title: a VM of virsh, running and without a free port
storage: {pools: [{name: default}]}
gpus:
  - model: T4
    address: "0000:5e:00.0"
    vgpus:
      - {profile: T4-4Q, vm: "old desktop", running: RUNNING}
"""


@pytest.mark.parametrize(
    ("running", "line", "hint"),
    [
        ("true", "attach-vgpu 'old desktop' --profile T4-4Q", "stop it first: virsh shutdown 'old desktop'; "),
        ("true", "stop-vm 'old desktop'", "virsh shutdown 'old desktop'; "),
        ("true", "delete-vm 'old desktop' --yes", "virsh undefine 'old desktop'; "),
        ("false", "start-vm 'old desktop'", "virsh start 'old desktop'; "),
        ("false", "show-address 'old desktop'", "virsh start 'old desktop'\n"),
        ("false", "set-vm 'old desktop' --profile T4-8Q", "virsh edit 'old desktop'; "),
    ],
)
def test_hints_for_an_unmanaged_vm_work(scenario: Callable[[str], Run], running: str, line: str, hint: str) -> None:
    ran = scenario(UNMANAGED.replace("RUNNING", running))(line)
    assert (ran.status, f"  hint: {hint}" in ran.err) == (3, True), ran.err


@pytest.fixture
def locked_claims(sim: Run, tmp_path: Path) -> Iterator[Path]:
    """Somebody holds the lock of the directory of claims and does not let go, on a host on which `two` is off."""
    assert sim("create-vm two --profile A100-4C --no-start").status == 0
    claims = tmp_path / "state/vgpuctl/a100-40/run/claims"
    descriptor = os.open(claims, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield claims
    os.close(descriptor)


@pytest.mark.parametrize(
    "line", ["create-vm one --profile A100-4C", "set-vm two --profile A100-5C", "delete-vm two -y"]
)
def test_a_lock_that_nobody_lets_go_of_ends_with_75_and_names_the_holder(
    sim: Run, locked_claims: Path, line: str
) -> None:
    before = sorted(os.listdir(locked_claims))
    ran = sim(f"--wait 0 --json {line}")
    assert ran.status == 75
    error = ran.document["error"]
    assert (error["code"], error["facts"]["pid"]) == ("locked", os.getpid())
    assert str(locked_claims) in error["message"]
    assert sorted(os.listdir(locked_claims)) == before
    assert [vm["name"] for vm in sim("--json list-vms").document["data"]] == ["two"]
