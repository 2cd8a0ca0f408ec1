# SPDX-License-Identifier: Apache-2.0
"""Steps that create a VM's missing devices again, or the holder of the slot if that is impossible."""

from __future__ import annotations

from typing import Any

import pytest

from tests.values import A4C, A5C, MACHINE, a100, assigned, changed, snapshot, taken, vm_uuid
from vgpuctl.errors import InUse, NoCapacity
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import RecordState, Vm, VmRecord, VmState
from vgpuctl.operations.plans.choose import make_steps
from vgpuctl.operations.plans.devices import missing_device_steps, uses_force_console
from vgpuctl.value import replace

GPU = a100()


def vm(number: int = 0, spec: str = "{}", **more: Any) -> Vm:
    record = VmRecord(RecordState.READY, vm_uuid(number), MACHINE, (assigned(GPU, A4C, **more),), (), spec)
    return Vm(f"vdi-{number:03d}", vm_uuid(number), VmState.STOPPED, 1024, 1, record=record)


def test_what_is_missing_is_made_and_what_is_there_is_left():
    mine = vm()
    assert mine.record is not None
    assert [s.describe() for s in missing_device_steps(snapshot(GPU, vms=(mine,)), mine, mine.record)] == [
        "create vGPU A100-4C on 0000:3b:00.4 (type 468)"
    ]
    first, *rest = GPU.functions
    made = a100(functions=(first.__class__(first.address, first.path, has_vfio_dev=True, current_type="468"), *rest))
    assert missing_device_steps(snapshot(made, vms=(mine,)), mine, mine.record) == ()


def test_a_function_that_another_vm_has_is_refused_with_its_name():
    mine = vm()
    assert mine.record is not None
    first, *rest = GPU.functions
    made = a100(functions=(first.__class__(first.address, first.path, has_vfio_dev=True, current_type="469"), *rest))
    with pytest.raises(InUse, match="has A100-5C, not A100-4C as vdi-000 needs"):
        missing_device_steps(snapshot(made, vms=(mine,)), mine, mine.record)


def test_the_console_is_taken_only_by_a_vm_that_was_made_so():
    assert uses_force_console(vm(spec='{"force_console": true}').record)
    assert not uses_force_console(vm(spec="").record)


def test_the_recorded_placement_id_is_used_while_it_is_valid():
    kind = replace(A4C, placement_ids=(0, 8), placement_size=4)
    mine = vm(placement_id=8)
    assert mine.record is not None
    for gpu, place in (
        (a100(types=(kind,), mixed_size=True), 8),
        (a100(types=(kind,), mixed_size=None), 8),
        (a100(types=(kind,), mixed_size=False), None),
        (a100(types=(replace(kind, placement_ids=(0, 4)),), mixed_size=True), 0),
        (a100(types=(replace(kind, placement_ids=None, placement_size=None),), mixed_size=True), 8),
    ):
        (step,) = missing_device_steps(snapshot(gpu, vms=(mine,)), mine, mine.record)
        assert step.vgpu.placement_id == place


def test_a_place_that_another_device_has_is_refused_with_its_name():
    kind = replace(A4C, placement_ids=(0, 8), placement_size=4)
    gpu = changed(a100(types=(kind,), mixed_size=True), 5, current_type=kind.type_id, placement_id=8)
    mine = vm(placement_id=8)
    assert mine.record is not None
    with pytest.raises(InUse, match=r"placement 8 of 0000:3b:00.0.*taken by unmanaged 0000:3b:01.1"):
        missing_device_steps(snapshot(gpu, vms=(mine,)), mine, mine.record)


def test_a_record_without_a_placement_id_avoids_recorded_placements():
    kind = replace(A4C, placement_ids=(0, 4, 8), placement_size=4)
    gpu = a100(types=(kind,), mixed_size=True)
    mine, other = vm(), vm(1, placement_id=0)
    other = replace(other, record=replace(other.record, vgpus=(assigned(GPU, A4C, 1, placement_id=0),)))
    assert mine.record is not None
    (step,) = missing_device_steps(snapshot(gpu, vms=(mine, other)), mine, mine.record)
    assert step.vgpu.placement_id == 4


def test_with_mixed_sizes_a_device_in_creation_does_not_block():
    being_made = taken(GPU, A5C, 1, present=False)
    gpu = a100(backend=Backend.MDEV_VF)
    (step,) = make_steps(replace(snapshot(gpu), vgpus=(being_made,)), assigned(gpu, A4C))
    assert step.type_id == A4C.type_id
    gpu = replace(gpu, mixed_size=False)
    with pytest.raises(NoCapacity, match="another size"):
        make_steps(replace(snapshot(gpu), vgpus=(being_made,)), assigned(gpu, A4C))
