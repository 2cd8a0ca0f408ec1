# SPDX-License-Identifier: Apache-2.0
"""Which VMs move, and which stay: those that vgpuctl did not create, unfinished ones, and pinned ones."""

from __future__ import annotations

import pytest

from tests.values import A5C, ME, a100, assigned, snapshot, vm
from vgpuctl.errors import NoCapacity
from vgpuctl.model.vm import RecordState, StuckWrite, Vm, VmState
from vgpuctl.operations.plans.moves import find_blocking_carriers, pin_reason, plan_defragmentation, plan_room_moves
from vgpuctl.value import replace

ONE, TWO = a100(), a100("0000:86:00.0")


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
    assert record is not None
    third = a100("0000:af:00.0")
    elsewhere = replace(assigned(third, A5C, 1), index=1)
    vms[1] = replace(vms[1], record=replace(record, vgpus=(*record.vgpus, elsewhere)))
    observed = snapshot(ONE, TWO, third, vms=vms)
    assert {m.vm.name for m in plan_room_moves(observed, (ONE, TWO), [("A100-4C", 1)]).moves} == {"vdi-001"}
    stuck = replace(observed, stuck_writes=(StuckWrite(ME, third.address, "/sys/x", "0"),))
    assert {m.vm.name for m in plan_room_moves(stuck, (ONE, TWO), [("A100-4C", 1)]).moves} == {"vdi-000"}


def test_a_better_state_has_more_room_for_the_largest():
    plan = plan_defragmentation(snapshot(ONE, TWO, vms=two()), (ONE, TWO))
    assert len(plan.moves) == 1
    assert not plan_defragmentation(snapshot(ONE, TWO, vms=two()[:1]), (ONE, TWO)).moves
    assert not plan_defragmentation(snapshot(ONE, TWO, vms=two()), (ONE, TWO), max_moves=0).moves


def test_blocking_carriers_are_by_gpu():
    observed = snapshot(ONE, TWO, vms=two()[:1])
    result = find_blocking_carriers(observed, (ONE, TWO), "A100-4C")
    assert result[TWO.address] == ()
    assert [len(v or ()) for v in result.values()] == [1, 0]
