# SPDX-License-Identifier: Apache-2.0
"""The simulated guest in hot-plug: it lets go, does not answer, or refuses; a compacted journal tells the same."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.worlds import create, open_host, picture, wish
from vgpuctl.domain.parse import hostdevs_of
from vgpuctl.errors import LibvirtFailed
from vgpuctl.sim.state import State

MIXED = "gpus:\n  - {model: A100, vfs: {total: 2, enabled: 2}}\nfaults:\n  - {on: unplug, kind: %s, code: 9, nth: 1}\n"


@pytest.mark.parametrize(("kind", "config", "live"), [("lost", 0, 1), ("error", 1, 1)])
def test_a_guest_that_does_not_let_go(tmp_path, kind, config, live):
    host = open_host(tmp_path, text=f"version: 1\n{MIXED % kind}")
    uuid = str(create(host.world, wish("A100-4C", name="vm")).data["uuid"])
    refuses = pytest.raises(LibvirtFailed) if kind == "error" else nullcontext()
    with refuses as caught:
        host.world.hypervisor.detach_device(uuid, "ua-vgpuctl-0", live=True, config=True)
    assert caught is None or caught.value.facts["libvirt_code"] == 9
    record = host.world.hypervisor.find_domain(uuid)
    assert record is not None
    assert (len(hostdevs_of(record.xml)), len(hostdevs_of(record.live_xml or ""))) == (config, live)


def test_a_managed_function_gets_its_driver_back_when_it_is_unplugged(tmp_path):
    host = open_host(tmp_path, "mixed")
    wanted = wish(name="vm", mode="sriov", gpu="0000:86:00.0")
    before = picture(host).drivers
    uuid = str(create(host.world, wanted).data["uuid"])
    assert picture(host).drivers != before
    host.world.hypervisor.detach_device(uuid, "ua-vgpuctl-0", live=True, config=True)
    assert (picture(host).drivers, picture(host).running[uuid]) == (before, ())
    state = host.sim._core.look()
    again = State(state.machine)
    again.apply(state.records())
    assert again.running == state.running
