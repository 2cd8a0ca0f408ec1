# SPDX-License-Identifier: Apache-2.0
"""set-vm from the command line: every option, several VMs, the question, and what is refused before a change."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from tests.clusters import put_cluster
from tests.domain_joins import put_blob
from tests.drivers import put_driver, run_name
from tests.licenses import put_license
from tests.unit.cli.command_tree import walk_commands
from tests.unit.cli.conftest import Run
from vgpuctl.config.vm_request import CHANGE_FIELDS, CONSTRAINT_FIELDS, LABEL_FIELDS, UPDATABLE_FIELDS, VmRequest
from vgpuctl.errors import InvalidInput

FIELDS: dict[str, tuple[str, str, Any]] = {
    "memory": ("--memory 8GiB", "memory_mib", 8192),
    "vcpus": ("--vcpus 6", "vcpus", 6),
    "hugepages": ("--hugepages=2MiB", "hugepages", "2MiB"),
    "cpu_pin": ("--cpu-pin 0-3", "pinned_cpus", "0-3"),
    "networks": ("--network none", "networks", []),
    "reserve": ("--reserve running", "reserve", "running"),
    "labels": ("--label team=cad", "labels", {"team": "cad"}),
    "owner": ("--owner ada", "owner", "ada"),
    "guest_sharing": ("--guest-sharing mps", "guest_sharing", "mps"),
    "license": ("--license cad", "license", "cad"),
    "guest_driver": ("--guest-driver DRIVER", "guest_driver", "DRIVER"),
    "k8s_join": ("--k8s-join lab", "k8s_join", "lab"),
    "guest_helper": ("--guest-helper", "guest_helper", True),
    "off_after_setup": ("--off-after-setup", "off_after_setup", True),
    "autostart": ("--autostart enabled", "autostart", "enabled"),
    "autostart_storage": ("--autostart-storage any", "autostart_storage", "any"),
    "start_order": ("--start-order 7", "start_order", 7),
}


@pytest.fixture
def off(sim: Run) -> Run:
    """Return the program on a host with a VM that is off."""
    made = "create-vm vdi-1 --profile A100-4C --image /srv/images/ubuntu-24.04.qcow2 --guest-sharing time-slicing:2"
    assert sim(f"{made} --no-start").status == 0
    etc = Path(os.environ["XDG_STATE_HOME"]) / "vgpuctl/a100-40/etc/vgpuctl"
    put_license(etc)
    put_cluster(etc)
    return sim


@pytest.fixture
def on(off: Run) -> Run:
    """Return the program on a host with a VM that runs."""
    assert off("start-vm vdi-1").status == 0
    return off


def shown(run: Run, name: str = "vdi-1") -> dict[str, Any]:
    """Return the VM's document."""
    data: dict[str, Any] = run(f"show-vm {name} --json").document["data"]
    return data


def test_every_field_that_can_change_has_its_option_and_no_other_has(sim: Run) -> None:
    (command,) = (one for words, one in walk_commands() if words.split()[-1] == "set-vm")
    fields = {p.name for p in command.params if p.name in VmRequest.declared}
    assert fields == {*UPDATABLE_FIELDS, *LABEL_FIELDS, *CONSTRAINT_FIELDS} - {"spread_group"} == {*CHANGE_FIELDS}
    help_text = sim("set-vm --help").out
    assert not any(f"[{VmRequest.declared[field].default_text}]" in help_text for field in fields)
    marked = {p.name for p in command.params if "[at any time]" in (getattr(p, "help", None) or "")}
    assert marked == {*LABEL_FIELDS}


@pytest.mark.parametrize("field", FIELDS)
def test_each_option_changes_its_field_alone_and_only_once(off: Run, field: str, tmp_path: Path) -> None:
    driver = str(put_driver(tmp_path, run_name("550.90.07")))
    option, key, value = (part.replace("DRIVER", driver) if isinstance(part, str) else part for part in FIELDS[field])
    before = shown(off)
    changed = off(f"set-vm vdi-1 {option} --json").document
    assert (changed["changed"], changed["data"][key]) == (True, value)
    differing = {name for name, now in shown(off).items() if now != before[name]} - {"vgpus", "memory_nodes"}
    assert differing == {key, "generation", *(["disks"] if field == "guest_driver" else [])}
    again = off(f"set-vm vdi-1 {option} --json").document
    assert (again["changed"], again["data"]["steps"]) == (False, [])
    assert (before["generation"], changed["data"]["generation"], again["data"]["generation"]) == (0, 1, 1)


