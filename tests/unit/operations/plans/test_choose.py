# SPDX-License-Identifier: Apache-2.0
"""Which carriers a VM gets, also one that reserves them only while it runs; steps that create them again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hosts import create, open_sim_host, request
from tests.values import A4C, A5C, MACHINE, ME, T2Q, a100, assigned, changed, snapshot, t4, taken, vm, vm_uuid
from vgpuctl.backends.mdev import carrier_uuid
from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoCapacity, Stuck
from vgpuctl.model.gpu import Backend, Gpu, GpuFunction, GpuMode
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.model.vm import AssignedVgpu, Operation, RecordState, StuckWrite, Vm, VmRecord, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.claim import build_claims
from vgpuctl.operations.ensure_vms import choose_batch_vgpus
from vgpuctl.operations.plans.choose import choose_vgpus, make_steps
from vgpuctl.operations.plans.devices import missing_device_steps
from vgpuctl.operations.plans.reserve import (
    choose_slots,
    hypothetical_empty,
    request_from_record,
    tentative_placement,
    with_slot,
)
from vgpuctl.value import replace

UUID = vm_uuid(77)
PLAIN = a100(backend=Backend.SRIOV_VF, mode=GpuMode.SRIOV, types=(), vfs=2)
OWN = GpuFunction("0000:3b:00.0", "/sys/x", iommu_group=5)
WHOLE = replace(PLAIN, backend=Backend.PASSTHROUGH, functions=(OWN,), vfs_enabled=0, vfs_total=0, iommu_group=5)


def test_a_vf_is_its_own_carrier_and_an_mdev_gets_a_provable_uuid():
    (on_vf,) = choose_vgpus(snapshot(a100()), request("A100-4C"), UUID)
    assert on_vf.carrier == on_vf.function == "0000:3b:00.4"
    pair = choose_vgpus(snapshot(t4()), request("T4-2Q", 2), UUID)
    assert [v.carrier for v in pair] == [carrier_uuid(UUID, 0), carrier_uuid(UUID, 1)]
    assert {v.function for v in pair} == {"0000:5e:00.0"}


def test_parameter_order_is_kept():
    (vgpu,) = choose_vgpus(snapshot(t4()), request("T4-2Q", vgpu_params=(("b", "1"), ("a", "2"))), UUID)
    assert vgpu.params == "b=1,a=2"


def test_vfs_that_are_off_are_named_with_the_command_that_turns_them_on():
    off = replace(a100(), backend=None, functions=(), types=(), vfs_enabled=0)
    for wanted in (request("A100-4C"), request(mode="sriov", gpu=off.address)):
        with pytest.raises(HostCannot) as raised:
            choose_vgpus(snapshot(off), wanted, UUID)
        assert "0 of 16 enabled" in str(raised.value)
        assert raised.value.hint == "vgpuctl set-mode 0000:3b:00.0 vgpu"


def test_a_gpu_in_another_mode_says_so():
    with pytest.raises(HostCannot) as raised:
        choose_vgpus(snapshot(WHOLE), request("A100-4C"), UUID)
    assert raised.value.facts["check"] == "mode"


def test_plain_vfs_are_given_one_after_another_until_none_is_left():
    taken = []
    for number in range(2):
        (got,) = choose_vgpus(snapshot(PLAIN, vms=taken), request(mode="sriov", gpu=PLAIN.address), UUID)
        taken.append(vm(number, got))
    assert len({v.hostdevs[0].carrier for v in taken}) == 2
    with pytest.raises(NoCapacity) as raised:
        choose_vgpus(snapshot(PLAIN, vms=taken), request(mode="sriov", gpu=PLAIN.address), UUID)
    assert "2 of 2 in use by vdi-000, vdi-001" in str(raised.value)


def test_plain_vfs_are_not_taken_from_a_vgpu_driver():
    with pytest.raises(HostCannot) as raised:
        choose_vgpus(snapshot(a100()), request(mode="sriov", gpu="0000:3b:00.0"), UUID)
    assert "vendor-vf" in str(raised.value)


def test_what_is_no_pci_device_is_not_given_away_whole():
    mtty = replace(t4("mtty"), vendor_id=None)
    with pytest.raises(InvalidInput):
        choose_vgpus(snapshot(mtty), request(mode="passthrough", gpu="mtty"), UUID)


def test_a_stuck_write_names_its_process():
    write = StuckWrite(ME, WHOLE.address, "/sys/y", "0")
    with pytest.raises(Stuck) as raised:
        choose_vgpus(snapshot(WHOLE, stuck_writes=(write,)), request(mode="passthrough", gpu=WHOLE.address), UUID)
    assert raised.value.facts["pid"] == ME.pid


def test_the_type_id_is_looked_up_by_the_profile_at_each_creation():
    updated = t4(types=(replace(T2Q, type_id="nvidia-999"),), available={"nvidia-999": 8})
    (step,) = make_steps(snapshot(updated), assigned(updated, T2Q))
    assert step.type_id == "nvidia-999"


GPU = a100()


def missing_vm(number: int = 0, spec: str = "{}", **more: Any) -> Vm:
    record = VmRecord(RecordState.READY, vm_uuid(number), MACHINE, (assigned(GPU, A4C, **more),), (), spec)
    return Vm(f"vdi-{number:03d}", vm_uuid(number), VmState.STOPPED, 1024, 1, record=record)


def test_the_recorded_placement_id_is_used_while_it_is_valid():
    kind = replace(A4C, placement_ids=(0, 8), placement_size=4)
    mine = missing_vm(placement_id=8)
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
    mine = missing_vm(placement_id=8)
    with pytest.raises(InUse, match=r"placement 8 of 0000:3b:00.0.*taken by unmanaged 0000:3b:01.1"):
        missing_device_steps(snapshot(gpu, vms=(mine,)), mine, mine.record)


def test_with_mixed_sizes_a_device_in_creation_does_not_block():
    being_made = taken(GPU, A5C, 1, present=False)
    gpu = a100(backend=Backend.MDEV_VF)
    (step,) = make_steps(replace(snapshot(gpu), vgpus=(being_made,)), assigned(gpu, A4C))
    assert step.type_id == A4C.type_id
    gpu = replace(gpu, mixed_size=False)
    with pytest.raises(NoCapacity, match="another size"):
        make_steps(replace(snapshot(gpu), vgpus=(being_made,)), assigned(gpu, A4C))


def reserving_vm(number: int, *vgpus: AssignedVgpu, spec: str = "{}", state: VmState = VmState.STOPPED) -> Vm:
    """Return a VM that reserves these only while it runs."""
    made = vm(number, *vgpus)
    return replace(made, state=state, record=replace(made.record, reserve="running", request_json=spec))


def mdev(number: int, gpu: Gpu) -> AssignedVgpu:
    """Return an assigned mdev of test VM `number`."""
    return assigned(gpu, T2Q, carrier=carrier_uuid(vm_uuid(number), 0))


def test_what_is_held_is_where_the_claim_is_not_where_the_record_says():
    here, there = t4(), t4("0000:af:00.0")
    mine = reserving_vm(1, mdev(1, here))
    moved = replace(mine.record, vgpus=(mdev(1, there),))
    claims = build_claims(mine.name, moved, Operation("1f", ME, "test"))
    assert with_slot(snapshot(here, there, vms=(mine,), claims=claims), mine, mine.record) == moved.vgpus


def test_its_own_slot_comes_first():
    gpu = a100()
    mine = reserving_vm(1, assigned(gpu, A4C, 3))
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
    runs = reserving_vm(2, assigned(here, A4C, 5), spec=group, state=VmState.RUNNING)
    assert [v.gpu for v in choose_slots(snapshot(here, there, vms=(mine, runs)), mine, mine.record)] == [there.address]
    off = replace(runs, state=VmState.STOPPED)
    assert [v.gpu for v in choose_slots(snapshot(here, there, vms=(mine, off)), mine, mine.record)] == [here.address]


def test_explicit_constraints_are_used_for_another_start():
    kept = '{"gpu":["A100","T4"],"not_gpu":"A16","numa_node":1,"scheduler":"fixed_share","placement":"depth"}'
    mine = reserving_vm(1, assigned(a100(), A4C), spec=kept)
    where = GpuConstraints(("A100", "T4"), ("A16",), 1, None, SchedulerPolicy.FIXED_SHARE, "depth")
    assert request_from_record(mine, mine.record, mine.record.vgpus).constraints == where


def test_an_mdev_with_a_fixed_definition_goes_to_any_mdev_gpu():
    here, there = t4(available={T2Q.type_id: 0}), t4("0000:af:00.0")
    mine = reserving_vm(1, mdev(1, here))
    (result,) = choose_slots(snapshot(here, there, vms=(mine,)), mine, mine.record, keep_definition=True)
    assert (result.gpu, result.carrier) == ("0000:af:00.0", mine.record.vgpus[0].carrier)
    other = a100(types=(replace(A4C, profile="T4-2Q", name="GRID T4-2Q", framebuffer_mib=2048),))
    with pytest.raises(NoCapacity):
        choose_slots(snapshot(here, other, vms=(mine,)), mine, mine.record, keep_definition=True)


def test_what_a_gpu_whose_driver_refuses_had_goes_to_another_one():
    here, there = t4(), t4("0000:af:00.0")
    mine = reserving_vm(1, mdev(1, here))
    seen = replace(snapshot(here, there, vms=(mine,)), refusing_gpus=frozenset({here.address}))
    assert [v.gpu for v in choose_slots(seen, mine, mine.record)] == [there.address]


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


def test_an_unavailable_free_function_gives_a_reason():
    gpu = a100(types=(A4C,), vfs=12)
    others = [vm(n, assigned(gpu, A4C, n - 1)) for n in range(2, 12)]
    mine = reserving_vm(1, assigned(gpu, A4C, 0))
    with pytest.raises(InUse, match="10 of 10 in use"):
        choose_slots(snapshot(gpu, vms=(mine, *others)), mine, mine.record, keep_definition=True)
    with pytest.raises(InUse, match="it is cordoned"):
        choose_slots(snapshot(replace(gpu, cordoned=True), vms=(mine,)), mine, mine.record, keep_definition=True)


TWO_CARDS = "version: 1\ngpus:\n  - {model: A100, count: 2}\n"


def vms(ports, count):
    return [(f"vm-{n}", ports.new_uuid()) for n in range(count)]


def take_snapshot(ports):
    return observe(ports, ReadScope(types=True))


def test_they_go_where_one_after_the_other_would_go(tmp_path):
    together = open_sim_host(tmp_path / "together", text=TWO_CARDS).ports
    chosen = choose_batch_vgpus(take_snapshot(together), request("A100-4C"), vms(together, 12))
    single = open_sim_host(tmp_path / "single", text=TWO_CARDS).ports
    made = [create(single, request("A100-4C")).data.vgpus for _ in range(12)]
    assert [[v.function for v in vgpus] for vgpus in chosen] == [[v.function for v in vgpus] for vgpus in made]


def test_a_claim_tells_of_its_vms_spread_group_before_a_definition_does():
    record = VmRecord(RecordState.CREATING, vm_uuid(1), MACHINE, (assigned(t4(), T2Q),), (), '{"spread_group":"exam"}')
    (claim,) = build_claims("vm", record, Operation("1f", ME, "vgpuctl test"))
    assert claim.spread_group == "exam"
