# SPDX-License-Identifier: Apache-2.0
"""The code that backends share: holders of a device, and errors of refused writes.

The placement ID of an mdev on a mixed-size GPU: set and verified, also with drivers that support less of it.
"""

from __future__ import annotations

import errno

import pytest

from tests.faults import failing
from tests.hosts import open_sim_host, picture
from tests.values import A4C, a100, assigned
from vgpuctl.backends import backend_for
from vgpuctl.backends.base import hostdev_alias, refuse_if_held, verify_params, vfio_nodes, write_error
from vgpuctl.backends.mdev import CreateMdev
from vgpuctl.errors import InUse, NoCapacity, VerifyFailed
from vgpuctl.model.gpu import Backend
from vgpuctl.value import replace


class _Shows:
    """A file tree where every file has the same text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, path: str) -> str:
        return self._text


FUNCTION = "/sys/bus/pci/devices/0000:3b:00.4"


def test_a_function_that_cannot_be_seen_is_in_use(tmp_path):
    host = open_sim_host(tmp_path)
    with pytest.raises(InUse) as raised:
        refuse_if_held(failing(host.ports, 3), "0000:3b:00.4", FUNCTION)
    assert "cannot determine whether" in str(raised.value)
    refuse_if_held(host.ports, "0000:3b:00.4", FUNCTION)


def test_the_node_is_that_of_the_iommu_group(tmp_path):
    host = open_sim_host(tmp_path)
    group, device = vfio_nodes(host.ports, FUNCTION)
    assert group.startswith("/dev/vfio/")
    assert device.startswith("/dev/vfio/devices/vfio")
    assert vfio_nodes(host.ports, "/sys/bus/pci/devices/0000:99:00.0") == ()


def test_a_refused_write_names_errno_path_and_where_to_look():
    error = write_error(OSError(errno.EINVAL, "Invalid argument"), "making X", "/sys/x/create")
    assert str(error) == "making X failed: Invalid argument (EINVAL) writing /sys/x/create"
    assert (error.facts["errno"], error.facts["path"]) == (errno.EINVAL, "/sys/x/create")
    assert "journalctl" in str(error.hint)


def test_aliases_are_libvirts_user_aliases():
    assert hostdev_alias(assigned(a100(), A4C, index=3)) == "ua-vgpuctl-3"


@pytest.mark.parametrize(("text", "right"), [("a=1,b=2", True), ("b=2, a=1 c=3", True), ("a=1", False), ("", False)])
def test_parameters_are_read_back_in_any_order(tmp_path, text, right):
    host = open_sim_host(tmp_path)
    ports = replace(host.ports, sysfs=_Shows(text))
    vgpu = replace(assigned(a100(), A4C), params="a=1,b=2")
    if right:
        verify_params(ports, vgpu, "/params")
        return
    with pytest.raises(VerifyFailed):
        verify_params(ports, vgpu, "/params")


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
