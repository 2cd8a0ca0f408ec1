# SPDX-License-Identifier: Apache-2.0
"""The commands set-mig and set-mixed-size, with every option, their documents, and host.yaml through apply."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.unit.cli.conftest import Run

A, B = "0000:3b:00.0", "0000:3f:00.0"


@pytest.fixture
def h100(sim: Run) -> Run:
    """Run a line on the simulated host with two H100, the first with MIG on."""
    return partial(sim, host="h100-mig")


def test_a_gpu_is_partitioned_and_says_so(h100: Run) -> None:
    ran = h100(f"set-mig {B} 3g.40gb 1g.10gb:2")
    assert (ran.status, ran.out.startswith(f"{B}: mig-vgpu, MIG with 3g.40gb, 1g.10gb (2), VFs 32/32")) == (0, True)
    assert h100(f"set-mig {B} 3g.40gb 1g.10gb:2").out.endswith("; nothing to do\n")
    document = h100(f"set-mig {B} --for H100-1-10C:4 --drain --json").document
    assert document["data"]["partition"] == {"mig": True, "instances": ["1g.10gb"] * 4, "mixed_size": None}
    assert "MIG" not in h100(f"set-mig {B} --off").out
    assert h100(f"set-mixed-size {B} on").out.startswith(f"{B}: vgpu, mixed sizes, VFs 32/32")
    document = h100(f"set-mixed-size {B} off --drain --json").document
    assert document["data"]["partition"]["mixed_size"] is False


def test_lists_say_that_a_gpu_has_mixed_sizes_and_filters_know_it(h100: Run) -> None:
    assert "mixed sizes" not in h100("list-gpus").out
    h100(f"set-mixed-size {B} on")
    assert "  vgpu, mixed sizes  " in h100("list-gpus").out
    assert h100("list-gpus --filter mixed-size=yes -o name").out == f"{B}\n"
    assert "mode:        vgpu, mixed sizes\n" in h100(f"show-gpu {B}").out


def test_show_gpu_lists_the_profiles_with_room_and_counts_the_others(sim: Run) -> None:
    sim("create-vm one --profile A100-20C")
    shown = sim(f"show-gpu {A}").out
    assert [line.split()[0] for line in shown.splitlines()[-4:]] == ["PROFILE", "A100-20C", "12", "every"]
    assert "\n12 more profiles have no room: vgpuctl explain A100-4C\n" in shown
    sim("create-vm two --profile A100-20C")
    shown = sim(f"show-gpu {A}").out.splitlines()
    assert shown[-2:] == [
        "13 profiles have no room: vgpuctl explain A100-4C", f"every profile: vgpuctl list-profiles --gpu {A} --all",
    ]  # fmt: skip
    assert len(sim(f"list-profiles --gpu {A} --all").out.splitlines()) == 14
    assert len(sim(f"show-gpu {A} --json").document["data"]["types"]) == 13


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ("", "specify one of GPU instance profiles, --for VGPU_PROFILE:N, and --off"),
        ("1g.10gb --off", "specify one of"),
        ("1g.10gb --for H100-1-10C", "specify one of"),
        ("1g.10gb:0", "'0' after the colon is not a number, 1 to 16"),
        ("H100-1-10C", "is not a GPU instance profile, like 1g.10gb"),
        ("--for 1g.10gb:2", "is a GPU instance profile: write a list"),
    ],
)
def test_invalid_set_mig_arguments_exit_with_2(h100: Run, words: str, messages: str) -> None:
    ran = h100(f"set-mig {A} {words}")
    assert (ran.status, messages in ran.err) == (2, True), ran.err


def test_a_vm_in_the_way_has_a_hint_for_it(h100: Run) -> None:
    h100(f"create-vm vm --profile H100-3-40C --gpu {A}")
    hint = h100(f"set-mig {A} --off --json").document["error"]["hint"]
    assert "vgpuctl move-vms --from 0000:3b:00.0 moves VMs to other GPUs" in hint


def test_apply_partitions_and_diff_and_export_agree_with_it(h100: Run) -> None:
    assert h100("diff --quiet").status == 0
    setting = f"--set 'gpus[{B}].mode=vgpu' --set 'gpus[{B}].mig=[3g.40gb]'"
    ran = h100(f"diff {setting} --json")
    (gpu,) = ran.document["data"]["gpus"]
    assert gpu["differences"] == [{"key": "mig", "wanted": ["3g.40gb"], "is": "off"}]
    assert gpu["after"]["mig"] == ["3g.40gb"]
    assert h100(f"apply {setting}").status == 0
    assert "mig: [3g.40gb]" in h100("export").out
    assert h100("diff --quiet").status == 0
    (changed,) = h100(f"apply --set 'gpus[{B}].mig={{H100-3-40C: 2}}' --json").document["data"]["gpus"]
    assert changed["after"]["mig"] == {"H100-3-40C": 2}
    assert h100(f"apply --set 'gpus[{B}].mig=off' --set 'gpus[{B}].mixed_size=true'").status == 0
    assert "mixed_size: true" in h100("export").out
    ran = h100(f"apply --set 'gpus[{B}].scheduler.policy=fixed_share'")
    assert (ran.status, "not fixed_share" in ran.err) == (2, True)
    mixed = f"--set 'gpus[{B}].mixed_size=null' --set 'gpus[all].mixed_size=true' --set 'gpus[all].mode=vgpu'"
    assert h100(f"apply {mixed}").status == 6
    assert h100(f"apply {mixed} --set 'gpus[{A}].mig=off'").status == 0
    ran = h100(f"apply --set 'gpus[{B}].scheduler.policy=fixed_share' --dry-run")
    assert (ran.status, "takes only best_effort and equal_share" in ran.err) == (6, True)


FAULTY = f"""version: 1
kernel: 7.0.0-1
nvidia: {{driver: '570.133.10'}}
gpus: [{{model: MODEL, address: '{A}'}}, {{model: MODEL, address: '{B}'}}]
faults: [FAULT]
"""


@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("nvml-set-mig", f"set-mig {A} 3g.40gb"),
        ("nvml-make-instance", f"set-mig {A} 3g.40gb"),
        ("nvml-set-mixed-size", f"set-mixed-size {A} on"),
        ("nvml-set-scheduler", f"set-scheduler {A} --policy equal_share"),
    ],
)
def test_an_unknown_nvml_error_is_reported_with_the_request(
    scenario: Callable[[str], Run], call: str, line: str
) -> None:
    """An error that was its own cause once led to an endless loop."""
    fault = f"{{on: {call}, match: '*', message: something new}}"
    ran = scenario(FAULTY.replace("MODEL", "H100").replace("FAULT", fault))(line)
    assert (ran.status, ": something new   [nvml-failed]" in ran.err, A in ran.err.splitlines()[-3]) == (1, True, True)


def test_a_mig_mode_that_waits_for_a_boot_is_explained_by_the_doctor(scenario: Callable[[str], Run]) -> None:
    fault = "{on: nvml-set-mig, match: '*', kind: pending}"
    ran = scenario(FAULTY.replace("MODEL", "A100").replace("FAULT", fault))(f"set-mig {A} 3g.20gb --json")
    assert ran.status == 5
    assert [row["id"] for row in ran.document["error"]["facts"]["doctor"]] == ["mig-mode"]


def test_vgpus_that_have_no_instances_are_named_as_host_yaml_names_them(h100: Run) -> None:
    h100(f"set-mig {B} --for H100-1-10C:4")
    h100("sim reboot")
    assert f"  {B}: mig is off, not H100-1-10C: 4\n" in h100("doctor partition").out
