# SPDX-License-Identifier: Apache-2.0
"""How a scheduler is set and which devices are suspended for it, the registry value for a driver, and what is shown."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned, snapshot, taken, vm
from vgpuctl.errors import Busy, HostCannot, InUse, Refused
from vgpuctl.model.gpu import GpuMode, MigState, Ownership
from vgpuctl.model.results.gpus import RangeResult, RunningSchedulerResult, SchedulerResult
from vgpuctl.model.vgpu_scheduler import (
    GpuScheduler,
    SchedulerLimits,
    SchedulerPolicy,
    SchedulerSpec,
    SchedulerState,
)
from vgpuctl.model.vm import RecordState, VmState
from vgpuctl.operations.plans.schedulers import (
    DriverOptions,
    SchedulerDetails,
    find_not_loaded,
    needs_scheduler_change,
    plan_scheduler_change,
    refuse_unsupported_scheduler,
    scheduler_details,
    scheduler_summary,
    scheduler_word,
)
from vgpuctl.scheduler.modprobe_files import PER_GPU_PARAMETER, VGPUCTL_FILE, ModprobeFile
from vgpuctl.value import replace

FIXED = SchedulerSpec(SchedulerPolicy.FIXED_SHARE)
RUNS = SchedulerState(SchedulerPolicy.FIXED_SHARE, True, 1_041_666, 33)
ABLE = GpuScheduler(state=SchedulerState(SchedulerPolicy.BEST_EFFORT), setter_versions=("v1",), architecture=7)
GPU = a100(scheduler=ABLE)


def test_what_runs_already_needs_none_also_while_vgpus_are_there():
    gpu = a100(scheduler=GpuScheduler(state=RUNS, setter_versions=("v1",)))
    observed = snapshot(gpu, vgpus=[taken(gpu, A4C)])
    assert plan_scheduler_change(gpu, FIXED, observed, drain=False).steps == ()


def drained_steps(one, **vgpu):
    """Return the steps that set a scheduler beside a VM's vGPU."""
    observed = snapshot(GPU, vms=[one], vgpus=[taken(GPU, A4C, vm=one.name, vm_uuid=one.uuid, **vgpu)])
    return plan_scheduler_change(GPU, FIXED, observed, drain=True).steps


def test_the_device_of_a_crashed_vm_with_live_qemu_is_not_suspended():
    with pytest.raises(InUse, match="vdi-001 crashed, and QEMU still holds the vGPU"):
        drained_steps(vm(1, assigned(GPU, A4C, 0), state=VmState.CRASHED))


def test_a_vm_that_is_half_way_is_left_to_reconcile():
    with pytest.raises(Busy, match="is unfinished"):
        drained_steps(vm(1, assigned(GPU, A4C, 0), record=RecordState.CREATING))


def test_a_record_without_its_device_blocks_nothing():
    assert len(drained_steps(vm(1, assigned(GPU, A4C, 0), state=VmState.STOPPED), present=False)) == 1


@pytest.mark.parametrize(
    ("owner", "hint"),
    [(Ownership.UNMANAGED, "remove it with the program that created it"), (Ownership.LEAKED, "reconcile")],
)
def test_unmanaged_is_never_removed(owner, hint):
    observed = snapshot(GPU, vgpus=[taken(GPU, A4C, owner=owner, vm=None, vm_uuid=None)])
    with pytest.raises(InUse, match=r"leaked|which vgpuctl does not remove") as raised:
        plan_scheduler_change(GPU, FIXED, observed, drain=True)
    assert hint in str(raised.value.hint)


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
        with pytest.raises(HostCannot, match="vgpuctl cannot set"):
            refuse_unsupported_scheduler(gpu, FIXED, "550.90.05")
    with pytest.raises(HostCannot, match="with MIG on"):
        refuse_unsupported_scheduler(
            a100(mig=MigState(True, True), scheduler=GpuScheduler(architecture=7)), FIXED, "550.90.05"
        )
    with pytest.raises(Refused, match="unmanaged"):
        refuse_unsupported_scheduler(a100(scheduler=ABLE, desired_mode=GpuMode.UNMANAGED), FIXED, None)
    refuse_unsupported_scheduler(GPU, FIXED, None)


UNSETTABLE = a100()
TWO = SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2)


@pytest.mark.parametrize(("driver", "word"), [("470.63", 0x00020011), ("550.90.05", 0x00020013)])
def test_the_word_follows_the_drivers_generation(driver, word):
    assert scheduler_word(UNSETTABLE, TWO, driver, None) == word


def test_an_older_driver_whose_nvml_says_so_is_adaptive():
    limits = SchedulerLimits(frozenset(SchedulerPolicy), True, (0, 0), (0, 0), (0, 0))
    assert scheduler_word(a100(scheduler=GpuScheduler(limits=limits)), TWO, "535.161", None) == 0x00020013


