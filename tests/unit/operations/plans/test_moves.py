# SPDX-License-Identifier: Apache-2.0
"""Which VMs move and which stay; orders of moves, each from the state that the previous one leaves."""

from __future__ import annotations

import pytest
from lxml import etree

from tests.values import A4C, A5C, ME, a100, assigned, snapshot, vm
from vgpuctl.domain.domain_xml import parse_hostdevs
from vgpuctl.domain.record import ROOT_TAG, record_from_xml
from vgpuctl.errors import Busy, NoCapacity, Stuck
from vgpuctl.model.vm import RecordState, StuckWrite, Vm, VmState
from vgpuctl.operations.place_and_start import move_steps
from vgpuctl.operations.plans.move_order import VmLeave, VmMove, check_order
from vgpuctl.operations.plans.moves import pin_reason, plan_room_moves
from vgpuctl.operations.steps.attach import RedefineDomain
from vgpuctl.value import replace

ONE, TWO, THREE = a100(), a100("0000:86:00.0"), a100("0000:af:00.0")


def two(state: VmState = VmState.STOPPED, **record: object) -> list[Vm]:
    """Return two VMs, each on its own GPU."""
    vms = [vm(0, assigned(ONE, A5C, 0)), vm(1, assigned(TWO, A5C, 0))]
    return [replace(v, state=state, record=replace(v.record, **record)) for v in vms]


def test_a_running_vm_is_stopped_for_its_move_and_one_that_is_off_is_not():
    plan = plan_room_moves(snapshot(ONE, TWO, vms=two()), (ONE, TWO), [("A100-4C", 1)])
    assert [m.describe() for m in plan.moves] == ["move VM vdi-001: A100-5C from 0000:86:00.0 to 0000:3b:00.0"]
    assert [s.gpu.address for s in plan.spots] == ["0000:86:00.0"]
    running = snapshot(ONE, TWO, vms=two(VmState.RUNNING))
    (move,) = plan_room_moves(running, (ONE, TWO), [("A100-4C", 1)]).moves
    assert move.describe().startswith("stop, move and start VM ")


@pytest.mark.parametrize(
    ("vms", "why"),
    [
        (two(created_vm=False), "vgpuctl did not create it"),
        (two(state=RecordState.CREATING), None),
        (two(VmState.PAUSED), "it is paused"),
        (
            [replace(vm, persistent=False) for vm in two(VmState.RUNNING)],
            "it runs without a definition and would be lost",
        ),
        (two(VmState.RUNNING, reserve="running"), "it reserves its places only while it runs"),
        (two(request_json='{"gpu": "A100"}'), "it is restricted: gpu A100"),
    ],
)
def test_a_vm_that_may_not_be_moved_stays(vms: list[Vm], why: str | None):
    if why is not None:
        assert pin_reason(vms[0]) == why
    with pytest.raises(NoCapacity):
        plan_room_moves(snapshot(ONE, TWO, vms=vms), (ONE, TWO), [("A100-4C", 20)])


def test_a_gpu_that_is_cordoned_or_stuck_neither_gives_nor_takes():
    cordoned = replace(TWO, cordoned=True)
    with pytest.raises(NoCapacity) as refused:
        plan_room_moves(snapshot(ONE, cordoned, vms=two()), (ONE, cordoned), [("A100-4C", 1)])
    assert any("0000:86:00.0: it is cordoned" in line for line in refused.value.facts["details"])
    stuck = snapshot(ONE, TWO, vms=two(), stuck_writes=(StuckWrite(ME, TWO.address, "/sys/x", "0"),))
    with pytest.raises(NoCapacity):
        plan_room_moves(stuck, (ONE, TWO), [("A100-4C", 1)])


def test_a_vm_with_another_vgpu_on_a_gpu_that_is_stuck_stays():
    vms = two()
    record = vms[1].record
    elsewhere = replace(assigned(THREE, A5C, 1), index=1)
    vms[1] = replace(vms[1], record=replace(record, vgpus=(*record.vgpus, elsewhere)))
    observed = snapshot(ONE, TWO, THREE, vms=vms)
    assert {m.vm.name for m in plan_room_moves(observed, (ONE, TWO), [("A100-4C", 1)]).moves} == {"vdi-001"}
    stuck = replace(observed, stuck_writes=(StuckWrite(ME, THREE.address, "/sys/x", "0"),))
    assert {m.vm.name for m in plan_room_moves(stuck, (ONE, TWO), [("A100-4C", 1)]).moves} == {"vdi-000"}


def test_moves_are_refused_where_a_write_is_stuck_or_a_vgpu_is_gone():
    observed = snapshot(ONE, TWO, vms=[vm(0, assigned(ONE, A5C, 0)), vm(1, assigned(TWO, A5C, 0))])
    plan = plan_room_moves(observed, (ONE, TWO), [("A100-4C", 1)])
    check_order(observed, plan.order)
    with pytest.raises(Stuck):
        check_order(replace(observed, stuck_writes=(StuckWrite(ME, TWO.address, "/sys/x", "0"),)), plan.order)
    (move,) = plan.moves
    with pytest.raises(Busy, match="no longer has"):
        check_order(observed, [replace(move, vgpu=replace(move.vgpu, carrier="gone"))])


