# SPDX-License-Identifier: Apache-2.0
"""attach, detach and set-vm from the command line to the printed result, with every option."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]


def test_attach_and_detach_of_a_running_vm(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    assert "attach" in sim("attach-vgpu vdi-001 --profile A100-4C --gpu 0000:3b:00.0 --dry-run").out
    data = sim("attach-vgpu vdi-001 --profile A100-4C --gpu A100 --json").document["data"]
    carriers = [v["carrier"] for v in data["vgpus"]]
    assert (data["ownership"], len(carriers)) == ("managed", 2)
    assert sim(f"detach-vgpu vdi-001 --vgpu {carriers[1]} --dry-run --json").document["data"]["steps"]
    ran = sim(f"detach-vgpu vdi-001 --vgpu {carriers[1]}")
    assert (ran.status, ran.out.count("vgpu  ")) == (0, 1)
    assert sim("detach-vgpu vdi-001 --wait 5 --json").document["data"]["vgpus"] == []
    assert "nothing to do" in sim("detach-vgpu vdi-001").out


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


def test_a_stopped_vm_gets_another_profile(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    ran = sim("set-vm vdi-001 --profile A100-5C")
    assert (ran.status, "vgpuctl stop-vm vdi-001" in ran.err) == (3, True)
    sim("stop-vm vdi-001 --force")
    planned = sim("set-vm vdi-001 --profile A100-5C --dry-run").out
    assert "  change VM vdi-001: profile: A100-4C -> A100-5C" in planned
    data = sim("set-vm vdi-001 --profile A100-5C --gpu A100 --json").document["data"]
    assert [v["profile"] for v in data["vgpus"]] == ["A100-5C"]
    assert "nothing to do" in sim("set-vm vdi-001 --profile A100-5C").out


@pytest.mark.parametrize(
    "command", ["attach-vgpu nothing --profile A100-4C", "detach-vgpu nothing", "attach-vgpu nothing"]
)
def test_invalid_arguments_exit_with_2(sim: Run, command: str) -> None:
    assert sim(command).status == 2


def test_a_count_that_is_too_large_and_an_empty_name_are_reported_as_such(sim: Run) -> None:
    assert "'A100-4C:99999' must be a number from 1 to 9999" in sim("attach-vgpu vm --profile A100-4C:99999").err
    assert "there is no VM ''" in sim("attach-vgpu '' --profile A100-4C").err


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
def test_hints_for_an_unmanaged_vm_work(
    vgpuctl: Callable[..., Ran], tmp_path: Path, running: str, line: str, hint: str
) -> None:
    (tmp_path / "host.yaml").write_text(UNMANAGED.replace("RUNNING", running))
    ran = vgpuctl("--host", f"sim:{tmp_path}/host.yaml", *shlex.split(line))
    assert (ran.status, f"  hint: {hint}" in ran.err) == (3, True), ran.err
