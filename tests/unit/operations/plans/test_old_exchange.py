# SPDX-License-Identifier: Apache-2.0
"""An exchange that version 0.1 left: when it counts, and what resolves it."""

from __future__ import annotations

from tests.values import A4C, A5C, a100, assigned, snapshot, vm
from vgpuctl.model.vm import Exchange
from vgpuctl.operations.plans.old_exchange import abandoning_steps, decided, finishing_steps
from vgpuctl.operations.steps.attach import SwitchOver, WriteRecord
from vgpuctl.value import replace

ONE, TWO = a100(), a100("0000:86:00.0")
VMS = [vm(0, assigned(ONE, A5C, 0)), vm(1, assigned(TWO, A4C, 0)), vm(2, assigned(ONE, A5C, 1))]
SEEN = snapshot(ONE, TWO, vms=VMS)


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
    step = finishing_steps(SEEN, VMS[1], noted, note, ())[-1]
    assert isinstance(step, SwitchOver)
    assert (step.record.exchange, step.record.vgpus) == (None, (note.vgpu,))
    assert (step.carrier, step.device.carrier, step.previous) == (old.carrier, note.vgpu.carrier, noted)
    (back,) = abandoning_steps(SEEN, VMS[1], noted, note, ())
    assert isinstance(back, WriteRecord)
    assert (back.record, back.previous) == (second, noted)
