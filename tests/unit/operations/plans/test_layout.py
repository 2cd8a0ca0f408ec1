# SPDX-License-Identifier: Apache-2.0
"""How many VFs a mode needs, what blocks it, and in which order a GPU is evicted and its devices return."""

from __future__ import annotations

import pytest

from tests.values import A4C, T2Q, a100, assigned, claim, snapshot, t4, taken, vm
from vgpuctl.errors import HostCannot, InUse
from vgpuctl.gpu_setup.set_scheduler import RemoveTemporarily
from vgpuctl.model.gpu import Backend, Ownership
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.model.vm import VmState
from vgpuctl.operations.plans.evict import EvictionReason, plan_eviction
from vgpuctl.operations.plans.layout import refuse_mode_conflicts, target_vf_count, vms_to_drain
from vgpuctl.operations.steps.host_file import SetGpuKeys
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


@pytest.mark.parametrize(("driver", "hint"), [(None, "modprobe gim"), ("vfio-pci", "drivers_probe")])
def test_a_driver_that_cannot_switch_them_is_named(driver, hint):
    with pytest.raises(HostCannot, match=driver or "none") as raised:
        target_vf_count(a100(vendor_id="1002", driver=driver, backend=Backend.SRIOV_VF), "sriov", 3)
    assert hint in raised.value.hint


def test_unmanaged_vgpus_do_not_block_mode_unmanaged():
    gpu = t4()
    observed = snapshot(gpu, vgpus=(taken(gpu, T2Q, owner=Ownership.UNMANAGED, vm=None),))
    refuse_mode_conflicts(observed, gpu, "unmanaged")
    with pytest.raises(InUse):
        refuse_mode_conflicts(observed, gpu, "passthrough")


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


STEP = SetGpuKeys("g", {})
WHY = EvictionReason("it has to be empty")
GPU = a100()


def snapshot_of(*states):
    """Return a snapshot of VMs in these states, each with a vGPU."""
    vms = [vm(n, assigned(GPU, A4C, n), state=state) for n, state in enumerate(states)]
    return replace(snapshot(GPU, vms=vms), vgpus=tuple(taken(GPU, A4C, n) for n in range(len(states))))


def test_vms_on_it_are_named_with_reason_and_hint():
    with pytest.raises(InUse, match=r"has 2 vGPUs of vdi-000, vdi-001, and it has to be empty") as raised:
        plan_eviction(
            snapshot_of(VmState.RUNNING, VmState.STOPPED), GPU, (STEP,), replace(WHY, drain_hint="say please")
        )
    assert str(raised.value.hint).startswith("say please shuts the VMs down")
    foreign = replace(snapshot(GPU), vgpus=(taken(GPU, A4C, owner=Ownership.UNMANAGED, vm=None, vm_uuid=None),))
    with pytest.raises(InUse, match="which vgpuctl does not remove; it has to be empty"):
        plan_eviction(foreign, GPU, (STEP,), WHY)


def test_devices_go_in_reverse_and_come_back_around_the_steps():
    work = plan_eviction(snapshot_of(VmState.RUNNING, VmState.STOPPED), GPU, (STEP,), WHY)
    assert [one.name for one in work.vms_to_stop] == ["vdi-000"]
    at = work.steps.index(STEP)
    assert all(isinstance(step, RemoveTemporarily) for step in work.steps[:at])
    assert [step.restore for step in work.steps[:at]][::-1] == list(work.steps[at + 1 :])


def test_with_mixed_sizes_those_with_a_place_in_their_record_come_back_first_and_there():
    seen = snapshot_of(VmState.STOPPED, VmState.STOPPED)
    first, second = seen.vms
    recorded = replace(second, record=replace(second.record, vgpus=(assigned(GPU, A4C, 1, placement_id=8),)))
    seen = replace(seen, vms=(first, recorded))
    for mixed, wanted in ((True, [("vdi-001", 8), ("vdi-000", None)]), (False, [("vdi-000", None), ("vdi-001", None)])):
        steps = plan_eviction(seen, GPU, (STEP,), WHY, mixed).steps
        made = [step.vgpu for step in steps[steps.index(STEP) + 1 :]]
        names = {v.carrier: one.name for one in seen.vms for v in one.record.vgpus}
        assert [(names[v.carrier], v.placement_id) for v in made] == wanted


def test_what_reserves_only_to_run_comes_back_where_its_claim_says():
    seen = snapshot_of(VmState.RUNNING)
    lender = replace(seen.vms[0], record=replace(seen.vms[0].record, reserve="running"))
    held = replace(claim(lender.record.vgpus[0], 0), placement_id=12)
    seen = replace(seen, vms=(lender,), claims=(held,))
    steps = plan_eviction(seen, GPU, (STEP,), WHY, mixed_size=True).steps
    assert steps[-1].vgpu.placement_id == 12
