# SPDX-License-Identifier: Apache-2.0
"""The commands set-mode, cordon and uncordon; --all skips GPUs that cannot have a setting, and says so."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.unit.cli.conftest import Run

FLEX = "0000:86:00.0"


@pytest.fixture
def mixed(sim: Run) -> Run:
    """Run a line on the simulated host with every backend."""
    return partial(sim, host="mixed")


def test_a_gpu_is_set_up_and_says_so(mixed: Run) -> None:
    ran = mixed("set-mode 0000:17:00.0 vgpu")
    assert (ran.status, ran.out) == (0, "0000:17:00.0: vgpu, VFs 16/16, 0 used\n")
    assert mixed("set-mode 0000:17:00.0 vgpu").out == "0000:17:00.0: vgpu, VFs 16/16, 0 used; nothing to do\n"


def test_a_mode_that_does_not_exist_is_a_typing_error(mixed: Run) -> None:
    assert mixed(f"set-mode {FLEX} mig").status == 2
    ran = mixed(f"set-mode {FLEX} sriov --vfs 0")
    assert (ran.status, "--vfs: 0 is not 1 or more" in ran.err) == (2, True)
    assert "--vfs: 'many' is not a whole number, 1 or more" in mixed(f"set-mode {FLEX} sriov --vfs many").err
    assert "--parallel: 65 is not 1 to 64" in mixed("create-vm vm-{} --profile T4-4Q --count 2 --parallel 65").err


def test_a_cordoned_gpu_is_shown_as_such_until_it_is_not(mixed: Run) -> None:
    assert mixed("cordon 0000:3b:00.0 --dry-run").out.startswith("would do:\n")
    assert mixed("cordon 0000:3b:00.0 --json").document["data"]["cordoned"] is True
    assert mixed("cordon A100").out == "0000:3b:00.0: vgpu, cordoned, VFs 16/16, 0 used; nothing to do\n"
    assert "vgpu, cordoned" in mixed("list-gpus").out
    assert "vgpu, cordoned" in mixed("show-gpu 0000:3b:00.0").out
    assert "it is cordoned" in mixed("explain A100-4C").out
    assert mixed("create-vm --profile A100-4C").status == 4
    assert mixed("uncordon 0000:3b:00.0 --json").document["changed"] is True
    assert mixed("create-vm --profile A100-4C").status == 0


def before_and_after(sim: Run, host: str, line: str) -> dict[str, dict[str, object]]:
    """Run a command that changes a GPU, and return its state before and after."""
    ran = sim(f"{line} --json", host)
    assert ran.status == 0, ran.document
    return {side: ran.document["data"][side] for side in ("before", "after")}


@pytest.mark.parametrize(
    ("host", "line", "changes"),
    [
        ("mixed", f"set-mode {FLEX} sriov --vfs 4", {"vfs": (8, 4)}),
        ("mixed", f"set-mode {FLEX} passthrough", {"mode": ("sriov", "passthrough"), "vfs": (8, None)}),
        ("mixed", f"set-mode {FLEX} unmanaged", {"mode": ("sriov", "unmanaged"), "vfs": (8, None)}),
        ("a100-40", "set-mode A100 passthrough", {"mode": ("vgpu", "passthrough")}),
        ("a100-40", "cordon A100", {"cordoned": (None, True)}),
        ("a100-40", "uncordon A100", {}),
        ("a100-40", "set-scheduler A100 --policy equal_share", {"scheduler": (None, {"policy": "equal_share"})}),
        (
            "b60",
            "set-scheduler 0000:5e:00.0 --policy equal_share --time-slice 16 --preempt-timeout 20000",
            {"scheduler": (None, {"policy": "equal_share", "time_slice_ms": 16, "preempt_timeout_us": 20000})},
        ),
        ("h100-mig", "set-mig 0000:3f:00.0 3g.40gb", {"mig": (None, ["3g.40gb"])}),
        ("h100-mig", "set-mig 0000:3b:00.0 --off", {"mig": (["3g.40gb", "1g.10gb", "1g.10gb"], "off")}),
        ("rtx-pro-6000", "set-mixed-size 0000:3b:00.0 on", {"mixed_size": (None, True)}),
        (
            "mi300x",
            "set-mode 0000:3b:00.0 sriov --compute-partition CPX --memory-partition NPS4",
            {"compute_partition": ("SPX", "CPX"), "memory_partition": ("NPS1", "NPS4")},
        ),
        (
            "mi300x",
            "set-mode 0000:3b:00.0 sriov --vfs 4",
            {"vfs": (1, 4), "compute_partition": ("SPX", "QPX")},
        ),
    ],
)
def test_a_gpu_has_before_and_after_values_as_in_apply(
    sim: Run, host: str, line: str, changes: dict[str, tuple[object, object]]
) -> None:
    planned = before_and_after(sim, host, f"{line} --dry-run")
    before, after = planned["before"], planned["after"]
    assert {key: (before[key], after[key]) for key in before if before[key] != after[key]} == changes
    assert before_and_after(sim, host, line) == planned
    assert before_and_after(sim, host, line) == {"before": after, "after": after}, "what was said to be is so"


def test_settings_changed_by_a_mode_are_shown(sim: Run) -> None:
    asked = {"policy": "fixed_share"}
    lines = ["set-scheduler A100 --policy fixed_share", "set-mode A100 passthrough", "set-mode A100 vgpu"]
    result = [before_and_after(sim, "a100-40", line) for line in lines]
    schedulers = [(one["before"]["scheduler"], one["after"]["scheduler"]) for one in result]
    assert schedulers == [(None, asked), (asked, None), (None, asked)]


def test_a_card_with_its_audio_is_one_gpu_and_names_what_goes_with_it(mixed: Run) -> None:
    gpu, audio = "0000:d8:00.0", "0000:d8:00.1"
    made = mixed(f"create-vm card --mode passthrough --gpu {gpu} --json").document["data"]
    seen = mixed("show-vm card --json").document["data"]
    row = next(row for row in mixed("list-gpus --json").document["data"] if row["address"] == gpu)
    for data in (made, seen, row, mixed(f"show-gpu {gpu} --json").document["data"]):
        assert [(v["carrier"], v["companions"]) for v in data["vgpus"]] == [(gpu, [audio])]
    assert f"gpu:       {gpu} with {audio}" in mixed("show-vm card").out
    assert f"{gpu}, {audio}" in mixed(f"show-gpu {gpu}").out
    assert "2" not in next(line for line in mixed("list-gpus").out.splitlines() if line.startswith(gpu)).split()[-1]
    assert mixed("delete-vm card --yes").status == 0


FIRST, SECOND, THIRD = "0000:3b:00.0", "0000:3f:00.0", "0000:43:00.0"
TEXT = "version: 1\ngpus:\n  - {model: %s}\n  - {model: A40, driver: vfio-pci}\n  - {model: Flex 170}\n"


@pytest.fixture
def a40(scenario: Callable[[str], Run]) -> Run:
    """Run a line on a host with an A40, one on vfio-pci, and a GPU of another maker."""
    return scenario(TEXT % "A40")


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("A40", "set-scheduler --all --policy fixed_share"),
        ("RTX PRO 6000 Blackwell SE", "set-mixed-size --all on"),
        ("A100", "set-mig --all 1g.5gb"),
        ("A40", "set-mode --all vgpu --dry-run"),
    ],
)
def test_all_skips_what_cannot_have_it_and_says_so(scenario: Callable[[str], Run], model: str, line: str) -> None:
    ran = scenario(TEXT % model)(f"--yes {line}")
    assert ran.status == 0, ran.err
    for address in (SECOND, THIRD):
        assert f"note: skipped: {address} (" in ran.err
        assert f"{address}: {address}" not in ran.err
    assert "failed" not in ran.err + ran.out


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("set-mig --all 1g.5gb", "3 of 3 failed"),
        (f"set-scheduler {FIRST} {SECOND} --policy fixed_share", "1 of 2 failed"),
    ],
    ids=["all where no GPU can have it", "a named GPU that cannot have it"],
)
def test_it_fails(a40: Run, line: str, failed: str) -> None:
    ran = a40(f"--yes {line}")
    assert (ran.status, failed in ran.err) == (6, True)


def test_a_gpu_on_vfio_pci_is_named_and_how_to_give_it_to_its_driver(a40: Run) -> None:
    for line in (
        f"set-mode {SECOND} vgpu",
        f"create-vm one --profile A40-8Q --gpu {SECOND}",
        f"set-scheduler {SECOND} --policy fixed_share",
    ):
        ran = a40(f"--yes {line}")
        assert "hint: vfio-pci has it; give it to nvidia now: virsh nodedev-reattach pci_0000_3f_00_0" in ran.err
        assert "install the" not in ran.err


def test_warnings_of_diff_say_an_address_once(a40: Run) -> None:
    assert a40("create-vm one --profile A40-8Q").status == 0
    ran = a40("diff -f -", text=f"version: 1\ngpus:\n  '{FIRST}': {{mode: passthrough}}\n")
    assert f"warning: {FIRST} is in use" in ran.err
    assert f"{FIRST}: {FIRST}" not in ran.err


def test_partition_modes_are_a_setting_of_host_yaml(sim: Run) -> None:
    key = "gpus[0000:3b:00.0]"
    words = f"--set '{key}.mode=sriov' --set '{key}.compute_partition=CPX' --set '{key}.memory_partition=NPS4'"
    assert sim(f"diff {words}", "mi300x").status == 7
    applied = sim(f"apply {words} --yes", "mi300x")
    assert applied.status == 0, applied.err
    assert "compute partition: CPX" in sim("show-gpu 0000:3b:00.0", "mi300x").out
    assert "no differences" in sim("diff", "mi300x").out
    ran = sim("set-mode 0000:3b:00.0 passthrough --compute-partition CPX", "mi300x")
    assert (ran.status, "partition modes need the mode sriov" in ran.err) == (2, True)
    wrong = sim(f"diff --set '{key}.compute_partition=CPX' --set '{key}.mode=vgpu'", "mi300x")
    assert "compute_partition needs the mode sriov, not vgpu" in wrong.err
