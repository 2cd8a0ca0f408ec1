# SPDX-License-Identifier: Apache-2.0
"""Rounds of moves: refused if they are impossible; each starts from the state that the previous one leaves."""

from __future__ import annotations

import pytest

from tests.values import A4C, A5C, ME, a100, assigned, snapshot, vm
from vgpuctl.errors import Busy, NoCapacity, Stuck
from vgpuctl.model.vm import StuckWrite, Vm
from vgpuctl.plan.moves import plan_room_moves
from vgpuctl.plan.rounds import VmMove, check_rounds
from vgpuctl.value import replace

ONE, TWO, THREE = a100(), a100("0000:86:00.0"), a100("0000:af:00.0")


def test_rounds_are_refused_where_a_write_is_stuck_or_a_vgpu_is_gone():
    observed = snapshot(ONE, TWO, vms=[vm(0, assigned(ONE, A5C, 0)), vm(1, assigned(TWO, A5C, 0))])
    plan = plan_room_moves(observed, (ONE, TWO), [("A100-4C", 1)])
    check_rounds(observed, plan.rounds)
    with pytest.raises(Stuck):
        check_rounds(replace(observed, stuck_writes=(StuckWrite(ME, TWO.address, "/sys/x", "0"),)), plan.rounds)
    (move,) = plan.moves
    with pytest.raises(Busy, match="does not have"):
        check_rounds(observed, [(replace(move, vgpu=replace(move.vgpu, carrier="gone")),)])


def moved(one: Vm, gpu: str) -> VmMove:
    assert one.record is not None
    return VmMove(one, one.record.vgpus[0], gpu)


def test_a_round_finds_the_host_as_those_before_it_leave_it():
    """The second GPU must be empty before it can take another size."""
    vms = [vm(0, assigned(ONE, A4C, 0)), vm(1, assigned(TWO, A5C, 0))]
    observed = snapshot(ONE, TWO, THREE, vms=vms)
    away, after = (moved(vms[1], THREE.address),), (moved(vms[0], TWO.address),)
    check_rounds(observed, [away, after])
    with pytest.raises(NoCapacity):
        check_rounds(observed, [after, away])
