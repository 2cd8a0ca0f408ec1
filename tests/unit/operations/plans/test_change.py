# SPDX-License-Identifier: Apache-2.0
"""Which vGPUs of a VM are kept, removed and added, their indexes, and its record afterwards."""

from __future__ import annotations

import json

import pytest

from tests.hosts import request
from tests.values import A4C, MACHINE, T2Q, T4Q, a100, assigned, snapshot, t4, taken, vm
from vgpuctl.backends.mdev import carrier_uuid
from vgpuctl.errors import InvalidInput, NoCapacity, NotFound, Refused
from vgpuctl.model.vm import HostdevRef, VmRecord
from vgpuctl.observe.definition import find_unreferenced_vgpus
from vgpuctl.operations.plans import change
from vgpuctl.operations.steps.attach import DetachDevice, WriteRecord
from vgpuctl.operations.steps.claims import ReleaseClaim
from vgpuctl.value import replace

CARD = a100()
VGPUS = tuple(assigned(CARD, A4C, n, index=n) for n in range(2))
VM = vm(1, *VGPUS)


def own(of=VM) -> VmRecord:
    """Return the record of a VM."""
    assert of.record is not None
    return of.record


def test_a_vm_that_somebody_else_made_gets_a_record_that_says_so() -> None:
    foreign = vm(2, record=None)
    empty = change.own_record_or_new(foreign, MACHINE)
    assert (empty.created_vm, empty.vgpus, empty.vm_uuid) == (False, (), foreign.uuid)
    assert change.own_record_or_new(VM, MACHINE) is own()
    assert change.design_hostdev(VGPUS[0], empty).alias == "ua-vgpuctl-plug-0"
    assert change.design_hostdev(VGPUS[0], own()).alias == "ua-vgpuctl-0"


def test_new_vgpus_take_the_lowest_free_index_and_its_uuid() -> None:
    card = t4()
    have = assigned(card, T2Q, index=1, carrier=carrier_uuid(vm(1).uuid, 1))
    (first, second) = change.choose_added_vgpus(
        snapshot(card, vms=[vm(1, have)]), request("T4-2Q", 2), own(vm(1, have))
    )
    assert (first.index, second.index) == (0, 2)
    assert first.carrier == carrier_uuid(vm(1).uuid, 0)


def test_a_removed_vgpu_keeps_its_index() -> None:
    card = t4()
    have = assigned(card, T2Q, carrier=carrier_uuid(vm(1).uuid, 0))
    seen = snapshot(card, vms=[vm(1, have)])
    with pytest.raises(NoCapacity):
        change.choose_added_vgpus(seen, request("T4-4Q"), own(vm(1, have)), removed=(have,))
    (new,) = change.choose_added_vgpus(
        change.with_freed(seen, (have,)), request("T4-4Q"), own(vm(1, have)), removed=(have,)
    )
    assert (new.index, new.profile) == (1, T4Q.profile)


def test_vgpus_that_cannot_be_together_are_refused() -> None:
    have = assigned(CARD, replace(A4C, profile="T4-4Q"))
    with pytest.raises(Refused, match="the same board type"):
        change.choose_added_vgpus(snapshot(CARD, vms=[vm(1, have)]), request("A100-4C"), own(vm(1, have)))


def test_a_profile_of_any_model_is_of_the_model_that_the_vm_has() -> None:
    other = a100(types=(replace(A4C, name="GRID A100-4Q", profile="A100-4Q"),))
    card = t4()
    have = assigned(card, T4Q, carrier=carrier_uuid(vm(1).uuid, 0))
    seen = snapshot(other, card, vms=[vm(1, have)], vgpus=[taken(card, T4Q, carrier=have.carrier)])
    asked = request("4Q", 2)
    asked = replace(asked, placement="first-fit")
    assert [v.profile for v in change.choose_added_vgpus(seen, asked, own(vm(1, have)))] == ["T4-4Q", "T4-4Q"]
    with pytest.raises(Refused, match="the same board type"):
        change.choose_added_vgpus(seen, request("A100-4Q"), own(vm(1, have)))


def test_the_record_keeps_the_text_of_each_vgpu() -> None:
    typed = replace(own(), request_json='{"gpu":"A100","profile":["468","GRID A100-4C"]}')
    third = assigned(CARD, A4C, 2, index=2)
    grown = change.record_with_vgpus(typed, (*VGPUS, third), ["A100-4C"])
    assert json.loads(grown.request_json) == {"gpu": "A100", "profile": ["468", "GRID A100-4C", "A100-4C"]}
    assert json.loads(change.record_with_vgpus(grown, (VGPUS[1],)).request_json)["profile"] == ["GRID A100-4C"]


def test_swap_keeps_what_is_wanted_already() -> None:
    assert change.diff_vgpus(VM, own(), ["A100-4C", "A100-4C"]) == change.VgpuChanges(VGPUS, (), ())
    assert change.diff_vgpus(VM, own(), ["A100-4C"]) == change.VgpuChanges(VGPUS[:1], VGPUS[1:], ())
    assert change.diff_vgpus(VM, own(), ["A100-5C"]) == change.VgpuChanges((), VGPUS, ("A100-5C",))
    assert change.diff_vgpus(VM, own(), ["GRID A100-4C", "A100-5C"]).added_profiles == ("A100-5C",)


def test_named_carriers_or_the_only_one() -> None:
    with pytest.raises(InvalidInput, match="has 2 vGPUs, and none is named") as several:
        change.select_vgpus(VM, own(), ())
    assert str(several.value.hint).endswith(" ".join(f"--vgpu {vgpu.carrier}" for vgpu in VGPUS))
    assert change.select_vgpus(VM, replace(own(), vgpus=VGPUS[:1]), ()) == VGPUS[:1]
    assert change.select_vgpus(VM, own(), [VGPUS[1].carrier.upper()]) == VGPUS[1:]
    with pytest.raises(NotFound, match="no vGPU nothing"):
        change.select_vgpus(VM, own(), ["nothing"])


def test_the_record_goes_with_the_last_vgpu_of_a_vm_that_somebody_else_made() -> None:
    for made, last in ((True, False), (False, True)):
        record = replace(own(), created_vm=made)
        steps = change.detach_steps(replace(VM, record=record), record, VGPUS, frozenset(), 5)
        records = [s for s in steps if isinstance(s, WriteRecord)]
        assert [r.record is None for r in records] == [False, last]
        assert sum(isinstance(s, DetachDevice) for s in steps) == sum(isinstance(s, ReleaseClaim) for s in steps) == 2


def test_a_device_in_config_or_guest_is_referenced() -> None:
    assert find_unreferenced_vgpus(VM, own()) == ()
    half = replace(VM, hostdevs=(HostdevRef("pci", VGPUS[0].carrier, False),))
    assert find_unreferenced_vgpus(half, own()) == VGPUS[1:]
    steps = change.detach_steps(half, own(), find_unreferenced_vgpus(half, own()), frozenset(), 0)
    assert not any(isinstance(s, DetachDevice) for s in steps)
