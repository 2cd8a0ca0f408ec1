# SPDX-License-Identifier: Apache-2.0
"""The placement ID of an mdev on a mixed-size GPU: set and verified, also with drivers that support less of it."""

from __future__ import annotations

import errno

import pytest

from tests.hosts import open_sim_host, picture
from tests.values import A4C, a100, assigned
from vgpuctl.backends import backend_for
from vgpuctl.backends.mdev import CreateMdev
from vgpuctl.errors import NoCapacity, VerifyFailed
from vgpuctl.model.gpu import Backend
from vgpuctl.value import replace

UUID = "12345678-1234-5678-1234-567812345678"
MIXED = """version: 1
kernel: "5.15.0"
nvidia: {driver: "580.105.06"}
gpus:
  - {model: A100, mixed_size: true}
"""
BIG = assigned(a100(), A4C, backend=Backend.MDEV_VF, carrier=UUID, profile="A100-20C", placement_id=20)
PLACE = f"/sys/bus/mdev/devices/{UUID}/nvidia/placement_id"


def test_a_mixed_size_mdev_gets_its_placement_verified_and_removed(tmp_path):
    host = open_sim_host(tmp_path, text=MIXED)
    before = picture(host)
    step = CreateMdev(BIG, "nvidia-472")
    assert step.describe() == f"create vGPU A100-20C on 0000:3b:00.4 (mdev {UUID}, placement 20)"
    step.perform(host.ports)
    step.verify(host.ports)
    assert host.ports.sysfs.read(PLACE) == "20\n"
    step.undo(host.ports)
    assert picture(host) == before


def test_a_refused_placement_is_no_capacity_and_the_mdev_is_removed(tmp_path):
    host = open_sim_host(tmp_path, text=MIXED)
    step = CreateMdev(replace(BIG, placement_id=7), "nvidia-472")
    with pytest.raises(NoCapacity) as raised:
        step.perform(host.ports)
    assert "at placement 7 of 0000:3b:00.0" in str(raised.value)
    assert "from placement 0" in str(raised.value)
    assert (raised.value.facts["placement_id"], raised.value.facts["errno"]) == (7, errno.EIO)
    step.undo(host.ports)
    assert picture(host).mdevs == {}


def test_another_placement_is_noticed(tmp_path):
    host = open_sim_host(tmp_path, text=MIXED)
    CreateMdev(replace(BIG, placement_id=None), "nvidia-472").perform(host.ports)
    with pytest.raises(VerifyFailed) as raised:
        CreateMdev(BIG, "nvidia-472").verify(host.ports)
    assert raised.value.facts == {"wanted": 20, "actual": 0}


class ShownInUseAlone:
    """The simulated files of a driver that shows an mdev's placement only while a VM uses it."""

    def __init__(self, inner):
        self._inner = inner

    def read(self, path):
        return "Not Applicable\n" if path == PLACE else self._inner.read(path)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_a_driver_without_a_readable_placement_still_accepts_one(tmp_path):
    host = open_sim_host(tmp_path, text=MIXED)
    ports = replace(host.ports, sysfs=ShownInUseAlone(host.sim.sysfs))
    CreateMdev(BIG, "nvidia-472").perform(ports)
    CreateMdev(BIG, "nvidia-472").verify(ports)
    assert host.ports.sysfs.read(PLACE) == "20\n"


@pytest.mark.parametrize("change", [("580.105.06", "550.90.05"), (", mixed_size: true", "")])
def test_without_the_file_or_mixed_sizes_the_driver_places_the_vgpu(tmp_path, change):
    host = open_sim_host(tmp_path, text=MIXED.replace(*change))
    step = CreateMdev(BIG, "nvidia-472")
    step.perform(host.ports)
    step.verify(host.ports)
    assert UUID in picture(host).mdevs


def test_a_device_in_the_drivers_placement_is_moved_later(tmp_path):
    host = open_sim_host(tmp_path, text=MIXED)
    CreateMdev(replace(BIG, placement_id=None), "nvidia-472").perform(host.ports)
    (step,) = backend_for(Backend.MDEV_VF).move_steps(BIG)
    assert step.describe() == "move vGPU A100-20C on 0000:3b:00.4 to placement 20"
    step.perform(host.ports)
    step.verify(host.ports)
    assert host.ports.sysfs.read(PLACE) == "20\n"
