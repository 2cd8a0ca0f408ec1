# SPDX-License-Identifier: Apache-2.0
"""The inventory plugin: VMs as hosts, their groups and variables, the cache, and hosts that do not answer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import running
from tests.ansible.plays import PROGRAMS, Site, ansible_environment

SSH = """#!/bin/sh
# What ssh does, for hosts that are simulated here.
for host; do [ "$previous" = -- ] && break; previous=$host; done
[ "$host" = dead ] && { echo "ssh: connect to host dead port 22: No route to host" >&2; exit 255; }
[ "$host" = late ] && [ -e "$STATE/late-is-off" ] && { echo "ssh: no route" >&2; exit 255; }
[ "$host" = bytes ] && { printf '\\377'; exit 0; }
[ "$host" = number ] && { echo 5; exit 0; }
for command; do :; done
[ "$host" = restricted ] && exec "${command%% *}" agent dial --socket "$AGENT"
[ "$host" = braces ] && case $command in
    *list-vms) echo '{"schema": "vgpuctl/1", "data": [{"name": "{{ 7 }}", "uuid": "u", "state": "running",
                      "ownership": "unmanaged", "memory_mib": 1, "vcpus": 1, "vgpus": []}]}'; exit 0 ;;
    *) echo '{"schema": "vgpuctl/1", "data": []}'; exit 0 ;;
