# SPDX-License-Identifier: Apache-2.0
"""Names of profiles and GPUs: case does not matter, an error names a GPU that cannot have the profile now.

Types of two GPU models with one profile name, and types whose names end in no profile: no wrong match.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from tests.unit.cli.conftest import Ran, Run

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
        "set-vm vm --profile a100-4c --json",
        "fits --profile a100-4c:2 --json",
        "explain a100-4c --json",
    ],
)
def test_capitals_make_no_difference_and_the_drivers_spelling_is_shown(sim: Run, line: str) -> None:
    assert sim("create-vm vm --profile A100-4C --no-start").status == 0
    ran = sim(line)
    assert ran.status == 0, ran.err
    assert "A100-4C" in ran.out
    assert "a100-4c" not in str(ran.document["data"].get("vgpus", ""))


@pytest.mark.parametrize("profile", ["A16-2Q", "a16-2q", "GRID A16-2Q", "A16-2Q|A40-2Q"])
@pytest.mark.parametrize("command", ["create-vm a --profile", "fits --profile", "explain", "create-vgpu a --profile"])
def test_a_gpu_whose_vfs_are_off_is_named_before_other_profiles(
    scenario: Callable[[str], Run], command: str, profile: str
) -> None:
    ran = scenario(OFF)(f"{command} '{profile}'")
    assert ran.status == 6
    assert "the VFs of 0000:17:00.0 (NVIDIA A16) are off" in ran.err
    assert "hint: vgpuctl set-mode 0000:17:00.0 vgpu" in ran.err
    assert "A100" not in ran.err


def test_a_profile_of_no_gpu_here_is_not_blamed_on_vfs_that_are_off(scenario: Callable[[str], Run]) -> None:
    ran = scenario(OFF)("create-vm a --profile l40s-2q")
    assert (ran.status, "no GPU on this host offers the profile 'l40s-2q'" in ran.err) == (2, True)


@pytest.mark.parametrize("line", ["create-vm a --profile A100-4C --gpu 0", "create-vgpu a --profile A100-4C --gpu 0"])
def test_a_number_that_is_typed_is_no_matter_of_yaml(sim: Run, line: str) -> None:
    ran = sim(line)
    text = "--gpu: '0' is not a GPU: GPUs are named by PCI address or model; vgpuctl list-gpus shows them"
    assert (ran.status, text in ran.err, "YAML" in ran.err) == (2, True, False)


BIG, SMALL = "0000:3b:00.0", "0000:3f:00.0"
FULL = "NVIDIA RTX Pro 4500 Blackwell"
TWO_MODELS = f"""version: 1
libvirt: {{running: true}}
storage: {{pools: [{{name: default}}]}}
networks: [{{name: default}}]
nvidia: {{driver: "595.45.04"}}
gpus:
  - model: RTX PRO 6000
    profiles:
      - NVIDIA RTX Pro 6000 Blackwell DC-8C
      - NVIDIA RTX Pro 6000 Blackwell DC-32C
      - {{name: NVIDIA GeForce RTX 3050, id: 1604, framebuffer_mib: 8192, max: 12}}
  - model: RTX PRO 4500
    profiles:
      - {FULL} DC-8C
      - {FULL} DC-32C
      - {{name: {FULL} DC-1-2, id: 1752, framebuffer_mib: 2048, max: 16}}
"""


@pytest.fixture
def run(scenario: Callable[[str], Run]) -> Run:
    """Run a command on a host with an RTX PRO 6000 and an RTX PRO 4500."""
    return lambda *words: scenario(TWO_MODELS)(shlex.join(("--json", *words)))


def gpus(ran: Ran) -> list[str]:
    """Return the GPUs of a created VM."""
    return [v["gpu"] for v in ran.document["data"]["vgpus"]]


@pytest.mark.parametrize(
    "command", ["fits --profile", "plan-moves --profile", "move-vms --profile", "create-vm vm --profile", "explain"]
)
def test_a_name_that_two_models_share_is_refused_with_both(run: Run, command: str) -> None:
    error = run(*command.split(), "DC-8C").document["error"]
    assert (error["code"], error["facts"]["names"]) == (
        "invalid-input",
        [f"{FULL} DC-8C", "NVIDIA RTX Pro 6000 Blackwell DC-8C"],
    )


def test_by_its_full_name_or_with_its_gpu_it_is_counted_and_placed_on_that_model_alone(run: Run) -> None:
    counts = {count: run("fits", "--profile", f"{FULL} DC-8C:{count}") for count in (4, 5)}
    assert [counts[n].document["data"]["fits"] for n in (4, 5)] == [True, False]
    assert {s["gpu"] for s in counts[4].document["data"]["places"]} == {SMALL}
    assert gpus(run("create-vm", "one", "--profile", f"{FULL} DC-8C")) == [SMALL]
    assert gpus(run("create-vm", "two", "--profile", "DC-8C", "--gpu", BIG)) == [BIG]
    assert gpus(run("create-vm", "any", "--profile", "8C")) in ([BIG], [SMALL])
    for name in ("one", "two", "any"):
        assert run("stop-vm", name, "--force").status == 0
        assert run("start-vm", name).status == 0


def test_both_models_at_once_are_refused_and_no_vm_changes_its_model(run: Run) -> None:
    asked = ("--profile", f"{FULL} DC-1-2", "--profile", "NVIDIA RTX Pro 6000 Blackwell DC-8C")
    for command in ("fits", "plan-moves"):
        error = run(command, *asked).document["error"]
        assert (error["code"], "the same profile name" in error["message"]) == ("invalid-input", True)
    assert gpus(run("create-vm", "one", "--profile", "DC-8C", "--gpu", SMALL)) == [SMALL]
    refused = run("plan-moves", "--profile", f"{FULL} DC-32C")
    assert refused.document["error"]["code"] == "no-capacity"
    assert refused.document["error"]["hint"] == f"vgpuctl explain '{FULL} DC-32C'"


def test_a_type_whose_name_ends_in_no_profile_has_its_whole_name(run: Run) -> None:
    rows = {p["profile"] for p in run("list-profiles").document["data"]}
    assert rows == {"NVIDIA GeForce RTX 3050", "DC-8C", "DC-32C", "DC-1-2"}
    assert run("create-vm", "vm", "--profile", "3050").document["error"]["code"] == "not-found"
    made = run("create-vm", "vm", "--profile", "NVIDIA GeForce RTX 3050")
    assert (made.status, gpus(made)) == (0, [BIG])
    assert run("stop-vm", "vm", "--force").status == run("start-vm", "vm").status == 0
