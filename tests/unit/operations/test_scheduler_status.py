# SPDX-License-Identifier: Apache-2.0
"""What show-gpu reports about a scheduler: each VM's share, and what could not be read."""

from __future__ import annotations

from tests.hosts import open_sim_host
from tests.layouts import A100
from tests.schedulers import EQUAL, TWO_MS, act, with_vms
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.operations.queries import show_gpu
from vgpuctl.value import replace


def test_show_gpu_gives_each_vm_its_share(tmp_path):
    host = with_vms(open_sim_host(tmp_path))
    shares = {share.vm: share.guaranteed_percent for share in show_gpu(host.ports, A100).data.shares}
    assert shares == {"on": None, "off": None}
    act(host.ports, TWO_MS, drain=True)
    shares = {share.vm: share.guaranteed_percent for share in show_gpu(host.ports, A100).data.shares}
    assert shares == {"on": 10, "off": 10}
    act(host.ports, SchedulerSpec(EQUAL), drain=True)
    shares = {share.vm: share.guaranteed_percent for share in show_gpu(host.ports, A100).data.shares}
    assert shares == {"on": 100, "off": None}


def test_show_gpu_says_what_it_may_not_see_and_shows_the_rest(tmp_path):
    host = open_sim_host(tmp_path)

    class Closed:
        def __getattr__(self, name):
            return getattr(host.ports.sysfs, name)

        def listdir(self, path):
            if path == "/etc/modprobe.d":
                raise PermissionError(13, "Permission denied", path)
            return host.ports.sysfs.listdir(path)

    seen = show_gpu(replace(host.ports, sysfs=Closed()), A100)
    assert "/etc/modprobe.d cannot be read: Permission denied" in seen.warnings
    assert (seen.data.scheduler_next, seen.data.scheduler.running.policy) == (None, "best_effort")
