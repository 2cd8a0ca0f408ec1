# SPDX-License-Identifier: Apache-2.0
"""Orders of moves: refused if they are impossible; each entry starts from the state that the previous one leaves."""

from __future__ import annotations

import pytest

from tests.values import A4C, A5C, ME, a100, assigned, snapshot, vm
from vgpuctl.errors import Busy, NoCapacity, Stuck
from vgpuctl.model.vm import StuckWrite, Vm, VmState
from vgpuctl.operations.plans.move_order import VmLeave, VmMove, check_order
from vgpuctl.operations.plans.moves import plan_room_moves
from vgpuctl.value import replace

ONE, TWO, THREE = a100(), a100("0000:86:00.0"), a100("0000:af:00.0")


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
    assert one.record is not None
    return VmMove(one, one.record.vgpus[0], gpu, waits=waits)


def left(one: Vm) -> VmLeave:
    assert one.record is not None
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
