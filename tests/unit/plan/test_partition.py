# SPDX-License-Identifier: Apache-2.0
"""What changes of a partition is planned from values: which way, beside whom, and when nobody may be on the GPU."""

from __future__ import annotations

import pytest

from tests.values import a100, snapshot, taken
from vgpuctl.errors import HostCannot, InUse, InvalidInput
from vgpuctl.layout.nvidia import ManageVfs
from vgpuctl.layout.partition import DestroyInstance, MakeInstance, SetMig, SetMixedSize
from vgpuctl.model.gpu import VgpuType
from vgpuctl.model.partition import GiProfile, GpuInstance, Mig, MigSpec, Span
from vgpuctl.model.records import NvmlStatus
from vgpuctl.model.scheduler import GpuScheduler, Policy, SchedulerSpec, SchedulerState
from vgpuctl.plan.partition import (
    Change,
    Wish,
    change_of,
    cold_steps,
    lost_with_vfs,
    may_reset,
    refuse_without_mode,
    warm_work,
    wish_for,
)
from vgpuctl.steps.scheduler import SetScheduler
from vgpuctl.value import replace

ONE = GiProfile(19, "1g.5gb", 1, 4864, 7, tuple(Span(n, 1) for n in range(7)))
THREE = GiProfile(9, "3g.20gb", 3, 19968, 2, (Span(0, 4), Span(4, 4)))
KINDS = (
    VgpuType("474", "GRID A100-1-5C", "A100-1-5C", 5120, 7, gi_profile_id=19, max_per_gi=1),
    VgpuType("476", "GRID A100-3-20C", "A100-3-20C", 20480, 2, gi_profile_id=9, max_per_gi=1),
    VgpuType("468", "GRID A100-4C", "A100-4C", 4096, 10, placement_ids=(0, 36), placement_size=4),
    VgpuType("469", "GRID A100-5C", "A100-5C", 5120, 8, placement_ids=(0, 35), placement_size=5),
)
SLICED, LARGE, TIMED, OTHER = KINDS
STRICT = SchedulerState(Policy.FIXED_SHARE, False, 2_000_000)
ON = Mig(
    True, True, (ONE, THREE),
    (GpuInstance(1, 9, Span(0, 4)), GpuInstance(2, 19, Span(4, 1)), GpuInstance(3, 19, Span(5, 1))),
)  # fmt: skip
OFF = Mig(False, False, (ONE, THREE))


def gpu(mig=ON, **more):
    return a100(types=KINDS, mig=mig, mixed_size=False, **more)


def on_it(card, *vgpus):
    return replace(snapshot(card), vgpus=vgpus)


def planned(card, mig=None, mixed=None, *vgpus, number=16):
    return change_of(on_it(card, *vgpus), card, number, Wish(mig, mixed), KINDS)


def test_an_instance_that_a_vf_names_is_in_use_and_the_others_are_not():
    card = gpu()
    functions = tuple(replace(f, gi_id=2) if n == 0 else f for n, f in enumerate(card.functions))
    named = replace(card, functions=functions)
    wanted = MigSpec(("3g.20gb", "1g.5gb"))
    found = planned(named, wanted, None, taken(named, SLICED))
    assert ([i.gi_id for i in found.instances.destroy], found.empty) == ([3], False)
    unnamed = planned(card, wanted, None, taken(card, SLICED))
    assert unnamed.empty, "whichever goes, the vGPU may be in it"
    assert not planned(card, MigSpec(("1g.5gb", "1g.5gb")), None, taken(card, SLICED)).empty


def test_a_vgpu_of_an_unknown_type_may_be_in_any_instance():
    card = gpu()
    unknown = replace(taken(card, SLICED), profile="A100-9-9C")
    assert planned(card, MigSpec(("1g.5gb", "1g.5gb")), None, unknown).empty


def test_promised_vgpus_keep_as_many_instances_as_they_need():
    card = gpu()
    three = [replace(taken(card, SLICED, n), present=False) for n in range(3)]
    with pytest.raises(InUse, match=r"takes 3 of the GPU instance 1g\.5gb, and there would be 2"):
        planned(card, MigSpec(("1g.5gb", "1g.5gb")), None, *three)
    shared = replace(SLICED, max_per_gi=2)
    change_of(on_it(card, *three), card, 16, Wish(MigSpec(("1g.5gb",) * 2)), (shared,))
    other = replace(LARGE, gi_profile_id=19, max_per_gi=2)
    two = [*three[:2], replace(taken(card, LARGE, 3), present=False)]
    with pytest.raises(InUse, match="takes 2"):
        change_of(on_it(card, *two), card, 16, Wish(MigSpec(("1g.5gb",))), (shared, other))


def test_mig_mode_changes_on_a_gpu_without_vgpus_only():
    for card, wanted, kind in ((gpu(), MigSpec(), SLICED), (gpu(OFF), MigSpec(("1g.5gb",)), TIMED)):
        with pytest.raises(InUse, match="vdi-000"):
            planned(card, wanted, None, replace(taken(card, kind), present=False))
    promised = replace(taken(gpu(OFF), SLICED), present=False)
    assert planned(gpu(OFF), MigSpec(("1g.5gb",)), None, promised).mode is True, "as after a boot"


def test_what_is_pending_counts_as_a_change():
    pending = replace(OFF, pending=True)
    assert planned(gpu(pending), MigSpec()).mode is False
    assert planned(gpu(pending), MigSpec(("1g.5gb",))).mode is True
    assert planned(gpu(OFF), MigSpec()) == Change()


