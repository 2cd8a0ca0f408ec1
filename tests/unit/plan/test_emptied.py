# SPDX-License-Identifier: Apache-2.0
"""A GPU is emptied for a moment: every device goes and comes back, and what is not ours is never removed."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, claim, promised, snapshot, taken, vm
from vgpuctl.errors import Busy, InUse, Refused
from vgpuctl.model.gpu import Owner
from vgpuctl.model.vm import PromiseState, VmState
from vgpuctl.plan.emptied import Reason, emptied
from vgpuctl.steps.host_file import SetGpuKeys
from vgpuctl.steps.scheduler import LendDevice
from vgpuctl.value import replace

STEP = SetGpuKeys("g", {})
WHY = Reason("it has to be empty", "say please", ", or do without")
GPU = a100()


def looked(*states, record=PromiseState.READY):
    """Return a look at VMs in these states, each with a vGPU."""
    vms = [vm(n, promised(GPU, A4C, n), state=state, record=record) for n, state in enumerate(states)]
    return replace(snapshot(GPU, vms=vms), vgpus=tuple(taken(GPU, A4C, n) for n in range(len(states))))


def test_devices_go_in_reverse_and_come_back_around_the_steps():
    work = emptied(looked(VmState.RUNNING, VmState.STOPPED), GPU, (STEP,), Reason(WHY.because))
    assert [one.name for one in work.stops] == ["vdi-000"]
    at = work.steps.index(STEP)
    assert all(isinstance(step, LendDevice) for step in work.steps[:at])
    assert [step.again for step in work.steps[:at]][::-1] == list(work.steps[at + 1 :])


def test_an_empty_gpu_needs_nobodys_leave():
    assert emptied(snapshot(GPU), GPU, (STEP,), WHY).steps == (STEP,)


def test_who_is_on_it_is_named_with_the_reason_and_what_to_type():
    with pytest.raises(InUse, match=r"has 2 vGPU\(s\) of vdi-000, vdi-001, and it has to be empty") as raised:
        emptied(looked(VmState.RUNNING, VmState.STOPPED), GPU, (STEP,), WHY)
    assert str(raised.value.hint).startswith("say please shuts VMs down")


def test_what_is_foreign_or_half_way_stays():
    foreign = replace(snapshot(GPU), vgpus=(taken(GPU, A4C, owner=Owner.FOREIGN, vm=None, vm_uuid=None),))
    with pytest.raises(InUse, match="which vgpuctl does not remove; it has to be empty") as raised:
        emptied(foreign, GPU, (STEP,), Reason(WHY.because, None, WHY.otherwise))
    assert raised.value.hint == "remove it with what made it, or do without"
    with pytest.raises(Busy, match="half-way"):
        emptied(looked(VmState.RUNNING, record=PromiseState.MAKING), GPU, (STEP,), Reason(WHY.because))


def test_a_vm_that_would_be_gone_when_it_stops_is_not_drained():
    seen = looked(VmState.RUNNING)
    seen = replace(seen, vms=(replace(seen.vms[0], persistent=False),))
    with pytest.raises(Refused, match="vdi-000: undefined while running"):
        emptied(seen, GPU, (STEP,), Reason(WHY.because))


def test_with_mixed_sizes_those_with_a_place_in_their_record_come_back_first_and_there():
    seen = looked(VmState.STOPPED, VmState.STOPPED)
    first, second = seen.vms
    recorded = replace(second, promise=replace(second.promise, vgpus=(promised(GPU, A4C, 1, placement_id=8),)))
    seen = replace(seen, vms=(first, recorded))
    for mixed, wanted in ((True, [("vdi-001", 8), ("vdi-000", None)]), (False, [("vdi-000", None), ("vdi-001", None)])):
        steps = emptied(seen, GPU, (STEP,), Reason(WHY.because), mixed).steps
        made = [step.vgpu for step in steps[steps.index(STEP) + 1 :]]
        names = {v.carrier: one.name for one in seen.vms for v in one.promise.vgpus}
        assert [(names[v.carrier], v.placement_id) for v in made] == wanted


def test_what_reserves_only_to_run_comes_back_where_its_claim_says():
    seen = looked(VmState.RUNNING)
    lender = replace(seen.vms[0], promise=replace(seen.vms[0].promise, reserve="running"))
    held = replace(claim(lender.promise.vgpus[0], 0), placement_id=12)
    seen = replace(seen, vms=(lender,), claims=(held,))
    steps = emptied(seen, GPU, (STEP,), Reason(WHY.because), mixed_size=True).steps
    assert steps[-1].vgpu.placement_id == 12
