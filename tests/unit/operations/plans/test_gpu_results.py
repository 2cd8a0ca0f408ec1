# SPDX-License-Identifier: Apache-2.0
"""The values that commands print: names as documented, unknown as None."""

from __future__ import annotations

from tests.values import A4C, ME, a100, assigned, changed, snapshot, vm
from vgpuctl.model.gpu import GiProfile, Gpu, GpuInstance, MigState, PlacementSpan
from vgpuctl.model.results.gpus import GpuDetailsResult, GpuInstanceResult, MigResult, VfsResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import StuckWrite
from vgpuctl.operations.plans.results import gpu_details, gpu_result
from vgpuctl.operations.plans.schedulers import scheduler_details
from vgpuctl.value import replace


def details(observed: Snapshot, gpu: Gpu) -> GpuDetailsResult:
    """Return what show-gpu shows of a GPU on a host without modprobe's files."""
    return gpu_details(observed, gpu, scheduler_details(observed, gpu, None, None, ()))


def test_vfs_in_use_are_counted_once():
    gpu = changed(a100(), 0, current_type=A4C.type_id)
    value = gpu_result(snapshot(gpu, vms=[vm(1, assigned(gpu, A4C))]), gpu)
    assert value.vfs == VfsResult(16, 16, 1)


def test_problems_name_the_function_and_the_stuck_process():
    gpu = changed(a100(), 2, problem="broken", available_instances=None)
    value = gpu_result(snapshot(gpu, stuck_writes=(StuckWrite(ME, gpu.address, "/sys/x", "0"),)), gpu)
    assert value.problems == ("0000:3b:00.6: broken", "process 100 waits in the kernel writing /sys/x")


def test_a_gpu_of_mixed_sizes_shows_what_fits_in_that_mode_and_one_with_mig_its_instances():
    kind = replace(A4C, placement_ids=(0, 8, 16), placement_size=4)
    gpu = a100(types=(kind,), mixed_size=True)
    observed = snapshot(gpu, vms=[vm(1, assigned(gpu, kind, placement_id=8))])
    value = details(observed, gpu)
    assert [(t.max_per_gpu, t.free, t.gpu_instance_profile) for t in value.types] == [(3, 2, None)]
    assert (value.mixed_size, value.mig) == (True, None)
    assert [v.placement_id for v in value.vgpus] == [8]
    assert value.types[0].max_per_gpu == 3
    backed = replace(A4C, gi_profile_id=19, max_per_gi=1)
    one = GiProfile(19, "1g.5gb", 1, 4864, 7, (PlacementSpan(0, 1),))
    gpu = a100(types=(backed,), mig=MigState(True, True, (one,), (GpuInstance(7, 19, PlacementSpan(0, 1)),)))
    value = details(snapshot(gpu), gpu)
    assert value.types[0].gpu_instance_profile == "1g.5gb"
    assert value.mig == MigResult(True, True, (GpuInstanceResult(7, "1g.5gb", 0, 1),))
