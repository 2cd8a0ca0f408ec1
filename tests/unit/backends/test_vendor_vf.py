# SPDX-License-Identifier: Apache-2.0
"""Vendor-specific VFIO: every errno told apart, busy plugins waited for, nothing in use removed."""

from __future__ import annotations

import errno
import threading

import pytest

from tests.values import A4C, a100, changed, promised, snapshot
from tests.worlds import create, open_host, picture, stop, wish
from vgpuctl.backends import of
from vgpuctl.backends.vendor_vf import ClearType, SetType
from vgpuctl.errors import Busy, DeviceFailed, HostCannot, InUse, NoCapacity, VerifyFailed
from vgpuctl.host.clock import HostClock
from vgpuctl.model.gpu import Backend
from vgpuctl.model.records import HypervisorStatus
from vgpuctl.value import replace

FAULT = """version: 1
gpus:
  - {model: A100}
faults:
  - {on: sysfs-write, match: "*/current_vgpu_type", kind: %s, %s}
"""
VF = promised(a100(), A4C)


def host_with(directory, kind="error", more="nth: 99"):
    return open_host(directory, text=FAULT % (kind, more))


def test_a_type_is_set_read_back_and_taken_away(tmp_path):
    host = host_with(tmp_path)
    before = picture(host)
    step = SetType(VF, "468")
    step.perform(host.world)
    step.verify(host.world)
    assert picture(host).types == {VF.carrier: 468}
    step.undo(host.world)
    assert picture(host) == before
    step.undo(host.world)


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        ("EIO", NoCapacity, ("A100-4C", "0000:3b:00.0")),
        ("EPERM", InUse, ("0000:3b:00.4", "another vGPU")),
        ("EINVAL", DeviceFailed, ("EINVAL", "current_vgpu_type")),
    ],
)
def test_each_errno_of_setting_has_its_own_meaning_and_a_hint(tmp_path, number, kind, words):
    host = host_with(tmp_path, more=f"errno: {number}, nth: 1")
    with pytest.raises(kind) as raised:
        SetType(VF, "468").perform(host.world)
    assert all(word in str(raised.value) for word in words)
    assert raised.value.hint
    assert raised.value.facts["errno"] == getattr(errno, number)


def test_a_vf_that_carries_another_type_is_not_cleared_by_undo(tmp_path):
    host = host_with(tmp_path)
    SetType(VF, "469").perform(host.world)
    SetType(VF, "468").undo(host.world)
    assert picture(host).types == {VF.carrier: 469}


def test_a_type_that_did_not_take_is_noticed(tmp_path):
    host = host_with(tmp_path, "lost", "nth: 1")
    SetType(VF, "468").perform(host.world)
    with pytest.raises(VerifyFailed) as raised:
        SetType(VF, "468").verify(host.world)
    assert raised.value.facts == {"wanted": "468", "found": "0"}


def test_parameters_that_did_not_take_are_noticed(tmp_path):
    host = host_with(tmp_path)
    step = SetType(replace(VF, params="frame_rate_limiter=0"), "468")
    SetType(VF, "468").perform(host.world)
    with pytest.raises(VerifyFailed) as raised:
        step.verify(host.world)
    assert "frame_rate_limiter=0" in str(raised.value)


def test_a_busy_plugin_is_waited_for_and_then_the_type_is_cleared(tmp_path):
    host = host_with(tmp_path, more="errno: EBUSY, times: 4")
    began = host.world.clock.monotonic()
    host.sim._core.state._on_type(VF.carrier, 468)
    ClearType(VF).perform(host.world)
    assert 0.5 < host.world.clock.monotonic() - began < 5


def test_a_plugin_that_stays_busy_is_temporary_after_five_seconds(tmp_path):
    host = host_with(tmp_path, more="errno: EBUSY")
    host.sim._core.state._on_type(VF.carrier, 468)
    began = host.world.clock.monotonic()
    with pytest.raises(Busy) as raised:
        ClearType(VF).perform(host.world)
    assert 5 <= host.world.clock.monotonic() - began < 6
    assert raised.value.status == 75


