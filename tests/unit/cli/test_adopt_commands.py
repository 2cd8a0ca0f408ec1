# SPDX-License-Identifier: Apache-2.0
"""adopt on the command line: one VM, several, all of them, and what list-vms says of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.cli.conftest import Run

TWO = """version: 1
gpus:
  - model: T4
    vgpus:
      - {profile: T4-4Q, vm: desk-1}
      - {profile: T4-4Q, vm: desk-2, running: false}
      - {profile: T4-4Q, vm: 'old desk'}
"""


@pytest.fixture
def two(scenario: Callable[[str], Run]) -> Run:
    return scenario(TWO)


def ownerships(run: Run) -> dict[str, tuple[str, bool]]:
    return {vm["name"]: (vm["ownership"], vm["adoptable"]) for vm in run("list-vms --json").document["data"]}


def test_one_vm_is_adopted_and_let_go(two: Run) -> None:
    assert set(ownerships(two).values()) == {("unmanaged", True)}
    preview = two("adopt desk-1 --dry-run")
    assert (preview.status, preview.out.splitlines()[0]) == (0, "would do:")
    assert "record that desk-1 has 1 vGPU" in preview.out
    ran = two("adopt desk-1 --json")
    assert ran.status == 0
    assert (ran.document["changed"], ran.document["data"]["ownership"]) == (True, "managed")
    assert ownerships(two)["desk-1"] == ("managed", False)
    again = two("adopt desk-1")
    assert (again.status, again.out.splitlines()[-1]) == (0, "  nothing to do")
    assert "desk-1: running" in two("adopt desk-1 --release").out
    assert ownerships(two)["desk-1"] == ("unmanaged", True)
    assert two("adopt desk-1 --release --json").document["changed"] is False


def test_several_are_adopted_by_a_glob_and_all_of_them_by_all(two: Run) -> None:
    assert two("adopt 'desk-*' --parallel 2").out.endswith("2 changed\n")
    assert two("create-vm vm --profile T4-4Q --no-start").status == 0
    assert two("adopt --all").out.endswith("1 changed, 3 unchanged\n")
    ran = two("adopt --all --release")
    assert ran.status == 0
    assert ran.out.endswith("3 changed\n")
    assert "note: skipped: " in ran.err
    assert "vgpuctl created vm: only a VM that was adopted can be let go" in ran.err
    assert {name for name, (_, adoptable) in ownerships(two).items() if adoptable} == {"desk-1", "desk-2", "old desk"}


def test_all_of_none_is_a_success_that_says_why(scenario: Callable[[str], Run]) -> None:
    run = scenario("version: 1\ngpus: [{model: T4}]\n")
    assert run("create-vm vm-1 --profile T4-4Q --no-start").status == 0
    assert run("create-vm vm-2 --profile T4-4Q --no-start").status == 0
    before = ownerships(run)
    for line in ("adopt --all --release", "adopt --all --release --dry-run"):
        ran = run(line)
        assert ran.status == 0
        assert "skipped: vm-1: vgpuctl created vm-1: only a VM that was adopted can be let go" in ran.err
        document = run(f"{line} --json").document
        assert (document["changed"], document["data"]["targets"], len(document["data"]["notes"])) == (False, [], 2)
    assert run("adopt 'vm-*' --release").status == 3
    assert run("adopt vm-1 --release").status == 3
    assert ownerships(run) == before


def test_a_failure_of_one_of_several_is_its_own(two: Run) -> None:
    assert two("create-vm vm --profile T4-4Q --no-start").status == 0
    ran = two("adopt desk-1 vm --release --json")
    rows = {row["name"]: row for row in ran.document["data"]["targets"]}
    assert ran.status == 3
    assert rows["vm"]["error"]["code"] == "refused"
    assert (rows["desk-1"]["ok"], rows["desk-1"]["changed"]) == (True, False)


def test_the_list_names_them_with_the_command_quoted(two: Run) -> None:
    ran = two("list-vms")
    assert ran.err.endswith("3 VMs could be adopted: vgpuctl adopt desk-1 desk-2 'old desk'\n")
    assert two("list-vms -o name").err == ""
    assert two("adopt desk-1 desk-2 'old desk'").status == 0
    assert "adopted" not in two("list-vms").err


def test_of_many_the_list_shows_the_command_that_names_them(scenario: Callable[[str], Run]) -> None:
    vgpus = ", ".join(f"{{profile: T4-1Q, vm: d{n}}}" for n in range(4))
    run = scenario(f"version: 1\ngpus:\n  - {{model: T4, vgpus: [{vgpus}]}}\n")
    assert run("list-vms").err.endswith("4 VMs could be adopted: vgpuctl adopt --all --dry-run\n")
    assert run("adopt --all --dry-run").status == 0


def test_a_refusal_has_its_status_and_a_hint(two: Run) -> None:
    assert two("create-vm vm --profile T4-4Q --no-start").status == 0
    ran = two("adopt vm --release")
    assert ran.status == 3
    assert "hint: vgpuctl delete-vm vm, or with --keep-disks" in ran.err
    assert two("adopt").status == 2
    assert two("adopt nobody").status == 2


def test_deleting_all_vms_leaves_an_adopted_one_out(two: Run) -> None:
    assert two("create-vm vm --profile T4-4Q --no-start").status == 0
    assert two("adopt desk-1").status == 0
    ran = two("delete-vm --all --yes")
    assert (ran.status, ran.out.splitlines()[-1]) == (0, "1 deleted")
    assert "desk-1 was not created by vgpuctl, which only adopted it" in ran.err
    assert ownerships(two)["desk-1"] == ("managed", False)
    assert two("delete-vm desk-1 --yes").status == 3