def test_a_guest_with_windows_is_in_another_domain_from_its_next_disk_on(sim: Run) -> None:
    made = "create-vm win-1 --profile A100-4C --image /srv/images/ubuntu-24.04.qcow2 --os windows11 --guest-helper"
    assert sim(f"{made} --no-start").status == 0
    put_blob(Path(os.environ["XDG_STATE_HOME"]) / "vgpuctl/a100-40/etc/vgpuctl", "win-1")
    before = shown(sim, "win-1")
    changed = sim("set-vm win-1 --domain-join corp --json").document
    assert (changed["changed"], changed["data"]["domain_join"]) == (True, "corp")
    assert any(text.startswith("the guest of win-1 joins corp with vgpuctl refresh-vm") for text in changed["warnings"])
    now = shown(sim, "win-1")
    assert {name for name in now if now[name] != before[name]} == {"domain_join", "generation"}
    assert not sim("set-vm win-1 --domain-join corp --json").document["changed"]
    refused = sim("set-vm win-1 --domain-join lab")
    assert (refused.status, "there is no domain lab on this host" in refused.err) == (2, True)


def test_a_display_is_turned_on_and_off(sim: Run) -> None:
    assert sim("create-vm vdi-1 --profile T4-4Q --no-start", "t4").status == 0
    assert sim("set-vm vdi-1 --display --json", "t4").document["data"]["display"] is True
    assert sim("set-vm vdi-1 --vcpus 3 --json", "t4").document["data"]["display"] is True
    assert sim("set-vm vdi-1 --no-display --json", "t4").document["data"]["display"] is False


def test_values_are_taken_back(off: Run) -> None:
    set_all = "--hugepages=2MiB --cpu-pin=0-3 --network none --label a=1 --label b=2 --owner ada --reserve running"
    assert off(f"set-vm vdi-1 {set_all}").status == 0
    back = "--hugepages none --cpu-pin none --network default --label a- --owner '' --reserve always"
    vm = off(f"set-vm vdi-1 {back} --json").document["data"]
    assert (vm["hugepages"], vm["pinned_cpus"], vm["owner"], vm["labels"], vm["reserve"]) == (
        "none",
        None,
        None,
        {"b": "2"},
        "always",
    )
    assert [card["network"] for card in vm["networks"]] == ["default"]


WRONG = {
    "": ("nothing to change is given", "the options are --profile, --gpu"),
    "--memory 8X --vcpus none --reserve always": ("--memory: ", ""),
    "--vcpus 0": ("--vcpus: ", ""),
    "--numa-node 0 --placement depth": ("--numa-node, --placement: says where", "add --profile, --gpu or --not-gpu"),
    "--label a": ("--label: 'a' is not a label", "KEY=VALUE sets a label, and KEY- removes it"),
    "--label a=1 --label a-": ("--label: the label 'a' is given twice", "KEY=VALUE"),
    "--label 'a b-'": ("--label: 'a b' is not a label's key", "KEY=VALUE"),
    "--owner ' x'": ("--owner: ' x' is not an owner", ""),
    "--reserve never": ("--reserve: 'never' is not one of", ""),
    "--image /srv/a.qcow2": ("no such option '--image'", "vgpuctl refresh-vm VM --image IMAGE"),
    "--disk 50GiB": ("no such option '--disk'", "vgpuctl resize-disk VM SIZE"),
    "--gpus 2": ("no such option '--gpus'", "vgpuctl attach-gpu VM --gpus N"),
    "--os windows11": ("no such option '--os'", "only a new VM can have it (create-vm); 'vgpuctl set-vm --help'"),
    "--ram 8GiB": ("no such option '--ram'", "did you mean --memory?"),
    "--gpu T4 --profile A100-5C": ("no GPU", ""),
    "--not-gpu T4": ("no GPU", ""),
    "--profile A100-9C": ("no GPU on this host offers the profile 'A100-9C'", "did you mean"),
}


@pytest.mark.parametrize("names", ["vdi-1", "'vdi-*' --drain --yes"])
@pytest.mark.parametrize("words", WRONG)
def test_wrong_input_is_refused_once_and_nothing_changes(on: Run, words: str, names: str) -> None:
    message, hint = WRONG[words]
    before = shown(on)
    ran = on(f"set-vm {names} {words} --json")
    error = ran.document["error"]
    assert (ran.status, error["exit_status"], ran.document["changed"]) == (2, 2, False)
    assert message in error["message"]
    assert error["message"].count(message) == 1
    assert hint in (error["hint"] or "")
    assert shown(on) == before


