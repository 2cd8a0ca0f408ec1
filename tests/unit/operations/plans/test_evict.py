# SPDX-License-Identifier: Apache-2.0
"""Eviction of a GPU: every device is removed and restored, and unmanaged devices are never removed."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned, claim, snapshot, taken, vm
from vgpuctl.errors import Busy, InUse, Refused
from vgpuctl.gpu_setup.set_scheduler import RemoveTemporarily
from vgpuctl.model.gpu import Ownership
from vgpuctl.model.vm import RecordState, VmState
from vgpuctl.operations.plans.evict import EvictionReason, plan_eviction
from vgpuctl.operations.steps.host_file import SetGpuKeys
from vgpuctl.value import replace

STEP = SetGpuKeys("g", {})
WHY = EvictionReason("it has to be empty", "say please")
GPU = a100()


def snapshot_of(*states, record=RecordState.READY):
    """Return a snapshot of VMs in these states, each with a vGPU."""
    vms = [vm(n, assigned(GPU, A4C, n), state=state, record=record) for n, state in enumerate(states)]
    return replace(snapshot(GPU, vms=vms), vgpus=tuple(taken(GPU, A4C, n) for n in range(len(states))))


def test_devices_go_in_reverse_and_come_back_around_the_steps():
    work = plan_eviction(snapshot_of(VmState.RUNNING, VmState.STOPPED), GPU, (STEP,), EvictionReason(WHY.cause))
    assert [one.name for one in work.vms_to_stop] == ["vdi-000"]
    at = work.steps.index(STEP)
    assert all(isinstance(step, RemoveTemporarily) for step in work.steps[:at])
    assert [step.restore for step in work.steps[:at]][::-1] == list(work.steps[at + 1 :])


def test_an_empty_gpu_needs_no_drain():
    assert plan_eviction(snapshot(GPU), GPU, (STEP,), WHY).steps == (STEP,)


def test_vms_on_it_are_named_with_reason_and_hint():
    with pytest.raises(InUse, match=r"has 2 vGPUs of vdi-000, vdi-001, and it has to be empty") as raised:
        plan_eviction(snapshot_of(VmState.RUNNING, VmState.STOPPED), GPU, (STEP,), WHY)
    assert str(raised.value.hint).startswith("say please shuts the VMs down")


def test_unmanaged_or_unfinished_stays():
    foreign = replace(snapshot(GPU), vgpus=(taken(GPU, A4C, owner=Ownership.UNMANAGED, vm=None, vm_uuid=None),))
    with pytest.raises(InUse, match="which vgpuctl does not remove; it has to be empty") as raised:
        plan_eviction(foreign, GPU, (STEP,), EvictionReason(WHY.cause))
    assert raised.value.hint == "remove it with the program that created it"
    with pytest.raises(Busy, match="is unfinished"):
        plan_eviction(
            snapshot_of(VmState.RUNNING, record=RecordState.CREATING), GPU, (STEP,), EvictionReason(WHY.cause)
        )


def test_a_vm_that_would_be_gone_when_it_stops_is_not_drained():
    seen = snapshot_of(VmState.RUNNING)
    seen = replace(seen, vms=(replace(seen.vms[0], persistent=False),))
    with pytest.raises(Refused, match="vdi-000: running without a definition"):
        plan_eviction(seen, GPU, (STEP,), EvictionReason(WHY.cause))


def test_with_mixed_sizes_those_with_a_place_in_their_record_come_back_first_and_there():
    seen = snapshot_of(VmState.STOPPED, VmState.STOPPED)
    first, second = seen.vms
    recorded = replace(second, record=replace(second.record, vgpus=(assigned(GPU, A4C, 1, placement_id=8),)))
    seen = replace(seen, vms=(first, recorded))
    for mixed, wanted in ((True, [("vdi-001", 8), ("vdi-000", None)]), (False, [("vdi-000", None), ("vdi-001", None)])):
        steps = plan_eviction(seen, GPU, (STEP,), EvictionReason(WHY.cause), mixed).steps
        made = [step.vgpu for step in steps[steps.index(STEP) + 1 :]]
        names = {v.carrier: one.name for one in seen.vms for v in one.record.vgpus}
        assert [(names[v.carrier], v.placement_id) for v in made] == wanted


def test_what_reserves_only_to_run_comes_back_where_its_claim_says():
    seen = snapshot_of(VmState.RUNNING)
    lender = replace(seen.vms[0], record=replace(seen.vms[0].record, reserve="running"))
    held = replace(claim(lender.record.vgpus[0], 0), placement_id=12)
    seen = replace(seen, vms=(lender,), claims=(held,))
    steps = plan_eviction(seen, GPU, (STEP,), EvictionReason(WHY.cause), mixed_size=True).steps
    assert steps[-1].vgpu.placement_id == 12
