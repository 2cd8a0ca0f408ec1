# SPDX-License-Identifier: Apache-2.0
"""The playbooks and roles that users copy, on simulated hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.plays import PROGRAMS, ROOT, Ran, Site

PLAYBOOKS = ROOT / "ansible/playbooks"
IMAGE = "/srv/images/ubuntu-24.04.qcow2"
SPEC = {"version": 1, "gpus": {"A100": {"mode": "vgpu", "scheduler": {"policy": "equal_share"}}}}
POOL = {
    "desktop_pool_count": 5,
    "desktop_pool_batch": 2,
    "desktop_pool_profile": "A100-4C",
    "desktop_pool_image": IMAGE,
}
NOTE = "{{ playbook_dir }}/drain-{{ inventory_hostname }}.json"


@pytest.fixture
def site(tmp_path: Path, ansible: Path) -> Site:
    return Site(tmp_path, {"gpu-1": "a100-40", "gpu-2": "a100-40"}, ansible)


def run(site: Site, name: str, *arguments: str, **variables: Any) -> Ran:
    """Run an unmodified playbook, but add the simulated hosts' environment and vgpuctl."""
    path = site.directory / name
    (play,) = json.loads(json.dumps(_load(PLAYBOOKS / name)))
    play |= {
        "environment": "{{ vgpuctl_environment }}",
        "module_defaults": {"group/vgpuctl.vgpuctl.vgpuctl": {"executable": str(PROGRAMS / "vgpuctl")}},
    }
    path.write_text(json.dumps([play]))
    return site.playbook(path, (*arguments, "--extra-vars", json.dumps(variables)))


def _load(path: Path) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(path)


def states(site: Site, host: str) -> dict[str, str]:
    """Return the state of each VM of a host, by name."""
    return {vm["name"]: vm["state"] for vm in site.vgpuctl(host, "list-vms")["data"]}


def test_site_creates_desktops_once_and_they_survive_a_drain_and_a_scheduler_change(site: Site) -> None:
    variables = {"site_install": False, "vgpuctl_host_spec": SPEC, **POOL}
    first = run(site, "site.yml", **variables)
    assert first.status == 0, first.output
    expected = {f"vdi-00{n}": "running" for n in range(1, 6)}
    assert states(site, "gpu-1") == states(site, "gpu-2") == expected
    again = run(site, "site.yml", **variables)
    assert (again.status, again.changed) == (0, []), again.output

    changed = run(site, "change-scheduler.yml", scheduler_policy="fixed_share", scheduler_time_slice=2)
    assert changed.status == 0, changed.output
    (gpu,) = site.vgpuctl("gpu-2", "list-gpus")["data"]
    assert gpu["scheduler"]["running"]["policy"] == "fixed_share"
    assert states(site, "gpu-2") == expected

    inside = site.directory / "inside.yml"
    inside.write_text("- name: look\n  vgpuctl.vgpuctl.vm_info:\n- name: look at GPUs\n  vgpuctl.vgpuctl.gpu_info:\n")
    drained = run(site, "drain.yml", drain_tasks=str(inside), drain_note=NOTE)
    assert not list(site.directory.glob("drain-*")), "what is brought back is forgotten"
    assert drained.status == 0, drained.output
    assert {vm["state"] for done in drained.named("look") for vm in done.result["vms"]} == {"stopped"}
    assert {gpu["cordoned"] for done in drained.named("look at GPUs") for gpu in done.result["gpus"]} == {True}
    hosts = [done.host for done in drained.tasks]
    assert hosts == sorted(hosts), "one host at a time"
    assert states(site, "gpu-1") == states(site, "gpu-2") == expected
    assert [gpu["cordoned"] for gpu in site.vgpuctl("gpu-1", "list-gpus")["data"]] == [False]


