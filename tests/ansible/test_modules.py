# SPDX-License-Identifier: Apache-2.0
"""The modules on simulated hosts: idempotence, check mode's plan, and errors with their codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.plays import Ran, Site

HOST = "vgpuctl.vgpuctl.host"
ALL_MODULES = [
    {"name": "mode", "vgpuctl.vgpuctl.gpu_mode": {"gpu": "0000:3b:00.0", "mode": "vgpu"}},
    {"name": "scheduler", "vgpuctl.vgpuctl.scheduler": {"gpu": "A100", "policy": "fixed_share", "time_slice": 2}},
    {"name": "host", "vgpuctl.vgpuctl.host": {"gpus": {"0000:3b:00.0": {"reserved_for": ["vdi-*", "lab"]}}}},
    {"name": "vgpu", "vgpuctl.vgpuctl.vgpu": {"name": "lab", "profile": "A100-4C", "gpu": "0000:3b:00.0",
                                              "vgpu_params": {"frame_rate_limiter": 0}}},
    {"name": "vm", "vgpuctl.vgpuctl.vm": {"name": "vdi-000", "profile": ["A100-4C"], "memory": "8GiB", "vcpus": 4,
                                          "image": "/srv/images/ubuntu-24.04.qcow2"}},
    {"name": "more", "vgpuctl.vgpuctl.vm": {"name": "vdi-{:03}", "count": 3, "profile": "A100-4C", "wait": 30}},
]  # fmt: skip
INFO = [
    {"name": "gpus", "vgpuctl.vgpuctl.gpu_info": {}},
    {"name": "one", "vgpuctl.vgpuctl.gpu_info": {"gpu": "0000:3b:00.0"}},
    {"name": "profiles", "vgpuctl.vgpuctl.profile_info": {"gpu": "0000:3b:00.0", "all": True}},
    {"name": "vms", "vgpuctl.vgpuctl.vm_info": {}},
    {"name": "nobody", "vgpuctl.vgpuctl.vm_info": {"name": "nobody"}},
    {"name": "doctor", "vgpuctl.vgpuctl.doctor_info": {"checks": ["iommu", "libvirt"]}},
]


def masked(steps: list[str]) -> list[str]:
    """Return the steps with parts of UUIDs masked, because these differ in each run."""
    return [re.sub(r"-[0-9a-f]{8}\.qcow2", "-UUID.qcow2", step) for step in steps]


def steps(ran: Ran) -> dict[str, list[str]]:
    return {done.task: masked(done.result["steps"]) for done in ran.tasks}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, {"gpu-1": "a100-40"})


def test_each_module_changes_once_and_the_second_run_changes_nothing(tmp_path: Path, ansible: Path) -> None:
    site = Site(tmp_path, {"gpu-1": "a100-40"}, ansible)
    first = site.play(*ALL_MODULES)
    assert first.status == 0, first.output
    assert [task for _, task in first.changed] == [task["name"] for task in ALL_MODULES]
    created = {done.task: done.result for done in first.tasks}
    assert created["vm"]["vm"]["memory_mib"] == 8192
    assert [vm["name"] for vm in created["more"]["vm"]["vms"]] == ["vdi-001", "vdi-002", "vdi-003"]
    assert created["vgpu"]["vgpu"]["hostdev"].startswith("<hostdev")
    assert created["scheduler"]["gpu"]["scheduler"]["running"]["policy"] == "fixed_share"
    second = site.play(*ALL_MODULES)
    assert (second.status, second.changed) == (0, []), second.output
    assert all(result == [] for result in steps(second).values())
    queried = site.play(*INFO)
    assert (queried.status, queried.changed) == (0, []), queried.output
    reported = {done.task: done.result for done in queried.tasks}
    assert [gpu["address"] for gpu in reported["gpus"]["gpus"] + reported["one"]["gpus"]] == ["0000:3b:00.0"] * 2
    assert "A100-4C" in [p["profile"] for p in reported["profiles"]["profiles"]]
    assert [vm["name"] for vm in reported["vms"]["vms"]] == ["vdi-000", "vdi-001", "vdi-002", "vdi-003"]
    assert reported["nobody"]["vms"] == []
    assert (reported["doctor"]["verdict"], len(reported["doctor"]["checks"]), reported["doctor"]["wrong"]) == (
        "ok",
        2,
        [],
    )


def test_check_mode_with_diff_shows_the_steps_and_changes_nothing(site: Site) -> None:
    def observed() -> list[object]:
        return [site.vgpuctl("gpu-1", *words)["data"] for words in (["list-gpus"], ["list-vms"], ["export"])]

    before = observed()
    checked = site.play(*ALL_MODULES, arguments=["--check", "--diff"])
    assert checked.status == 0, checked.output
    assert [task for _, task in checked.changed] == [task["name"] for task in ALL_MODULES]
    assert observed() == before
    for step in (step for done in checked.tasks for step in done.result["steps"]):
        assert f"+{step}" in checked.output


def test_each_module_reports_in_check_mode_the_steps_of_the_real_run(site: Site) -> None:
    pairs = [{**task, "diff": True, "check_mode": check} for task in ALL_MODULES for check in (True, False)]
    ran = site.play(*pairs)
    assert ran.status == 0, ran.output
    for planned, done in zip(ran.tasks[::2], ran.tasks[1::2], strict=True):
        assert (planned.task, planned.changed) == (done.task, done.changed) == (done.task, True)
        assert masked(planned.result["steps"]) == masked(done.result["steps"]) != []
        plans = [result["diff"][-1]["after"].splitlines() for result in (planned.result, done.result)]
        assert plans == [planned.result["steps"], done.result["steps"]]
    diffs = {done.task: done.result["diff"][0] for done in ran.tasks[1::2]}
    assert diffs["vm"]["before"] == {}
    assert diffs["vm"]["after"]["state"] == "running"
    assert diffs["more"] == {"before": {}, "after": {f"vdi-00{n}": "there" for n in (1, 2, 3)}}
    assert diffs["host"]["after"] == {"0000:3b:00.0 reserved_for": ["vdi-*", "lab"]}
    scheduler = {side: results["scheduler"] for side, results in diffs["scheduler"].items()}
    assert scheduler == {"before": None, "after": {"policy": "fixed_share", "time_slice_ms": 2}}
    assert diffs["mode"]["after"]["mode"] == "vgpu"


def test_a_vm_goes_through_its_states_and_to_another_profile(site: Site) -> None:
    requests: list[dict[str, Any]] = [
        {"profile": "A100-4C", "state": "stopped"},
        {"profile": "A100-8C", "memory": "8GiB"},
        {"state": "started"},
        {"state": "present"},
        {"profile": "A100-4C", "disk": "10GiB"},
        {"state": "absent"},
        {"state": "absent"},
    ]
    tasks = [
        {"vgpuctl.vgpuctl.vm": {"name": "vdi-001", **words}, "ignore_errors": True, "diff": True} for words in requests
    ]
    created, changed, started, unchanged, refused, deleted, missing = site.play(*tasks).tasks
    assert created.result["vm"]["state"] == "stopped"
    diff = changed.result["diff"][0]
    assert (diff["before"]["memory_mib"], diff["after"]["memory_mib"]) == (4096, 8192)
    assert [v["profile"] for v in changed.result["vm"]["vgpus"]] == ["A100-8C"]
    assert (started.result["vm"]["state"], unchanged.changed) == ("running", False)
    assert (refused.status, refused.result["code"], refused.result["exit_status"]) == ("failed", "spec-differs", 3)
    assert (deleted.result["vm"]["state"], deleted.result["diff"][0]["after"], missing.changed) == ("absent", {}, False)


def test_several_vms_go_through_their_states_once(site: Site) -> None:
    wanted = {"name": "vdi-{:03}", "profile": "A100-4C"}
    states = ["stopped", "started", "absent"]
    tasks = [{"vgpuctl.vgpuctl.vm": {**wanted, "count": 3, "state": s}, "diff": True} for s in states]
    checked = [{**task, "check_mode": True} for task in tasks]
    ran = site.play(*(task for three in zip(checked, tasks, tasks, strict=True) for task in three))
    assert ran.status == 0, ran.output
    assert [done.changed for done in ran.tasks] == [True, True, False] * 3
    planned, done = ran.tasks[::3], ran.tasks[1::3]
    results = [[vm["result"] for vm in one.result["vm"]["vms"]] for one in done]
    assert results == [[word] * 3 for word in ("created", "started", "deleted")]
    assert [len(one.result["steps"]) for one in planned] == [len(one.result["steps"]) for one in done]
    assert done[2].result["diff"][0] == {
        "before": dict.fromkeys(("vdi-001", "vdi-002", "vdi-003"), "there"),
        "after": {},
    }
    assert site.vgpuctl("gpu-1", "list-vms")["data"] == []


def test_every_gpu_of_a_host_is_set_by_one_task(tmp_path: Path) -> None:
    site = Site(tmp_path, {"gpu-1": "a16"})
    tasks = [
        {"vgpuctl.vgpuctl.scheduler": {"all": True, "policy": "equal_share"}, "diff": True},
        {"vgpuctl.vgpuctl.gpu_mode": {"all": True, "mode": "vgpu"}},
    ]
    ran = site.play(*({**task, "check_mode": check} for task in tasks for check in (True, False)))
    assert (ran.status, [done.changed for done in ran.tasks]) == (0, [True] * 4), ran.output
    for done in ran.tasks:
        assert len(done.result["gpu"]["targets"]) == 4
    assert ran.tasks[1].result["diff"][0]["after"]["0000:3b:00.0"]["scheduler"]["policy"] == "equal_share"
    assert site.play(*tasks).changed == []
    both = {"all": True, "gpu": "A16", "policy": "equal_share"}
    (several,) = site.play({"vgpuctl.vgpuctl.scheduler": {"gpu": "A16", "policy": "equal_share"}}).failed
    assert several.result["hint"].endswith("0000:47:00.0; all: true selects all")
    (refused,) = site.play({"vgpuctl.vgpuctl.scheduler": both}).failed
    assert "mutually exclusive: gpu|all" in refused.result["msg"]


def test_an_error_speaks_of_the_options_of_the_task(site: Site) -> None:
    tasks: list[dict[str, Any]] = [
        {"name": "-x", "profile": "A100-4C"},
        {"name": "vdi-001", "profile": "A100-4C", "scheduler": "equal_share"},
        {"name": "vdi-{:03}", "count": 0},
    ]
    name, scheduler, usage = site.play(
        *({"vgpuctl.vgpuctl.vm": words, "ignore_errors": True} for words in tasks)
    ).failed
    assert name.result["msg"].startswith("the task's arguments: name: '-x' is not a name")
    assert "scheduler equal_share excludes" in scheduler.result["msg"]
    assert (usage.result["code"], usage.result["hint"]) == ("usage", None)
    for done in (name, scheduler, usage):
        assert "--" not in done.result["msg"]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("vm", {"name": "vdi-001", "profile": "A100-4D"}, "not-found"),
    ("vm", {"name": "vdi-001", "profile": "A100-40C:2"}, "no-capacity"),
    ("vm", {"name": "vdi-{:03}", "count": 0}, "usage"),
    ("vm", {"name": "--state=absent", "profile": "A100-4C"}, "invalid-input"),
    ("vgpu", {"name": "--yes", "profile": "A100-4C"}, "invalid-input"),
    ("vgpu", {"name": "lab"}, "invalid-input"),
    ("gpu_mode", {"gpu": "--drain", "mode": "vgpu"}, "not-found"),
    ("host", {"spec": {"gpus": {}}}, "invalid-input"),
    ("host", {"gpus": {"A100": {"colour": "red"}}}, "invalid-input"),
    ("scheduler", {"gpu": "A100", "policy": "best_effort", "time_slice": 2}, "invalid-input"),
]


def test_an_error_carries_its_code_facts_and_hint(site: Site) -> None:
    tasks = [{f"vgpuctl.vgpuctl.{module}": words, "ignore_errors": True} for module, words, _ in REFUSED]
    ran = site.play(*tasks)
    assert [done.result.get("code") for done in ran.failed] == [code for _, _, code in REFUSED], ran.output
    for done in ran.failed:
        assert {"facts", "hint", "exit_status", "undone", "left"} <= set(done.result)
        assert f"[{done.result['code']}]" in done.result["msg"]
        assert (done.result["hint"] or "") in done.result["msg"]
    assert ran.changed == []


UNQUOTED = """
- hosts: gpu_hosts
  gather_facts: false
  ignore_errors: true
  tasks:
    - vgpuctl.vgpuctl.vm: {name: vdi-001, profile: A100-4C, gpu: 0000:41:00.0}
    - vgpuctl.vgpuctl.vgpu: {name: lab, profile: A100-4C, gpu: 0000:01:00.0}
    - vgpuctl.vgpuctl.vgpu: {name: lab, profile: A100-4C, not_gpu: [A16, 0000:01:00.0]}
    - vgpuctl.vgpuctl.gpu_mode: {gpu: 0000:41:00.0, mode: vgpu}
    - vgpuctl.vgpuctl.scheduler: {gpu: 0000:41:00.0, policy: best_effort}
    - vgpuctl.vgpuctl.gpu_info: {gpu: 0000:41:00.0}
    - vgpuctl.vgpuctl.profile_info: {gpu: '{{ 2460.0 }}'}
    - vgpuctl.vgpuctl.profile_info: {gpu: '2460.0'}
    - vgpuctl.vgpuctl.host: {gpus: {0000:41:00.0: {mode: vgpu}}}
    - vgpuctl.vgpuctl.host: {spec: {version: 1, gpus: {0000:41:00.0: {mode: vgpu}}}}
