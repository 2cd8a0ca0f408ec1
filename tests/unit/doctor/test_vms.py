# SPDX-License-Identifier: Apache-2.0
"""VMs that would take a VF from the driver that serves it."""

from __future__ import annotations

from tests.unit.doctor.looks import judge
from tests.values import A4C, a100, promised, snapshot, t4, vm
from vgpuctl.doctor.check import Verdict
from vgpuctl.model.records import HypervisorStatus
from vgpuctl.model.vm import HostdevRef

GPU = a100()
OWN = promised(GPU, A4C)


def test_vms_that_leave_the_driver_alone():
    other = HostdevRef("pci", "0000:af:00.0", managed=True)
    assert judge("managed-vfs", snapshot(GPU, vms=(vm(1, OWN), vm(2, hostdevs=(other,))))).verdict is Verdict.OK


def test_a_managed_vf_of_nvidias_driver_fails_with_the_vms_name():
    wrong = HostdevRef("pci", OWN.carrier, managed=True)
    found = judge("managed-vfs", snapshot(GPU, vms=(vm(1, hostdevs=(wrong,)),)))
    assert found.verdict is Verdict.FAIL
    assert found.evidence == (f"VM vdi-001: {OWN.carrier} with managed='yes'",)


def test_without_such_vfs_or_without_libvirt_nothing_is_judged():
    off = HypervisorStatus(available=False, uri="qemu:///system", reason="refused")
    assert judge("managed-vfs", snapshot(t4())).verdict is Verdict.NOT_APPLICABLE
    assert judge("managed-vfs", snapshot(GPU, hypervisor=off)).verdict is Verdict.UNKNOWN