def moved(one: Vm, gpu: str, *, waits: bool = False) -> VmMove:
    return VmMove(one, one.record.vgpus[0], gpu, waits=waits)


def left(one: Vm) -> VmLeave:
    return VmLeave(one, one.record.vgpus[0])


def test_a_move_finds_the_host_as_those_before_it_leave_it():
    """The second GPU must be empty before it can take another size."""
    vms = [vm(0, assigned(ONE, A4C, 0)), vm(1, assigned(TWO, A5C, 0))]
    observed = snapshot(ONE, TWO, THREE, vms=vms)
    away, after = moved(vms[1], THREE.address), moved(vms[0], TWO.address)
    check_order(observed, [away, after])
    with pytest.raises(NoCapacity):
        check_order(observed, [after, away])


def test_who_leaves_frees_its_place_and_gets_its_new_one_when_that_is_free():
    vms = [vm(0, assigned(ONE, A5C, 0)), vm(1, assigned(TWO, A4C, 0)), vm(2, assigned(ONE, A5C, 1))]
    observed = snapshot(ONE, TWO, vms=vms)
    leaves, others = left(vms[1]), [moved(vms[0], TWO.address), moved(vms[2], TWO.address)]
    returns = moved(vms[1], ONE.address, waits=True)
    check_order(observed, [leaves, *others, returns])
    for impossible in ([*others], [leaves, others[0], returns], [leaves, returns, *others]):
        with pytest.raises(NoCapacity):
            check_order(observed, impossible)
    with pytest.raises(Stuck):
        check_order(replace(observed, stuck_writes=(StuckWrite(ME, TWO.address, "/sys/x", "0"),)), [leaves])
    with pytest.raises(Busy, match="no longer has"):
        check_order(observed, [replace(leaves, vgpu=replace(leaves.vgpu, carrier="gone"))])


def test_who_leaves_has_freed_its_function():
    """Each of two GPUs has one VF, and a VM on it."""
    one, two = (replace(gpu, functions=gpu.functions[:1]) for gpu in (ONE, TWO))
    vms = [vm(0, assigned(one, A5C, 0)), vm(1, assigned(two, A4C, 0))]
    observed = snapshot(one, two, vms=vms)
    check_order(observed, [left(vms[0]), moved(vms[1], one.address), moved(vms[0], two.address, waits=True)])


XML = """<domain type='kvm'><name>vdi-000</name><uuid>00000000-0000-0000-0000-000000000000</uuid><devices>
<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x0000' bus='0x3b' slot='0x00'
 function='0x4'/></source><alias name='ua-vgpuctl-0'/><address type='pci' bus='0x07'/></hostdev>
<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x0000' bus='0x3b' slot='0x00'
 function='0x5'/></source><alias name='ua-vgpuctl-1'/><address type='pci' bus='0x08'/></hostdev>
</devices></domain>"""


def test_two_functions_may_change_places():
    gpu = a100()
    was = vm(0, assigned(gpu, A4C, 0, index=0), assigned(gpu, A4C, 1, index=1))
    now = replace(was.record, vgpus=(assigned(gpu, A4C, 1, index=0), assigned(gpu, A4C, 2, index=1)))
    (step,) = move_steps(was, was.record, now, XML)
    assert isinstance(step, RedefineDomain)
    result = {h.alias: h.carrier for h in parse_hostdevs(step.xml)}
    assert result == {"ua-vgpuctl-0": "0000:3b:00.5", "ua-vgpuctl-1": "0000:3b:00.6"}
    root = etree.fromstring(step.xml)
    assert [a.get("bus") for a in root.findall("devices/hostdev/address")] == ["0x07", "0x08"]
    record = root.find(f"metadata/{ROOT_TAG}")
    assert record_from_xml(etree.tostring(record, encoding="unicode")) == now
    assert "A100-4C: 0000:3b:00.4 -> 0000:3b:00.5" in step.describe()


@pytest.mark.parametrize(
    ("state", "placement", "leaves", "moves"),
    [
        (
            VmState.RUNNING,
            None,
            "stop VM vm-0 and give up its place on GPU until its new place is free",
            "move and start",
        ),
        (VmState.STOPPED, 3, "give up the place of VM vm-0 on GPU, placement 3, until its new place is free", "move"),
    ],
)
def test_a_leave_and_its_move_say_what_happens(state: VmState, placement: int | None, leaves: str, moves: str):
    one = replace(vm(0, assigned(ONE, A5C, 0)), name="vm-0", state=state)
    vgpu = replace(left(one).vgpu, placement_id=placement)
    assert VmLeave(one, vgpu).describe() == leaves.replace("GPU", ONE.address)
    assert VmMove(one, vgpu, TWO.address, waits=True).describe() == (
        f"{moves} VM vm-0: A100-5C from {ONE.address} to {TWO.address}"
    )
