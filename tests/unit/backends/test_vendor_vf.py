# SPDX-License-Identifier: Apache-2.0
"""Vendor-specific VFIO: each errno has its error, busy plugins are waited for, devices in use stay."""

from __future__ import annotations

import errno
import threading

import pytest

from tests.hosts import create, open_sim_host, picture, request, stop
from tests.values import A4C, a100, assigned, changed, snapshot
from vgpuctl.backends import backend_for
from vgpuctl.backends.vendor_vf import ClearVgpuType, SetVgpuType
from vgpuctl.errors import Busy, DeviceFailed, HostCannot, InUse, NoCapacity, VerifyFailed
from vgpuctl.host.processes import HostClock
from vgpuctl.model.gpu import Backend
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.value import replace

FAULT = """version: 1
gpus:
  - {model: A100}
faults:
  - {on: sysfs-write, match: "*/current_vgpu_type", kind: %s, %s}
"""
VF = assigned(a100(), A4C)


def host_with(directory, kind="error", more="nth: 99"):
    return open_sim_host(directory, text=FAULT % (kind, more))


def test_a_type_is_set_verified_and_cleared(tmp_path):
    host = host_with(tmp_path)
    before = picture(host)
    step = SetVgpuType(VF, "468")
    step.perform(host.ports)
    step.verify(host.ports)
    assert picture(host).types == {VF.carrier: 468}
    step.undo(host.ports)
    assert picture(host) == before
    step.undo(host.ports)


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
        SetVgpuType(VF, "468").perform(host.ports)
    assert all(word in str(raised.value) for word in words)
    assert raised.value.hint
    assert raised.value.facts["errno"] == getattr(errno, number)


def test_a_vf_that_carries_another_type_is_not_cleared_by_undo(tmp_path):
    host = host_with(tmp_path)
    SetVgpuType(VF, "469").perform(host.ports)
    SetVgpuType(VF, "468").undo(host.ports)
    assert picture(host).types == {VF.carrier: 469}


def test_a_type_that_did_not_take_is_noticed(tmp_path):
    host = host_with(tmp_path, "lost", "nth: 1")
    SetVgpuType(VF, "468").perform(host.ports)
    with pytest.raises(VerifyFailed) as raised:
        SetVgpuType(VF, "468").verify(host.ports)
    assert raised.value.facts == {"wanted": "468", "actual": "0"}


def test_parameters_that_did_not_take_are_noticed(tmp_path):
    host = host_with(tmp_path)
    step = SetVgpuType(replace(VF, params="frame_rate_limiter=0"), "468")
    SetVgpuType(VF, "468").perform(host.ports)
    with pytest.raises(VerifyFailed) as raised:
        step.verify(host.ports)
    assert "frame_rate_limiter=0" in str(raised.value)


def test_a_busy_plugin_is_waited_for_and_then_the_type_is_cleared(tmp_path):
    host = host_with(tmp_path, more="errno: EBUSY, times: 4")
    began = host.ports.clock.monotonic()
    host.sim._core.state._on_type(VF.carrier, 468)
    ClearVgpuType(VF).perform(host.ports)
    assert 0.5 < host.ports.clock.monotonic() - began < 5


def test_a_plugin_that_stays_busy_is_temporary_after_five_seconds(tmp_path):
    host = host_with(tmp_path, more="errno: EBUSY")
    host.sim._core.state._on_type(VF.carrier, 468)
    began = host.ports.clock.monotonic()
    with pytest.raises(Busy) as raised:
        ClearVgpuType(VF).perform(host.ports)
    assert 5 <= host.ports.clock.monotonic() - began < 6
    assert raised.value.status == 75


