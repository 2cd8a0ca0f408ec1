# SPDX-License-Identifier: Apache-2.0
"""What makes a VM's missing devices again, and who has the place when that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.values import A4C, A5C, MACHINE, a100, changed, promised, snapshot, taken, vm_uuid
from vgpuctl.errors import InUse, NoCapacity
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import Promise, PromiseState, Vm, VmState
from vgpuctl.plan.choose import type_id_now
from vgpuctl.plan.devices import device_steps, force_console
from vgpuctl.value import replace

GPU = a100()


def vm(number: int = 0, spec: str = "{}", **more: Any) -> Vm:
    promise = Promise(PromiseState.READY, vm_uuid(number), MACHINE, (promised(GPU, A4C, **more),), (), spec)
    return Vm(f"vdi-{number:03d}", vm_uuid(number), VmState.STOPPED, 1024, 1, promise=promise)


def test_what_is_missing_is_made_and_what_is_there_is_left():
    mine = vm()
    assert mine.promise is not None
    assert [s.describe() for s in device_steps(snapshot(GPU, vms=(mine,)), mine, mine.promise)] == [
        "make vGPU A100-4C on 0000:3b:00.4 (type 468)"
    ]
    first, *rest = GPU.functions
    made = a100(functions=(first.__class__(first.address, first.path, vfio_dev=True, current_type="468"), *rest))
    assert device_steps(snapshot(made, vms=(mine,)), mine, mine.promise) == ()


def test_a_function_that_another_vm_has_is_refused_with_its_name():
    mine = vm()
    assert mine.promise is not None
    first, *rest = GPU.functions
    made = a100(functions=(first.__class__(first.address, first.path, vfio_dev=True, current_type="469"), *rest))
    with pytest.raises(InUse, match="carries A100-5C, not A100-4C as vdi-000 needs"):
        device_steps(snapshot(made, vms=(mine,)), mine, mine.promise)


def test_the_console_is_taken_only_by_a_vm_that_was_made_so():
    assert force_console(vm(spec='{"force_console": true}').promise)
    assert not force_console(vm(spec="").promise)


def test_it_is_made_where_it_was_promised_while_that_means_something():
    kind = replace(A4C, placement_ids=(0, 8), placement_size=4)
    mine = vm(placement_id=8)
    assert mine.promise is not None
    for gpu, place in (
        (a100(types=(kind,), mixed_size=True), 8),
        (a100(types=(kind,), mixed_size=None), 8),
        (a100(types=(kind,), mixed_size=False), None),
        (a100(types=(replace(kind, placement_ids=(0, 4)),), mixed_size=True), 0),
        (a100(types=(replace(kind, placement_ids=None, placement_size=None),), mixed_size=True), 8),
    ):
        (step,) = device_steps(snapshot(gpu, vms=(mine,)), mine, mine.promise)
        assert step.vgpu.placement_id == place


def test_a_place_that_another_device_has_is_refused_with_its_name():
    kind = replace(A4C, placement_ids=(0, 8), placement_size=4)
    gpu = changed(a100(types=(kind,), mixed_size=True), 5, current_type=kind.type_id, placement_id=8)
    mine = vm(placement_id=8)
    assert mine.promise is not None
    with pytest.raises(InUse, match=r"placement 8 of 0000:3b:00.0.*taken by foreign 0000:3b:01.1"):
        device_steps(snapshot(gpu, vms=(mine,)), mine, mine.promise)


def test_one_without_a_place_in_its_record_goes_beside_what_others_are_promised():
    kind = replace(A4C, placement_ids=(0, 4, 8), placement_size=4)
    gpu = a100(types=(kind,), mixed_size=True)
    mine, other = vm(), vm(1, placement_id=0)
    other = replace(other, promise=replace(other.promise, vgpus=(promised(GPU, A4C, 1, placement_id=0),)))
    assert mine.promise is not None
    (step,) = device_steps(snapshot(gpu, vms=(mine, other)), mine, mine.promise)
    assert step.vgpu.placement_id == 4


def test_where_sizes_may_differ_another_one_that_is_just_being_made_is_in_nobodys_way():
    being_made = taken(GPU, A5C, 1, present=False)
    gpu = a100(backend=Backend.MDEV_VF)
    assert type_id_now(replace(snapshot(gpu), vgpus=(being_made,)), promised(gpu, A4C)) == A4C.type_id
    gpu = replace(gpu, mixed_size=False)
    with pytest.raises(NoCapacity, match="another size"):
        type_id_now(replace(snapshot(gpu), vgpus=(being_made,)), promised(gpu, A4C))
