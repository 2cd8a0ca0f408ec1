# SPDX-License-Identifier: Apache-2.0
"""Changes of a partition are planned from values: the method, existing vGPUs, and when the GPU must be empty."""

from __future__ import annotations

import pytest

from tests.values import a100, snapshot, taken
from vgpuctl.errors import HostCannot, InUse, InvalidInput
from vgpuctl.gpu_setup.partition_steps import DestroyGpuInstance, SetMig, SetMixedSize
from vgpuctl.gpu_setup.set_scheduler import SetScheduler
from vgpuctl.model.gpu import GiProfile, GpuInstance, MigSpec, MigState, PlacementSpan, VgpuType
from vgpuctl.model.port_values import NvmlStatus
from vgpuctl.model.vgpu_scheduler import GpuScheduler, SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.operations.plans.partition_plan import (
    PartitionChange,
    PartitionRequest,
    build_partition_request,
    compute_partition_change,
    is_reset_allowed,
    plan_in_place_change,
    refuse_missing_mode,
    restore_partition_steps,
    vf_recreation_steps,
)
from vgpuctl.value import replace

ONE = GiProfile(19, "1g.5gb", 1, 4864, 7, tuple(PlacementSpan(n, 1) for n in range(7)))
THREE = GiProfile(9, "3g.20gb", 3, 19968, 2, (PlacementSpan(0, 4), PlacementSpan(4, 4)))
KINDS = (
    VgpuType("474", "GRID A100-1-5C", "A100-1-5C", 5120, 7, gi_profile_id=19, max_per_gi=1),
    VgpuType("476", "GRID A100-3-20C", "A100-3-20C", 20480, 2, gi_profile_id=9, max_per_gi=1),
    VgpuType("468", "GRID A100-4C", "A100-4C", 4096, 10, placement_ids=(0, 36), placement_size=4),
    VgpuType("469", "GRID A100-5C", "A100-5C", 5120, 8, placement_ids=(0, 35), placement_size=5),
)
SLICED, LARGE, TIMED = KINDS[:3]
STRICT = SchedulerState(SchedulerPolicy.FIXED_SHARE, False, 2_000_000)
ON = MigState(
    True, True, (ONE, THREE),
    (
        GpuInstance(1, 9, PlacementSpan(0, 4)), GpuInstance(2, 19, PlacementSpan(4, 1)),
        GpuInstance(3, 19, PlacementSpan(5, 1)),
    ),
)  # fmt: skip
OFF = MigState(False, False, (ONE, THREE))


def gpu(mig=ON, **more):
    return a100(types=KINDS, mig=mig, mixed_size=False, **more)


def on_it(card, *vgpus):
    return replace(snapshot(card), vgpus=vgpus)


def planned(card, mig=None, mixed=None, *vgpus, number=16):
    return compute_partition_change(on_it(card, *vgpus), card, number, PartitionRequest(mig, mixed), KINDS)


def test_an_instance_that_a_vf_names_is_in_use_and_the_others_are_not():
    card = gpu()
    functions = tuple(replace(f, gi_id=2) if n == 0 else f for n, f in enumerate(card.functions))
    named = replace(card, functions=functions)
    wanted = MigSpec(("3g.20gb", "1g.5gb"))
    result = planned(named, wanted, None, taken(named, SLICED))
    assert ([i.gi_id for i in result.instances.destroy], result.needs_empty_gpu) == ([3], False)
    unnamed = planned(card, wanted, None, taken(card, SLICED))
    assert unnamed.needs_empty_gpu, "whichever goes, the vGPU may be in it"
    assert not planned(card, MigSpec(("1g.5gb", "1g.5gb")), None, taken(card, SLICED)).needs_empty_gpu


def test_a_vgpu_of_an_unknown_type_may_be_in_any_instance():
    card = gpu()
    unknown = replace(taken(card, SLICED), profile="A100-9-9C")
    assert planned(card, MigSpec(("1g.5gb", "1g.5gb")), None, unknown).needs_empty_gpu


def test_assigned_vgpus_keep_the_instances_they_need():
    card = gpu()
    three = [replace(taken(card, SLICED, n), present=False) for n in range(3)]
    with pytest.raises(InUse, match=r"needs 3 of the GPU instance 1g\.5gb, but there would be 2"):
        planned(card, MigSpec(("1g.5gb", "1g.5gb")), None, *three)
    shared = replace(SLICED, max_per_gi=2)
    compute_partition_change(on_it(card, *three), card, 16, PartitionRequest(MigSpec(("1g.5gb",) * 2)), (shared,))
    other = replace(LARGE, gi_profile_id=19, max_per_gi=2)
    two = [*three[:2], replace(taken(card, LARGE, 3), present=False)]
    with pytest.raises(InUse, match="needs 2"):
        compute_partition_change(on_it(card, *two), card, 16, PartitionRequest(MigSpec(("1g.5gb",))), (shared, other))


