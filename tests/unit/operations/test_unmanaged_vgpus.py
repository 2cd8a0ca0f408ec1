# SPDX-License-Identifier: Apache-2.0
"""delete-vgpu with the UUID or address of a device in place of a name says whose it is, and what removes it."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, picture, request
from tests.unit.operations.test_vgpus import DESK
from tests.vgpus import drop, make
from vgpuctl.errors import InUse, NotFound, Refused, Unmanaged
from vgpuctl.observe import ReadScope, observe

UUID = "5bfcd486-c5eb-43e4-a5ee-97366690106f"
VF = "0000:3b:00.4"


def with_mdev(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    gpu = observe(host.ports, ReadScope(types=True)).gpus[0]
    type_id = next(t.type_id for t in gpu.types if t.profile == "T4-2Q")
    host.ports.sysfs.write(f"/sys/bus/pci/devices/{gpu.address}/mdev_supported_types/{type_id}/create", UUID)
    return host


@pytest.mark.parametrize("name", [UUID, UUID.upper()])
@pytest.mark.parametrize("used", [False, True])
def test_an_mdev_of_another_program(tmp_path, name, used):
    host = with_mdev(tmp_path)
    if used:
        hostdev = f"<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='{UUID}'/></source>"
        host.ports.hypervisor.define(DESK % f"{hostdev}</hostdev>")
    before = picture(host)
    with pytest.raises(Unmanaged, match=f"T4-2Q {UUID} on GPU .* is unmanaged: another program made it") as raised:
        drop(host.ports, name)
    remove = f"mdevctl stop -u {UUID}; or echo 1 > /sys/bus/mdev/devices/{UUID}/remove"
    stop = f"virsh edit desk: remove the device with {UUID}; then " if used else ""
    assert (raised.value.status, raised.value.hint) == (3, stop + remove)
    assert picture(host) == before


@pytest.mark.parametrize("name", [VF, "3b:00.4", "0000:3B:00.4"])
def test_a_function_of_another_program(tmp_path, name):
    host = open_sim_host(tmp_path)
    host.ports.sysfs.write(f"/sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type", "469\n")
    with pytest.raises(Unmanaged, match=f"A100-5C {VF} on GPU 0000:3b:00.0 is unmanaged") as raised:
        drop(host.ports, name)
    assert raised.value.hint == f"echo 0 > /sys/bus/pci/devices/{VF}/nvidia/current_vgpu_type"


def test_the_vgpu_of_a_vm_and_one_with_a_name(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    with pytest.raises(InUse, match=f"A100-4C {VF} .* is the vGPU of vm") as raised:
        drop(host.ports, VF)
    assert raised.value.hint == f"vgpuctl detach-vgpu vm --vgpu {VF}"
    carrier = make(host.ports, name="spare").data.carrier
    with pytest.raises(Refused, match="is vGPU spare") as named:
        drop(host.ports, carrier)
    assert named.value.hint == "vgpuctl delete-vgpu spare"
    with pytest.raises(NotFound, match=r"there is no vGPU spart in host\.yaml"):
        drop(host.ports, "spart")