def test_a_vf_that_a_vm_holds_is_not_cleared_and_the_process_is_named(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"))
    with pytest.raises(InUse) as raised:
        ClearType(VF).perform(host.world)
    assert "qemu" in str(raised.value)
    assert raised.value.facts["pids"]
    stop(host.world, "vm")
    ClearType(VF).perform(host.world)


def test_clearing_a_vf_without_a_type_is_no_error(tmp_path):
    ClearType(VF).perform(host_with(tmp_path).world)


def test_a_clearing_that_did_not_take_is_noticed(tmp_path):
    host = host_with(tmp_path)
    SetType(VF, "468").perform(host.world)
    with pytest.raises(VerifyFailed):
        ClearType(VF).verify(host.world)


@pytest.mark.parametrize(
    ("changes", "check"),
    [({"iommu_group": None}, "iommu"), ({"vfio_dev": False}, "vfio-dev"), ({}, "libvirt-variant")],
)
def test_what_the_host_lacks_is_named_before_anything_is_written(changes, check):
    gpu = changed(a100(), 0, **changes)
    look = snapshot(gpu)
    if check == "libvirt-variant":
        look = replace(look, hypervisor=HypervisorStatus(True, "qemu:///system", libvirt_version=9_000_000))
    with pytest.raises(HostCannot) as raised:
        of(Backend.VENDOR_VF).check(look, gpu, gpu.functions[0], force_console=False)
    assert raised.value.facts["check"] == check
    assert gpu.functions[0].address in str(raised.value)
    assert raised.value.hint


def test_the_domain_refers_to_the_vf_unmanaged():
    found = of(Backend.VENDOR_VF).hostdev(VF)
    assert (found.kind, found.carrier, found.managed, found.alias) == ("pci", VF.carrier, False, "ua-vgpuctl-0")


MIXED = """version: 1
nvidia: {driver: "580.105.06"}
gpus:
  - {model: A100, mixed_size: true}
"""
BIG = replace(VF, profile="A100-20C", placement_id=20)


class Files:
    """The simulated files, of which the placement answers something else."""

    def __init__(self, inner, answer, *, also=lambda path: True):
        self._inner, self._answer, self._also = inner, answer, also

    def read(self, path):
        if path.endswith("placement_id") and self._also(path):
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer
        return self._inner.read(path)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def place(host):
    return host.world.sysfs.read(f"/sys/bus/pci/devices/{VF.carrier}/nvidia/placement_id")


def test_a_vgpu_on_a_mixed_size_gpu_is_moved_to_its_place_read_back_and_taken_away(tmp_path):
    host = open_host(tmp_path, text=MIXED)
    before = picture(host)
    step = SetType(BIG, "472")
    assert step.describe() == "make vGPU A100-20C on 0000:3b:00.4 (type 472, placement 20)"
    step.perform(host.world)
    step.verify(host.world)
    assert place(host) == "20\n"
    step.undo(host.world)
    assert picture(host) == before


def test_a_place_that_is_not_to_be_had_is_no_room_with_its_number(tmp_path):
    host = open_host(tmp_path, text=MIXED)
    with pytest.raises(NoCapacity) as raised:
        SetType(replace(BIG, placement_id=7), "472").perform(host.world)
    assert "placement 7 of 0000:3b:00.0" in str(raised.value)
    assert (raised.value.facts["gpu"], raised.value.facts["errno"]) == ("0000:3b:00.0", errno.EIO)


def test_where_the_driver_has_no_file_its_choice_stands(tmp_path):
    host = open_host(tmp_path, text=MIXED)
    world = replace(host.world, sysfs=Files(host.sim.sysfs, FileNotFoundError(errno.ENOENT, "No such file")))
    SetType(BIG, "472").perform(world)
    SetType(BIG, "472").verify(world)
    assert place(host) == "0\n"


def test_without_mixed_sizes_a_place_of_the_record_does_not_count(tmp_path):
    host = open_host(tmp_path, text=MIXED.replace(", mixed_size: true", ""))
    SetType(BIG, "472").perform(host.world)
    SetType(BIG, "472").verify(host.world)
    assert place(host) == "65535\n"


def test_a_place_that_cannot_be_read_or_did_not_take_is_noticed(tmp_path):
    host = open_host(tmp_path, text=MIXED)
    broken = replace(host.world, sysfs=Files(host.sim.sysfs, OSError(errno.EIO, "Input/output error")))
    with pytest.raises(DeviceFailed) as failed:
        SetType(BIG, "472").perform(broken)
    assert "placement_id" in str(failed.value)
    with pytest.raises(VerifyFailed) as raised:
        SetType(BIG, "472").verify(host.world)
    assert raised.value.facts == {"wanted": 20, "found": 0}


def test_two_that_are_made_at_once_never_stand_in_each_others_place(tmp_path):
    """The first is about to move from 0 to 20 when the second, which is to be at 0, wants to begin."""
    host = open_host(tmp_path, text=MIXED, clock=HostClock())
    other = promised(a100(), A4C, 1, profile="A100-20C", placement_id=0)
    begun = threading.Event()

    class Meeting:
        def write(self, path, text):
            if path == f"/sys/bus/pci/devices/{VF.carrier}/nvidia/placement_id":
                second.start()
                begun.wait(0.3)
            host.sim.sysfs.write(path, text)
            if other.carrier in path:
                begun.set()

        def __getattr__(self, name):
            return getattr(host.sim.sysfs, name)

    world = replace(host.world, sysfs=Meeting())
    second = threading.Thread(target=SetType(other, "472").perform, args=(world,))
    SetType(BIG, "472").perform(world)
    second.join()
    for vgpu in (BIG, other):
        SetType(vgpu, "472").verify(host.world)
    assert place(host) == "20\n"
