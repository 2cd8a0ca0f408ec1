# SPDX-License-Identifier: Apache-2.0
"""The module `adopt` on simulated hosts: VMs of other programs become managed, and are let go again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ansible.plays import Site

MODULE = "vgpuctl.vgpuctl.adopt"


@pytest.fixture
def site(tmp_path: Path, ansible: Path) -> Site:
    return Site(tmp_path, {"gpu-1": "mixed"}, ansible)


def state(site: Site) -> list[Any]:
    """Return all that a task could change."""
    return [site.vgpuctl("gpu-1", *words)["data"] for words in (["list-vms"], ["list-vgpus"], ["export"])]


@pytest.mark.parametrize("which", [{"name": "old-desktop"}, {"name": "old-*"}, {"all": True}])
def test_a_vm_is_adopted_once_and_let_go_once(site: Site, which: dict[str, Any]) -> None:
    before = state(site)
    adopt, release = ({MODULE: {**which, "state": word}, "diff": True} for word in ("adopted", "released"))
    checked = site.play({**adopt, "check_mode": True})
    assert (checked.status, [done.changed for done in checked.tasks]) == (0, [True]), checked.output
    assert state(site) == before
    ran = site.play(adopt, adopt, {**adopt, "check_mode": True})
    assert (ran.status, [done.changed for done in ran.tasks]) == (0, [True, False, False]), ran.output
    (planned,), (done, again, _) = checked.tasks, ran.tasks
    assert planned.result["steps"] == done.result["steps"] != []
    assert done.result["diff"][-1]["after"].splitlines() == done.result["steps"]
    assert (again.result["steps"], again.result["diff"][-1]["after"]) == ([], "")
    vms = [target["data"] for target in done.result["vm"].get("targets", [{"data": done.result["vm"]}])]
    assert [(vm["name"], vm["ownership"], vm["state"]) for vm in vms] == [("old-desktop", "managed", "running")]
    assert [vm["ownership"] for vm in state(site)[0]] == ["managed"]
    released = site.play({**release, "check_mode": True}, release, release)
    assert (released.status, [done.changed for done in released.tasks]) == (0, [True, True, False]), released.output
    assert released.tasks[0].result["steps"] == released.tasks[1].result["steps"] != []
    assert state(site) == before


def test_a_host_without_such_vms_is_unchanged(tmp_path: Path) -> None:
    site = Site(tmp_path, {"gpu-1": "a100-40", "gpu-2": "mixed"})
    tasks = [{MODULE: {"all": True}, "diff": True}, {MODULE: {"all": True, "state": "released"}}]
    ran = site.play(*tasks)
    assert ran.status == 0, ran.output
    assert [host for host, _ in ran.changed] == ["gpu-2"] * 2
    assert [done.result["vm"] for done in ran.tasks if done.host == "gpu-1"] == [{"targets": []}] * 2
    created = {"name": "vdi-001", "mode": "vgpu", "profile": "A100-4C", "gpu": "A100"}
    assert site.play({"vgpuctl.vgpuctl.vm": created}).status == 0
    before = site.vgpuctl("gpu-1", "list-vms")["data"]
    ran = site.play(*tasks)
    assert (ran.status, [host for host, _ in ran.changed]) == (0, ["gpu-2"] * 2), ran.output
    assert site.vgpuctl("gpu-1", "list-vms")["data"] == before


def test_what_cannot_be_adopted_or_let_go_is_an_error_with_its_code(site: Site) -> None:
    created = {"name": "vdi-001", "mode": "passthrough", "gpu": "0000:d8:00.0"}
    assert site.play({"vgpuctl.vgpuctl.vm": created}).status == 0
    before = state(site)
    words: list[tuple[dict[str, Any], str | None]] = [
        ({"name": "nobody"}, "not-found"),
        ({"name": "--all"}, "not-found"),
        ({"name": "nobody-*"}, "not-found"),
        ({"name": "vdi-001", "state": "released"}, "refused"),
        ({"name": "old-desktop", "all": True}, None),
        ({}, None),
        ({"all": False}, "invalid-input"),
    ]
    ran = site.play(*({MODULE: options, "ignore_errors": True} for options, _ in words))
    assert [done.result.get("code") for done in ran.failed] == [code for _, code in words], ran.output
    assert ran.changed == []
    assert state(site) == before
    assert site.play({MODULE: {"name": "vdi-001"}}).changed == []