def test_mig_mode_changes_on_a_gpu_without_vgpus_only():
    for card, wanted, kind in ((gpu(), MigSpec(), SLICED), (gpu(OFF), MigSpec(("1g.5gb",)), TIMED)):
        with pytest.raises(InUse, match="vdi-000"):
            planned(card, wanted, None, replace(taken(card, kind), present=False))
    assigned = replace(taken(gpu(OFF), SLICED), present=False)
    assert planned(gpu(OFF), MigSpec(("1g.5gb",)), None, assigned).mig_mode is True, "as after a boot"


def test_what_is_pending_counts_as_a_change():
    pending = replace(OFF, pending_enabled=True)
    assert planned(gpu(pending), MigSpec()).mig_mode is False
    assert planned(gpu(pending), MigSpec(("1g.5gb",))).mig_mode is True
    assert planned(gpu(OFF), MigSpec()) == PartitionChange()


def test_without_vfs_the_instances_go_one_by_one_before_mig_goes_off():
    bare = gpu(vfs=0)
    steps = vf_recreation_steps(bare, 0, planned(bare, MigSpec(), number=0), None, autoprobe=True, kernel="6.8.0")
    assert [type(s) for s in steps] == [DestroyGpuInstance] * 3 + [SetMig]


def test_what_goes_with_the_vfs_is_mixed_sizes_and_the_scheduler_too():
    state = GpuScheduler(state=STRICT, setter_versions=("v2",))
    steps = restore_partition_steps(replace(gpu(OFF, scheduler=state), mixed_size=True))
    assert [type(s) for s in steps] == [SetMixedSize, SetScheduler]
    assert restore_partition_steps(gpu(OFF)) == ()


def test_mixed_sizes_exclude_fixed_shares():
    card = gpu(OFF, scheduler=GpuScheduler(state=STRICT, setter_versions=("v2",)))
    change = planned(card, None, True)
    assert change == PartitionChange(mixed_size=True, needs_empty_gpu=True)
    with pytest.raises(HostCannot, match="has the scheduler fixed_share"):
        plan_in_place_change(snapshot(card), card, change, None, drain=False)
    equal = SchedulerSpec(SchedulerPolicy.EQUAL_SHARE)
    work = plan_in_place_change(snapshot(card), card, change, equal, drain=False)
    assert [type(s) for s in work.steps] == [SetScheduler, SetMixedSize]
    mixed = replace(card, mixed_size=True)
    strict = SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 3)
    work = plan_in_place_change(snapshot(mixed), mixed, planned(mixed, None, False), strict, drain=False)
    assert [type(s) for s in work.steps] == [SetMixedSize, SetScheduler]


def test_without_nvml_it_may_still_come_as_after_a_boot():
    card = gpu(None)
    seen = replace(snapshot(card), nvml=NvmlStatus(available=False, reason="no library"))
    with pytest.raises(HostCannot, match="does not answer: no library") as raised:
        compute_partition_change(seen, card, 16, PartitionRequest(MigSpec(("1g.5gb",))), KINDS)
    assert raised.value.facts["check"] == "driver"


def test_a_gpu_is_reset_on_ampere_and_before_linux_7_only():
    ampere, hopper = (gpu(scheduler=GpuScheduler(architecture=number)) for number in (7, 9))
    assert is_reset_allowed(ampere, "6.8.0-45-generic")
    assert not any(
        (
            is_reset_allowed(ampere, "7.0.0"),
            is_reset_allowed(hopper, "6.8.0"),
            is_reset_allowed(gpu(), "6.8"),
            is_reset_allowed(ampere, ""),
        )
    )


def test_it_counts_for_vgpus_and_passthrough_has_neither():
    wanted = MigSpec(("1g.5gb",))
    assert build_partition_request(gpu(), "vgpu", wanted, False) == PartitionRequest(wanted, False)
    assert build_partition_request(gpu(), "passthrough", wanted, True) == PartitionRequest(MigSpec())
    assert build_partition_request(gpu(OFF), "passthrough", wanted, True) == PartitionRequest()
    assert build_partition_request(gpu(), "unmanaged", wanted, True) == PartitionRequest()
    refuse_missing_mode("g", "vgpu", wanted, None)
    refuse_missing_mode("g", None, None, None)
    for mig, mixed, name in ((wanted, None, "mig"), (None, False, "mixed_size")):
        with pytest.raises(InvalidInput, match=f"g has {name} but no mode"):
            refuse_missing_mode("g", None, mig, mixed)


@pytest.mark.parametrize(
    ("card", "wanted", "message"),
    [
        (replace(gpu(), vendor_id="8086"), PartitionRequest(MigSpec(("1g.5gb",))), "only NVIDIA's supports MIG"),
        (gpu(None), PartitionRequest(MigSpec(("1g.5gb",))), "does not support MIG here"),
        (replace(gpu(None), mixed_size=None), PartitionRequest(None, True), "does not support mixed sizes here"),
        (replace(gpu(None, vfs=0), vfs_total=0), PartitionRequest(None, True), "does not support mixed sizes here"),
    ],
)
def test_what_a_gpu_does_not_have_is_refused(card, wanted, message):
    with pytest.raises(HostCannot, match=message):
        compute_partition_change(snapshot(card), card, card.vfs_enabled, wanted, KINDS)
