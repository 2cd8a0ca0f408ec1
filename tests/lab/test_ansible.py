"""An Ansible controller outside L2 logs in by ssh, as to any host, and site.yml creates a desktop with a vGPU there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.ansible.plays import ROOT, Ran, played
from tests.lab.console import guest_devices
from tests.lab.machine import Lab
from tests.lab.nvidia_host import put_sriov_manage
from tests.lab.outside import ansible_logins, make_home, write_inventory
from tests.lab.test_sriov_manage import VFS, vfs
from tests.lab.vgpuctl_in import A100, IGB, TINY, leftovers, put_gpu

SITE = ROOT / "ansible/playbooks/site.yml"
WANTED = {
    "site_install": False,
    "vgpuctl_host_spec": {"version": 1, "gpus": {IGB: {"mode": "vgpu"}}},
    "desktop_pool_count": 1,
    "desktop_pool_profile": "A100-4C",
    "desktop_pool_image": TINY,
    "desktop_pool_options": {"memory": "192MiB", "vcpus": 1},
}
DESKTOPS = "vgpuctl.vgpuctl.desktop_pool : Desktops of the pool"
OF_A_UUID = re.compile(r"(?<=vdi-001-)[0-9a-f]{8}")
"""Check mode shows a different UUID than the real run."""


@pytest.fixture
def site(lab: Lab, tmp_path: Path) -> Iterator[Callable[..., Ran]]:
    """Run site.yml on L2 from outside."""
    make_home(lab, tmp_path)
    words = ("--extra-vars", json.dumps(WANTED))
    with ansible_logins(lab, tmp_path) as logins:
        run = partial(played, tmp_path, write_inventory(lab, tmp_path), SITE, **logins)
        yield lambda *more: run((*words, *more))


def steps(ran: Ran) -> dict[str, list[str]]:
    """Return the steps of each task that changed something, or would do so without check mode."""
    result = {}
    for done in ran.tasks:
        if done.changed:
            parts = done.result.get("results", [done.result])
            result[done.task] = [OF_A_UUID.sub("", step) for part in parts for step in part["steps"]]
    return result


@pytest.mark.deadline(600)
def test_check_mode_shows_a_stock_debians_gaps_without_change(lab: Lab, site: Callable[..., Ran]) -> None:
    put_gpu(lab, "vendor-vf")
    before = leftovers(lab)
    bare = {"site_install": True, "gpu_host_iommu": False, "vgpuctl_link": "", "vgpuctl_source": "/opt/vgpuctl/src"}
    checked = site("--check", "--extra-vars", json.dumps(bare))
    assert checked.status == 0, checked.output
    assert [task.rpartition(" : ")[2] for _, task in checked.changed] == [
        "Keep nouveau from being loaded",
        "Show which packages would be installed",
        "Show what would be installed",
    ]
    assert "python3-packaging python3-venv" in checked.output
    assert "vgpuctl is not installed yet, and check mode installs nothing" in checked.output
    assert leftovers(lab) == before
    assert lab.run("ls /etc/modprobe.d").stdout.split() == ["vgpulab.conf"]
    assert lab.run("ls /opt/vgpuctl").stdout.split() == ["lib", "src"]


@pytest.mark.deadline(1200)
def test_the_site_play_previews_repairs_and_is_idempotent(lab: Lab, site: Callable[..., Ran]) -> None:
    put_gpu(lab, "vendor-vf", vfs=0)
    put_sriov_manage(lab)
    before = leftovers(lab)
    lab.run(f"mv {TINY} /root/tiny.qcow2")

    checked = site("--check", "--diff")
    assert checked.status == 0, checked.output
    assert f"+turn the {VFS} VFs of {IGB} on" in checked.output
    assert f"The GPUs are not changed: check mode does not set up {IGB}" in checked.output
    assert (vfs(lab), lab.run("ls /etc/vgpuctl", check=False).stdout) == (0, "")
    stopped = site()
    assert stopped.status == 2, stopped.output
    assert [done.result["results"][0]["facts"] for done in stopped.failed] == [{"path": TINY}]
    assert steps(stopped) == steps(checked)
    assert (vfs(lab), leftovers(lab)) == (VFS, before)

    lab.run(f"mv /root/tiny.qcow2 {TINY}")
    checked = site("--check", "--diff")
    assert checked.status == 0, checked.output
    assert "+vdi-001: create vGPU A100-4C on" in checked.output
    assert leftovers(lab) == before
    repaired = site()
    assert repaired.status == 0, repaired.output
    assert steps(repaired) == steps(checked)
    assert list(steps(repaired)) == [DESKTOPS]
    assert A100 in guest_devices(lab, "vdi-001")
    again = site()
    assert (again.status, again.changed) == (0, []), again.output
