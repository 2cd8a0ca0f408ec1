# SPDX-License-Identifier: Apache-2.0
"""How a scheduler is set, which devices are suspended for it, and in which order."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned, snapshot, taken, vm
from vgpuctl.errors import Busy, HostCannot, InUse, Refused
from vgpuctl.model.gpu import GpuMode, MigState, Ownership
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.model.vm import RecordState, VmState
from vgpuctl.operations.plans.schedulers import (
    can_set_scheduler,
    needs_scheduler_change,
    plan_scheduler_change,
    refuse_unsupported_scheduler,
)
from vgpuctl.value import replace

FIXED = SchedulerSpec(SchedulerPolicy.FIXED_SHARE)
RUNS = SchedulerState(SchedulerPolicy.FIXED_SHARE, True, 1_041_666, 33)
ABLE = GpuScheduler(state=SchedulerState(SchedulerPolicy.BEST_EFFORT), setter_versions=("v1",), architecture=7)


def words(work):
    return [step.describe() for step in work.steps]


def test_nvml_of_some_drivers_sets_no_scheduler():
    assert can_set_scheduler(a100(scheduler=ABLE))
    assert not can_set_scheduler(a100(scheduler=GpuScheduler()))
    assert not can_set_scheduler(a100())


def test_a_gpu_without_vgpus_needs_one_step():
    gpu = a100(scheduler=ABLE)
    work = plan_scheduler_change(gpu, FIXED, snapshot(gpu), drain=False)
    assert (words(work), work.vms_to_stop) == (["set the scheduler of 0000:3b:00.0 to fixed_share (NVML)"], ())


def test_what_runs_already_needs_none_also_while_vgpus_are_there():
    gpu = a100(scheduler=GpuScheduler(state=RUNS, setter_versions=("v1",)))
    observed = snapshot(gpu, vgpus=[taken(gpu, A4C)])
    assert plan_scheduler_change(gpu, FIXED, observed, drain=False).steps == ()


def test_devices_go_in_reverse_and_come_back_in_order():
    gpu = a100(scheduler=ABLE)
    on, off = vm(1, assigned(gpu, A4C, 0)), vm(2, assigned(gpu, A4C, 1), state=VmState.STOPPED)
    vgpus = [taken(gpu, A4C, n, vm=one.name, vm_uuid=one.uuid) for n, one in enumerate((on, off))]
    observed = snapshot(gpu, vms=[on, off], vgpus=vgpus)
    with pytest.raises(InUse, match=r"2 vGPUs of vdi-001, vdi-002"):
        plan_scheduler_change(gpu, FIXED, observed, drain=False)
    work = plan_scheduler_change(gpu, FIXED, observed, drain=True)
    assert [one.name for one in work.vms_to_stop] == ["vdi-001"]
    carriers = [v.carrier for v in vgpus]
    assert all(carrier in line for carrier, line in zip(reversed(carriers), words(work)[:2], strict=True))
    assert "set the scheduler" in words(work)[2]
    assert all(carrier in line for carrier, line in zip(carriers, words(work)[3:], strict=True))


def test_the_device_of_a_crashed_vm_with_live_qemu_is_not_suspended():
    gpu = a100(scheduler=ABLE)
    crashed = vm(1, assigned(gpu, A4C, 0), state=VmState.CRASHED)
    observed = snapshot(gpu, vms=[crashed], vgpus=[taken(gpu, A4C, 0, vm=crashed.name, vm_uuid=crashed.uuid)])
    with pytest.raises(InUse, match="vdi-001 crashed, and QEMU still holds the vGPU"):
        plan_scheduler_change(gpu, FIXED, observed, drain=True)


@pytest.mark.parametrize(("owner", "hint"), [(Ownership.UNMANAGED, "remove it"), (Ownership.LEAKED, "reconcile")])
def test_unmanaged_is_never_removed(owner, hint):
    gpu = a100(scheduler=ABLE)
    observed = snapshot(gpu, vgpus=[taken(gpu, A4C, owner=owner, vm=None, vm_uuid=None)])
    with pytest.raises(InUse) as raised:
        plan_scheduler_change(gpu, FIXED, observed, drain=True)
    assert hint in str(raised.value.hint)


def test_a_vm_that_is_half_way_is_left_to_reconcile():
    gpu = a100(scheduler=ABLE)
    one = vm(1, assigned(gpu, A4C, 0))
    one = replace(one, record=replace(one.record, state=RecordState.CREATING))
    observed = snapshot(gpu, vms=[one], vgpus=[taken(gpu, A4C, vm=one.name, vm_uuid=one.uuid)])
    with pytest.raises(Busy, match="is unfinished"):
        plan_scheduler_change(gpu, FIXED, observed, drain=True)


def test_a_record_without_its_device_blocks_nothing():
    gpu = a100(scheduler=ABLE)
    one = vm(1, assigned(gpu, A4C, 0), state=VmState.STOPPED)
    gone = taken(gpu, A4C, vm=one.name, vm_uuid=one.uuid, present=False)
    assert len(plan_scheduler_change(gpu, FIXED, snapshot(gpu, vms=[one], vgpus=[gone]), drain=False).steps) == 1


@pytest.mark.parametrize(
    ("before", "wanted", "yes"),
    [
        (None, FIXED, False),
        (FIXED, FIXED, False),
        (SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2), FIXED, True),
        (SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, 2), FIXED, False),
        (None, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE), True),
    ],
)
def test_an_unconfigured_setting_is_reset(before, wanted, yes):
    gpu = a100(scheduler=GpuScheduler(state=RUNS), desired_scheduler=before)
    assert needs_scheduler_change(gpu, wanted) is yes


def test_a_gpu_of_another_maker_or_without_its_driver_is_refused():
    for gpu in (a100(vendor_id="8086"), a100(driver="vfio-pci"), a100(driver=None)):
        with pytest.raises(HostCannot, match="only NVIDIA's"):
            refuse_unsupported_scheduler(gpu, FIXED, "550.90.05")
    with pytest.raises(HostCannot, match="with MIG on"):
        refuse_unsupported_scheduler(
            a100(mig=MigState(True, True), scheduler=GpuScheduler(architecture=7)), FIXED, "550.90.05"
        )
    with pytest.raises(Refused, match="unmanaged"):
        refuse_unsupported_scheduler(a100(scheduler=ABLE, desired_mode=GpuMode.UNMANAGED), FIXED, None)
    refuse_unsupported_scheduler(a100(scheduler=ABLE), FIXED, None)
