# SPDX-License-Identifier: Apache-2.0
"""Where an mdev is on a mixed-size GPU: moved to its place, read back; and drivers that tell or take less."""

from __future__ import annotations

import errno

import pytest

from tests.values import A4C, a100, promised
from tests.worlds import open_host, picture
from vgpuctl.backends import of
from vgpuctl.backends.mdev import MakeMdev
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
BIG = promised(a100(), A4C, backend=Backend.MDEV_VF, carrier=UUID, profile="A100-20C", placement_id=20)
PLACE = f"/sys/bus/mdev/devices/{UUID}/nvidia/placement_id"


def test_on_a_mixed_size_gpu_it_is_moved_to_its_place_read_back_and_taken_away(tmp_path):
    host = open_host(tmp_path, text=MIXED)
    before = picture(host)
    step = MakeMdev(BIG, "nvidia-472")
    assert step.describe() == f"make vGPU A100-20C on 0000:3b:00.4 (mdev {UUID}, placement 20)"
    step.perform(host.world)
    step.verify(host.world)
    assert host.world.sysfs.read(PLACE) == "20\n"
    step.undo(host.world)
    assert picture(host) == before


def test_a_refused_place_is_no_room_with_its_numbers_and_the_device_goes_again(tmp_path):
    host = open_host(tmp_path, text=MIXED)
    step = MakeMdev(replace(BIG, placement_id=7), "nvidia-472")
    with pytest.raises(NoCapacity) as raised:
        step.perform(host.world)
    assert "at placement 7 of 0000:3b:00.0" in str(raised.value)
    assert "from placement 0" in str(raised.value)
    assert (raised.value.facts["placement_id"], raised.value.facts["errno"]) == (7, errno.EIO)
    step.undo(host.world)
    assert picture(host).mdevs == {}


def test_a_place_that_reads_back_otherwise_is_noticed(tmp_path):
    host = open_host(tmp_path, text=MIXED)
    MakeMdev(replace(BIG, placement_id=None), "nvidia-472").perform(host.world)
    with pytest.raises(VerifyFailed) as raised:
        MakeMdev(BIG, "nvidia-472").verify(host.world)
    assert raised.value.facts == {"wanted": 20, "found": 0}


class ShownInUseAlone:
    """The simulated files of a driver that shows an mdev's placement only while a VM uses it."""

    def __init__(self, inner):
        self._inner = inner

    def read(self, path):
        return "Not Applicable\n" if path == PLACE else self._inner.read(path)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_a_driver_that_shows_no_place_of_an_unused_mdev_takes_one_all_the_same(tmp_path):
    host = open_host(tmp_path, text=MIXED)
    world = replace(host.world, sysfs=ShownInUseAlone(host.sim.sysfs))
    MakeMdev(BIG, "nvidia-472").perform(world)
    MakeMdev(BIG, "nvidia-472").verify(world)
    assert host.world.sysfs.read(PLACE) == "20\n"


@pytest.mark.parametrize("change", [("580.105.06", "550.90.05"), (", mixed_size: true", "")])
def test_without_the_file_or_without_mixed_sizes_the_drivers_choice_stands(tmp_path, change):
    host = open_host(tmp_path, text=MIXED.replace(*change))
    step = MakeMdev(BIG, "nvidia-472")
    step.perform(host.world)
    step.verify(host.world)
    assert UUID in picture(host).mdevs


def test_one_that_stayed_where_the_driver_put_it_is_moved_later(tmp_path):
    host = open_host(tmp_path, text=MIXED)
    MakeMdev(replace(BIG, placement_id=None), "nvidia-472").perform(host.world)
    (step,) = of(Backend.MDEV_VF).move(BIG)
    assert step.describe() == "move vGPU A100-20C on 0000:3b:00.4 to placement 20"
    step.perform(host.world)
    step.verify(host.world)
    assert host.world.sysfs.read(PLACE) == "20\n"
