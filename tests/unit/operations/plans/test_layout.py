# SPDX-License-Identifier: Apache-2.0
"""How many VFs a mode needs, and what blocks it."""

from __future__ import annotations

import pytest

from tests.values import A4C, T2Q, a100, assigned, claim, snapshot, t4, taken, vm
from vgpuctl.errors import HostCannot, InUse, InvalidInput
from vgpuctl.model.gpu import Backend, Ownership
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.model.vm import VmState
from vgpuctl.operations.plans.layout import refuse_mode_conflicts, refuse_running_vms, target_vf_count, vms_to_drain
from vgpuctl.value import replace

OFF = a100(vfs_enabled=0, functions=(), types=(), backend=None)
PLAIN = a100(vendor_id="8086", driver="xe", backend=Backend.SRIOV_VF, types=())


def plain_vm(number, **more):
    return vm(number, assigned(PLAIN, A4C, number, profile=None), **more)


@pytest.mark.parametrize(
    ("gpu", "mode", "vfs", "number"),
    [
        (OFF, "vgpu", None, 16),
        (OFF, "vgpu", 16, 16),
        (a100(), "vgpu", None, 16),
        (a100(), "passthrough", None, 0),
        (a100(), "unmanaged", None, 16),
        (t4(), "vgpu", None, 0),
        (t4(), "passthrough", None, 0),
        (PLAIN, "sriov", None, 16),
        (PLAIN, "sriov", 3, 3),
        (a100(vendor_id="8086", driver="xe", backend=None, vfs_enabled=0), "sriov", None, 16),
    ],
)
def test_how_many_vfs_a_mode_means(gpu, mode, vfs, number):
    assert target_vf_count(gpu, mode, vfs) == number


@pytest.mark.parametrize("driver", [None, "vfio-pci", "gim"])
def test_a_driver_that_cannot_switch_them_is_named(driver):
    with pytest.raises(HostCannot, match=driver or "none"):
        target_vf_count(a100(vendor_id="1002", driver=driver, backend=Backend.SRIOV_VF), "sriov", 3)


@pytest.mark.parametrize(("vfs", "mode"), [(0, "sriov"), (17, "sriov"), (3, "passthrough"), (3, "unmanaged")])
def test_an_invalid_vf_count_is_refused(vfs, mode):
    with pytest.raises(InvalidInput):
        target_vf_count(PLAIN, mode, vfs)


def test_what_has_no_place_in_a_mode_is_named():
    gpu = t4()
    observed = snapshot(gpu, vms=[vm(1, assigned(gpu, T2Q))])
    refuse_mode_conflicts(observed, gpu, "vgpu")
    for mode in ("passthrough", "sriov", "unmanaged"):
        with pytest.raises(InUse, match="vdi-001"):
            refuse_mode_conflicts(observed, gpu, mode)


def test_unmanaged_vgpus_do_not_block_mode_unmanaged():
    gpu = t4()
    observed = snapshot(gpu, vgpus=(taken(gpu, T2Q, owner=Ownership.UNMANAGED, vm=None),))
    refuse_mode_conflicts(observed, gpu, "unmanaged")
    with pytest.raises(InUse):
        refuse_mode_conflicts(observed, gpu, "passthrough")


def test_running_vms_are_drained_and_stopped_ones_stay_as_they_are():
    observed = snapshot(PLAIN, vms=[plain_vm(2), plain_vm(1), plain_vm(3, state=VmState.STOPPED)])
    running = vms_to_drain(observed, PLAIN, 8)
    assert [v.name for v in running] == ["vdi-001", "vdi-002"]
    with pytest.raises(InUse, match="vdi-001, vdi-002"):
        refuse_running_vms(PLAIN, running)
    refuse_running_vms(PLAIN, ())


def test_a_crashed_vm_whose_qemu_is_preserved_is_not_off_and_not_drained():
    observed = snapshot(PLAIN, vms=[plain_vm(2, state=VmState.CRASHED), plain_vm(1)])
    with pytest.raises(InUse, match="vdi-002 crashed, and QEMU still holds the vGPU on 0000:3b") as raised:
        vms_to_drain(observed, PLAIN, 8)
    assert "vgpuctl stop-vm vdi-002 --force" in raised.value.hint
    assert raised.value.facts["vms"] == ["vdi-002"]


def test_a_vm_in_unknown_state_is_drained_only_if_libvirt_is_available():
    asked = snapshot(PLAIN, vms=[plain_vm(1, state=VmState.UNKNOWN), plain_vm(2)])
    unasked = replace(asked, hypervisor=HypervisorStatus(available=False, uri="", reason="not asked"))
    assert [v.name for v in vms_to_drain(asked, PLAIN, 8)] == ["vdi-001", "vdi-002"]
    assert [v.name for v in vms_to_drain(unasked, PLAIN, 8)] == ["vdi-002"]


def test_a_stopped_vm_that_would_lose_its_vf_is_named():
    observed = snapshot(PLAIN, vms=[plain_vm(1), plain_vm(7, state=VmState.STOPPED)])
    with pytest.raises(InUse, match="vdi-007") as raised:
        vms_to_drain(observed, PLAIN, 4)
    assert raised.value.facts["vms"] == ["vdi-007"]


def test_records_on_disabled_vfs_do_not_block_enabling_them():
    observed = snapshot(OFF, vms=[vm(1, assigned(a100(), A4C), state=VmState.STOPPED)])
    refuse_mode_conflicts(observed, OFF, "vgpu")
    assert vms_to_drain(observed, OFF, 16) == ()


def test_a_claim_without_a_vm_is_not_drained():
    observed = snapshot(PLAIN, claims=[claim(assigned(PLAIN, A4C, 1), 1)], live=[PLAIN.functions[1].address])
    with pytest.raises(InUse, match="cannot drain"):
        vms_to_drain(observed, PLAIN, 4)


def test_vfs_that_the_host_itself_uses_are_not_taken():
    card = a100(vendor_id="8086", driver="igb", backend=Backend.SRIOV_VF, types=(), is_display_class=False)
    with pytest.raises(InUse, match="the host uses VFs"):
        vms_to_drain(snapshot(card), card, 4)