def test_a_failed_drain_reports_what_is_left_and_the_next_run_restores_it(tmp_path: Path, ansible: Path) -> None:
    scenario = tmp_path / "second-start.yaml"
    fault = "{on: start, match: vdi-002, nth: 2, code: 38, message: the second start fails}"
    scenario.write_text(f"version: 1\ngpus: [{{model: A100}}]\nfaults: [{fault}]\n")
    site = Site(tmp_path, {"gpu-1": str(scenario), "gpu-2": "a100-40"}, ansible)
    for host in site.hosts:
        site.vgpuctl(host, "create-vm", "vdi-{:03}", "--count", "2", "--profile", "A100-4C")
    running = {"vdi-001": "running", "vdi-002": "running"}

    for failing, off in (("drain_tasks", "vdi-001, vdi-002"), ("start", "vdi-002")):
        tasks = tmp_path / "tasks.yml"
        tasks.write_text(f"- ansible.builtin.fail: {{msg: no power}}\n  when: {failing == 'drain_tasks'}\n")
        broken = run(site, "drain.yml", drain_tasks=str(tasks), drain_note=NOTE)
        output = broken.failed[-1].result["msg"]
        cordoned = "0000:3b:00.0" if failing == "drain_tasks" else "no GPU"
        assert f"gpu-1 stays as it is. Still cordoned: {cordoned}. Still off: {off}." in output, broken.output
        assert ("no power" if failing == "drain_tasks" else "the second start fails") in output
        assert "run this again with --limit gpu-1" in output
        assert f"vgpuctl start-vm vdi-002; rm {tmp_path}/drain-gpu-1.json" in output
        assert states(site, "gpu-2") == running, "the next host is not begun"

    repaired = run(site, "drain.yml", drain_tasks=str(tasks), drain_note=NOTE)
    assert repaired.failed == [], repaired.output
    assert states(site, "gpu-1") == running
    assert [gpu["cordoned"] for gpu in site.vgpuctl("gpu-1", "list-gpus")["data"]] == [False]
    assert not list(tmp_path.glob("drain-*"))


def test_a_drain_lists_vms_that_it_may_not_stop_and_leaves_accepted_ones_running(tmp_path: Path, ansible: Path) -> None:
    scenario = tmp_path / "shared.yaml"
    scenario.write_text("version: 1\ngpus: [{model: T4, vgpus: [{profile: T4-4Q, vm: old-desktop}]}]\n")
    site = Site(tmp_path, {"gpu-1": str(scenario)}, ansible)
    site.vgpuctl("gpu-1", "create-vm", "vdi-001", "--profile", "T4-4Q")
    refused = run(site, "drain.yml", drain_note=NOTE)
    assert refused.failed[0].result["msg"].startswith("old-desktop: each has a GPU, and is not vgpuctl's to stop")
    assert (refused.changed, states(site, "gpu-1")["vdi-001"]) == ([], "running")
    text = run(site, "drain.yml", drain_note=NOTE, drain_accepted_vms="['old-desktop']")
    assert "drain_accepted_vms is a text" in text.failed[0].result["msg"]
    drained = run(site, "drain.yml", drain_note=NOTE, drain_accepted_vms=["old-desktop"])
    assert drained.failed == [], drained.output
    assert states(site, "gpu-1") == {"old-desktop": "running", "vdi-001": "running"}


def test_a_boolean_and_a_number_from_the_command_line_are_converted_from_text(site: Site) -> None:
    arguments = ("--extra-vars", "site_install=false desktop_pool_count=3 desktop_pool_batch=2")
    checked = run(site, "site.yml", "--check", *arguments, desktop_pool_profile="A100-4C", desktop_pool_image=IMAGE)
    assert checked.status == 0, checked.output
    assert checked.named("vgpuctl.vgpuctl.gpu_host : Read the processor's features") == []
    assert "(item=up to 2)" in checked.output
    assert "(item=up to 3)" in checked.output


def test_a_host_is_not_rebooted_if_a_vm_has_started_since_the_role_began(site: Site) -> None:
    """Ansible refuses to reboot the machine that it runs on, so an attempt would fail."""
    virsh = site.directory / "bin/virsh"
    virsh.parent.mkdir()
    virsh.write_text("#!/bin/sh\necho just-started\n")
    virsh.chmod(0o755)
    variables = {"gpu_host_virsh": {"stat": {"exists": True}}, "gpu_driver_pending": ["nouveau is loaded"]}
    variables |= {"gpu_host_iommu": False, "gpu_host_files": {"stdout_lines": []}}
    variables["gpu_host_command_line"] = {"stdout": ""}
    role = {"name": "vgpuctl.vgpuctl.gpu_host", "tasks_from": "reboot"}
    play = {"hosts": "gpu_hosts", "gather_facts": False, "environment": {"PATH": f"{virsh.parent}:/usr/bin:/bin"}}
    path = site.directory / "reboot.yml"
    path.write_text(json.dumps([play | {"tasks": [{"ansible.builtin.include_role": role}]}]))
    ran = site.playbook(path, ("--limit", "gpu-1", "--extra-vars", json.dumps(variables)))
    assert ran.failed == [], ran.output
    assert "These VMs run, so reboot the host by hand: just-started" in ran.output


