# SPDX-License-Identifier: Apache-2.0
"""What roles check and refuse, on this machine. They run in check mode, so a role that continues changes nothing."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.plays import Ran, Site

DEBIAN = {"ansible_os_family": "Debian", "ansible_distribution": "Debian", "ansible_kernel": "0.0-cached"}
RED_HAT = {"ansible_os_family": "RedHat", "ansible_distribution": "Rocky", "ansible_kernel": "0.0-cached"}


@pytest.fixture
def site(tmp_path: Path, ansible: Path) -> Site:
    return Site(tmp_path, {"gpu-1": "a100-40"}, ansible)


def run(site: Site, role: str, part: str, *after: dict[str, Any], facts: dict[str, str], **variables: Any) -> Ran:
    """Run a part of a role on a host whose facts Ansible already has in its cache."""
    set_facts = {"name": "told", "ansible.builtin.set_fact": {**facts, "cacheable": True}}
    include = {"ansible.builtin.include_role": {"name": f"vgpuctl.vgpuctl.{role}", "tasks_from": part, "public": True}}
    path = site.directory / "part.yml"
    path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [set_facts, include, *after]}]))
    return site.playbook(path, ("--check", "--extra-vars", json.dumps(variables)))


@pytest.mark.parametrize(
    ("file", "facts", "output"),
    [
        ("driver.rpm", DEBIAN, "is not for Debian, whose packages are named *.deb. Use one of those"),
        ("a_1_b.deb", RED_HAT, "is not for Rocky, whose packages are named *.rpm. Use one of those"),
    ],
)
def test_a_package_of_another_distribution_is_refused(
    site: Site, file: str, facts: dict[str, str], output: str
) -> None:
    (site.directory / file).touch()
    (refused,) = run(site, "gpu_driver", "check", facts=facts, gpu_driver_file=str(site.directory / file)).failed
    assert output in refused.result["msg"]


def test_the_role_uses_the_running_kernel_and_not_a_cached_fact(site: Site) -> None:
    shown = {"name": "shown", "ansible.builtin.debug": {"msg": "{{ gpu_driver_family }}"}}
    (done,) = run(site, "gpu_driver", "check", shown, facts=DEBIAN).named("shown")
    assert done.result["msg"]["initramfs"] == f"/boot/initrd.img-{platform.release()}"
    assert f"linux-headers-{platform.release()}" in done.result["msg"]["build"]


@pytest.mark.parametrize(("agent", "words"), [(False, []), (True, ["--agent"]), ("yes", ["--agent"])])
def test_the_host_agent_is_installed_only_where_it_is_asked_for(
    site: Site, agent: bool | str, words: list[str]
) -> None:
    """The stand-in for the program notes its arguments; a role in check mode still asks what would change."""
    program, noted = site.directory / "vgpuctl", site.directory / "arguments"
    result = json.dumps({"changed": True, "data": {"notes": []}})
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {noted}\necho '{result}'\n")
    program.chmod(0o755)
    ran = run(site, "vgpuctl", "install_host", facts=DEBIAN, vgpuctl_path=str(program), vgpuctl_agent=agent)
    assert ran.status == 0, ran.output
    assert noted.read_text().split() == ["install-host", "--json", *words, "--dry-run"]


@pytest.mark.parametrize(
    ("role", "part", "option"),
    [
        ("gpu_driver", "check", "gpu_driver_packages"),
        ("gpu_host", "main", "gpu_host_kernel_arguments"),
        ("gpu_host", "main", "vgpuctl_host_spec"),
        ("vgpuctl", "check", "vgpuctl_packages"),
        ("guest_driver", "main", "guest_driver_gridd"),
        ("desktop_pool", "main", "desktop_pool_options"),
        ("monitoring", "main", "monitoring_targets"),
        ("fleet_host", "main", "fleet_host_from"),
    ],
)
def test_a_list_or_dictionary_that_the_command_line_passes_as_text_is_an_error(
    tmp_path: Path, role: str, part: str, option: str
) -> None:
    site = Site(tmp_path, {"gpu-1": "a100-40"})
    text = "{}" if option in ("vgpuctl_host_spec", "guest_driver_gridd", "desktop_pool_options") else '["one"]'
    pool = {
        "fleet_host_controllers": [],
        "desktop_pool_count": 1,
        "desktop_pool_profile": "A100-4C",
        "desktop_pool_image": "/srv/images/a.qcow2",
    }
    (refused,) = run(site, role, part, facts=DEBIAN, **pool, **{option: text}).failed
    assert refused.result["msg"] == "One or more items failed"
    output = [item["msg"] for item in refused.result["results"] if item.get("failed")]
    assert output[0].startswith(f"{option} is the text {text}. KEY=VALUE on the command line is always text;")
    assert output[0].endswith(f"-e '{{\"{option}\": ...}}'")
