# SPDX-License-Identifier: Apache-2.0
"""VMs that take each other's places: where each goes, and when it counts."""

from __future__ import annotations

import pytest

from tests.values import A4C, A5C, a100, assigned, snapshot, vm
from vgpuctl.errors import NoCapacity
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Exchange
from vgpuctl.plan.exchange import Going, abandoning_steps, decided, finishing_steps, places_at_once, switched_over
from vgpuctl.plan.reserve import request_from_record
from vgpuctl.plan.vm_update import MoveTarget
from vgpuctl.steps.attach import SwitchOver, WriteRecord
from vgpuctl.value import replace

ONE, TWO = a100(), a100("0000:86:00.0")
VMS = [vm(0, assigned(ONE, A5C, 0)), vm(1, assigned(TWO, A4C, 0)), vm(2, assigned(ONE, A5C, 1))]
SEEN = snapshot(ONE, TWO, vms=VMS)


def going(number: int, gpu: str, seen: Snapshot = SEEN) -> Going:
    one = seen.vms[number]
    assert one.record is not None
    (old,) = one.record.vgpus
    asked = replace(request_from_record(one, one.record, (old,)), constraints=GpuConstraints(gpus=(gpu,)))
    return Going(one, one.record, asked, old, MoveTarget(gpu))


def test_all_are_removed_before_one_is_added():
    moves = [going(0, TWO.address), going(1, ONE.address), going(2, TWO.address)]
    new = places_at_once(SEEN, moves)
    assert [v.gpu for v in new] == [TWO.address, ONE.address, TWO.address]
    assert [v.profile for v in new] == [move.old.profile for move in moves]
    functions = [v.function for v in new] + [move.old.function for move in moves]
    assert len(set(functions)) == 6


def test_staying_vms_still_block():
    with pytest.raises(NoCapacity):
        places_at_once(SEEN, [going(0, TWO.address), going(1, ONE.address)])


def test_it_counts_as_soon_as_the_other_vm_has_its_new_vgpu():
    first = VMS[0].record
    assert first is not None
    note = Exchange("old", first.vgpus[0], VMS[0].uuid, first.vgpus[0].carrier)
    assert decided(SEEN, note)
    assert not decided(SEEN, replace(note, with_carrier="0000:00:00.0"))
    assert not decided(snapshot(ONE, TWO, vms=VMS[1:]), note)


def test_what_was_decided_is_finished_and_what_was_not_is_forgotten():
    second = VMS[1].record
    assert second is not None
    (old,) = second.vgpus
    note = Exchange(old.carrier, replace(old, index=1, carrier="0000:3b:01.0"), VMS[0].uuid, "0000:86:01.0")
    noted = replace(second, exchange=note)
    step = switched_over(VMS[1], noted, note)
    assert isinstance(step, SwitchOver)
    assert (step.record.exchange, step.record.vgpus) == (None, (note.vgpu,))
    assert finishing_steps(SEEN, VMS[1], noted, note, ())[-1] == step
    (back,) = abandoning_steps(SEEN, VMS[1], noted, note, ())
    assert isinstance(back, WriteRecord)
    assert (back.record, back.previous) == (second, noted)