esac
[ "$host" = one ] && : > "$STATE/met"
[ "$host" = other ] && : < "$STATE/met"
VGPUCTL_HOST=sim:a100-40 XDG_STATE_HOME="$STATE/$host" exec sh -c "$command"
"""


@pytest.fixture
def site(tmp_path: Path, ansible: Path) -> Site:
    site = Site(tmp_path, {"gpu-1": "a100-40", "gpu-2": "a100-40"}, ansible)
    for host in site.hosts:
        site.vgpuctl(host, "create-vm", "vdi-001", "--profile", "A100-4C", "--image", "/srv/images/ubuntu-24.04.qcow2")
    site.vgpuctl("gpu-2", "create-vm", "vdi-002", "--profile", "A100-4C", "--no-start")
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "ssh").write_text(SSH)
    (bin_ / "ssh").chmod(0o755)
    return site


def listed(site: Site, config: dict[str, Any], **environment: str) -> tuple[dict[str, Any], str]:
    """Return the inventory and its warnings."""
    path = site.directory / "desktops.vgpuctl.yml"
    path.write_text(json.dumps({"plugin": "vgpuctl.vgpuctl.vms", "executable": str(PROGRAMS / "vgpuctl"), **config}))
    env = ansible_environment(site.directory, STATE=str(site.directory / "state"), **environment)
    ran = subprocess.run(
        [site.ansible / "ansible-inventory", "-i", path, "--list"],
        env={**env, "PATH": f"{site.directory / 'bin'}:{env['PATH']}"},
        cwd=site.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(ran.stdout), ran.stderr


def test_vms_are_hosts_with_groups_and_the_facts_of_their_gpus(site: Site) -> None:
    config = {
        "hosts": ["gpu-1", "gpu-2", "dead"],
        "compose": {"ansible_host": "vgpuctl_name ~ '.desktops'"},
        "keyed_groups": [{"key": "vgpuctl_vcpus | string", "prefix": "vcpus"}],
        "groups": {"on": "vgpuctl_state == 'running'"},
    }
    inventory, warnings = listed(site, config)
    assert "dead: list-vms printed no JSON: ssh: connect to host dead" in " ".join(warnings.split())
    hosts = inventory["_meta"]["hostvars"]
    assert sorted(hosts) == ["vdi-001", "vdi-001.gpu-2", "vdi-002"]
    assert inventory["profile_A100_4C"]["hosts"] == ["vdi-001", "vdi-001.gpu-2", "vdi-002"]
    assert inventory["model_NVIDIA_A100_PCIE_40GB"]["hosts"] == inventory["vcpus_2"]["hosts"] == sorted(hosts)
    assert inventory["host_gpu_2"]["hosts"] == ["vdi-001.gpu-2", "vdi-002"]
    assert (inventory["on"]["hosts"], inventory["state_stopped"]["hosts"]) == (
        ["vdi-001", "vdi-001.gpu-2"],
        ["vdi-002"],
    )
    one = hosts["vdi-001.gpu-2"]
    untrusted = {"__ansible_unsafe": "vdi-001"}, {"__ansible_unsafe": "0000:3b:00.0"}
    assert (one["vgpuctl_host"], one["vgpuctl_name"]) == ("gpu-2", untrusted[0]), "what a VM is called is no template"
    assert [(g["address"], g["framebuffer_mib"]) for g in one["vgpuctl_gpus"]] == [(untrusted[1], 40960)]
    assert "vdi-001.desktops" in str(one["ansible_host"])


def test_the_cache_answers_until_it_is_flushed(site: Site) -> None:
    config = {
        "environment": site.environment("gpu-1"),
        "cache": True,
        "cache_plugin": "ansible.builtin.jsonfile",
        "cache_connection": str(site.directory / "cache"),
    }
    assert list(listed(site, config)[0]["_meta"]["hostvars"]) == ["vdi-001"]
    assert os.listdir(site.directory / "cache")
    site.vgpuctl("gpu-1", "delete-vm", "vdi-001")
    assert list(listed(site, config)[0]["_meta"]["hostvars"]) == ["vdi-001"]
    assert listed(site, {**config, "cache": False})[0]["_meta"]["hostvars"] == {}


def test_an_inventory_with_a_silent_host_is_not_cached(site: Site) -> None:
    config = {
        "hosts": ["gpu-1", "late"],
        "cache": True,
        "cache_plugin": "ansible.builtin.jsonfile",
        "cache_connection": str(site.directory / "cache"),
    }
    off = site.directory / "state/late-is-off"
    off.touch()
    inventory, warnings = listed(site, config)
    assert (list(inventory["_meta"]["hostvars"]), "late: list-vms printed no JSON" in warnings) == (["vdi-001"], True)
    off.unlink()
    late = site.directory / "state/late"
    assert listed(site, config)[1] == "", "both are asked again"
    assert late.is_dir()
    site.vgpuctl("gpu-1", "delete-vm", "vdi-001")
    assert list(listed(site, config)[0]["_meta"]["hostvars"]) == ["vdi-001"], "a whole answer is kept"
    assert listed(site, {**config, "hosts": ["gpu-1"]})[0]["_meta"]["hostvars"] == {}, "other hosts are asked"


def test_a_host_with_an_invalid_reply_causes_a_warning_and_stops_no_other(site: Site) -> None:
    inventory, warnings = listed(site, {"hosts": ["bytes", "number", "gpu-1"]})
    assert list(inventory["_meta"]["hostvars"]) == ["vdi-001"]
    assert "bytes: list-vms printed no JSON" in warnings
    assert "number: list-vms printed no document of vgpuctl/1" in " ".join(warnings.split())


def test_a_name_is_never_a_template(site: Site) -> None:
    (host,) = listed(site, {"hosts": ["braces"], "unmanaged": True})[0]["_meta"]["hostvars"].items()
    assert (host[0], host[1]["vgpuctl_name"]) == ("__ 7 }}", {"__ansible_unsafe": "{{ 7 }}"})


def test_a_key_that_reaches_the_agent_alone_is_enough(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", site.environment("gpu-2")["XDG_STATE_HOME"])
    with running("sim:a100-40", tmp_path / "agent") as agent:
        inventory, warnings = listed(site, {"hosts": ["restricted"]}, AGENT=agent.path)
    assert (warnings, inventory["state_stopped"]["hosts"]) == ("", ["vdi-002"])
    assert inventory["model_NVIDIA_A100_PCIE_40GB"]["hosts"] == ["vdi-001", "vdi-002"]


def test_hosts_are_read_concurrently(site: Site) -> None:
    os.mkfifo(site.directory / "state/met")  # opening this FIFO blocks until the other host opens it too
    inventory, warnings = listed(site, {"hosts": ["one", "other"], "deadline": 60})
    assert (inventory["_meta"]["hostvars"], warnings) == ({}, "")


def test_no_reply_from_any_host_is_an_error(site: Site) -> None:
    inventory, errors = listed(site, {"hosts": ["dead"]})
    assert inventory["_meta"]["hostvars"] == {}
    assert "no GPU host answered" in errors
