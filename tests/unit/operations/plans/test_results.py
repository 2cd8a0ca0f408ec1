# SPDX-License-Identifier: Apache-2.0
"""What lists, show-gpu and explain show of observed values: names as documented, unknown as None."""

from __future__ import annotations

from json import dumps

from tests.values import A4C, A5C, ME, a100, assigned, changed, snapshot, vm
from vgpuctl.model.gpu import Backend, GiProfile, Gpu, GpuInstance, MigState, PlacementSpan
from vgpuctl.model.results.gpus import GpuDetailsResult, GpuInstanceResult, MigResult, VfsResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import StuckWrite
from vgpuctl.operations.plans.results import (
    gpu_details,
    gpu_result,
    ownership_of,
    planned_vgpu,
    vm_result,
    vm_row,
    with_companions,
)
from vgpuctl.operations.plans.schedulers import scheduler_details
from vgpuctl.operations.queries import explain_profile, profile_results
from vgpuctl.value import field_names, replace


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


def test_owners_in_words():
    ours = vm(1)
    assert ownership_of(ours) == "managed"
    assert ownership_of(replace(ours, record=None)) == "unmanaged"
    assert ownership_of(replace(ours, record=None, copied_record=ours.record)) == "copy"
    assert vm_result(snapshot(a100()), ours).record == "ready"


def test_a_result_has_what_the_record_and_the_settings_have_by_name():
    fields = {"owner": "ada", "labels": {"team": "cad"}, "spread_group": 5, "cloud_init": "/a", "network_config": "/b"}
    one = vm(1)
    recorded = replace(one, settings=(("hugepages", "2MiB"),), record=replace(one.record, request_json=dumps(fields)))
    value = vm_result(snapshot(a100()), recorded)
    assert (value.owner, value.labels, value.cloud_init, value.network_config) == ("ada", {"team": "cad"}, "/a", "/b")
    assert (value.hugepages, value.spread_group) == ("2MiB", None), "a group is no number: that record is damaged"
    nothing = vm_result(snapshot(a100()), replace(one, record=None))
    assert (nothing.owner, nothing.labels, nothing.cloud_init, nothing.hugepages) == (None, {}, None, "none")


def test_a_row_has_the_values_of_the_whole_result():
    gpu = a100()
    one = vm(1, assigned(gpu, A4C))
    observed = snapshot(gpu, vms=[one])
    row, whole = vm_row(observed, one), vm_result(observed, one)
    lists_alone = ("driver", "guest_users", "adoptable")  # of the helper's report, and for lists
    names = [name for name in field_names(row) if name not in lists_alone]
    assert [getattr(row, name) for name in names] == [getattr(whole, name) for name in names]
    assert [(v.carrier, v.vm) for v in row.vgpus] == [(assigned(gpu, A4C).carrier, one.name)]


def test_the_audio_function_of_a_gpu_goes_with_it():
    vgpu = planned_vgpu(assigned(a100(), A4C), "vm")
    whole = replace(vgpu, backend=Backend.PASSTHROUGH, carrier=vgpu.gpu)
    audio = replace(whole, carrier="0000:3b:00.1")
    elsewhere = replace(audio, vm="other")
    assert with_companions([audio, whole, vgpu, elsewhere]) == (
        replace(whole, companions=("0000:3b:00.1",)),
        vgpu,
        elsewhere,
    )


def test_different_type_ids_of_one_profile_are_null():
    one, two = a100(), a100("0000:86:00.0", types=(replace(A4C, type_id="999"),))
    (value,) = [v for v in profile_results(snapshot(one, two), (one, two), everything=False) if v.profile == "A100-4C"]
    assert (value.type_id, value.free) == (None, 20)


def test_a_profile_excludes_those_that_never_fit_with_its_maximum():
    one, two = a100(), a100("0000:86:00.0", types=(A4C,))
    values = {v.profile: v.excludes for v in profile_results(snapshot(one, two), (one, two), everything=True)}
    assert values == {"A100-4C": ("A100-5C",), "A100-5C": ()}


def test_what_is_excluded_is_not_known_where_a_maximum_is_not():
    gpu = a100(types=(replace(A4C, max_per_gpu=None), A5C))
    assert {v.excludes is None for v in profile_results(snapshot(gpu), (gpu,), everything=True)} == {True}


def test_explain_says_which_vms_would_have_to_move():
    one, two = a100(), a100("0000:86:00.0")
    vms = [vm(0, assigned(one, A5C, 0)), vm(1, assigned(two, A5C, 0))]
    value = explain_profile(snapshot(one, two, vms=vms), (one, two), "A100-4C")
    (move,) = value.moves
    assert {move.from_gpu, move.to_gpu} == {one.address, two.address}
    pinned = frozenset(v.uuid for v in vms)
    assert explain_profile(snapshot(one, two, vms=vms), (one, two), "A100-4C", pinned).moves is None
    assert explain_profile(snapshot(one, two, vms=vms), (one, two), "A100-5C").moves == ()
