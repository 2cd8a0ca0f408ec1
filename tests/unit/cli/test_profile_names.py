# SPDX-License-Identifier: Apache-2.0
"""Names of profiles and GPUs: case does not matter, and an error names a GPU that cannot have the profile now."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
OFF = """\
version: 1
title: an A16 whose VFs are off beside an A100
storage: {pools: [{name: default}]}
gpus:
  - {model: A100, address: "0000:3b:00.0"}
  - {model: A16, address: "0000:17:00.0", backend: mdev-vf, vfs: {enabled: 0}}
"""


@pytest.mark.parametrize(
    "line",
    [
        "create-vm a --profile a100-4c --json",
        "create-vm a --profile 'grid a100-4C' --json",
        "create-vm a --profile 4c --gpu 0000:3b:00.0 --json",
        "create-vm 'a-{}' --count 2 --profile a100-4c --json",
        "create-vgpu a --profile a100-4c --json",
        "fits --profile a100-4c:2 --json",
        "explain a100-4c --json",
    ],
)
def test_capitals_make_no_difference_and_the_drivers_spelling_is_shown(sim: Run, line: str) -> None:
    ran = sim(line)
    assert ran.status == 0, ran.err
    assert "A100-4C" in ran.out
    assert "a100-4c" not in str(ran.document["data"].get("vgpus", ""))


def test_a_vm_is_what_its_spec_says_whatever_its_capitals(sim: Run, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text("{name: a, profile: a100-4c}\n")
    assert sim("create-vm a --profile A100-4C").status == 0
    ran = sim(f"ensure-vm -f {tmp_path}/spec.yaml --json")
    assert (ran.status, ran.document["changed"]) == (0, False)
    assert sim("attach-vgpu a --profile a100-4c").status == 0
    assert sim("stop-vm a --force").status == 0
    changed = sim("set-vm a --profile a100-5c --json")
    assert {vgpu["profile"] for vgpu in changed.document["data"]["vgpus"]} == {"A100-5C"}


@pytest.mark.parametrize("profile", ["A16-2Q", "a16-2q", "GRID A16-2Q", "A16-2Q|A40-2Q"])
@pytest.mark.parametrize("command", ["create-vm a --profile", "fits --profile", "explain", "create-vgpu a --profile"])
def test_a_gpu_whose_vfs_are_off_is_named_before_other_profiles(
    vgpuctl: Run, tmp_path: Path, command: str, profile: str
) -> None:
    (tmp_path / "host.yaml").write_text(OFF)
    ran = vgpuctl("--host", f"sim:{tmp_path}/host.yaml", *shlex.split(command), profile)
    assert ran.status == 6
    assert "the VFs of 0000:17:00.0 (NVIDIA A16) are off" in ran.err
    assert "hint: vgpuctl set-mode 0000:17:00.0 vgpu" in ran.err
    assert "A100" not in ran.err


def test_a_profile_of_no_gpu_here_is_not_blamed_on_vfs_that_are_off(vgpuctl: Run, tmp_path: Path) -> None:
    (tmp_path / "host.yaml").write_text(OFF)
    ran = vgpuctl("--host", f"sim:{tmp_path}/host.yaml", "create-vm", "a", "--profile", "l40s-2q")
    assert (ran.status, "no GPU on this host offers the profile 'l40s-2q'" in ran.err) == (2, True)


@pytest.mark.parametrize("line", ["create-vm a --profile A100-4C --gpu 0", "create-vgpu a --profile A100-4C --gpu 0"])
def test_a_number_that_is_typed_is_no_matter_of_yaml(sim: Run, line: str) -> None:
    ran = sim(line)
    text = "--gpu: '0' is not a GPU: GPUs are named by PCI address or model; vgpuctl list-gpus shows them"
    assert (ran.status, text in ran.err, "YAML" in ran.err) == (2, True, False)
