# SPDX-License-Identifier: Apache-2.0
"""Hot-plug of the simulated guest: releases the device, does not answer, or refuses; also after journal compaction."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.hosts import create, open_sim_host, picture, request
from vgpuctl.domain.domain_xml import parse_hostdevs
from vgpuctl.errors import LibvirtFailed
from vgpuctl.sim.state import State

MIXED = "gpus:\n  - {model: A100, vfs: {total: 2, enabled: 2}}\nfaults:\n  - {on: unplug, kind: %s, code: 9, nth: 1}\n"


@pytest.mark.parametrize(("kind", "config", "live"), [("lost", 0, 1), ("error", 1, 1)])
def test_a_guest_that_does_not_let_go(tmp_path, kind, config, live):
    host = open_sim_host(tmp_path, text=f"version: 1\n{MIXED % kind}")
    uuid = str(create(host.ports, request("A100-4C", name="vm")).data.uuid)
    refuses = pytest.raises(LibvirtFailed) if kind == "error" else nullcontext()
    with refuses as caught:
        host.ports.hypervisor.detach_device(uuid, "ua-vgpuctl-0", live=True, config=True)
    assert caught is None or caught.value.facts["libvirt_code"] == 9
    record = host.ports.hypervisor.find_domain(uuid)
    assert record is not None
    assert (len(parse_hostdevs(record.xml)), len(parse_hostdevs(record.live_xml or ""))) == (config, live)


def test_a_managed_function_gets_its_driver_back_when_it_is_unplugged(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    wanted = request(name="vm", mode="sriov", gpu="0000:86:00.0")
    before = picture(host).drivers
    uuid = str(create(host.ports, wanted).data.uuid)
    assert picture(host).drivers != before
    host.ports.hypervisor.detach_device(uuid, "ua-vgpuctl-0", live=True, config=True)
    assert (picture(host).drivers, picture(host).running[uuid]) == (before, ())
    state = host.sim._core.read_state()
    again = State(state.machine)
    again.apply(state.records())
    assert again.running == state.running
