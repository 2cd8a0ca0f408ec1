# SPDX-License-Identifier: Apache-2.0
"""Which way a scheduler is set, who makes room for it, and in which order."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, promised, snapshot, taken, vm
from vgpuctl.errors import Busy, HostCannot, InUse, Refused
from vgpuctl.model.gpu import Mode, Owner
from vgpuctl.model.partition import Mig
from vgpuctl.model.records import NvmlStatus
from vgpuctl.model.scheduler import GpuScheduler, Policy, SchedulerSpec, SchedulerState
from vgpuctl.model.vm import PromiseState, VmState
from vgpuctl.plan.scheduler import differs, refuse_impossible, scheduler_work, way_of
from vgpuctl.value import replace

FIXED = SchedulerSpec(Policy.FIXED_SHARE)
RUNS = SchedulerState(Policy.FIXED_SHARE, True, 1_041_666, 33)
ABLE = GpuScheduler(state=SchedulerState(Policy.BEST_EFFORT), interfaces=("v1",), architecture=7)


def words(work):
    return [step.describe() for step in work.steps]


def test_nvml_goes_first_and_modprobe_where_it_cannot():
    look = snapshot(a100())
    assert way_of(look, a100(scheduler=ABLE), "auto") == "nvml"
    assert way_of(look, a100(scheduler=ABLE), "modprobe") == "modprobe"
    assert way_of(look, a100(scheduler=GpuScheduler()), "auto") == "modprobe"
    assert way_of(look, a100(), "auto") == "modprobe"
    dark = snapshot(a100(), nvml=NvmlStatus(available=False, reason="too-old"))
    with pytest.raises(HostCannot, match="too-old"):
        way_of(dark, a100(), "nvml")


def test_a_gpu_without_vgpus_needs_one_step():
    gpu = a100(scheduler=ABLE)
    work = scheduler_work(gpu, FIXED, snapshot(gpu), drain=False)
    assert (words(work), work.stops) == (["set the scheduler of 0000:3b:00.0 to fixed_share (NVML)"], ())


def test_what_runs_already_needs_none_also_while_vgpus_are_there():
    gpu = a100(scheduler=GpuScheduler(state=RUNS, interfaces=("v1",)))
    look = snapshot(gpu, vgpus=[taken(gpu, A4C)])
    assert scheduler_work(gpu, FIXED, look, drain=False).steps == ()


def test_devices_go_in_reverse_and_come_back_in_order():
    gpu = a100(scheduler=ABLE)
    on, off = vm(1, promised(gpu, A4C, 0)), vm(2, promised(gpu, A4C, 1), state=VmState.STOPPED)
    vgpus = [taken(gpu, A4C, n, vm=one.name, vm_uuid=one.uuid) for n, one in enumerate((on, off))]
    look = snapshot(gpu, vms=[on, off], vgpus=vgpus)
    with pytest.raises(InUse, match=r"2 vGPU\(s\) of vdi-001, vdi-002"):
        scheduler_work(gpu, FIXED, look, drain=False)
    work = scheduler_work(gpu, FIXED, look, drain=True)
    assert [one.name for one in work.stops] == ["vdi-001"]
    carriers = [v.carrier for v in vgpus]
    assert all(carrier in line for carrier, line in zip(reversed(carriers), words(work)[:2], strict=True))
    assert "set the scheduler" in words(work)[2]
    assert all(carrier in line for carrier, line in zip(carriers, words(work)[3:], strict=True))


def test_the_device_of_a_crashed_vm_whose_qemu_is_preserved_is_not_lent():
    gpu = a100(scheduler=ABLE)
    crashed = vm(1, promised(gpu, A4C, 0), state=VmState.CRASHED)
    look = snapshot(gpu, vms=[crashed], vgpus=[taken(gpu, A4C, 0, vm=crashed.name, vm_uuid=crashed.uuid)])
    with pytest.raises(InUse, match="vdi-001 crashed, and QEMU still holds the vGPU"):
        scheduler_work(gpu, FIXED, look, drain=True)


@pytest.mark.parametrize(("owner", "hint"), [(Owner.FOREIGN, "modprobe"), (Owner.LEAKED, "reconcile")])
def test_what_is_not_ours_is_never_removed(owner, hint):
    gpu = a100(scheduler=ABLE)
    look = snapshot(gpu, vgpus=[taken(gpu, A4C, owner=owner, vm=None, vm_uuid=None)])
    with pytest.raises(InUse) as raised:
        scheduler_work(gpu, FIXED, look, drain=True)
    assert hint in str(raised.value.hint)


def test_a_vm_that_is_half_way_is_left_to_reconcile():
    gpu = a100(scheduler=ABLE)
    one = vm(1, promised(gpu, A4C, 0))
    one = replace(one, promise=replace(one.promise, state=PromiseState.MAKING))
    look = snapshot(gpu, vms=[one], vgpus=[taken(gpu, A4C, vm=one.name, vm_uuid=one.uuid)])
    with pytest.raises(Busy, match="half-way"):
        scheduler_work(gpu, FIXED, look, drain=True)


def test_a_promise_without_its_device_stands_against_nothing():
    gpu = a100(scheduler=ABLE)
    one = vm(1, promised(gpu, A4C, 0), state=VmState.STOPPED)
    gone = taken(gpu, A4C, vm=one.name, vm_uuid=one.uuid, present=False)
    assert len(scheduler_work(gpu, FIXED, snapshot(gpu, vms=[one], vgpus=[gone]), drain=False).steps) == 1


@pytest.mark.parametrize(
    ("before", "wanted", "yes"),
    [
        (None, FIXED, False),
        (FIXED, FIXED, False),
        (SchedulerSpec(Policy.FIXED_SHARE, 2), FIXED, True),
        (SchedulerSpec(Policy.EQUAL_SHARE, 2), FIXED, False),
        (None, SchedulerSpec(Policy.EQUAL_SHARE), True),
    ],
)
def test_a_number_that_is_not_asked_for_any_more_is_given_back(before, wanted, yes):
    gpu = a100(scheduler=GpuScheduler(state=RUNS), desired_scheduler=before)
    assert differs(gpu, wanted) is yes


def test_a_gpu_of_another_maker_or_without_its_driver_is_refused():
    for gpu in (a100(vendor_id="8086"), a100(driver="vfio-pci"), a100(driver=None)):
        with pytest.raises(HostCannot, match="only NVIDIA's"):
            refuse_impossible(gpu, FIXED, "550.90.05")
    with pytest.raises(HostCannot, match="with MIG on"):
        refuse_impossible(a100(mig=Mig(True, True), scheduler=GpuScheduler(architecture=7)), FIXED, "550.90.05")
    with pytest.raises(Refused, match="unmanaged"):
        refuse_impossible(a100(scheduler=ABLE, desired=Mode.UNMANAGED), FIXED, None)
    refuse_impossible(a100(scheduler=ABLE), FIXED, None)
