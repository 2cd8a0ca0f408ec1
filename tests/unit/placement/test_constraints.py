# SPDX-License-Identifier: Apache-2.0
"""GPUs that a request excludes, and those that host.yaml closes to new vGPUs; what an error says about them."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned, claim, snapshot, t4, vm
from vgpuctl.errors import InvalidInput, NoCapacity, NotFound
from vgpuctl.model.gpu import GpuMode, MigState
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerPolicy, SchedulerState
from vgpuctl.placement.constraints import (
    select_allowed_gpus,
    why_excluded,
    why_profile_forbidden,
    why_restricted,
)
from vgpuctl.placement.vm_placement import list_rooms, place_vgpus, sum_free
from vgpuctl.value import replace

ONE, TWO, THREE = (a100(f"0000:{n}0:00.0", numa_node=n - 1) for n in (1, 2, 3))
FIXED = GpuScheduler(state=SchedulerState(SchedulerPolicy.FIXED_SHARE))


def gpus_of(observed, **words):
    slots = place_vgpus(observed, [("A100-4C", 1)], GpuConstraints(**words))
    return {s.gpu.address for s in slots}


def refusal(observed, count=1, uuid=None, **words):
    with pytest.raises(NoCapacity) as raised:
        place_vgpus(observed, [("A100-4C", count)], GpuConstraints(**words), uuid=uuid)
    return raised.value


def test_several_gpus_may_be_named_and_others_forbidden_by_address_or_model():
    observed = snapshot(ONE, TWO, THREE, t4())
    assert [g.address for g in select_allowed_gpus(observed, GpuConstraints(gpus=("20:00.0", "T4")))] == [
        TWO.address,
        t4().address,
    ]
    assert gpus_of(observed, gpus=(TWO.address, THREE.address), not_gpus=(TWO.address,)) == {THREE.address}
    assert gpus_of(observed, not_gpus=("0000:10:00.0", "T4")) == {TWO.address}
    error = refusal(observed, not_gpus=("A100",))
    assert str(error) == "no room for A100-4C; --not-gpu A100 excludes 3 of 3 GPUs, on which 30 would fit"
    assert error.facts["excluded"] == {"--not-gpu A100": [ONE.address, TWO.address, THREE.address]}
    assert error.facts["details"][0] == f"{ONE.address}: excluded by --not-gpu A100: it is excluded; room for 10"


@pytest.mark.parametrize("words", [{"gpus": ("A100", "A41")}, {"not_gpus": ("A41",)}])
def test_a_name_that_means_no_gpu_is_refused_but_not_where_only_some_were_looked_at(words):
    observed = snapshot(ONE, TWO)
    with pytest.raises(NotFound, match="no GPU 'A41' on this host"):
        place_vgpus(observed, [("A100-4C", 1)], GpuConstraints(**words))
    assert place_vgpus(replace(observed, partial=True), [("A100-4C", 1)], GpuConstraints(**words))


def test_a_gpu_that_is_left_out_does_not_make_a_profile_mean_two_things():
    other = a100("0000:90:00.0", types=(replace(A4C, name="NVIDIA A100X-4C", type_id="700"),))
    observed = snapshot(ONE, other)
    with pytest.raises(InvalidInput, match="means different vGPU types"):
        place_vgpus(observed, [("A100-4C", 1)])
    assert gpus_of(observed, not_gpus=(other.address,)) == {ONE.address}
    with pytest.raises(InvalidInput, match="means different vGPU types"):
        place_vgpus(observed, [("A100-4C", 1)], GpuConstraints(not_gpus=("A100",)))


def test_a_numa_node_leaves_out_gpus_of_others_and_of_none():
    observed = snapshot(replace(ONE, numa_node=None), TWO, THREE)
    assert gpus_of(observed, numa_node=2) == {THREE.address}
    error = refusal(observed, numa_node=0)
    assert "--numa-node 0 excludes 3 of 3 GPUs, on which 30 would fit" in str(error)
    assert "its NUMA node is not known; room for 10" in error.facts["details"][0]
    assert "its NUMA node is 1; room for 10" in error.facts["details"][1]


def test_a_vm_whose_memory_is_bound_gets_a_gpu_of_its_nodes_or_of_none_that_is_known():
    bound = vm(7, memory_nodes=frozenset({1}), record=None)
    observed = snapshot(ONE, TWO, vms=[bound])
    assert [s.gpu.address for s in place_vgpus(observed, [("A100-4C", 1)], uuid=bound.uuid)] == [TWO.address]
    assert place_vgpus(snapshot(replace(ONE, numa_node=None), vms=[bound]), [("A100-4C", 1)], uuid=bound.uuid)
    assert place_vgpus(observed, [("A100-4C", 1)], GpuConstraints(numa_node=0), uuid=bound.uuid)[0].gpu == ONE
    error = refusal(snapshot(ONE, vms=[bound]), uuid=bound.uuid)
    assert "the VM's memory excludes 1 of 1 GPUs" in str(error)
    assert "its NUMA node is 0, the VM's memory is bound to 1" in error.facts["details"][0]


def test_a_scheduler_leaves_out_gpus_that_run_another_or_none_that_is_known():
    observed = snapshot(ONE, replace(TWO, scheduler=FIXED))
    assert gpus_of(observed, scheduler=SchedulerPolicy.FIXED_SHARE) == {TWO.address}
    error = refusal(observed, scheduler=SchedulerPolicy.EQUAL_SHARE)
    assert "its scheduler is not known" in error.facts["details"][0]
    assert "its scheduler is fixed_share" in error.facts["details"][1]


def test_of_gpu_instances_with_schedulers_of_their_own_all_must_run_it():
    states = {3: SchedulerState(SchedulerPolicy.FIXED_SHARE), 4: SchedulerState(SchedulerPolicy.BEST_EFFORT)}
    gpu = replace(ONE, mig=MigState(True, True), mode=GpuMode.MIG_VGPU, scheduler=FIXED, gi_schedulers=states)
    bar = why_excluded(snapshot(gpu), gpu, GpuConstraints(scheduler=SchedulerPolicy.FIXED_SHARE))
    assert bar.reason == "its scheduler is best_effort, fixed_share"
    same = replace(gpu, gi_schedulers={3: states[3]})
    assert why_excluded(snapshot(same), same, GpuConstraints(scheduler=SchedulerPolicy.FIXED_SHARE)) is None


def in_group(number, gpu, **more):
    mine = vm(number, assigned(gpu, A4C, number), **more)
    return replace(mine, record=replace(mine.record, request_json='{"spread_group":"exam"}'))


def test_vms_of_one_group_are_on_different_gpus():
    observed = snapshot(ONE, TWO, vms=[in_group(1, ONE), vm(2, assigned(TWO, A4C, 2))])
    assert gpus_of(observed, spread_group="exam") == {TWO.address}
    assert gpus_of(observed, spread_group="other") == gpus_of(observed)
    full = snapshot(ONE, TWO, vms=[in_group(1, ONE), in_group(2, TWO)])
    error = refusal(full, spread_group="exam")
    assert "--spread-group exam excludes 2 of 2 GPUs, on which 18 would fit" in str(error)
    assert "it has vdi-001 of the group; room for 9" in error.facts["details"][0]


@pytest.mark.parametrize("spec", ['{"spread_group":', '["spread_group"]', '{"spread_group":7}', "{}", ""])
def test_a_spec_that_cannot_be_read_has_no_group(spec):
    mine = in_group(1, ONE)
    assert replace(mine.record, request_json=spec).spread_group is None
    assert mine.record.spread_group == "exam"


def test_a_vm_that_has_a_group_keeps_to_it_and_is_not_in_its_own_way():
    first, second = in_group(1, ONE), in_group(2, TWO)
    observed = snapshot(ONE, TWO, vms=[first, second])
    assert [s.gpu for s in place_vgpus(observed, [("A100-4C", 2)], uuid=first.uuid)] == [ONE, ONE]
    assert [s.gpu for s in place_vgpus(observed, [("A100-4C", 1)], uuid=second.uuid)] == [TWO]


def test_a_vm_of_the_group_that_is_being_made_shows_in_its_claim():
    making = replace(claim(assigned(ONE, A4C), 9), spread_group="exam")
    observed = snapshot(ONE, TWO, claims=[making])
    assert gpus_of(observed, spread_group="exam") == {TWO.address}


@pytest.mark.parametrize(
    ("output", "mode", "why"),
    [
        ({}, "vgpu", None),
        ({"cordoned": True}, "vgpu", "it is cordoned"),
        ({"cordoned": True}, "passthrough", "it is cordoned"),
        ({"desired_mode": GpuMode.VGPU}, "vgpu", None),
        ({"desired_mode": GpuMode.VGPU}, "passthrough", "reserves it for mode vgpu"),
        ({"desired_mode": GpuMode.PASSTHROUGH}, "vgpu", "reserves it for mode passthrough"),
        ({"desired_mode": GpuMode.PASSTHROUGH}, "passthrough", None),
        ({"desired_mode": GpuMode.SRIOV}, "sriov", None),
        ({"desired_mode": GpuMode.UNMANAGED}, "sriov", "excludes it from vgpuctl"),
    ],
)
def test_what_host_yaml_keeps_a_gpu_from(output, mode, why):
    result = why_restricted(a100(**output), mode)
    assert result is None if why is None else why in str(result)


def test_a_restricted_gpu_is_full():
    gpu = a100(cordoned=True)
    observed = snapshot(gpu, a100("0000:86:00.0"), t4())
    types = {g.address: A4C for g in observed.gpus[:2]}
    assert sum_free(list_rooms(observed, observed.gpus[:2], types)) == 10
    assert list_rooms(observed, [gpu], types)[0][1].reasons == (
        f"it is cordoned; vgpuctl uncordon {gpu.address} allows new vGPUs",
    )


def test_a_reserved_gpu_is_for_vms_whose_names_fit_and_for_nobody_unnamed():
    ranged = a100(reserved_for=("lab-{09..10}-*",))
    assert why_restricted(ranged, "vgpu", "lab-10-a") is None
    assert why_restricted(ranged, "vgpu", "lab-11-a") is not None
    gpu = a100(reserved_for=("vdi-*", "lab"))
    names = {"vdi-1": True, "lab": True, "LAB": False, "lab2": False, "my-vdi-1": False, None: False}
    assert {name: why_restricted(gpu, "vgpu", name) is None for name in names} == names
    observed = snapshot(gpu, a100("0000:86:00.0"))
    assert place_vgpus(observed, [("A100-4C", 1)], None, vm="vdi-1")[0].gpu.address == gpu.address
    assert place_vgpus(observed, [("A100-4C", 1)], None, vm="other")[0].gpu.address == "0000:86:00.0"
    assert sum_free(list_rooms(observed, observed.gpus, {g.address: A4C for g in observed.gpus}, "lab")) == 20
    assert why_restricted(gpu, "sriov", "x") == "host.yaml reserves it for VMs named vdi-* or lab"


def test_a_profile_that_is_not_allowed_goes_to_another_gpu_or_nowhere():
    closed, open_ = a100(allowed_profiles=("A100-8C",)), a100("0000:86:00.0", allowed_profiles=("A100-4C",))
    observed = snapshot(closed, open_)
    assert place_vgpus(observed, [("A100-4C", 1)], None)[0].gpu.address == open_.address
    with pytest.raises(NoCapacity) as raised:
        place_vgpus(observed, [("A100-4C", 1)], GpuConstraints(gpus=(closed.address,)))
    assert "host.yaml allows only A100-8C" in str(raised.value.facts["details"])
    assert why_profile_forbidden(a100(), A4C) is None
