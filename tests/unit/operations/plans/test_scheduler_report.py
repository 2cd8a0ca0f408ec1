# SPDX-License-Identifier: Apache-2.0
"""Configured and running values, and shares that are null if nothing is guaranteed."""

from __future__ import annotations

from tests.values import A4C, a100, assigned, snapshot, taken, vm
from vgpuctl.model.results.gpus import RangeResult, RunningSchedulerResult, SchedulerResult
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerLimits, SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.model.vm import VmState
from vgpuctl.operations.plans.schedulers import SchedulerDetails, scheduler_details, scheduler_summary
from vgpuctl.scheduler.modprobe_files import PER_GPU_PARAMETER, ModprobeFile

FIXED = GpuScheduler(
    limits=SchedulerLimits(frozenset(SchedulerPolicy), True, (1_000_000, 30_000_000), (63, 960), (1, 60)),
    state=SchedulerState(SchedulerPolicy.FIXED_SHARE, True, 1_041_666, 33),
)


def test_a_gpu_without_a_scheduler_has_none():
    assert scheduler_summary(a100()) is None
    assert scheduler_summary(a100(scheduler=GpuScheduler())) is None


def test_configured_and_running_values():
    pair = scheduler_summary(a100(scheduler=FIXED, desired_scheduler=SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, 2)))
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
    assert only is not None
    assert only.running is None


def test_every_vgpu_has_its_share_and_the_words_are_read_as_the_driver_does():
    gpu = a100(scheduler=FIXED)
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
