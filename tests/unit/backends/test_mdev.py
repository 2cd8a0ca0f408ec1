# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: made, read back and removed; each errno told apart; nothing in use removed."""

from __future__ import annotations

import errno

import pytest

from tests.values import T2Q, promised, t4
from tests.worlds import create, open_host, picture, stop, wish
from vgpuctl.backends import of
from vgpuctl.backends.mdev import MakeMdev, RemoveMdev, found_as, parent_path
from vgpuctl.errors import DeviceFailed, InUse, NoCapacity, VerifyFailed
from vgpuctl.model.gpu import Backend

UUID = "12345678-1234-5678-1234-567812345678"
VGPU = promised(t4("0000:3b:00.0"), T2Q, carrier=UUID)
TYPE = "nvidia-231"
FAULT = """version: 1
gpus:
  - {model: T4}
faults:
  - {on: sysfs-write, match: "%s", kind: %s, %s}
"""


def test_an_mdev_is_made_read_back_and_taken_away(tmp_path):
    host = open_host(tmp_path, "t4")
    before = picture(host)
    step = MakeMdev(VGPU, TYPE)
    step.perform(host.world)
    step.verify(host.world)
    assert found_as(host.world, UUID) == ("0000:3b:00.0", TYPE)
    step.undo(host.world)
    assert picture(host) == before
    step.undo(host.world)


@pytest.mark.parametrize(
    ("number", "kind"),
    [("EIO", NoCapacity), ("EUSERS", NoCapacity), ("ENOSPC", NoCapacity), ("EEXIST", InUse), ("EINVAL", DeviceFailed)],
)
def test_each_errno_of_making_has_its_own_meaning(tmp_path, number, kind):
    host = open_host(tmp_path, text=FAULT % ("*/create", "error", f"errno: {number}"))
    with pytest.raises(kind) as raised:
        MakeMdev(VGPU, TYPE).perform(host.world)
    assert raised.value.facts.get("errno", getattr(errno, number)) == getattr(errno, number)


def test_an_mdev_of_another_type_is_not_removed_by_undo(tmp_path):
    host = open_host(tmp_path, "t4")
    MakeMdev(VGPU, "nvidia-232").perform(host.world)
    MakeMdev(VGPU, TYPE).undo(host.world)
    assert UUID in picture(host).mdevs


def test_an_mdev_that_did_not_appear_is_noticed(tmp_path):
    host = open_host(tmp_path, text=FAULT % ("*/create", "lost", "nth: 1"))
    MakeMdev(VGPU, TYPE).perform(host.world)
    with pytest.raises(VerifyFailed) as raised:
        MakeMdev(VGPU, TYPE).verify(host.world)
    assert raised.value.facts["wanted"] == ["0000:3b:00.0", TYPE]


def test_an_mdev_that_did_not_go_is_noticed(tmp_path):
    host = open_host(tmp_path, text=FAULT % ("*/remove", "lost", "nth: 1"))
    MakeMdev(VGPU, TYPE).perform(host.world)
    RemoveMdev(VGPU).perform(host.world)
    with pytest.raises(VerifyFailed):
        RemoveMdev(VGPU).verify(host.world)


def test_an_mdev_that_a_vm_holds_is_not_removed_and_no_write_is_parked(tmp_path):
    host = open_host(tmp_path, "t4")
    done = create(host.world, wish("T4-2Q", name="vm"))
    held = promised(t4("0000:3b:00.0"), T2Q, carrier=done.data["vgpus"][0]["carrier"])
    with pytest.raises(InUse) as raised:
        RemoveMdev(held).perform(host.world)
    assert raised.value.facts["pids"]
    assert not host.sim.stuck()
    stop(host.world, "vm")
    RemoveMdev(held).perform(host.world)
    assert not picture(host).mdevs


def test_removing_an_mdev_that_is_gone_is_no_error(tmp_path):
    RemoveMdev(VGPU).perform(open_host(tmp_path, "t4").world)


def test_parents_are_pci_functions_or_kernel_names():
    assert parent_path("0000:3b:00.0") == "/sys/bus/pci/devices/0000:3b:00.0"
    assert parent_path("mtty") == "/sys/class/mdev_bus/mtty"


def test_both_mdev_kinds_refer_by_uuid():
    for backend in (Backend.MDEV_PF, Backend.MDEV_VF):
        assert of(backend).hostdev(VGPU).kind == "mdev"
        assert of(backend).hostdev(VGPU).carrier == UUID
