# SPDX-License-Identifier: Apache-2.0
"""Every command on a simulated host, from the command line to the printed result, with all its options."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.command_cases import CASES
from tests.unit.cli.command_tree import walk_commands
from tests.unit.cli.conftest import Run
from vgpuctl.cli.command import Command
from vgpuctl.cli.command_table import COMMANDS, GROUPS

GPU = "0000:3b:00.0"


def test_every_command_has_a_line_for_the_tests() -> None:
    assert [*CASES] == [name for name in COMMANDS if name not in GROUPS]


def test_the_main_job(sim: Run) -> None:
    ran = sim("create-vm vdi-001 --profile A100-4C")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("vdi-001: running\n  vgpu  A100-4C on GPU 0000:3b:00.0 (")
    assert re.search(r"^\[ ?1/\d+\] ", ran.err)
    assert "note: " in ran.err


def test_reading_commands(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    assert len(sim("list-gpus --all --json").document["data"]) >= len(sim("list-gpus --json").document["data"])
    room = sim(f"list-profiles --gpu {GPU} --json").document["data"]
    assert [row["free"] for row in room if row["profile"] == "A100-4C"] == [9]
    assert len(sim("list-profiles --all --json").document["data"]) > len(room)
    for line in ("list-gpus", f"show-gpu {GPU}", "list-profiles", "explain A100-4C", "list-vms", "show-vm vdi-001"):
        ran = sim(line)
        assert ran.status == 0
        assert ran.out
        assert "\x1b" not in ran.out


def test_reaching_a_vm(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C --image /srv/images/ubuntu-24.04.qcow2").status == 0
    assert sim("show-console vdi-001 --json").document["data"]["graphics"][0]["password"] is False
    page = sim("show-console vdi-001")
    assert "vnc:    127.0.0.1:59" in page.out
    assert "serial: virsh -c qemu:///system console vdi-001" in page.out
    assert "the command after 'serial:' opens the serial console in this terminal; Ctrl-] leaves it" in page.err
    assert "ssh -L 59" in page.err
    known = sim("show-address vdi-001 --json").document["data"]
    assert known["source"] == "lease"
    seen = sim("show-address vdi-001 --seen-by-host --json").document["data"]
    assert (seen["source"], seen["addresses"]) == ("lease", known["addresses"])
    result = sim("show-address vdi-001")
    assert result.out == f"{known['addresses'][0]['address']}\n"
    assert result.err == "known from a DHCP lease\n"


def test_names_that_are_not_there(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    for line, text in (
        ("show-vm vdi-01", "did you mean vdi-001?"),
        ("explain A100-4D", "A100-4"),
        ("show-gpu 0000:99:00.0", "0000:99:00.0"),
        ("delete-vm nothing --yes", "there is no VM nothing"),
        ("create-vm --profile A100-4X", "A100-4"),
        ("attach-vgpu '' --profile A100-4C", "there is no VM ''"),
        ("attach-vgpu vdi-001 --profile A100-4C:99999", "'A100-4C:99999' must be a number from 1 to 9999"),
    ):
        ran = sim(line)
        assert ran.status == 2, line
        assert text in ran.err


def test_every_option_of_create_vm(sim: Run) -> None:
    ran = sim(
        "create-vm vdi-002 --profile A100-4C:2 --gpu 0000:3b:00.0 --mode vgpu --memory 8GiB --vcpus 4"
        " --disk 100GiB --disk 20 --network default --os generic --storage-pool default --hotplug-slots 2"
        " --vgpu-param frame_rate_limiter=0 --template vm --dry-run --json"
    )
    assert ran.status == 0, ran.out
    sources = ran.document["data"]["sources"]
    assert sources["vcpus"] == {"value": 4, "source": "given"}
    assert sources["template"]["source"] == "given"
    assert len(ran.document["data"]["vgpus"]) == 2
    assert len(ran.document["data"]["disks"]) == 2


def test_a_gpu_with_vfs_is_not_given_whole(sim: Run) -> None:
    whole = sim("create-vm --mode passthrough --gpu 0000:3b:00.0 --force-console --json")
    assert whole.document["error"]["exit_status"] in (3, 6)


def test_network_cards_cpus_huge_pages_and_a_display_are_shown(sim: Run) -> None:
    windows = "create-vm win-1 --profile L40S-8Q --image /srv/images/windows-11.qcow2 --os windows11 --json"
    assert sim(windows, "l40s-x4").document["data"]["firmware"] == "uefi"
    line = "create-vm cad-1 --profile L40S-8Q --display --network default --network bridge=br0,vlan=30"
    assert sim(f"{line} --cpu-pin 0-3 --hugepages 2MiB", "l40s-x4").status == 0
    data = sim("show-vm cad-1 --json", "l40s-x4").document["data"]
    cards = [(card["network"], card["bridge"], card["vlan"]) for card in data["networks"]]
    assert cards == [("default", None, None), (None, "br0", 30)]
    assert (data["display"], data["hugepages"], data["pinned_cpus"]) == (True, "2MiB", "0-3")
    page = sim("show-vm cad-1", "l40s-x4").out
    assert "0-3" in page
    assert "the first vGPU's screen is in the console" in page


def test_print_xml_is_only_xml(sim: Run) -> None:
    ran = sim("create-vm vdi-003 --profile A100-4C --print-xml")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("<")
    assert "<name>vdi-003</name>" in ran.out
    assert "<name>" in sim("create-vm --profile A100-4C --print-xml --json").document["data"]["xml"]
    assert sim("list-vms --json").document["data"] == []


def test_ensure_vm(sim: Run, tmp_path: Path) -> None:
    spec = tmp_path / "vm.yaml"
    spec.write_text("name: vdi-001\nprofile: A100-4C\n", encoding="utf-8")
    first = sim(f"ensure-vm --file {spec} --json").document
    assert (first["changed"], first["data"]["before"], first["data"]["after"]["name"]) == (True, None, "vdi-001")
    assert sim(f"ensure-vm -f {spec} --state stopped --wait 5 --json").document["data"]["state"] == "stopped"
    assert sim(f"ensure-vm -f {spec} --state started").out.startswith("vdi-001: running")
    spec.write_text("name: vdi-001\nprofile: A100-5C\n", encoding="utf-8")
    differs = sim(f"ensure-vm -f {spec} --json")
    assert (differs.status, bool(differs.document["error"]["facts"]["before"])) == (3, True)
    line = "ensure-vm -f - --state absent --yes"
    assert sim(f"{line} --json", text="name: vdi-001").document["data"]["state"] == "absent"
    assert "vdi-001: absent\n  nothing to do" in sim(line, text="name: vdi-001").out


def test_reboot_and_reset(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    assert sim("sim reboot --json").document["changed"] is True
    assert sim("show-vm vdi-001 --json").document["data"]["state"] == "stopped"
    assert sim("reconcile-host").status == 0
    assert sim("show-vm vdi-001 --json").document["data"]["vgpus"][0]["present"] is False
    assert sim("start-vm vdi-001 --json").document["data"]["vgpus"][0]["present"] is True
    assert sim("sim reset --json").status == 2
    assert sim("sim reset --yes --json").status == 0
    assert sim("list-vms --json").document["data"] == []
    assert "sim:t4" in sim("sim list-scenarios").out
    assert sim("sim list-scenarios --json").status == 0


def test_a_captured_tree_takes_no_change(vgpuctl: Run, tmp_path: Path) -> None:
    for line in ("create-vm --profile A100-4C", "reconcile-host", "start-vm x", "delete-vm x --yes"):
        ran = vgpuctl("--root", os.fspath(tmp_path), *line.split(), "--json")
        assert (ran.status, ran.document["error"]["code"]) == (2, "invalid-input")
    assert vgpuctl("list-gpus", "--root", os.fspath(tmp_path), "--json").document["data"] == []


def example_lines() -> list[str]:
    """Return the examples that name a simulated host; the others need files or a real one."""
    lines = [line for _, c in walk_commands() if isinstance(c, Command) for line, _ in c.examples]
    return [line for line in lines if "--host sim:" in line]


@pytest.mark.parametrize("line", example_lines())
def test_the_examples_of_the_help_pages_work(line: str, vgpuctl: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given, _, typed = line.rpartition(" | ")
    if given:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(shlex.split(given)[1].encode())))
    if "vdi-001" in typed and "create-vm" not in typed:
        image = (
            ["--image", "/srv/images/ubuntu-24.04.qcow2"] if {"prepare-vm", "refresh-vm"} & set(typed.split()) else []
        )
        assert vgpuctl("--host", "sim:a100-40", "create-vm", "vdi-001", "--profile", "A100-4C", *image).status == 0
    if "train-1" in typed and "create-vm" not in typed:
        words = ["create-vm", "train-1", "--mode", "passthrough", "--gpus", "2", "--no-start"]
        assert vgpuctl("--host", "sim:h100-pcie-x8", *words).status == 0
    ran = vgpuctl(*shlex.split(typed)[1:])
    assert ran.status == 0, ran.err


def test_connect_reaches_the_libvirt_that_is_named(vgpuctl: Run) -> None:
    ran = vgpuctl("--connect", "test:///default", "list-vms", "--json")
    assert ran.status in (0, 6)
    json.loads(ran.out)


IMAGE = "--image /srv/images/ubuntu-24.04.qcow2"


@pytest.fixture
def two(sim: Run) -> Run:
    """A host with vdi-001, which has a system, and bare, which is off."""
    assert sim(f"create-vm vdi-001 --profile A100-4C {IMAGE}").status == 0
    assert sim("create-vm bare --profile A100-4C --no-start").status == 0
    return sim


def test_wait_returns_when_all_are_there(two: Run) -> None:
    ran = two("wait vdi-001 --for running")
    assert (ran.status, ran.out, ran.err) == (0, "vdi-001: running\n", "")
    (vm,) = two("wait vdi-001 --for address --json").document["data"]
    assert (vm["state"], vm["guest"]["source"]) == ("running", "lease")
    address = vm["guest"]["addresses"][0]["address"]
    assert two("wait vdi-001 --for guest").out == f"vdi-001: running, {address}\n"
    assert two("wait bare --for off --json").document["data"][0]["guest"] is None


def test_wait_ends_with_75_and_shows_the_state(two: Run) -> None:
    late = two("wait vdi-001 bare --for running --timeout 0 --json")
    assert (late.status, late.document["changed"]) == (75, False)
    error = late.document["error"]
    assert (error["code"], error["facts"]["lines"]) == ("busy", ["bare is still stopped"])
    assert "bare is still stopped" in two("wait vdi-001 bare --for running --timeout 0").err
    assert two("wait bare --for guest --timeout 0").status == 3
    assert two("wait nobody --for running").status == 2


@pytest.mark.parametrize("line", ["wait --for off", "wait a", "wait a --for lunch", "wait a --for off --timeout never"])
def test_wait_without_an_event_or_a_vm_is_refused(sim: Run, line: str) -> None:
    ran = sim(line)
    assert ran.status == 2
    assert ran.err.count("\n") == 2


def test_create_vm_waits_for_an_address_too(sim: Run) -> None:
    made = sim(f"create-vm a --profile A100-4C {IMAGE} --wait-for address --json").document["data"]
    assert made["steps"][-1] == "wait until the guest of a has an address (at most 300 s)"
    assert made["guest"]["addresses"]
    ran = sim("create-vm b --profile A100-4C --wait-for address --wait-timeout 0 --json")
    assert (ran.status, ran.document["changed"]) == (75, True)
    late = ran.document["error"]
    assert late["message"] == "b was created and runs, but the guest of b has no known address after 0 s"
    assert late["hint"] == "vgpuctl wait b --for address waits longer"
    assert sim("show-vm b --json").document["data"]["state"] == "running"
    for line in ("--wait-for guest --no-start", "--wait-timeout 5", "--wait-for guest --wait-timeout nan"):
        assert sim(f"create-vm c --profile A100-4C {line}").status == 2


@pytest.mark.parametrize("mode", ["--mode passthrough --gpus 1", "--mode sriov --gpu 0000:3b:00.0"])
def test_create_vm_waits_for_no_software_that_this_host_cannot_see(sim: Run, mode: str) -> None:
    for event in ("driver", "license"):
        ran = sim(f"create-vm a {mode} --wait-for {event}")
        assert (ran.status, ran.out) == (2, "")
        assert f"--wait-for {event} and --mode" in ran.err
    assert sim("list-vms --json").document["data"] == []


def test_reboot_vm(two: Run) -> None:
    ran = two("reboot-vm vdi-001")
    assert (ran.status, ran.err) == (0, "reboot VM vdi-001\n")
    assert ran.out.startswith("vdi-001: running\n  vgpu  A100-4C on GPU ")
    assert two("reboot-vm vdi-001 --force --json").document["data"]["steps"] == ["reset VM vdi-001"]


def test_log_has_when_who_what_and_the_result(two: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "ada")
    assert two("start-vm nobody").status == 2
    monkeypatch.delenv("SUDO_USER")
    assert two("cordon A100").status == two("cordon A100").status == 0
    assert two("stop-vm vdi-001 --dry-run").status == 0
    header, *lines = two("log").out.splitlines()
    assert header.split() == ["TIME", "USER", "RESULT", "SECONDS", "COMMAND"]
    shape = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d  \S+ +(ok|no change|not-found) +\d+\.\d  (.*)"
    rows = [re.fullmatch(shape, line) for line in lines]
    assert [(m[1], m[2].split()[0]) for m in rows if m] == [
        ("ok", "create-vm"), ("ok", "create-vm"), ("not-found", "start-vm"), ("ok", "cordon"), ("no change", "cordon"),
    ]  # fmt: skip
    (failed,) = two("log --failed --json").document["data"]
    assert (failed["user"], failed["uid"], failed["exit_status"]) == ("ada", os.getuid(), 2)
    assert (failed["vms"], failed["changed"], failed["error"]) == (["nobody"], False, "there is no VM nobody")
    assert [e["command"] for e in two("log --user ada --json").document["data"]] == ["start-vm"]
    assert [e["vms"] for e in two("log --vm vdi-001 --json").document["data"]] == [["vdi-001"]]
    assert [e["command"] for e in two("log --gpu 3b:00.0 --lines 2 --json").document["data"]] == ["cordon", "cordon"]
    assert len(two("log --since 1h --json").document["data"]) == 5
    assert two("log --since 2999-01-01").err == "no commands in the log since 2999-01-01\n"


@pytest.mark.parametrize("line", ["log --since soon", "log --lines 0", "log --gpu 17"])
def test_log_refuses_what_it_cannot_read(sim: Run, line: str) -> None:
    assert sim(line).status == 2


def test_a_batch_is_in_the_log_of_each_vm(sim: Run) -> None:
    assert sim("create-vm 'p-{}' --count 3 --profile A100-4C").status == 0
    assert sim("create-vm 'p-{}' --count 30 --profile A100-4C").status == 4
    for name, results in (("p-2", ["ok", "no-capacity"]), ("p-30", ["no-capacity"]), ("p-31", [])):
        assert [e["result"] for e in sim(f"log --vm {name} --json").document["data"]] == results