def test_the_bit_for_weights_is_kept_where_present():
    assert scheduler_word(UNSETTABLE, FIXED, "595.45.04", 0x8) == 0x19
    assert scheduler_word(UNSETTABLE, FIXED, "550.90.05", 0x8) == 0x11


@pytest.mark.parametrize(("driver", "text"), [(None, "not known"), ("595.45.04", "595")])
def test_a_driver_that_is_not_known_or_cannot_is_refused(driver, text):
    with pytest.raises(HostCannot, match=text):
        scheduler_word(UNSETTABLE, TWO, driver, None)


def options(text="", loaded=""):
    files = (ModprobeFile(VGPUCTL_FILE, text),) if text else ()
    return DriverOptions("550.90.05", loaded, files)


def test_a_driver_that_was_loaded_with_it_needs_nothing():
    loaded = 'RegistryDwordsPerDevice: "pci=0000:3b:00.0;RmPVMRL=0x00020013"\n'
    assert find_not_loaded(snapshot(UNSETTABLE), ((UNSETTABLE, TWO),), options(loaded=loaded)) is None
    assert find_not_loaded(snapshot(UNSETTABLE), ((UNSETTABLE, FIXED),), options(loaded=loaded)) is not None
    settable = a100(scheduler=GpuScheduler(setter_versions=("v1",)))
    assert find_not_loaded(snapshot(settable), ((settable, TWO),), options()) is None
    runs = a100(scheduler=GpuScheduler(state=SchedulerState(SchedulerPolicy.FIXED_SHARE)))
    assert find_not_loaded(snapshot(runs), ((runs, FIXED),), options()) is None


LIMITED = GpuScheduler(
    limits=SchedulerLimits(frozenset(SchedulerPolicy), True, (1_000_000, 30_000_000), (63, 960), (1, 60)),
    state=SchedulerState(SchedulerPolicy.FIXED_SHARE, True, 1_041_666, 33),
)


def test_a_gpu_without_a_scheduler_has_none():
    assert scheduler_summary(a100()) is None
    assert scheduler_summary(a100(scheduler=GpuScheduler())) is None


def test_configured_and_running_values():
    pair = scheduler_summary(a100(scheduler=LIMITED, desired_scheduler=SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, 2)))
    assert pair == SchedulerResult(
        configured=SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, 2),
        running=RunningSchedulerResult(
            policy=SchedulerPolicy.FIXED_SHARE,
            adaptive=True,
            time_slice_us=1041.666,
            averaging_factor=33,
            source="NVML",
        ),
    )
    only = scheduler_summary(a100(desired_scheduler=SchedulerSpec(SchedulerPolicy.EQUAL_SHARE)))
    assert only.running is None


def test_every_vgpu_has_its_share_and_the_words_are_read_as_the_driver_does():
    gpu = a100(scheduler=LIMITED)
    one = vm(1, assigned(gpu, A4C, 0), state=VmState.STOPPED)
    observed = snapshot(gpu, vms=[one], vgpus=[taken(gpu, A4C, vm=one.name, vm_uuid=one.uuid)])
    file = ModprobeFile("/etc/modprobe.d/x.conf", f'options nvidia {PER_GPU_PARAMETER}="pci=3b:00;RmPVMRL=0x71"\n')
    result = scheduler_details(observed, gpu, "550.90.05", 'RegistryDwords: "RmPVMRL=0x00020003"', (file,))
    (share,) = result.shares
    assert (share.vm, share.guaranteed_percent, share.time_slice_us) == ("vdi-001", 10.0, 1041.666)
    assert result.at_load.time_slice_ms == 2
    assert result.at_next_load is None
    assert result.limits.frequency_hz == RangeResult(63, 960)


def test_a_gpu_of_which_nothing_is_known_has_no_numbers():
    result = scheduler_details(snapshot(a100()), a100(), None, None, ())
    assert result == SchedulerDetails(None, None, None, ())


def test_one_line_has_every_gpu_of_host_yaml_that_is_managed_and_can_have_its_setting():
    one = replace(UNSETTABLE, address="0000:86:00.0", desired_scheduler=FIXED)
    unmanaged = replace(one, address="0000:af:00.0", desired_mode=GpuMode.UNMANAGED)
    unable = replace(one, address="0000:d8:00.0", desired_scheduler=SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 999))
    error = find_not_loaded(snapshot(UNSETTABLE, one, unmanaged, unable), ((UNSETTABLE, TWO),), options())
    value = "pci=0000:3b:00.0;RmPVMRL=0x00020013;pci=0000:86:00.0;RmPVMRL=0x00000011"
    assert error.facts["line"] == f'options nvidia {PER_GPU_PARAMETER}="{value}"'
