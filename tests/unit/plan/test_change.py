# SPDX-License-Identifier: Apache-2.0
"""Which vGPUs of a VM stay, go and come, their indexes, and its record afterwards."""

from __future__ import annotations

import json

import pytest

from tests.values import A4C, MACHINE, T2Q, T4Q, a100, promised, snapshot, t4, taken, vm
from tests.worlds import wish
from vgpuctl.capacity.ownership import carrier_uuid
from vgpuctl.errors import NoCapacity, NotFound, Refused
from vgpuctl.model.vm import HostdevRef, Promise
from vgpuctl.plan import change
from vgpuctl.steps.claims import ReleaseClaim
from vgpuctl.steps.plug import DetachDevice, WriteRecord
from vgpuctl.value import replace

CARD = a100()
VGPUS = tuple(promised(CARD, A4C, n, index=n) for n in range(2))
VM = vm(1, *VGPUS)


def own(of=VM) -> Promise:
    """Return a VM's promise."""
    assert of.promise is not None
    return of.promise


def test_a_vm_that_somebody_else_made_gets_a_record_that_says_so() -> None:
    foreign = vm(2, record=None)
    empty = change.own_or_new(foreign, MACHINE)
    assert (empty.made_vm, empty.vgpus, empty.vm_uuid) == (False, (), foreign.uuid)
    assert change.own_or_new(VM, MACHINE) is own()
    assert change.hostdev(VGPUS[0], empty).alias == "ua-vgpuctl-plug-0"
    assert change.hostdev(VGPUS[0], own()).alias == "ua-vgpuctl-0"


def test_new_vgpus_take_the_lowest_free_index_and_its_uuid() -> None:
    card = t4()
    have = promised(card, T2Q, index=1, carrier=carrier_uuid(vm(1).uuid, 1))
    (first, second) = change.added(snapshot(card, vms=[vm(1, have)]), wish("T4-2Q", 2), own(vm(1, have)))
    assert (first.index, second.index) == (0, 2)
    assert first.carrier == carrier_uuid(vm(1).uuid, 0)


def test_what_goes_keeps_its_index_until_it_is_gone() -> None:
    card = t4()
    have = promised(card, T2Q, carrier=carrier_uuid(vm(1).uuid, 0))
    seen = snapshot(card, vms=[vm(1, have)])
    with pytest.raises(NoCapacity):
        change.added(seen, wish("T4-4Q"), own(vm(1, have)), go=(have,))
    (new,) = change.added(change.without(seen, (have,)), wish("T4-4Q"), own(vm(1, have)), go=(have,))
    assert (new.index, new.profile) == (1, T4Q.profile)


def test_vgpus_that_cannot_be_together_are_refused() -> None:
    have = promised(CARD, replace(A4C, profile="T4-4Q"))
    with pytest.raises(Refused, match="one board type"):
        change.added(snapshot(CARD, vms=[vm(1, have)]), wish("A100-4C"), own(vm(1, have)))


def test_a_profile_of_any_model_is_of_the_model_that_the_vm_has() -> None:
    other = a100(types=(replace(A4C, name="GRID A100-4Q", profile="A100-4Q"),))
    card = t4()
    have = promised(card, T4Q, carrier=carrier_uuid(vm(1).uuid, 0))
    seen = snapshot(other, card, vms=[vm(1, have)], vgpus=[taken(card, T4Q, carrier=have.carrier)])
    asked = wish("4Q", 2)
    asked = replace(asked, where=replace(asked.where, policy="first-fit"))
    assert [v.profile for v in change.added(seen, asked, own(vm(1, have)))] == ["T4-4Q", "T4-4Q"]
    with pytest.raises(Refused, match="one board type"):
        change.added(seen, wish("A100-4Q"), own(vm(1, have)))


def test_the_record_keeps_each_text_beside_its_vgpu() -> None:
    typed = replace(own(), spec='{"gpu":"A100","profile":["468","GRID A100-4C"]}')
    third = promised(CARD, A4C, 2, index=2)
    grown = change.promised(typed, (*VGPUS, third), ["A100-4C"])
    assert json.loads(grown.spec) == {"gpu": "A100", "profile": ["468", "GRID A100-4C", "A100-4C"]}
    assert json.loads(change.promised(grown, (VGPUS[1],)).spec)["profile"] == ["GRID A100-4C"]


def test_swap_keeps_what_is_wanted_already() -> None:
    assert change.swap(VM, own(), ["A100-4C", "A100-4C"]) == change.Swap(VGPUS, (), ())
    assert change.swap(VM, own(), ["A100-4C"]) == change.Swap(VGPUS[:1], VGPUS[1:], ())
    assert change.swap(VM, own(), ["A100-5C"]) == change.Swap((), VGPUS, ("A100-5C",))
    assert change.swap(VM, own(), ["GRID A100-4C", "A100-5C"]).come == ("A100-5C",)


def test_named_carriers_and_all_of_them() -> None:
    assert change.named(VM, own(), ()) == VGPUS
    assert change.named(VM, own(), [VGPUS[1].carrier.upper()]) == VGPUS[1:]
    with pytest.raises(NotFound, match="no vGPU nothing"):
        change.named(VM, own(), ["nothing"])


def test_the_record_goes_with_the_last_vgpu_of_a_vm_that_somebody_else_made() -> None:
    for made, last in ((True, False), (False, True)):
        record = replace(own(), made_vm=made)
        steps = change.detach_steps(replace(VM, promise=record), record, VGPUS, frozenset(), 5)
        records = [s for s in steps if isinstance(s, WriteRecord)]
        assert [r.promise is None for r in records] == [False, last]
        assert sum(isinstance(s, DetachDevice) for s in steps) == sum(isinstance(s, ReleaseClaim) for s in steps) == 2


def test_only_what_neither_config_nor_guest_has_is_unreferenced() -> None:
    assert change.unreferenced(VM) == ()
    half = replace(VM, hostdevs=(HostdevRef("pci", VGPUS[0].carrier, False),))
    assert change.unreferenced(half) == VGPUS[1:]
    steps = change.detach_steps(half, own(), change.unreferenced(half), frozenset(), 0)
    assert not any(isinstance(s, DetachDevice) for s in steps)
