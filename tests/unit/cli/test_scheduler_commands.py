# SPDX-License-Identifier: Apache-2.0
"""The command set-scheduler, with every option; what show-gpu, list-gpus and doctor show of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run
from vgpuctl.config import gpu_spec as spec
from vgpuctl.config.arguments import SCHEDULER_POLICIES

GPU = "0000:3b:00.0"


def modprobe_file(tmp_path: Path, line: str) -> None:
    (host_file,) = tmp_path.rglob("etc/vgpuctl/host.yaml")
    folder = host_file.parents[1] / "modprobe.d"
    folder.mkdir(exist_ok=True)
    (folder / "vgpuctl-nvidia.conf").write_text(f"{line}\n")


def test_command_line_values_match_the_program() -> None:
    assert SCHEDULER_POLICIES == spec.POLICIES


def test_it_is_set_and_shown(sim: Run) -> None:
    ran = sim(f"set-scheduler {GPU} --policy fixed_share --time-slice 2")
    assert (ran.status, ran.out) == (0, f"{GPU}: fixed_share, slices of 2 ms\n")
    assert "lost when the driver is loaded again: vgpuctl restore-host sets them again" in ran.err
    again = sim(f"set-scheduler {GPU} --policy fixed_share --time-slice 2")
    assert again.out == f"{GPU}: fixed_share, slices of 2 ms; nothing to do\n"
    shown = sim(f"show-gpu {GPU}").out
    assert "fixed_share, slices of 2 ms; configured: fixed_share, time slice 2 ms" in shown
    (gpu,) = sim("list-gpus --json").document["data"]
    assert gpu["scheduler"]["running"]["policy"] == "fixed_share"
    assert sim("list-gpus --columns scheduler --no-headers").out.split() == ["fixed_share"]
    assert "SCHEDULER" in sim("list-gpus -o wide").out
    assert "SCHEDULER" not in sim("list-gpus").out


def test_adaptive_round_robin_and_a_dry_run(sim: Run) -> None:
    line = f"set-scheduler {GPU} --policy equal_share --frequency 500 --averaging-factor 20"
    assert "set the scheduler of 0000:3b:00.0 to equal_share, 500 Hz" in sim(f"{line} --dry-run").out
    document = sim(f"{line} --json").document
    assert document["changed"]
    assert document["data"]["scheduler"]["running"]["averaging_factor"] == 20
    shown = sim(f"show-gpu {GPU}").out
    assert "slices of 2 ms on the average, averaging factor 20" in shown


def test_vms_are_named_before_they_are_drained_and_each_has_its_time_share(sim: Run) -> None:
    for name in ("one", "two"):
        assert sim(f"create-vm {name} --profile A100-10C").status == 0
    line = f"set-scheduler {GPU} --policy fixed_share --drain"
    asked = sim(f"{line} --json").document["error"]
    assert f"Shut down 2 running VMs on {GPU}, and start them again afterwards?" in asked["message"]
    assert (asked["code"], asked["facts"]["vms"]) == ("needs-confirmation", ["one", "two"])
    assert asked["facts"]["lines"][0] == f"VM one on {GPU} is shut down, and started again"
    assert sim("list-gpus --columns scheduler --no-headers").out.split() == ["best_effort"]
    assert sim(f"{line} --yes").status == 0
    assert "25 %" in sim(f"show-gpu {GPU}").out


WEIGHTS = """version: 1
libvirt: {running: true}
storage: {pools: [{name: default}]}
networks: [{name: default}]
nvidia: {driver: "DRIVER"}
gpus: [{model: A40}]
"""


@pytest.mark.parametrize(
    ("driver", "word", "percent"),
    [
        ("580.105.06", "RmPVMRL=0x1", 50.0),
        ("590.48.01", "RmPVMRL=0x1", None),
        ("595.45.04", "RmPVMRL=0x1", None),
        ("595.45.04", "RmPVMRL=0x9", 50.0),
    ],
)
def test_equal_share_is_a_number_only_without_driver_weights(
    scenario: Callable[[str], Run], tmp_path: Path, driver: str, word: str, percent: float | None
) -> None:
    run = scenario(WEIGHTS.replace("DRIVER", driver))
    assert run(f"set-scheduler {GPU} --policy equal_share").status == 0
    modprobe_file(tmp_path, f'options nvidia NVreg_RegistryDwords="{word}"')
    assert run("sim reboot").status == 0
    assert run("create-vm one --profile A40-12Q").status == 0
    alone = run(f"show-gpu {GPU} --json").document["data"]["shares"]
    assert [s["guaranteed_percent"] for s in alone] == [100.0]
    assert run("create-vm two --profile A40-12Q").status == 0
    shares = run(f"show-gpu {GPU} --json").document["data"]["shares"]
    assert [s["guaranteed_percent"] for s in shares] == [percent, percent]
    assert all(("this driver weights vGPUs" in s["note"]) is (percent is None) for s in shares)
    shown = run(f"show-gpu {GPU}").out
    assert ("not known: this driver weights vGPUs" in " ".join(shown.split())) is (percent is None)


def test_where_nvml_cannot_set_it_the_line_for_a_file_is_shown(scenario: Callable[[str], Run], tmp_path: Path) -> None:
    run = scenario("version: 1\nnvidia: {driver: 550.90.05, nvml: absent}\ngpus: [{model: A100}]\n")
    command = f"set-scheduler {GPU} --policy equal_share"
    line = f'options nvidia NVreg_RegistryDwordsPerDevice="pci={GPU};RmPVMRL=0x00000001"'
    dry = run(f"{command} --dry-run")
    assert (dry.status, line in dry.out + dry.err) == (0, True)
    ran = run(command)
    assert (ran.status, line in ran.err) == (6, True)
    assert f"{GPU} does not run the scheduler equal_share: NVML cannot set it" in ran.err
    everything = run("set-scheduler --all --policy equal_share")
    assert (everything.status, line in everything.err) == (6, True)
    assert f"vgpuctl {command} shows the line for modprobe's files" in run("doctor scheduler").out
    modprobe_file(tmp_path, line)
    assert "next load:" in run(f"show-gpu {GPU}").out
    run("sim reboot")
    assert run(command).status == 0
    assert "driver loaded with" in run(f"show-gpu {GPU}").out
    checks = run("doctor scheduler registry-word registry-lines --json").document["data"]["checks"]
    assert [check["verdict"] for check in checks] == ["ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        ("", 2, "--policy"),
        ("--policy fair", 2, "fair"),
        ("--policy equal_share --time-slice 0", 2, "--time-slice"),
        ("--policy equal_share --frequency 2000", 2, "--frequency: 2000 is not between 1 and 1023"),
        ("--policy equal_share --time-slice 2 --frequency 480", 2, "--time-slice: a time slice and adaptive"),
        ("--policy best_effort --averaging-factor 3", 2, "--averaging-factor: best_effort has neither"),
        ("--policy equal_share --time-slice 31", 6, "the driver accepts 1 to 30 ms"),
    ],
)
def test_invalid_values(sim: Run, words: str, status: int, text: str) -> None:
    ran = sim(f"set-scheduler {GPU} {words}")
    assert ran.status == status
    assert text in ran.err
