# SPDX-License-Identifier: Apache-2.0
"""Completion with the input of the shells, and once in a real bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import ROOT, Run, child, child_environment


def completed(line: str) -> list[str]:
    """Return the completions for bash."""
    ran = child(env=child_environment(_VGPUCTL_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="0"))
    assert ran.returncode == 0
    assert ran.stderr == ""
    return [answer.partition(",")[2] for answer in ran.stdout.split()]


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("vgpuctl ", ["list-gpus", "create-vm", "completion"]),
        ("vgpuctl create", ["create-vm"]),
        ("vgpuctl --js", ["--json"]),
        ("vgpuctl --json lis", ["list-gpus", "list-profiles", "list-vms"]),
        ("vgpuctl create-vm --st", ["--storage-pool"]),
        ("vgpuctl create-vm --mode ", ["vgpu", "sriov", "passthrough"]),
        ("vgpuctl ensure-vm --state=", ["present", "absent"]),
        ("vgpuctl sim re", ["reboot", "reset"]),
        ("vgpuctl completion ", ["bash", "zsh", "fish"]),
        ("vgpuctl create-vm --host lo", ["local"]),
    ],
)
def test_names_are_completed(line: str, some: list[str]) -> None:
    assert set(some) <= set(completed(line))


@pytest.mark.parametrize(
    "line",
    [
        "vgpuctl --host sim:/nowhere.yaml explain ",
        "vgpuctl --host nonsense show-vm ",
        "vgpuctl frob ",
        'vgpuctl "',
    ],
)
def test_failures_are_silent(line: str) -> None:
    completed(line)


@pytest.mark.parametrize(
    "command",
    ["show-vm", "start-vm", "stop-vm", "delete-vm", "show-console", "show-address", "wait", "reboot-vm"],
)
def test_names_of_vms_are_completed_where_a_vm_is_named(sim: Run, command: str) -> None:
    for name in ("vdi-001", "vdi-002", "other"):
        assert sim(f"create-vm {name} --profile A100-4C --no-start").status == 0
    assert completed(f"vgpuctl --host sim:a100-40 {command} vdi") == ["vdi-001", "vdi-002"]


def test_names_of_vgpus_are_completed_from_host_yaml(sim: Run) -> None:
    assert sim("create-vgpu spare --profile A100-4C").status == 0
    assert completed("vgpuctl --host sim:a100-40 delete-vgpu s") == ["spare"]


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("--host sim:a100-40 explain A100-4", ["A100-4C"]),
        ("--host sim:a100-40 create-vm --profile A100-", ["A100-4C"]),
        ("--host sim:a100-40 create-vm --gpu 0000:3b", ["0000:3b:00.0"]),
        ("--host sim:a100-40 show-gpu ", ["0000:3b:00.0"]),
        ("--host sim:mixed list-images --pool ", ["default"]),
        ("--host sim:", ["sim:t4"]),
        ("doctor iommu", ["iommu", "iommu-groups"]),
    ],
)
def test_what_a_host_has_is_completed(line: str, some: list[str]) -> None:
    assert set(some) <= set(completed(f"vgpuctl {line}"))


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("set-mode ", ["0000:3b:00.0"]),
        ("set-mode 0000:3b:00.0 ", ["vgpu", "sriov", "passthrough", "unmanaged", "0000:3b:00.0"]),
        ("set-mode --vfs 4 0000:3b:00.0 p", ["passthrough"]),
        ("set-mode --vfs 4 0", ["0000:3b:00.0"]),
        ("set-mode --all un", ["unmanaged"]),
        ("set-mixed-size A100 o", ["on", "off"]),
    ],
)
def test_after_a_gpu_what_it_is_set_to_is_completed(line: str, answers: list[str]) -> None:
    assert completed(f"vgpuctl --host sim:a100-40 {line}") == answers


@pytest.mark.parametrize(
    ("line", "some"),
    [
        ("list-vms --columns name,sta", ["name,state"]),
        ("list-vms --sort-by name,-mem", ["name,-memory"]),
        ("list-gpus --filter mod", ["model=", "mode="]),
        ("log --filter=com", ["command="]),
        ("sim list-scenarios --columns d", ["description"]),
        ("show-vm --columns n", []),
    ],
)
def test_columns_are_completed(line: str, some: list[str]) -> None:
    assert completed(f"vgpuctl {line}") == some


def test_a_host_without_libvirt_completes_no_vm_and_no_pool(tmp_path: Path) -> None:
    scenario = tmp_path / "off.yaml"
    scenario.write_text("version: 1\nlibvirt: {running: false}\ngpus: [{model: A100}]\n", encoding="utf-8")
    assert completed(f"vgpuctl --host sim:{scenario} show-vm ") == []
    assert completed(f"vgpuctl --host sim:{scenario} list-images --pool ") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(vgpuctl: Run, shell: str) -> None:
    ran = vgpuctl("completion", shell)
    assert ran.status == 0
    assert ran.err == ""
    assert f"_VGPUCTL_COMPLETE={shell}_complete" in ran.out
    assert vgpuctl("completion", shell, "--json").document["data"] == {"shell": shell, "script": ran.out}


@pytest.mark.parametrize("instruction", ["bash_source", "tcsh_complete", "x"])
def test_other_instructions_do_nothing(instruction: str) -> None:
    ran = child(env=child_environment(_VGPUCTL_COMPLETE=instruction))
    assert (ran.returncode, ran.stdout) == (1, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_itself(tmp_path: Path, vgpuctl: Run) -> None:
    """Source the script and call its function as readline does, with colons as word breaks."""
    program = tmp_path / "vgpuctl"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m vgpuctl "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "completion").write_text(vgpuctl("completion", "bash").out, encoding="utf-8")
    script = """
        source "$1/completion"
        COMP_LINE="vgpuctl sim re"; COMP_POINT=${#COMP_LINE}
        COMP_WORDS=(vgpuctl sim re); COMP_CWORD=2
        _vgpuctl_completion "$1/vgpuctl" re sim; echo "${COMPREPLY[@]}"
        COMP_LINE="vgpuctl --host sim:a100-"; COMP_POINT=${#COMP_LINE}
        COMP_WORDS=(vgpuctl --host sim : a100-); COMP_CWORD=4
        _vgpuctl_completion "$1/vgpuctl" a100- :; echo "${COMPREPLY[@]}"
    """
    ran = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", str(tmp_path)],
        env=child_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.splitlines() == ["reboot reset", "a100-40"], ran.stderr
