# SPDX-License-Identifier: Apache-2.0
"""How many VFs a mode means, and who stands against it."""

from __future__ import annotations

import pytest

from tests.values import A4C, T2Q, a100, claim, promised, snapshot, t4, taken, vm
from vgpuctl.errors import HostCannot, InUse, InvalidInput
from vgpuctl.model.gpu import Backend, Owner
from vgpuctl.model.records import HypervisorStatus
from vgpuctl.model.vm import VmState
from vgpuctl.plan.layout import refuse_misfits, refuse_running, users_to_drain, wanted_vfs
from vgpuctl.value import replace

OFF = a100(vfs_enabled=0, functions=(), types=(), backend=None)
PLAIN = a100(vendor_id="8086", driver="xe", backend=Backend.SRIOV_VF, types=())


def plain_vm(number, **more):
    return vm(number, promised(PLAIN, A4C, number, profile=None), **more)


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
    assert wanted_vfs(gpu, mode, vfs) == number


@pytest.mark.parametrize("driver", [None, "vfio-pci", "gim"])
def test_a_driver_that_cannot_switch_them_is_named(driver):
    with pytest.raises(HostCannot, match=driver or "none"):
        wanted_vfs(a100(vendor_id="1002", driver=driver, backend=Backend.SRIOV_VF), "sriov", 3)


@pytest.mark.parametrize(("vfs", "mode"), [(0, "sriov"), (17, "sriov"), (3, "passthrough"), (3, "unmanaged")])
def test_a_number_that_cannot_be_meant_is_refused(vfs, mode):
    with pytest.raises(InvalidInput):
        wanted_vfs(PLAIN, mode, vfs)


def test_what_has_no_place_in_a_mode_is_named():
    gpu = t4()
    look = snapshot(gpu, vms=[vm(1, promised(gpu, T2Q))])
    refuse_misfits(look, gpu, "vgpu")
    for mode in ("passthrough", "sriov", "unmanaged"):
        with pytest.raises(InUse, match="vdi-001"):
            refuse_misfits(look, gpu, mode)


def test_foreign_vgpus_do_not_stand_against_leaving_the_gpu_alone():
    gpu = t4()
    look = snapshot(gpu, vgpus=(taken(gpu, T2Q, owner=Owner.FOREIGN, vm=None),))
    refuse_misfits(look, gpu, "unmanaged")
    with pytest.raises(InUse):
        refuse_misfits(look, gpu, "passthrough")


def test_running_vms_are_drained_and_stopped_ones_stay_as_they_are():
    look = snapshot(PLAIN, vms=[plain_vm(2), plain_vm(1), plain_vm(3, state=VmState.STOPPED)])
    running = users_to_drain(look, PLAIN, 8)
    assert [v.name for v in running] == ["vdi-001", "vdi-002"]
    with pytest.raises(InUse, match="vdi-001, vdi-002"):
        refuse_running(PLAIN, running)
    refuse_running(PLAIN, ())


def test_a_crashed_vm_whose_qemu_is_preserved_is_not_off_and_not_drained():
    look = snapshot(PLAIN, vms=[plain_vm(2, state=VmState.CRASHED), plain_vm(1)])
    with pytest.raises(InUse, match="vdi-002 crashed, and QEMU still holds the vGPU on 0000:3b") as raised:
        users_to_drain(look, PLAIN, 8)
    assert "vgpuctl stop-vm vdi-002 --force" in raised.value.hint
    assert raised.value.facts["vms"] == ["vdi-002"]


def test_a_vm_of_which_nobody_knows_whether_it_runs_is_drained_only_when_libvirt_was_asked():
    asked = snapshot(PLAIN, vms=[plain_vm(1, state=VmState.UNKNOWN), plain_vm(2)])
    unasked = replace(asked, hypervisor=HypervisorStatus(available=False, uri="", reason="not asked"))
    assert [v.name for v in users_to_drain(asked, PLAIN, 8)] == ["vdi-001", "vdi-002"]
    assert [v.name for v in users_to_drain(unasked, PLAIN, 8)] == ["vdi-002"]


def test_who_would_lose_its_vf_is_named_though_it_is_off():
    look = snapshot(PLAIN, vms=[plain_vm(1), plain_vm(7, state=VmState.STOPPED)])
    with pytest.raises(InUse, match="vdi-007") as raised:
        users_to_drain(look, PLAIN, 4)
    assert raised.value.facts["vms"] == ["vdi-007"]


def test_promises_of_vfs_that_are_off_do_not_stand_against_turning_them_on():
    look = snapshot(OFF, vms=[vm(1, promised(a100(), A4C), state=VmState.STOPPED)])
    refuse_misfits(look, OFF, "vgpu")
    assert users_to_drain(look, OFF, 16) == ()


def test_a_claim_without_a_vm_is_not_drained():
    look = snapshot(PLAIN, claims=[claim(promised(PLAIN, A4C, 1), 1)], live=[PLAIN.functions[1].address])
    with pytest.raises(InUse, match="cannot drain"):
        users_to_drain(look, PLAIN, 4)


def test_vfs_that_the_host_itself_uses_are_not_taken():
    card = a100(vendor_id="8086", driver="igb", backend=Backend.SRIOV_VF, types=(), display_class=False)
    with pytest.raises(InUse, match="the host uses VFs"):
        users_to_drain(snapshot(card), card, 4)
