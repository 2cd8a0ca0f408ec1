# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: made, verified and removed; each errno has its error; devices in use stay."""

from __future__ import annotations

import errno

import pytest

from tests.hosts import create, open_sim_host, picture, request, stop
from tests.values import T2Q, assigned, t4
from vgpuctl.backends import backend_for
from vgpuctl.backends.mdev import CreateMdev, RemoveMdev, parent_path, read_mdev
from vgpuctl.errors import DeviceFailed, InUse, NoCapacity, VerifyFailed
from vgpuctl.model.gpu import Backend

UUID = "12345678-1234-5678-1234-567812345678"
VGPU = assigned(t4("0000:3b:00.0"), T2Q, carrier=UUID)
TYPE = "nvidia-231"
FAULT = """version: 1
gpus:
  - {model: T4}
faults:
  - {on: sysfs-write, match: "%s", kind: %s, %s}
"""


def test_an_mdev_is_made_verified_and_removed(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    before = picture(host)
    step = CreateMdev(VGPU, TYPE)
    step.perform(host.ports)
    step.verify(host.ports)
    assert read_mdev(host.ports, UUID) == ("0000:3b:00.0", TYPE)
    step.undo(host.ports)
    assert picture(host) == before
    step.undo(host.ports)


@pytest.mark.parametrize(
    ("number", "kind"),
    [("EIO", NoCapacity), ("EUSERS", NoCapacity), ("ENOSPC", NoCapacity), ("EEXIST", InUse), ("EINVAL", DeviceFailed)],
)
def test_each_errno_of_making_has_its_own_meaning(tmp_path, number, kind):
    host = open_sim_host(tmp_path, text=FAULT % ("*/create", "error", f"errno: {number}"))
    with pytest.raises(kind) as raised:
        CreateMdev(VGPU, TYPE).perform(host.ports)
    assert raised.value.facts.get("errno", getattr(errno, number)) == getattr(errno, number)


def test_an_mdev_of_another_type_is_not_removed_by_undo(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    CreateMdev(VGPU, "nvidia-232").perform(host.ports)
    CreateMdev(VGPU, TYPE).undo(host.ports)
    assert UUID in picture(host).mdevs


def test_an_mdev_that_did_not_appear_is_noticed(tmp_path):
    host = open_sim_host(tmp_path, text=FAULT % ("*/create", "lost", "nth: 1"))
    CreateMdev(VGPU, TYPE).perform(host.ports)
    with pytest.raises(VerifyFailed) as raised:
        CreateMdev(VGPU, TYPE).verify(host.ports)
    assert raised.value.facts["wanted"] == ["0000:3b:00.0", TYPE]


def test_an_mdev_not_removed_is_noticed(tmp_path):
    host = open_sim_host(tmp_path, text=FAULT % ("*/remove", "lost", "nth: 1"))
    CreateMdev(VGPU, TYPE).perform(host.ports)
    RemoveMdev(VGPU).perform(host.ports)
    with pytest.raises(VerifyFailed):
        RemoveMdev(VGPU).verify(host.ports)


def test_an_mdev_in_use_by_a_vm_is_not_removed_and_no_write_hangs(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    done = create(host.ports, request("T4-2Q", name="vm"))
    held = assigned(t4("0000:3b:00.0"), T2Q, carrier=done.data.vgpus[0].carrier)
    with pytest.raises(InUse) as raised:
        RemoveMdev(held).perform(host.ports)
    assert raised.value.facts["pids"]
    assert not host.sim.stuck_writes()
    stop(host.ports, "vm")
    RemoveMdev(held).perform(host.ports)
    assert not picture(host).mdevs


def test_removing_an_mdev_that_is_gone_is_no_error(tmp_path):
    RemoveMdev(VGPU).perform(open_sim_host(tmp_path, "t4").ports)


def test_parents_are_pci_functions_or_kernel_names():
    assert parent_path("0000:3b:00.0") == "/sys/bus/pci/devices/0000:3b:00.0"
    assert parent_path("mtty") == "/sys/class/mdev_bus/mtty"


def test_both_mdev_kinds_refer_by_uuid():
    for backend in (Backend.MDEV_PF, Backend.MDEV_VF):
        assert backend_for(backend).hostdev(VGPU).kind == "mdev"
        assert backend_for(backend).hostdev(VGPU).carrier == UUID