def test_the_cold_way_is_vfs_off_mig_vfs_on_instances_and_remembers_what_was_there():
    card = gpu()
    steps = cold_steps(card, 16, planned(card, MigSpec(), True), None, autoprobe=True, kernel="6.8.0")
    assert [type(s) for s in steps] == [ManageVfs, SetMig, ManageVfs, SetMixedSize]
    off = steps[0]
    assert isinstance(off, ManageVfs)
    assert [s.describe() for s in off.again] == [
        f"make GPU instance {name} on 0000:3b:00.0 at {at} (NVML)"
        for name, at in (("3g.20gb", "0:4"), ("1g.5gb", "4:1"), ("1g.5gb", "5:1"))
    ]
    bare = gpu(vfs=0)
    steps = cold_steps(bare, 0, planned(bare, MigSpec(), number=0), None, autoprobe=True, kernel="6.8.0")
    assert [type(s) for s in steps] == [DestroyInstance] * 3 + [SetMig]
    fresh = gpu(OFF, vfs=0)
    steps = cold_steps(fresh, 16, planned(fresh, MigSpec(("1g.5gb", "3g.20gb"))), None, autoprobe=True, kernel="6.8.0")
    assert [type(s) for s in steps] == [SetMig, ManageVfs, MakeInstance, MakeInstance]


def test_what_goes_with_the_vfs_is_mixed_sizes_and_the_scheduler_too():
    state = GpuScheduler(state=STRICT, interfaces=("v2",))
    steps = lost_with_vfs(replace(gpu(OFF, scheduler=state), mixed_size=True))
    assert [type(s) for s in steps] == [SetMixedSize, SetScheduler]
    assert lost_with_vfs(gpu(OFF)) == ()


def test_mixed_sizes_are_no_way_to_run_with_fixed_shares():
    card = gpu(OFF, scheduler=GpuScheduler(state=STRICT, interfaces=("v2",)))
    change = planned(card, None, True)
    assert change == Change(mixed_size=True, empty=True)
    with pytest.raises(HostCannot, match="schedules with fixed_share"):
        warm_work(snapshot(card), card, change, None, drain=False)
    equal = SchedulerSpec(Policy.EQUAL_SHARE)
    work = warm_work(snapshot(card), card, change, equal, drain=False)
    assert [type(s) for s in work.steps] == [SetScheduler, SetMixedSize]
    mixed = replace(card, mixed_size=True)
    strict = SchedulerSpec(Policy.FIXED_SHARE, 3)
    work = warm_work(snapshot(mixed), mixed, planned(mixed, None, False), strict, drain=False)
    assert [type(s) for s in work.steps] == [SetMixedSize, SetScheduler]


def test_vgpus_need_places_when_sizes_are_mixed():
    card = gpu(OFF)
    promised = [replace(taken(card, TIMED, n), present=False) for n in range(3)]
    planned(card, None, True, *promised[:2])
    with pytest.raises(InUse, match="fewer fit"):
        planned(card, None, True, *promised)
    several = (promised[0], replace(taken(card, OTHER, 3), present=False))
    with pytest.raises(InUse, match="several sizes"):
        planned(replace(card, mixed_size=True), None, False, *several)


@pytest.mark.parametrize(
    ("card", "wish", "told"),
    [
        (replace(gpu(), vendor_id="8086"), Wish(MigSpec(("1g.5gb",))), "only NVIDIA's has MIG"),
        (gpu(None), Wish(MigSpec(("1g.5gb",))), "has no MIG here"),
        (replace(gpu(None), mixed_size=None), Wish(None, True), "has no mixed sizes here"),
        (replace(gpu(None, vfs=0), vfs_total=0), Wish(None, True), "has no mixed sizes here"),
    ],
)
def test_what_a_gpu_does_not_have_is_refused(card, wish, told):
    with pytest.raises(HostCannot, match=told):
        change_of(snapshot(card), card, card.vfs_enabled, wish, KINDS)


def test_without_nvml_it_may_still_come_as_after_a_boot():
    card = gpu(None)
    seen = replace(snapshot(card), nvml=NvmlStatus(available=False, reason="no library"))
    with pytest.raises(HostCannot, match="does not answer: no library") as raised:
        change_of(seen, card, 16, Wish(MigSpec(("1g.5gb",))), KINDS)
    assert raised.value.facts["check"] == "driver"


def test_a_gpu_is_reset_on_ampere_and_before_linux_7_only():
    ampere, hopper = (gpu(scheduler=GpuScheduler(architecture=number)) for number in (7, 9))
    assert may_reset(ampere, "6.8.0-45-generic")
    assert not any(
        (may_reset(ampere, "7.0.0"), may_reset(hopper, "6.8.0"), may_reset(gpu(), "6.8"), may_reset(ampere, ""))
    )


def test_it_counts_for_vgpus_and_passthrough_has_neither():
    wanted = MigSpec(("1g.5gb",))
    assert wish_for(gpu(), "vgpu", wanted, False) == Wish(wanted, False)
    assert wish_for(gpu(), "passthrough", wanted, True) == Wish(MigSpec())
    assert wish_for(gpu(OFF), "passthrough", wanted, True) == Wish()
    assert wish_for(gpu(), "unmanaged", wanted, True) == Wish()
    refuse_without_mode("g", "vgpu", wanted, None)
    refuse_without_mode("g", None, None, None)
    for mig, mixed, name in ((wanted, None, "mig"), (None, False, "mixed_size")):
        with pytest.raises(InvalidInput, match=f"{name} is said of g, and no mode"):
            refuse_without_mode("g", None, mig, mixed)


def test_nothing_asked_is_nothing_changed():
    assert planned(gpu()) == Change(mig=True)
    assert planned(gpu(), MigSpec(("3g.20gb", "1g.5gb", "1g.5gb"))) == Change(mig=True)