def test_a_vf_that_a_vm_holds_is_not_cleared_and_the_process_is_named(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    with pytest.raises(InUse) as raised:
        ClearVgpuType(VF).perform(host.ports)
    assert "qemu" in str(raised.value)
    assert raised.value.facts["pids"]
    stop(host.ports, "vm")
    ClearVgpuType(VF).perform(host.ports)


def test_clearing_a_vf_without_a_type_is_no_error(tmp_path):
    ClearVgpuType(VF).perform(host_with(tmp_path).ports)


def test_a_type_not_cleared_is_noticed(tmp_path):
    host = host_with(tmp_path)
    SetVgpuType(VF, "468").perform(host.ports)
    with pytest.raises(VerifyFailed):
        ClearVgpuType(VF).verify(host.ports)


@pytest.mark.parametrize(
    ("changes", "check"),
    [({"iommu_group": None}, "iommu"), ({"has_vfio_dev": False}, "vfio-dev"), ({}, "libvirt-variant")],
)
def test_missing_host_support_is_named_before_any_write(changes, check):
    gpu = changed(a100(), 0, **changes)
    observed = snapshot(gpu)
    if check == "libvirt-variant":
        observed = replace(observed, hypervisor=HypervisorStatus(True, "qemu:///system", libvirt_version=9_000_000))
    with pytest.raises(HostCannot) as raised:
        backend_for(Backend.VENDOR_VF).check(observed, gpu, gpu.functions[0], force_console=False)
    assert raised.value.facts["check"] == check
    assert gpu.functions[0].address in str(raised.value)
    assert raised.value.hint


def test_the_domain_refers_to_the_vf_unmanaged():
    result = backend_for(Backend.VENDOR_VF).hostdev(VF)
    assert (result.kind, result.carrier, result.managed, result.alias) == ("pci", VF.carrier, False, "ua-vgpuctl-0")


MIXED = """version: 1
nvidia: {driver: "580.105.06"}
gpus:
  - {model: A100, mixed_size: true}
"""
BIG = replace(VF, profile="A100-20C", placement_id=20)


class Files:
    """The simulated files, with another answer of the placement file."""

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
    return host.ports.sysfs.read(f"/sys/bus/pci/devices/{VF.carrier}/nvidia/placement_id")


def test_a_mixed_size_vgpu_gets_its_placement_verified_and_removed(tmp_path):
    host = open_sim_host(tmp_path, text=MIXED)
    before = picture(host)
    step = SetVgpuType(BIG, "472")
    assert step.describe() == "create vGPU A100-20C on 0000:3b:00.4 (type 472, placement 20)"
    step.perform(host.ports)
    step.verify(host.ports)
    assert place(host) == "20\n"
    step.undo(host.ports)
    assert picture(host) == before


def test_an_unavailable_placement_is_no_capacity(tmp_path):
    host = open_sim_host(tmp_path, text=MIXED)
    with pytest.raises(NoCapacity) as raised:
        SetVgpuType(replace(BIG, placement_id=7), "472").perform(host.ports)
    assert "placement 7 of 0000:3b:00.0" in str(raised.value)
    assert (raised.value.facts["gpu"], raised.value.facts["errno"]) == ("0000:3b:00.0", errno.EIO)


def test_without_the_drivers_file_the_driver_places_it(tmp_path):
    host = open_sim_host(tmp_path, text=MIXED)
    ports = replace(host.ports, sysfs=Files(host.sim.sysfs, FileNotFoundError(errno.ENOENT, "No such file")))
    SetVgpuType(BIG, "472").perform(ports)
    SetVgpuType(BIG, "472").verify(ports)
    assert place(host) == "0\n"


def test_without_mixed_sizes_a_recorded_placement_is_ignored(tmp_path):
    host = open_sim_host(tmp_path, text=MIXED.replace(", mixed_size: true", ""))
    SetVgpuType(BIG, "472").perform(host.ports)
    SetVgpuType(BIG, "472").verify(host.ports)
    assert place(host) == "65535\n"


def test_an_unreadable_or_unset_placement_is_noticed(tmp_path):
    host = open_sim_host(tmp_path, text=MIXED)
    broken = replace(host.ports, sysfs=Files(host.sim.sysfs, OSError(errno.EIO, "Input/output error")))
    with pytest.raises(DeviceFailed) as failed:
        SetVgpuType(BIG, "472").perform(broken)
    assert "placement_id" in str(failed.value)
    with pytest.raises(VerifyFailed) as raised:
        SetVgpuType(BIG, "472").verify(host.ports)
    assert raised.value.facts == {"wanted": 20, "actual": 0}


def test_two_made_at_once_never_take_each_others_placement(tmp_path):
    """The first is about to move from 0 to 20 when the second, which is to be at 0, wants to begin."""
    host = open_sim_host(tmp_path, text=MIXED, clock=HostClock())
    other = assigned(a100(), A4C, 1, profile="A100-20C", placement_id=0)
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

    ports = replace(host.ports, sysfs=Meeting())
    second = threading.Thread(target=SetVgpuType(other, "472").perform, args=(ports,))
    SetVgpuType(BIG, "472").perform(ports)
    second.join()
    for vgpu in (BIG, other):
        SetVgpuType(vgpu, "472").verify(host.ports)
    assert place(host) == "20\n"
