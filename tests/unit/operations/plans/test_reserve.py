# SPDX-License-Identifier: Apache-2.0
"""Which slots a VM has that reserves them only while it runs, and where it starts."""

from __future__ import annotations

import pytest

from tests.values import A4C, A5C, MACHINE, ME, T2Q, a100, assigned, changed, snapshot, t4, vm, vm_uuid
from vgpuctl.backends.mdev import carrier_uuid
from vgpuctl.errors import InUse, NoCapacity
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.model.vm import AssignedVgpu, Operation, Vm, VmState
from vgpuctl.operations.claim import build_claims
from vgpuctl.operations.plans.choose import choose_vgpus
from vgpuctl.operations.plans.reserve import (
    choose_slots,
    hypothetical_empty,
    request_from_record,
    tentative_placement,
    with_slot,
    without_slot,
)
from vgpuctl.value import replace


def reserving_vm(number: int, *vgpus: AssignedVgpu, spec: str = "{}", state: VmState = VmState.STOPPED) -> Vm:
    """Return a VM that reserves these only while it runs."""
    made = vm(number, *vgpus)
    assert made.record is not None
    return replace(made, state=state, record=replace(made.record, reserve="running", request_json=spec))


def mdev(number: int, gpu: Gpu) -> AssignedVgpu:
    """Return an assigned mdev of test VM `number`."""
    return assigned(gpu, T2Q, carrier=carrier_uuid(vm_uuid(number), 0))


def test_nothing_is_held_without_a_claim_a_device_or_a_running_vm():
    gpu = a100()
    mine = reserving_vm(1, assigned(gpu, A4C))
    assert mine.record is not None
    seen = snapshot(gpu, vms=(mine,))
    assert with_slot(seen, mine, mine.record) == ()
    assert without_slot(seen, mine, mine.record) == mine.record.vgpus
    claims = build_claims(mine.name, mine.record, Operation("1f", ME, "test"))
    seen = snapshot(gpu, vms=(mine,), claims=claims)
    assert with_slot(seen, mine, mine.record) == mine.record.vgpus
    runs = replace(mine, state=VmState.RUNNING)
    assert with_slot(snapshot(gpu, vms=(runs,)), runs, mine.record) == mine.record.vgpus


def test_what_is_held_is_where_the_claim_is_not_where_the_record_says():
    here, there = t4(), t4("0000:af:00.0")
    mine = reserving_vm(1, mdev(1, here))
    assert mine.record is not None
    moved = replace(mine.record, vgpus=(mdev(1, there),))
    claims = build_claims(mine.name, moved, Operation("1f", ME, "test"))
    assert with_slot(snapshot(here, there, vms=(mine,), claims=claims), mine, mine.record) == moved.vgpus


def test_its_own_slot_comes_first():
    gpu = a100()
    mine = reserving_vm(1, assigned(gpu, A4C, 3))
    assert mine.record is not None
    assert [v.function for v in choose_slots(snapshot(gpu, vms=(mine,)), mine, mine.record)] == ["0000:3b:00.7"]
    other = vm(2, assigned(gpu, A4C, 3))
    seen = snapshot(gpu, vms=(mine, other))
    assert [v.carrier for v in choose_slots(seen, mine, mine.record)] == ["0000:3b:00.4"]
    with pytest.raises(
        InUse, match=r"vdi-001 reserves 0000:3b:00\.7 only while it runs, and vdi-002 uses it"
    ) as refused:
        choose_slots(seen, mine, mine.record, keep_definition=True)
    assert refused.value.hint == "vgpuctl start-vm vdi-001 assigns a free one"


def test_its_own_slot_is_lost_to_a_vm_of_its_group():
    here, there = a100(), a100("0000:af:00.0")
    group = '{"spread_group":"exam"}'
    mine = reserving_vm(1, assigned(here, A4C, 3), spec=group)
    assert mine.record is not None
    runs = reserving_vm(2, assigned(here, A4C, 5), spec=group, state=VmState.RUNNING)
    assert [v.gpu for v in choose_slots(snapshot(here, there, vms=(mine, runs)), mine, mine.record)] == [there.address]
    off = replace(runs, state=VmState.STOPPED)
    assert [v.gpu for v in choose_slots(snapshot(here, there, vms=(mine, off)), mine, mine.record)] == [here.address]