"""


def test_an_address_that_yaml_reads_as_a_number_is_an_error(site: Site) -> None:
    path = site.directory / "unquoted.yml"
    path.write_text(UNQUOTED)
    failed = site.playbook(path).failed
    assert [done.result["code"] for done in failed] == ["unquoted-address"] * 10
    assert all("Quote the PCI address" in done.result["msg"] for done in failed)


def test_a_list_of_gpus_is_refused_with_an_example(site: Site) -> None:
    (done,) = site.play({"vgpuctl.vgpuctl.host": {"spec": {"version": 1, "gpus": [{"A100": {"mode": "vgpu"}}]}}}).failed
    assert done.result["msg"].startswith("spec.gpus: each GPU is a key, and its keys and values are below it, as in")


def test_both_modules_pass_on_the_placement_options(site: Site) -> None:
    options = {"gpu": ["A100", "0000:3b:00.0"], "numa_node": 0, "placement": "depth"}
    placed = site.play(
        {"name": "vm", "vgpuctl.vgpuctl.vm": {"name": "vdi-001", "profile": "A100-4C", "spread_group": "a", **options}},
        {"name": "vgpu", "vgpuctl.vgpuctl.vgpu": {"name": "lab", "profile": "A100-4C", **options}},
    )
    assert [task for _, task in placed.changed] == ["vm", "vgpu"], placed.output
    excluded = {"profile": "A100-4C", "not_gpu": ["A100", "0000:3b:00.0"]}
    refused = site.play(
        {"vgpuctl.vgpuctl.vm": {"name": "vdi-002", **excluded}, "ignore_errors": True},
        {"vgpuctl.vgpuctl.vgpu": {"name": "two", **excluded}},
    )
    assert [done.result["code"] for done in refused.failed] == ["no-capacity"] * 2, refused.output


def test_a_gpu_without_keys_is_an_error(site: Site) -> None:
    (done,) = site.play({"vgpuctl.vgpuctl.host": {"gpus": {"A100": "vgpu"}}}).failed
    assert done.result["msg"].startswith("gpus: A100: expected keys and values")


@pytest.mark.parametrize(("code", "changed"), [("some-failed", True), ("no-capacity", False)])
def test_a_failure_reports_whether_something_changed(site: Site, code: str, changed: bool) -> None:
    error = {"code": code, "message": "2 of 3", "hint": None, "facts": {}, "exit_status": 1, "undone": [], "left": []}
    document = {"schema": "vgpuctl/1", "ok": False, "changed": changed, "warnings": [], "error": error}
    program = site.directory / "vgpuctl"
    program.write_text(f"#!/bin/sh\ncat >/dev/null\necho '{json.dumps(document)}'\nexit 1\n")
    program.chmod(0o755)
    words = {"executable": str(program), "name": "vdi-{:03}", "count": 3, "profile": "A100-4C"}
    (done,) = site.play({"vgpuctl.vgpuctl.vm": words}).failed
    assert (done.result.get("code"), done.changed) == (code, changed), done.result


def test_a_host_without_vgpuctl_names_the_role_that_installs_it(site: Site) -> None:
    path = site.directory / "without.yml"
    path.write_text("- {hosts: gpu_hosts, gather_facts: false, tasks: [vgpuctl.vgpuctl.gpu_info: ]}\n")
    (done,) = site.playbook(path).failed
    assert done.result["code"] == "no-vgpuctl"
    assert "vgpuctl.vgpuctl.vgpuctl installs it" in done.result["msg"]


@pytest.mark.parametrize(
    ("printed", "code"),
    [("hello", "no-json"), ("[]", "no-json"), ('{"schema": "vgpuctl/9"}', "other-schema"), ("", "no-json")],
)
def test_another_program_is_an_error(site: Site, printed: str, code: str) -> None:
    program = site.directory / "vgpuctl"
    program.write_text(f"#!/bin/sh\necho '{printed}'\necho 'cannot go on' >&2\nexit 1\n")
    program.chmod(0o755)
    (done,) = site.play({"vgpuctl.vgpuctl.gpu_info": {"executable": str(program)}}).failed
    assert done.result["code"] == code


@pytest.mark.parametrize(
    ("says", "code", "output"),
    [
        (json.dumps({"schema": "vgpuctl/1", "ok": False, "changed": False, "warnings": [], "error": {
            "code": "usage", "message": "no such option: -f", "hint": None, "facts": {}, "exit_status": 2}}),
         "usage", "no such option: -f"),
        ("", "no-json", "printed no JSON: cannot go on"),
    ],
)  # fmt: skip
def test_a_program_that_ends_before_it_has_read_its_input_reports_why(
    tmp_path: Path, ansible: Path, says: str, code: str, output: str
) -> None:
    site = Site(tmp_path, {"gpu-1": "a100-40"}, ansible)
    program = site.directory / "vgpuctl"
    program.write_text(f"#!/bin/sh\necho '{says}'\necho 'cannot go on' >&2\nexit 2\n")
    program.chmod(0o755)
    larger_than_a_pipe = {"version": 1, "gpus": {"A100": {"reserved_for": ["vdi-*" * 100_000]}}}
    words = {"executable": str(program), "spec": larger_than_a_pipe}
    (done,) = site.play({"vgpuctl.vgpuctl.host": words}).failed
    assert (done.result.get("code"), output in done.result["msg"]) == (code, True), done.result["msg"]


def test_host_yaml_entries_are_removed_only_with_prune(site: Site) -> None:
    assert site.play({"vgpuctl.vgpuctl.host": {"gpus": {"A100": {"cordoned": True}}}}).status == 0
    before = site.vgpuctl("gpu-1", "export")["data"]["text"]
    options = {"spec": {"version": 1, "placement": {"policy": "depth"}}}
    (done,) = site.play({"vgpuctl.vgpuctl.host": options}).failed
    assert (done.result["code"], done.result["rc"]) == ("needs-confirmation", 2)
    assert "gpus.A100: cordoned true\nhint: prune: true" in done.result["msg"]
    checked = site.play({"vgpuctl.vgpuctl.host": options}, arguments=("--check",)).tasks[0].result
    assert checked["host"]["removed"] == [{"entry": "gpus.A100", "keys": {"cordoned": True}}]
    assert site.vgpuctl("gpu-1", "export")["data"]["text"] == before
    assert site.play({"vgpuctl.vgpuctl.host": {**options, "prune": True}}).status == 0
    assert "cordoned" not in site.vgpuctl("gpu-1", "export")["data"]["text"]
    for empty in ({"spec": {}}, {"spec": {"gpus": {}}, "prune": True}):
        (done,) = site.play({"vgpuctl.vgpuctl.host": empty}).failed
        assert (done.result["code"], "version" in done.result["msg"]) == ("invalid-input", True)


def test_a_program_that_cannot_be_started_is_named(site: Site) -> None:
    (done,) = site.play({"vgpuctl.vgpuctl.gpu_info": {"executable": "/nowhere/vgpuctl"}}).failed
    assert done.result["msg"] == "/nowhere/vgpuctl cannot be run: No such file or directory"


def test_a_run_that_fails_half_way_is_repaired_by_running_again(tmp_path: Path) -> None:
    scenario = tmp_path / "third-start.yaml"
    scenario.write_text(
        "version: 1\ngpus: [{model: A100}]\n"
        "faults: [{on: start, match: 'vdi-*', nth: 3, code: 38, message: the third start fails}]\n"
    )
    site = Site(tmp_path, {"gpu-1": str(scenario)})
    tasks = [
        {"name": "first", "vgpuctl.vgpuctl.vm": {"name": "vdi-{:03}", "count": 4, "profile": "A100-4C"}},
        {"name": "then", "vgpuctl.vgpuctl.vgpu": {"name": "lab", "profile": "A100-4C"}},
    ]
    broken = site.play(*tasks)
    (done,) = broken.failed
    assert (broken.status, done.task, done.result["code"]) == (2, "first", "some-failed"), broken.output
    assert len(done.result["facts"]["vms"]) == 3
    assert len(site.vgpuctl("gpu-1", "list-vms")["data"]) == 3
    assert site.vgpuctl("gpu-1", "list-vgpus", "--unassigned")["data"] == []
    repaired = site.play(*tasks)
    assert (repaired.status, [task for _, task in repaired.changed]) == (0, ["first", "then"]), repaired.output
    assert len(site.vgpuctl("gpu-1", "list-vms")["data"]) == 4
    again = site.play(*tasks)
    assert (again.status, again.changed) == (0, [])


def test_ten_hosts_in_one_run(tmp_path: Path) -> None:
    site = Site(tmp_path, {f"gpu-{n}": ("a100-40", "t4", "a16")[n % 3] for n in range(10)})
    profiles = {"a100-40": "A100-4C", "t4": "T4-2Q", "a16": "A16-2Q"}
    task = {
        "name": "desktops",
        "vgpuctl.vgpuctl.vm": {"name": "vdi-{:03}", "count": 2, "profile": "{{ profiles[inventory_hostname] }}"},
        "vars": {"profiles": {host: profiles[kind] for host, kind in site.hosts.items()}},
    }
    first = site.play(task, forks=10)
    assert (first.status, len(first.changed)) == (0, 10), first.output
    for host in site.hosts:
        assert [vm["name"] for vm in site.vgpuctl(host, "list-vms")["data"] if vm["ownership"] == "managed"] == [
            "vdi-001",
            "vdi-002",
        ]
    second = site.play(task, forks=10)
    assert (second.status, second.changed) == (0, [])


def test_a_hundred_desktops_in_one_task(tmp_path: Path) -> None:
    scenario = tmp_path / "host.yaml"
    scenario.write_text("version: 1\ngpus: [{model: A16, count: 8}]\n")
    site = Site(tmp_path, {"gpu-1": str(scenario)})
    task = {"name": "desktops", "vgpuctl.vgpuctl.vm": {"name": "vdi-{:03}", "count": 100, "profile": "A16-1Q"}}
    first = site.play(task)
    assert first.status == 0, first.output
    assert {vm["state"] for vm in site.vgpuctl("gpu-1", "list-vms")["data"]} == {"running"}
    assert len(site.vgpuctl("gpu-1", "list-vms")["data"]) == 100
    assert site.play(task).changed == []


def test_keys_of_the_agent_in_host_yaml_are_set_once(site: Site) -> None:
    wanted = {"accounts": {"ada@example.org": "operator"}, "allow": {"folders": ["/srv/images"], "pools": ["default"]}}
    task = {HOST: {"agent": wanted}, "diff": True}
    ran = site.play(
        {**task, "check_mode": True}, task, task, {HOST: {"agent": {"accounts": {"ada@example.org": None}}}}
    )
    assert (ran.status, [done.changed for done in ran.tasks]) == (0, [True, True, False, True]), ran.output
    planned, done = (one.result["diff"][0] for one in ran.tasks[:2])
    assert (
        planned["after"]
        == done["after"]
        == {
            "host agent.accounts.ada@example.org": "operator",
            "host agent.allow.folders": ["/srv/images"],
            "host agent.allow.pools": ["default"],
        }
    )
    text = site.vgpuctl("gpu-1", "export")["data"]["text"]
    assert ("folders: [/srv/images]" in text, "ada" in text) == (True, False)
    (wrong,) = site.play({HOST: {"agent": {"accounts": {"ada": "king"}}}}).failed
    assert (wrong.result["code"], "king" in wrong.result["msg"]) == ("invalid-input", True)