@pytest.mark.parametrize("words", ["--label team=cad --memory 8GiB", "--memory 8GiB", "--all vdi-1 --vcpus 3"])
def test_no_vm_or_too_many_are_a_usage_error(sim: Run, words: str) -> None:
    ran = sim(f"set-vm {words}")
    assert ran.status == 2
    assert "--select-label" in ran.err or "cannot be combined" in ran.err


def test_vms_are_selected_by_label_and_owner_with_options_of_their_own(sim: Run) -> None:
    assert sim("create-vm a --profile A100-4C --label team=cad --owner ada").status == 0
    assert sim("create-vm b --profile A100-4C --label team=sim").status == 0
    assert sim("set-vm --select-label team=cad --label room=1").status == 0
    assert sim("set-vm --select-owner ada --owner eve").status == 0
    assert (shown(sim, "a")["labels"], shown(sim, "a")["owner"]) == ({"room": "1", "team": "cad"}, "eve")
    assert (shown(sim, "b")["labels"], shown(sim, "b")["owner"]) == ({"team": "sim"}, None)
    assert {v["vm"]: v["owner"] for v in sim("list-vgpus --json").document["data"]} == {"a": "eve", "b": None}
    assert "--select-label: 'x' is not a label" in sim("set-vm --select-label x --vcpus 2").err


def test_one_question_for_all_that_run_and_none_for_the_others(on: Run) -> None:
    assert on("create-vm vdi-2 --profile A100-4C --no-start").status == 0
    refused = on("set-vm 'vdi-*' --vcpus 4 --drain --json").document["error"]
    assert refused["message"].endswith("Shut down 1 running VM (vdi-1), change it, and start it again?")
    assert "vdi-1: shut down VM vdi-1" in refused["facts"]["lines"]
    assert [shown(on, name)["vcpus"] for name in ("vdi-1", "vdi-2")] == [2, 2]
    done = on("--yes set-vm 'vdi-*' --vcpus 4 --drain")
    assert done.out.endswith("2 changed\n")
    assert [(shown(on, name)["vcpus"], shown(on, name)["state"]) for name in ("vdi-1", "vdi-2")] == [
        (4, "running"),
        (4, "stopped"),
    ]


def test_a_dry_run_of_several_shows_every_step_and_asks_nothing(on: Run) -> None:
    ran = on("set-vm 'vdi-*' --profile A100-8C --drain --dry-run")
    assert (ran.status, "vdi-1: shut down VM vdi-1" in ran.out) == (0, True)
    assert "vdi-1: change VM vdi-1: profile: A100-4C -> A100-8C" in ran.out
    assert ran.out.endswith("1 would be changed\n")
    assert shown(on)["vgpus"][0]["profile"] == "A100-4C"


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("set-profile vdi-1 --profile A100-5C", "vgpuctl set-vm VM --profile PROFILE"),
        ("label-vm vdi-1 team=cad", "vgpuctl set-vm VM --label KEY=VALUE"),
        ("set-owner vdi-1 ada", "vgpuctl set-vm VM --owner NAME"),
        ("resize-vm vdi-1", "vgpuctl set-vm VM --memory SIZE --vcpus N"),
        ("setvcpus vdi-1 4", "vgpuctl set-vm VM --vcpus N"),
    ],
)
def test_old_and_usual_names_are_answered_with_the_line(sim: Run, line: str, command: str) -> None:
    ran = sim(line)
    assert (ran.status, f"did you mean '{command}'?" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image": "/srv/a"}, "image: this takes "),
        ({"labels": {"a": 1.5}}, "--label: "),
        ({"labels": 7}, "--label: expected a mapping"),
        ({"owner": 7}, "--owner: "),
        ({"display": "yes"}, "--display: "),
        ({"memory": None}, "nothing to change is given"),
    ],
)
def test_the_library_refuses_the_same(
    fields: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    host = vgpuctl.open_host("sim:a100-40")
    with pytest.raises(InvalidInput) as raised:
        host.set_vm("vdi-1", **fields)
    assert message in raised.value.message


def test_the_hint_of_an_error_runs_as_pasted(on: Run) -> None:
    error = on("set-vm vdi-1 --vcpus 4 --json").document["error"]
    assert error["hint"] == "vgpuctl stop-vm vdi-1, then run the command again; or add --drain"
    stop = shlex.split(error["hint"].partition(",")[0])
    assert on(shlex.join(stop[1:])).status == 0
    assert on("set-vm vdi-1 --vcpus 4").status == 0