def test_explicit_constraints_are_used_for_another_start():
    kept = '{"gpu":["A100","T4"],"not_gpu":"A16","numa_node":1,"scheduler":"fixed_share","placement":"depth"}'
    mine = reserving_vm(1, assigned(a100(), A4C), spec=kept)
    assert mine.record is not None
    where = GpuConstraints(("A100", "T4"), ("A16",), 1, None, SchedulerPolicy.FIXED_SHARE, "depth")
    assert request_from_record(mine, mine.record, mine.record.vgpus).constraints == where


def test_an_mdev_with_a_fixed_definition_goes_to_any_mdev_gpu():
    here, there = t4(available={T2Q.type_id: 0}), t4("0000:af:00.0")
    mine = reserving_vm(1, mdev(1, here))
    assert mine.record is not None
    (result,) = choose_slots(snapshot(here, there, vms=(mine,)), mine, mine.record, keep_definition=True)
    assert (result.gpu, result.carrier) == ("0000:af:00.0", mine.record.vgpus[0].carrier)
    other = a100(types=(replace(A4C, profile="T4-2Q", name="GRID T4-2Q", framebuffer_mib=2048),))
    with pytest.raises(NoCapacity):
        choose_slots(snapshot(here, other, vms=(mine,)), mine, mine.record, keep_definition=True)


def test_an_explicit_gpu_is_kept():
    here, there = t4(available={T2Q.type_id: 0}), t4("0000:af:00.0")
    mine = reserving_vm(1, mdev(1, here), spec='{"gpu": "0000:5e:00.0"}')
    assert mine.record is not None
    assert request_from_record(mine, mine.record, mine.record.vgpus).constraints.gpus == ("0000:5e:00.0",)
    with pytest.raises(NoCapacity):
        choose_slots(snapshot(here, there, vms=(mine,)), mine, mine.record)


def test_what_a_gpu_whose_driver_refuses_had_goes_to_another_one():
    here, there = t4(), t4("0000:af:00.0")
    mine = reserving_vm(1, mdev(1, here))
    assert mine.record is not None
    seen = replace(snapshot(here, there, vms=(mine,)), refusing_gpus=frozenset({here.address}))
    (result,) = choose_slots(seen, mine, mine.record)
    assert result.gpu == there.address


def test_tentative_placement_assumes_an_empty_host():
    gpu = a100(vfs=2)
    full = changed(
        changed(gpu, 0, current_type="469", available_instances={}), 1, current_type="469", available_instances={}
    )
    seen = snapshot(replace(full, cordoned=True))
    wanted = request_from_record(reserving_vm(1), reserving_vm(1).record, (assigned(gpu, A4C),))
    with pytest.raises(NoCapacity):
        choose_vgpus(seen, wanted, vm_uuid(1))
    assert [v.profile for v in tentative_placement(seen, wanted, vm_uuid(1))] == ["A100-4C"]
    assert hypothetical_empty(seen).vgpus == ()
    with pytest.raises(NoCapacity):
        tentative_placement(seen, replace(wanted, profiles=(("A100-4C", 3),)), vm_uuid(1))


def test_only_records_that_reserve_always_take_slots():
    gpu = a100(vfs=1)
    away = reserving_vm(1, assigned(gpu, A4C))
    mine = reserving_vm(2, assigned(gpu, A4C))
    assert mine.record is not None
    assert choose_slots(snapshot(gpu, vms=(away, mine)), mine, mine.record) == mine.record.vgpus
    kept = vm(3, assigned(gpu, A5C))
    with pytest.raises(NoCapacity):
        choose_slots(snapshot(gpu, vms=(kept, mine)), mine, mine.record)
    assert kept.record is not None
    assert kept.record.machine_id == MACHINE


def test_an_unavailable_free_function_gives_a_reason():
    gpu = a100(types=(A4C,), vfs=12)
    others = [vm(n, assigned(gpu, A4C, n - 1)) for n in range(2, 12)]
    mine = reserving_vm(1, assigned(gpu, A4C, 0))
    assert mine.record is not None
    with pytest.raises(InUse, match="10 of 10 in use"):
        choose_slots(snapshot(gpu, vms=(mine, *others)), mine, mine.record, keep_definition=True)
    with pytest.raises(InUse, match="it is cordoned"):
        choose_slots(snapshot(replace(gpu, cordoned=True), vms=(mine,)), mine, mine.record, keep_definition=True)