def test_check_mode_of_site_shows_the_gpu_steps_while_no_desktop_fits_yet(tmp_path: Path, ansible: Path) -> None:
    site = Site(tmp_path, {"gpu-1": "a100-40"}, ansible)
    site.vgpuctl("gpu-1", "set-mode", "0000:3b:00.0", "passthrough")
    checked = run(site, "site.yml", "--check", site_install=False, vgpuctl_host_spec=SPEC, **POOL)
    assert checked.status == 0, checked.output
    ((_, task),) = checked.changed
    (gpus,) = checked.named(task)
    assert "turn the 16 VFs of 0000:3b:00.0 on (sriov-manage)" in gpus.result["steps"]
    assert "The GPUs are not changed: check mode does not set up 0000:3b:00.0" in checked.output
    assert site.vgpuctl("gpu-1", "list-gpus")["data"][0]["vfs"]["enabled"] == 0


def test_doctor_stops_on_a_host_with_a_failed_check(tmp_path: Path, ansible: Path) -> None:
    scenario = tmp_path / "broken.yaml"
    scenario.write_text("version: 1\niommu: false\ngpus: [{model: A100}]\n")
    site = Site(tmp_path, {"gpu-1": "a100-40", "gpu-2": str(scenario)}, ansible)
    ran = run(site, "doctor.yml")
    assert ran.status == 2
    (failed,) = ran.failed
    assert (failed.host, "the IOMMU" in failed.result["msg"]) == ("gpu-2", True)


def test_a_pool_without_a_count_is_refused_before_anything_is_created(site: Site) -> None:
    task = {
        "ansible.builtin.include_role": {"name": "vgpuctl.vgpuctl.desktop_pool"},
        "vars": {"desktop_pool_profile": "x"},
    }
    ran = site.play(task)
    assert "missing required arguments: desktop_pool_count, desktop_pool_image" in ran.failed[0].result["msg"]


def test_an_unknown_pool_option_is_named_and_nothing_is_created(site: Site) -> None:
    role = {"ansible.builtin.include_role": {"name": "vgpuctl.vgpuctl.desktop_pool"}}
    ran = site.play(role | {"vars": {**POOL, "desktop_pool_options": {"memroy": "16GiB"}}}, arguments=["--check"])
    assert ["memroy" in done.result["msg"] for done in ran.failed] == [True, True], ran.output


def test_gpu_host_reports_failed_checks_and_fixes_unless_they_are_accepted(tmp_path: Path) -> None:
    scenario = tmp_path / "broken.yaml"
    scenario.write_text("version: 1\niommu: false\ngpus: [{model: A100}]\n")
    site = Site(tmp_path, {"gpu-1": str(scenario)})
    failed = [check["id"] for check in site.vgpuctl("gpu-1", "doctor")["data"]["checks"] if check["verdict"] == "fail"]

    def prepare(**variables: Any) -> Ran:
        role = {"ansible.builtin.include_role": {"name": "vgpuctl.vgpuctl.gpu_host"}}
        return site.play(role | {"vars": {"gpu_host_prepare": False, **variables}})

    output = prepare().failed[0].result["msg"]
    assert "iommu: check failed: the IOMMU (/sys/kernel/iommu_groups is empty" in output
    assert "Fix: enable VT-d (Intel) or AMD-Vi (AMD) in the firmware" in output
    assert prepare(gpu_host_accepted_checks=failed).failed == []
    mistyped = prepare(gpu_host_accepted_checks=["iomu"])
    assert "has unknown checks of vgpuctl doctor: iomu" in mistyped.failed[0].result["msg"]
