# SPDX-License-Identifier: Apache-2.0
"""Every command on a simulated host, from the command line to the printed result, with all its options."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_cases import CASES
from tests.unit.cli.command_tree import walk_commands
from tests.unit.cli.conftest import Ran, child, child_environment
from vgpuctl.cli.command import Command
from vgpuctl.cli.command_table import COMMANDS

Run = Callable[..., Ran]
GPU = "0000:3b:00.0"


def test_every_command_has_a_line_for_the_tests() -> None:
    assert [*CASES] == [name for name in COMMANDS if name != "sim"]


def test_the_main_job(sim: Run) -> None:
    ran = sim("create-vm vdi-001 --profile A100-4C")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("vdi-001: running\n  vgpu  A100-4C on GPU 0000:3b:00.0 (")
    assert re.search(r"^\[ ?1/\d+\] ", ran.err)
    assert "note: " in ran.err


def test_reading_commands(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    gpus = sim("list-gpus --json").document["data"]
    assert [v["vm"] for v in gpus[0]["vgpus"]] == ["vdi-001"]
    assert len(sim("list-gpus --all --json").document["data"]) >= len(gpus)
    assert sim(f"show-gpu {GPU} --json").document["data"]["types"]
    room = sim(f"list-profiles --gpu {GPU} --json").document["data"]
    every = sim("list-profiles --all --json").document["data"]
    assert [row["free"] for row in room if row["profile"] == "A100-4C"] == [9]
    assert len(every) > len(room)
    assert sim("explain A100-4C --json").document["data"]["free"] == 9
    assert [vm["name"] for vm in sim("list-vms --json").document["data"]] == ["vdi-001"]
    assert sim("show-vm vdi-001 --json").document["data"]["record"] == "ready"
    for line in ("list-gpus", f"show-gpu {GPU}", "list-profiles", "explain A100-4C", "list-vms", "show-vm vdi-001"):
        ran = sim(line)
        assert ran.status == 0
        assert ran.out
        assert "\x1b" not in ran.out


def test_images_and_their_clones(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C --image /srv/images/ubuntu-24.04.qcow2").status == 0
    rows = sim("list-images --disks --pool default --json").document["data"]
    assert {row["role"]: row["vms"] for row in rows} == {"base": [], "disk": ["vdi-001"]}
    assert "vdi-001" in sim("list-images --disks").out
    assert sim("list-images --pool nothing").status == 2


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
    result = sim("show-address vdi-001")
    assert result.out == f"{known['addresses'][0]['address']}\n"
    assert result.err == "known from a DHCP lease\n"
    assert sim("create-vm bare --profile A100-4C").status == 0
    assert sim("show-address bare").status == 75
    assert sim("stop-vm bare --force").status == 0
    assert sim("show-address bare").status == 3


def test_waiting_for_the_guest(sim: Run) -> None:
    image = "--image /srv/images/ubuntu-24.04.qcow2 --profile A100-4C"
    planned = sim(f"create-vm vdi-001 {image} --wait-for guest --dry-run --json").document["data"]["steps"]
    assert planned[-1] == "wait until the guest of vdi-001 answers (at most 300 s)"
    made = sim(f"create-vm vdi-001 {image} --wait-for guest --wait-timeout 5 --json").document["data"]
    assert made["guest"]["source"] == "lease"
    assert (
        f"  guest {made['guest']['addresses'][0]['address'][:12]}"
        in sim(f"create-vm vdi-002 {image} --wait-for guest").out
    )
    late = sim("create-vm vdi-003 --profile A100-4C --wait-for guest --wait-timeout 0.01 --json")
    assert late.status == 75
    assert late.document["error"]["facts"]["vm"] == "vdi-003"
    assert sim("show-vm vdi-003 --json").document["data"]["state"] == "running"
    assert late.document["changed"]
    for line in ("--wait-for guest --no-start", "--wait-timeout 5", "--wait-for guest --wait-timeout nan"):
        refused = sim(f"create-vm vdi-004 --profile A100-4C {line}")
        assert refused.status == 2
    assert sim("show-vm vdi-004").status == 2


def test_a_desktop_with_windows_11(sim: Run) -> None:
    image = "--image /srv/images/windows-11.qcow2 --profile A100-4C --os windows11"
    made = sim(f"create-vm win-001 {image} --json")
    assert made.document["data"]["firmware"] == "uefi"
    assert "tpm-crb" in sim(f"create-vm win-002 {image} --print-xml").out
    little = sim(f"create-vm win-002 {image} --memory 2GiB")
    assert little.status == 2
    assert "--memory 4GiB" in little.err
    assert sim("delete-vm win-001 --yes").status == 0


def test_names_that_are_not_there(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    for line, text in (
        ("show-vm vdi-01", "did you mean vdi-001?"),
        ("explain A100-4D", "A100-4"),
        ("show-gpu 0000:99:00.0", "0000:99:00.0"),
        ("delete-vm nothing --yes", "there is no VM nothing"),
        ("create-vm --profile A100-4X", "A100-4"),
    ):
        ran = sim(line)
        assert ran.status == 2, line
        assert text in ran.err


def test_life_of_a_vm(sim: Run) -> None:
    made = sim("create-vm vdi-001 --profile A100-4C --no-start --json").document
    assert made["changed"] is True
    assert made["data"]["state"] == "stopped"
    assert sim("create-vm vdi-001 --profile A100-4C --json").document["error"]["code"] == "exists"
    assert sim("start-vm vdi-001 --dry-run --json").document["data"]["dry_run"] is True
    assert sim("start-vm vdi-001 --json").document["data"]["state"] == "running"
    assert sim("start-vm vdi-001 --json").document["changed"] is False
    assert sim("stop-vm vdi-001 --dry-run --json").document["data"]["steps"]
    assert sim("stop-vm vdi-001 --force --json").document["data"]["state"] == "stopped"
    planned = sim("delete-vm vdi-001 --dry-run --json").document["data"]
    assert planned["steps"]
    refused = sim("delete-vm vdi-001 --json")
    assert refused.status == 2
    assert refused.document["error"]["code"] == "needs-confirmation"
    assert "--yes" in refused.document["error"]["hint"]
    gone = sim("delete-vm vdi-001 --keep-disks --yes --json").document["data"]
    assert gone["state"] == "absent"
    assert gone["disks"]
    assert sim("list-vms --json").document["data"] == []


def test_every_option_of_create_vm(sim: Run) -> None:
    ran = sim(
        "create-vm vdi-002 --profile A100-4C:2 --gpu 0000:3b:00.0 --mode vgpu --memory 8GiB --vcpus 4"
        " --disk 100GiB --disk 20 --network default --os generic --storage-pool default --hotplug-slots 2"
        " --vgpu-param frame_rate_limiter=0 --template vm --dry-run --json"
    )
    assert ran.status == 0, ran.out
    sources = ran.document["data"]["sources"]
    assert sources["vcpus"] == {"value": 4, "source": "command-line"}
    assert sources["template"]["source"] == "command-line"
    assert len(ran.document["data"]["vgpus"]) == 2
    assert len(ran.document["data"]["disks"]) == 2


def test_options_that_this_host_refuses(sim: Run) -> None:
    whole = sim("create-vm --mode passthrough --gpu 0000:3b:00.0 --force-console --json")
    assert whole.document["error"]["exit_status"] in (3, 6)
    image = sim("create-vm --profile A100-4C --image /nowhere.qcow2 --json")
    assert image.document["error"]["exit_status"] in (2, 6)
    cdrom = sim("create-vm --profile A100-4C --cdrom /nowhere.iso --json")
    assert cdrom.document["error"]["exit_status"] in (2, 6)


def test_print_xml_is_only_xml(sim: Run) -> None:
    ran = sim("create-vm vdi-003 --profile A100-4C --print-xml")
    assert ran.status == 0, ran.err
    assert ran.out.startswith("<")
    assert "<name>vdi-003</name>" in ran.out
    assert "<name>" in sim("create-vm --profile A100-4C --print-xml --json").document["data"]["xml"]
    assert sim("list-vms --json").document["data"] == []


def test_ensure_vm(sim: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tmp_path / "vm.yaml"
    spec.write_text("name: vdi-001\nprofile: A100-4C\n", encoding="utf-8")
    assert sim(f"ensure-vm --file {spec} --dry-run --json").document["changed"] is True
    first = sim(f"ensure-vm -f {spec} --json").document
    assert first["changed"] is True
    assert first["data"]["before"] is None
    assert first["data"]["after"]["name"] == "vdi-001"
    assert sim(f"ensure-vm -f {spec} --json").document["changed"] is False
    stopped = sim(f"ensure-vm -f {spec} --state stopped --wait 5 --json")
    assert stopped.document["data"]["state"] == "stopped", stopped.out
    assert sim(f"ensure-vm -f {spec} --state started").out.startswith("vdi-001: running")
    spec.write_text("name: vdi-001\nprofile: A100-5C\n", encoding="utf-8")
    differs = sim(f"ensure-vm -f {spec} --json")
    assert differs.status == 3
    assert differs.document["error"]["facts"]["before"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"name: vdi-001")))
    assert sim("ensure-vm -f - --state absent --yes --json").document["data"]["state"] == "absent"


def test_ensure_vm_by_name_alone(sim: Run, tmp_path: Path) -> None:
    spec = tmp_path / "vm.yaml"
    spec.write_text("name: vdi-001\n", encoding="utf-8")
    for state in ("present", "started", "stopped"):
        lacking = sim(f"ensure-vm -f {spec} --state {state} --json")
        assert (lacking.status, lacking.document["error"]["facts"]["problems"][0]["path"]) == (2, "profile")
    absent = sim(f"ensure-vm -f {spec} --state absent --json").document
    assert absent["changed"] is False
    assert (
        absent["data"].items() >= {"name": "vdi-001", "uuid": None, "state": "absent", "vgpus": [], "disks": []}.items()
    )
    assert "vdi-001: absent\n  nothing to do" in sim(f"ensure-vm -f {spec} --state absent").out
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    planned = sim(f"ensure-vm -f {spec} --state stopped --dry-run --json").document["data"]
    assert (planned["state"], planned["after"]["state"]) == ("running", "stopped")
    assert sim(f"ensure-vm -f {spec} --state started --json").document["changed"] is False


def test_reconcile_leaves_missing_vgpus_to_start_vm(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    assert sim("sim reboot").status == 0
    assert sim("reconcile-host").status == 0
    assert sim("show-vm vdi-001 --json").document["data"]["vgpus"][0]["present"] is False
    assert "created by start-vm" in sim("reconcile-host --help").out


def test_reboot_and_reset(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0
    assert sim("sim reboot --json").document["changed"] is True
    assert sim("show-vm vdi-001 --json").document["data"]["state"] == "stopped"
    assert sim("reconcile-host --dry-run --json").status == 0
    assert sim("reconcile-host").status == 0
    assert sim("start-vm vdi-001 --json").document["data"]["vgpus"][0]["present"] is True
    assert sim("sim reset --json").status == 2
    assert sim("sim reset --yes --json").status == 0
    assert sim("list-vms --json").document["data"] == []
    assert "sim:t4" in sim("sim list-scenarios").out
    assert sim("sim list-scenarios --json").status == 0


def test_the_eleventh_is_refused_with_numbers(sim: Run) -> None:
    for number in range(10):
        assert sim(f"create-vm vdi-{number:03} --profile A100-4C --no-start").status == 0
    full = sim("create-vm vdi-010 --profile A100-4C")
    assert full.status == 4
    assert "[no-capacity]" in full.err
    assert "10 of 10" in full.err
    assert "hint: vgpuctl explain A100-4C" in full.err


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
        text = shlex.split(given)[1].encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    if "vdi-001" in typed and "create-vm" not in typed:
        image = ["--image", "/srv/images/ubuntu-24.04.qcow2"] if "refresh-vm" in typed else []
        assert vgpuctl("--host", "sim:a100-40", "create-vm", "vdi-001", "--profile", "A100-4C", *image).status == 0
    if "train-1" in typed and "create-vm" not in typed:
        words = ["create-vm", "train-1", "--mode", "passthrough", "--gpus", "2", "--no-start"]
        assert vgpuctl("--host", "sim:h100-pcie-x8", *words).status == 0
    ran = vgpuctl(*shlex.split(typed)[1:])
    assert ran.status == 0, ran.err


def test_live_completion(sim: Run) -> None:
    assert sim("create-vm vdi-001 --profile A100-4C").status == 0

    def completed(line: str) -> list[str]:
        ran = child(env=child_environment(_VGPUCTL_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="0"))
        return [answer.partition(",")[2] for answer in ran.stdout.split()]

    assert "A100-4C" in completed("vgpuctl --host sim:a100-40 explain A100-4")
    assert "A100-4C" in completed("vgpuctl --host sim:a100-40 create-vm --profile A100-")
    assert completed("vgpuctl --host sim:a100-40 create-vm --gpu 0000:3b") == [GPU]
    assert completed("vgpuctl --host sim:a100-40 show-gpu ") == [GPU]
    assert completed("vgpuctl --host sim:a100-40 delete-vm v") == ["vdi-001"]
    assert "sim:t4" in completed("vgpuctl --host sim:")


def test_connect_reaches_the_libvirt_that_is_named(vgpuctl: Run) -> None:
    ran = vgpuctl("--connect", "test:///default", "list-vms", "--json")
    assert ran.status in (0, 6)
    json.loads(ran.out)
