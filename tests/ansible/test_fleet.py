# SPDX-License-Identifier: Apache-2.0
"""The modules of a controller: pools, images and hosts on a real one, whose host is simulated and has a real agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.agent.conftest import RunningAgent, running
from tests.ansible.plays import ROOT, Ran, Site
from tests.controller.conftest import IMAGE, SPEC, wait_until
from tests.controller.controllers import Controller, running_controller

POOL, FLEET_IMAGE, HOST, INFO, PERSON, ENTITLEMENT, QUOTA = (
    f"vgpuctl.vgpuctl.{name}"
    for name in ("pool", "image", "fleet_host", "fleet_info", "person", "entitlement", "quota")
)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningAgent]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    (tmp_path / "agent").mkdir()
    with running("sim:a100-40", tmp_path / "agent") as result:
        yield result


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running_controller(tmp_path / "controller") as one:
        yield one


class FleetSite(Site):
    """A machine whose vgpuctl asks the controller at its socket."""

    def environment(self, host: str) -> dict[str, str]:
        return {"VGPUCTL_CONTROLLER": self.hosts[host]}


@pytest.fixture
def site(tmp_path: Path, ansible: Path, controller: Controller) -> FleetSite:
    return FleetSite(tmp_path, {"ctl": str(controller.socket)}, ansible)


def tasks(agent: RunningAgent) -> list[dict[str, Any]]:
    address = f"agent:{agent.path}"
    return [
        {"name": "host", HOST: {"name": "gpu01", "address": address, "labels": {"site": "a"}, "state": "cordoned"}},
        {"name": "image", FLEET_IMAGE: {"name": "office", "path": IMAGE, "version": "11"}},
        {"name": "pool", POOL: {"name": "office", "spec": SPEC, "state": "paused", "reason": "not yet"}},
    ]


STEPS = {
    "host": ["add-host gpu01", "cordon-host gpu01"],
    "image": ["ensure-image office"],
    "pool": ["ensure-pool office", "pause-pool office"],
}


def fleet(controller: Controller) -> list[Any]:
    """Return what a task could change, and the journal."""
    keys = ("name", "address", "state", "labels")
    hosts = [{key: host[key] for key in keys} for host in controller.data("list-hosts")]
    return [hosts, *(controller.data(f"list-{kind}") for kind in ("images", "pools", "tokens"))]


def steps(ran: Ran) -> dict[str, list[str]]:
    return {done.task: done.result["steps"] for done in ran.tasks}


def test_each_module_changes_once_and_check_mode_says_what(
    site: FleetSite, controller: Controller, agent: RunningAgent
) -> None:
    host, image, pool = tasks(agent)
    before = fleet(controller)
    checked = site.play(host, image, arguments=["--check", "--diff"])
    assert checked.status == 0, checked.output
    assert fleet(controller) == before == [[], [], [], []]
    first = site.play(host, image, {**pool, "check_mode": True, "diff": True}, pool)
    assert first.status == 0, first.output
    assert steps(checked) == {name: STEPS[name] for name in ("host", "image")}
    assert [done.result["steps"] for done in first.tasks if done.task == "pool"] == [STEPS["pool"]] * 2
    assert steps(first) == STEPS
    planned, done = first.named("pool")
    assert planned.result["diff"]["before"] == {}
    assert planned.result["diff"]["after"]["state"] == done.result["pool"]["state"] == "paused"
    assert planned.result["diff"]["after"]["spec"] == done.result["pool"]["spec"]
    assert (done.result["pool"]["reason"], done.result["pool"]["maximum"]) == ("not yet", SPEC["maximum"])
    assert first.named("host")[0].result["host"]["state"] == "cordoned"
    after = fleet(controller)
    again = site.play(host, image, pool, arguments=["--diff"])
    assert (again.status, again.changed) == (0, []), again.output
    assert fleet(controller) == after


def test_a_host_is_drained_while_its_users_work(site: FleetSite, controller: Controller, agent: RunningAgent) -> None:
    live = {"name": "live", HOST: {"name": "gpu01", "state": "draining", "live": True}}
    plain = {"name": "plain", HOST: {"name": "gpu01", "state": "draining"}}
    wrong = {"name": "wrong", HOST: {"name": "gpu01", "live": True}, "ignore_errors": True}
    ran = site.play(tasks(agent)[0], live, {**live, "name": "again"}, plain, wrong)
    assert ran.status == 0, ran.output
    shown = {done.task: done.result for done in ran.tasks}
    assert [shown[name]["changed"] for name in ("live", "again", "plain")] == [True, False, True]
    assert [shown[name]["host"]["moves_live"] for name in ("live", "plain")] == [True, False]
    assert "needs state: draining" in shown["wrong"]["msg"]


def test_a_change_is_shown_before_it_is_made(site: FleetSite, controller: Controller, agent: RunningAgent) -> None:
    assert site.play(*tasks(agent)).status == 0
    changes: list[dict[str, Any]] = [
        {"name": "host", HOST: {"name": "gpu01", "labels": {"site": "b"}, "state": "active"}},
        {"name": "version", FLEET_IMAGE: {"name": "office", "path": IMAGE, "version": "12", "retired": True}},
        {"name": "spec", POOL: {"name": "office", "spec": {**SPEC, "spare": 1}, "state": "active"}},
        {"name": "paused", POOL: {"name": "office", "state": "paused"}},
    ]
    before = fleet(controller)
    checked = site.play(*changes, arguments=["--check", "--diff"])
    assert checked.status == 0, checked.output
    assert fleet(controller) == before
    ran = site.play(*changes, arguments=["--diff"])
    assert ran.status == 0, ran.output
    diffs = {done.task: done.result["diff"] for done in ran.tasks}
    for done in checked.tasks[:-1]:
        assert done.result["diff"] == diffs[done.task]
        assert done.result["steps"] == steps(ran)[done.task]
    assert steps(ran) == {
        "host": ["label-host gpu01", "uncordon-host gpu01"],
        "version": ["ensure-image office"],
        "spec": ["ensure-pool office", "resume-pool office"],
        "paused": ["pause-pool office"],
    }
    assert (diffs["host"]["before"]["labels"], diffs["host"]["after"]["labels"]) == ({"site": "a"}, {"site": "b"})
    assert (diffs["spec"]["before"]["spec"]["spare"], diffs["spec"]["after"]["spec"]["spare"]) == (2, 1)
    assert (diffs["version"]["before"]["version"], diffs["version"]["after"]["version"]) == ("11", "12")


def test_what_is_there_is_told_by_filters_and_goes(
    site: FleetSite, controller: Controller, agent: RunningAgent
) -> None:
    host, image, pool = tasks(agent)
    assert site.play(host, image, pool).status == 0
    assert (
        site.play({HOST: {"name": "gpu01", "state": "active"}}, {POOL: {"name": "office", "state": "active"}}).status
        == 0
    )
    wait_until(lambda: controller.data("show-pool", "office")["ready"] == 2, "two desktops")
    assert controller.run("assign", "office", "ada").returncode == 0
    queries = [
        {"name": "all", INFO: {}},
        {"name": "ada", INFO: {"gather": ["desktops"], "user": "ada", "host": "gpu01", "pool": "office"}},
        {"name": "none", INFO: {"gather": ["hosts", "pools"], "host": "gpu02", "pool": "lab"}},
        {"name": "wrong", INFO: {"gather": ["desktops"], "pool": "lab"}, "ignore_errors": True},
    ]
    ran = site.play(*queries)
    results = {done.task: done.result for done in ran.tasks}
    assert [(done.task, done.result["code"]) for done in ran.failed] == [("wrong", "not-found")], ran.output
    assert [len(results["all"][kind]) for kind in ("hosts", "pools", "images")] == [1, 1, 1]
    assert {one["pool"] for one in results["all"]["desktops"]} == {"office"}
    assert [one["user"] for one in results["ada"]["desktops"]] == ["ada"]
    assert "hosts" not in results["ada"]
    assert [results["none"][kind] for kind in ("hosts", "pools")] == [[], []]
    absent = {"name": "gone", POOL: {"name": "office", "state": "absent"}}
    in_use = site.play({HOST: {"name": "gpu01", "state": "absent"}}, {**absent, "check_mode": True})
    assert in_use.failed[0].result["code"] == "refused", in_use.output
    gone = site.play({**absent, "check_mode": True}, absent, absent)
    assert [done.changed for done in gone.tasks] == [True, True, False], gone.output
    wait_until(lambda: controller.data("list-pools") == [], "the end of the pool")
    rest = [{HOST: {"name": "gpu01", "state": "absent"}}, {FLEET_IMAGE: {"name": "office", "state": "absent"}}]
    removed = site.play(*rest, absent, *rest)
    assert (removed.status, [done.changed for done in removed.tasks]) == (0, [True, True, False, False, False])
    assert fleet(controller) == [[], [], [], []]


def people(controller: Controller) -> list[Any]:
    """Return who there is, and who may what."""
    return [controller.data("list-people"), controller.data("list-entitlements")]


def test_people_and_what_they_may_do(site: FleetSite, controller: Controller, tmp_path: Path) -> None:
    controller.run("ensure-image", "office", "--path", IMAGE)
    spec = tmp_path / "office.json"
    spec.write_text(json.dumps(SPEC))
    assert controller.run("ensure-pool", "office", "-f", str(spec)).returncode == 0
    password = tmp_path / "password"
    password.write_text("correct horse battery\n")
    ada = {"name": "ada", "groups": ["staff", "cad"], "password_file": str(password)}
    wanted: list[dict[str, Any]] = [
        {"name": "ada", PERSON: ada},
        {"name": "staff", ENTITLEMENT: {"who": "@staff", "right": "use", "pool": "office"}},
        {"name": "admin", ENTITLEMENT: {"who": "ada", "right": "admin"}},
    ]
    before = people(controller)
    checked = site.play(*wanted, arguments=["--check", "--diff"])
    assert people(controller) == before == [[], []]
    first, again = site.play(*wanted, arguments=["--diff"]), site.play(*wanted)
    assert steps(checked) == steps(first) == {
        "ada": ["ensure-person ada", "set-password ada"], "staff": ["entitle @staff"], "admin": ["entitle ada"],
    }, first.output  # fmt: skip
    for done, planned in zip(first.tasks, checked.tasks, strict=True):
        assert done.result["diff"] == planned.result["diff"]
    assert first.named("ada")[0].result["person"]["groups"] == ["cad", "staff"]
    assert (again.status, again.changed) == (0, []), again.output
    assert "correct horse" not in first.output
    changes: list[dict[str, Any]] = [
        {"name": "out", PERSON: {"name": "ada", "groups": [], "disabled": True}},
        {"name": "in", PERSON: {"name": "ada", "disabled": False, **{"password_file": str(password)}}},
        {"name": "new", PERSON: {"name": "ada", "password_file": str(password), "update_password": "always"}},
        {"name": "more", ENTITLEMENT: {"who": "@staff", "right": "manage", "pool": "office"}},
        {"name": "none", ENTITLEMENT: {"who": "@staff", "pool": "office", "state": "absent"}},
        {"name": "gone", PERSON: {"name": "ada", "state": "absent"}},
        {"name": "realm", PERSON: {"name": "eve", "realm": "oidc"}},
    ]
    ran = site.play(*changes)
    assert steps(ran) == {
        "out": ["ensure-person ada"], "in": ["ensure-person ada"], "new": ["set-password ada"],
        "more": ["entitle @staff"], "none": ["revoke @staff"], "gone": ["delete-person ada"],
        "realm": ["ensure-person eve"],
    }, ran.output  # fmt: skip
    after = people(controller)
    assert [one["name"] for one in after[0]] == ["eve"]
    assert after[1] == [], "what a person may do goes with him"
    again = site.play(*changes[4:])
    assert (again.status, again.changed) == (0, []), again.output


def test_what_is_wrong_is_an_error_of_the_task(site: FleetSite, controller: Controller, agent: RunningAgent) -> None:
    host, image, _ = tasks(agent)
    assert site.play(host, image).status == 0
    before = fleet(controller)
    wrong: list[tuple[dict[str, Any], str | None]] = [
        ({HOST: {"name": "gpu02"}}, "not-found"),
        ({HOST: {"name": "gpu01", "address": "ssh://fleet@gpu09"}}, "other-address"),
        ({HOST: {"name": "gpu02", "address": f"agent:{agent.path}"}}, "exists"),
        ({HOST: {"name": "gpu01", "labels": {"bad key": "x"}}}, "invalid-input"),
        ({FLEET_IMAGE: {"name": "office"}}, None),
        ({FLEET_IMAGE: {"name": "office", "path": "relative.qcow2"}}, "invalid-input"),
        ({POOL: {"name": "lab"}}, None),
        ({POOL: {"name": "lab", "state": "paused"}}, "not-found"),
        ({POOL: {"name": "lab", "spec": {**SPEC, "image": "none"}}}, "not-found"),
        ({POOL: {"name": "lab", "spec": {**SPEC, "maximum": 1, "spare": 2}}}, "invalid-input"),
        ({PERSON: {"name": "a b"}}, "invalid-input"),
        ({PERSON: {"name": "ada", "groups": ["@b"]}}, "invalid-input"),
        ({ENTITLEMENT: {"who": "ada"}}, None),
        ({ENTITLEMENT: {"who": "ada", "right": "use"}}, "invalid-input"),
        ({ENTITLEMENT: {"who": "ada", "right": "use", "pool": "none"}}, "not-found"),
        ({INFO: {"controller": "http://fleet.example.org"}}, "invalid-input"),
        ({INFO: {"controller": "/nowhere/controller.sock"}}, "unreachable"),
    ]
    for arguments in (["--check"], []):
        ran = site.play(*({**task, "ignore_errors": True} for task, _ in wrong), arguments=arguments)
        assert [done.result.get("code") for done in ran.failed] == [code for _, code in wrong], ran.output
        assert ran.changed == []
        assert fleet(controller) == before


def test_a_token_is_read_from_its_file_and_shown_nowhere(
    site: FleetSite, controller: Controller, tmp_path: Path
) -> None:
    secret = controller.run("add-token", "ansible", "--role", "viewer").stdout.strip()
    file = tmp_path / "token"
    file.write_text(f"{secret}\n")
    file.chmod(0o600)
    defaults = {"controller": f"http://127.0.0.1:{controller.port}", "token_file": str(file)}
    ask = {INFO: defaults}
    refused = {FLEET_IMAGE: {"name": "office", "path": IMAGE, **defaults}, "ignore_errors": True}
    ran = site.play(
        ask,
        refused,
        {INFO: {**defaults, "token_file": str(tmp_path / "none")}, "ignore_errors": True},
        arguments=["-vvv"],
    )
    assert ran.status == 0, ran.output
    assert ran.tasks[0].result["images"] == []
    assert [done.result["code"] for done in ran.failed] == ["not-allowed", "not-found"]
    assert secret not in ran.output
    assert secret not in repr(ran.tasks)


def test_how_much_people_may_have(site: FleetSite, controller: Controller) -> None:
    quota = {"name": "set", QUOTA: {"who": "@staff", "desktops": 2, "gpu": "16GiB"}}
    gone = {"name": "gone", QUOTA: {"who": "@staff", "state": "absent"}}
    made = site.play({**quota, "check_mode": True}, quota, quota, {QUOTA: {"who": "ada", "running": 1}})
    assert [done.changed for done in made.tasks] == [True, True, False, True], made.output
    owner = controller.data("show-fleet")["caller"]
    quotas = controller.data("list-quotas")
    assert [{key: one[key] for key in one if key != "generation"} for one in quotas] == [
        {"who": "@staff", "desktops": 2, "running": None, "gpu_mib": 16384, "set_by": owner},
        {"who": "ada", "desktops": None, "running": 1, "gpu_mib": None, "set_by": owner},
    ]
    assert site.play({QUOTA: {"who": "ada"}}).status != 0, "it limits nothing"
    ended = site.play(gone, gone)
    assert [done.changed for done in ended.tasks] == [True, False], ended.output
    assert [one["who"] for one in controller.data("list-quotas")] == ["ada"]


def test_the_playbook_for_desktops_gives_a_person_one(
    site: FleetSite, controller: Controller, agent: RunningAgent, tmp_path: Path
) -> None:
    """Its third play, unmodified; the roles of the others need bare machines."""
    controller.data("add-host", "gpu01", f"agent:{agent.path}")
    password = tmp_path / "password"
    password.write_text("correct horse battery\n")
    variables = {
        "vdi_images": [{"name": "office", "path": IMAGE, "version": "11"}],
        "vdi_pools": {"office": {**SPEC, "maximum": 2, "spare": 1, "open": "rdp"}},
        "vdi_people": [{"name": "ada", "groups": ["staff"], "password_file": str(password)}],
        "vdi_quotas": [{"who": "everybody", "desktops": 2}],
        "vdi_entitlements": [{"who": "@staff", "right": "use", "pool": "office"}],
    }
    *_, play = YAML(typ="safe").load(ROOT / "ansible/playbooks/vdi.yml")
    assert play["hosts"] == "controllers[0]"
    play |= {
        "hosts": "gpu_hosts[0]",
        "environment": "{{ vgpuctl_environment }}",
        "module_defaults": {"group/vgpuctl.vgpuctl.fleet": {"executable": str(site.program)}},
    }
    for task in play["tasks"]:
        if "delay" in task:
            task |= {"delay": 1}
    path = tmp_path / "vdi.yml"
    path.write_text(json.dumps([play]))
    first = site.playbook(path, ("--extra-vars", json.dumps(variables)))
    assert first.status == 0, first.output
    assert "office: active, 1 ready, 0 with users, 2 at most" in first.output
    again = site.playbook(path, ("--extra-vars", json.dumps(variables)))
    assert (again.status, again.changed) == (0, []), again.output
    assert controller.data("show-person", "ada")["has_password"] is True
    assert [(one["who"], one["right"]) for one in controller.data("list-entitlements")] == [("@staff", "use")]
