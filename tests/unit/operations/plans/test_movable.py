# SPDX-License-Identifier: Apache-2.0
"""Whether each VM of a list can move while it runs, without a further look at the host."""

from __future__ import annotations

import pytest

from tests.hosts import context, create, open_sim_host, request, stop
from tests.unit.operations.test_mtgpu_scheduler import mtt
from tests.unit.operations.test_xe_scheduler import card
from tests.values import snapshot, vm
from vgpuctl.model.migration import MigrationMark, MigrationRole
from vgpuctl.model.vm import HostdevRef, RecordState
from vgpuctl.operations.plans.movable import DRAWS, NOT_CREATED, OTHER_DEVICES, UNMANAGED, find_movability
from vgpuctl.operations.queries import list_vms
from vgpuctl.value import replace


def row(host):
    (shown,) = (vm for vm in list_vms(host.ports, context()).data if vm.name == "vm")
    return shown.can_move, shown.why_not_movable


@pytest.mark.parametrize("scenario", ["a100-40", "a16"])
def test_vms_with_vgpus_of_nvidia_can_also_as_long_as_they_are_off(tmp_path, scenario):
    host = open_sim_host(tmp_path, scenario)
    create(host.ports, request("4C" if scenario == "a100-40" else "2Q", name="vm", reserve="running"))
    assert row(host) == (True, None)
    stop(host.ports, "vm")
    assert row(host) == (True, None)


def test_other_makers(tmp_path):
    host = mtt(tmp_path / "mtt")
    create(host.ports, request("mtgpu-1104", name="vm"))
    assert row(host) == (True, None)
    text = "version: 1\nstorage: {pools: [{name: default}]}\ngpus: [{model: mtty, units: 4}]\n"
    host = open_sim_host(tmp_path / "mtty", text=text)
    create(host.ports, request("mtty-2", name="vm"))
    assert row(host) == (True, None)
    host = open_sim_host(tmp_path / "ascend", "ascend")
    create(host.ports, request("vnpu-vir02", name="vm"))
    assert row(host) == (None, "nothing is known about Huawei Ascend's driver here")


def test_a_plain_vf_only_with_another_driver_than_vfio_pci(tmp_path):
    host = card(tmp_path)
    create(host.ports, request(mode="sriov", name="vm"))
    assert row(host)[0] is False
    stop(host.ports, "vm")
    can, why = row(host)
    assert (can, why) == (None, "its VFIO driver is known only while its VM runs; xe-vfio-pci can")


def test_a_whole_gpu_and_parameters(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request(mode="passthrough", name="vm"))
    assert row(host) == (False, "no driver can read the state of a whole GPU")
    host = open_sim_host(tmp_path / "params")
    create(host.ports, request("A100-4C", name="vm", vgpu_params=(("enable_uvm", "1"),)))
    assert row(host) == (False, "its vGPU parameter enable_uvm=1 switches live migration off")


def test_a_host_with_old_programs(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    create(host.ports, request("T4-2Q", name="vm"))
    can, why = row(host)
    assert can is False
    assert why == (
        "libvirt 8.6.0 or newer is needed, and this is 8.0.0; QEMU 8.1.0 or newer is needed, and this is 6.2.0"
    )


def test_what_the_list_shows_of_other_vms():
    seen = snapshot()
    assert find_movability(seen, vm(1)).can is True
    foreign = find_movability(seen, vm(1, record=None))
    assert (foreign.can, foreign.why_not) == (False, UNMANAGED)
    drawn = find_movability(seen, vm(1, render_node="/dev/dri/renderD128"))
    assert (drawn.can, drawn.why_not) == (False, DRAWS)
    other = find_movability(seen, vm(1, hostdevs=(HostdevRef("pci", "0000:09:00.0", True),)))
    assert (other.can, other.why_not) == (None, OTHER_DEVICES)


def test_vms_that_stay_whatever_their_devices_are():
    seen, own = snapshot(), vm(1)
    adopted = find_movability(seen, replace(own, record=replace(own.record, created_vm=False)))
    assert (adopted.can, adopted.why_not) == (False, NOT_CREATED)
    mark = MigrationMark("1", MigrationRole.LEAVING, "gpu02", "m2")
    moving = replace(own, record=replace(own.record, state=RecordState.MOVING, migration=mark))
    assert find_movability(seen, moving).why_not == "its move with gpu02 has not ended"
    assert find_movability(seen, replace(own, stop_reason="saved")).can is False
