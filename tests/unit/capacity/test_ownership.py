# SPDX-License-Identifier: Apache-2.0
"""Whose a device is: ours, foreign, leaked, a record lost, a copy."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values import A4C, T2Q, a100, changed, claim, promised, t4, vm, vm_uuid, with_mdevs
from vgpuctl.capacity.ownership import carrier_uuid, join, named_owner
from vgpuctl.model.gpu import Backend, Mode, Owner
from vgpuctl.model.vm import SETTING_UP, HostdevRef, NamedVgpu, VmState
from vgpuctl.value import replace

NOBODY: frozenset[str] = frozenset()


def _carrying(number: int = 0):
    return changed(a100(), number, current_type=A4C.type_id)


@given(st.uuids(), st.integers(0, 15), st.integers(0, 15))
def test_an_mdevs_uuid_follows_from_its_vm_and_index_alone(owner, one, two):
    assert carrier_uuid(str(owner), one) == carrier_uuid(str(owner), one)
    assert (carrier_uuid(str(owner), one) == carrier_uuid(str(owner), two)) == (one == two)
    assert uuid.UUID(carrier_uuid(str(owner), one)).version == 5


def test_a_promised_device_is_ours_and_present():
    gpu = _carrying()
    (found,) = join((gpu,), (vm(1, promised(gpu, A4C)),), (), NOBODY)
    assert (found.owner, found.present, found.vm, found.profile) == (Owner.OURS, True, "vdi-001", "A100-4C")


def test_a_promised_device_that_is_missing_is_ours_and_not_present():
    gpu = a100()
    (found,) = join((gpu,), (vm(1, promised(gpu, A4C)),), (), NOBODY)
    assert (found.owner, found.present, found.function) == (Owner.OURS, False, gpu.functions[0].address)


def test_a_device_without_claim_and_vm_is_foreign():
    (found,) = join((_carrying(),), (), (), NOBODY)
    assert (found.owner, found.profile, found.framebuffer_mib) == (Owner.FOREIGN, "A100-4C", 4096)


def test_a_claim_of_a_live_process_is_ours_before_anything_is_made():
    gpu = a100()
    mine = claim(promised(gpu, A4C), 1)
    (found,) = join((gpu,), (), (mine,), frozenset({mine.carrier}))
    assert (found.owner, found.present, found.reason) == (Owner.OURS, False, None)


def test_a_claim_whose_vm_and_process_are_gone_is_leaked_and_says_so():
    gpu = _carrying()
    (found,) = join((gpu,), (), (claim(promised(gpu, A4C), 1),), NOBODY)
    assert (found.owner, found.present) == (Owner.LEAKED, True)
    assert found.reason == "claimed for VM vdi-001 by process 100, both are gone"


def test_a_gpu_whose_set_up_was_killed_is_of_no_vm_but_of_the_command():
    gpu = a100()
    whole = promised(gpu, A4C)
    whole = replace(claim(whole, 1), carrier=gpu.address, vm=SETTING_UP, command="vgpuctl set-mig 0000:3b:00.0 --off")
    (left,) = join((gpu,), (), (whole,), NOBODY)
    assert (left.owner, left.vm, left.holder) == (Owner.LEAKED, None, "'vgpuctl set-mig 0000:3b:00.0 --off'")
    assert left.reason == "half set up: process 100 is gone, which ran vgpuctl set-mig 0000:3b:00.0 --off"
    (works,) = join((gpu,), (), (whole,), frozenset({gpu.address}))
    assert (works.owner, works.vm, works.reason) == (Owner.OURS, None, None)


def test_without_libvirt_no_claim_is_called_leaked():
    gpu = _carrying()
    (found,) = join((gpu,), (), (claim(promised(gpu, A4C), 1),), NOBODY, owners_known=False)
    assert found.owner is Owner.OURS


def test_a_claim_of_a_vm_that_lost_its_record_is_ours_and_says_so():
    gpu = _carrying()
    bare = vm(1, promised(gpu, A4C), record=None)
    (found,) = join((gpu,), (bare,), (claim(promised(gpu, A4C), 1),), NOBODY)
    assert (found.owner, found.reason) == (Owner.OURS, "record lost")


def test_a_device_of_a_vm_whose_record_cannot_be_read_does_not_say_that_it_is_lost():
    gpu = _carrying()
    newer = vm(1, promised(gpu, A4C), record=None, unreadable_promise=True)
    (claimed,) = join((gpu,), (newer,), (claim(promised(gpu, A4C), 1),), NOBODY)
    own = carrier_uuid(vm_uuid(1), 0)
    mdevs = with_mdevs(t4(), 0, (own, T2Q.type_id))
    (proved,) = join(
        (mdevs,), (vm(1, promised(mdevs, T2Q, carrier=own), record=None, unreadable_promise=True),), (), NOBODY
    )
    assert [(v.owner, v.reason) for v in (claimed, proved)] == [(Owner.OURS, "unreadable record")] * 2


def test_an_mdev_proves_its_vm_by_its_uuid_when_record_and_claim_are_lost():
    own = carrier_uuid(vm_uuid(1), 0)
    gpu = with_mdevs(t4(), 0, (own, T2Q.type_id))
    bare = vm(1, promised(gpu, T2Q, carrier=own), record=None)
    (found,) = join((gpu,), (bare,), (), NOBODY)
    assert (found.owner, found.vm, found.reason) == (Owner.OURS, "vdi-001", "record lost")


def test_a_copy_that_refers_to_another_vms_mdev_does_not_own_it():
    own = carrier_uuid(vm_uuid(1), 0)
    gpu = with_mdevs(t4(), 0, (own, T2Q.type_id))
    copy = vm(2, promised(gpu, T2Q, carrier=own), record=None)
    (found,) = join((gpu,), (copy,), (), NOBODY)
    assert (found.owner, found.vm) == (Owner.FOREIGN, "vdi-002")


def test_a_copy_beside_its_original_leaves_the_device_to_the_original():
    gpu = _carrying()
    original, copy = vm(1, promised(gpu, A4C)), vm(2, promised(gpu, A4C), record=None)
    (found,) = join((gpu,), (copy, original), (), NOBODY)
    assert (found.owner, found.vm) == (Owner.OURS, "vdi-001")


def test_a_foreign_vm_that_refers_to_a_vf_takes_it():
    gpu = a100()
    foreign = vm(7, promised(gpu, A4C, 5), record=None)
    (found,) = join((gpu,), (foreign,), (), NOBODY)
    assert (found.owner, found.function, found.vm) == (Owner.FOREIGN, gpu.functions[5].address, "vdi-007")


def test_a_foreign_vm_that_has_the_whole_gpu_takes_it():
    gpu = a100()
    foreign = vm(7, record=None, hostdevs=(HostdevRef("pci", gpu.address, True),))
    (found,) = join((gpu,), (foreign,), (), NOBODY)
    assert (found.carrier, found.owner, found.present) == (gpu.address, Owner.FOREIGN, True)


def test_a_claim_that_cannot_be_read_takes_its_vf():
    gpu = a100()
    (found,) = join((gpu,), (), (), NOBODY, (gpu.functions[2].address,))
    assert (found.function, found.reason) == (gpu.functions[2].address, "its claim cannot be read")


def test_a_whole_function_is_present_as_soon_as_it_is_promised():
    gpu = replace(a100(), backend=Backend.PASSTHROUGH, mode=Mode.PASSTHROUGH)
    own = promised(gpu, A4C, carrier=gpu.address, function=gpu.address, profile=None)
    (found,) = join((gpu,), (vm(1, own),), (), NOBODY)
    assert found.present


@pytest.mark.parametrize("kinds", [("device",), ("promise",), ("claim",), ("device", "promise", "claim")])
def test_every_taken_carrier_is_listed_once(kinds):
    gpu = _carrying() if "device" in kinds else a100()
    own = promised(gpu, A4C)
    vms = (vm(1, own),) if "promise" in kinds else ()
    claims = (claim(own, 1),) if "claim" in kinds else ()
    assert len(join((gpu,), vms, claims, frozenset({own.carrier}))) == 1


def test_carriers_are_sorted_by_gpu_function_and_carrier():
    one, two = _carrying(3), changed(a100("0000:05:00.0"), 1, current_type=A4C.type_id)
    found = join((one, two), (), (), NOBODY)
    assert [v.gpu for v in found] == ["0000:05:00.0", "0000:3b:00.0"]


KEPT = NamedVgpu("spare", "A100-4C", "0000:3b:00.0", "0000:3b:00.4")


def test_what_host_yaml_keeps_is_ours_made_or_not_and_is_never_leaked():
    left = replace(claim(promised(a100(), A4C), 1), vm_uuid=named_owner("m", "spare"))
    for gpu, there in ((_carrying(), True), (a100(), False)):
        for claims in ((), (left,)):
            (found,) = join((gpu,), (), claims, NOBODY, named=(KEPT,))
            assert (found.owner, found.present, found.awaited) == (Owner.OURS, there, not there)
            assert (found.name, found.vm, found.framebuffer_mib, found.holder) == ("spare", None, 4096, "vGPU spare")
    (without,) = join((_carrying(),), (), (left,), NOBODY)
    assert without.owner is Owner.LEAKED, "this test can tell the difference"


def test_a_vm_that_refers_to_what_host_yaml_keeps_is_its_user():
    user = vm(1, record=None, hostdevs=(HostdevRef("pci", KEPT.carrier, False),))
    (found,) = join((_carrying(),), (user,), (), NOBODY, named=(KEPT,))
    assert (found.owner, found.name, found.vm, found.vm_uuid) == (Owner.OURS, "spare", user.name, user.uuid)


def test_a_vms_promise_of_the_same_carrier_stands():
    (found,) = join((_carrying(),), (vm(1, promised(a100(), A4C)),), (), NOBODY, named=(KEPT,))
    assert (found.name, found.vm) == (None, "vdi-001")


def test_another_type_in_its_place_is_told():
    gpu = changed(a100(), 0, current_type="469")
    (found,) = join((gpu,), (), (), NOBODY, named=(KEPT,))
    assert found.reason == "it carries A100-5C, host.yaml says A100-4C"


def _lent(number, own, state=VmState.STOPPED):
    made = vm(number, own)
    return replace(made, state=state, promise=replace(made.promise, reserve="running"))


def test_what_is_reserved_only_to_run_is_taken_by_a_claim_or_a_running_vm_and_by_nothing_else():
    gpu = a100()
    own = promised(gpu, A4C)
    assert join((gpu,), (_lent(1, own), _lent(2, own)), (), NOBODY) == ()
    (found,) = join((gpu,), (_lent(1, own), _lent(2, own)), (claim(own, 2),), NOBODY)
    assert (found.vm, found.idle, found.awaited) == ("vdi-002", True, False)
    (found,) = join((gpu,), (_lent(1, own), _lent(2, own, VmState.RUNNING)), (), NOBODY)
    assert (found.vm, found.idle) == ("vdi-002", False)


def test_a_place_that_is_kept_always_is_never_one_that_another_vm_has_to_run():
    gpu = a100()
    own = promised(gpu, A4C)
    (found,) = join((gpu,), (_lent(1, own), vm(2, own, state=VmState.STOPPED)), (), NOBODY)
    assert (found.vm, found.awaited) == ("vdi-002", True)


def test_a_type_on_a_function_that_nobody_claims_is_not_taken_for_that_of_a_vm_that_is_off():
    gpu = _carrying()
    (found,) = join((gpu,), (_lent(1, promised(gpu, A4C)),), (), NOBODY)
    assert (found.owner, found.vm) == (Owner.FOREIGN, None)


def test_while_a_command_works_on_it_a_claim_of_a_vm_that_is_off_is_not_idle():
    gpu = a100()
    own = promised(gpu, A4C)
    (found,) = join((gpu,), (_lent(1, own),), (claim(own, 1),), frozenset({own.carrier}))
    assert (found.idle, found.reason) == (False, None)


def test_where_a_vgpu_is_to_be_is_told_by_record_and_claim_and_where_it_is_by_its_device():
    gpu = replace(a100(), mixed_size=True)
    wanted = promised(gpu, A4C, placement_id=24)
    owner = vm(1, wanted)
    (away,) = join((gpu,), (owner,), (), frozenset())
    assert (away.placement_id, away.due_placement_id) == (24, None)
    (claimed,) = join((gpu,), (), (replace(claim(wanted, 1), placement_id=24),), frozenset())
    assert (claimed.placement_id, claimed.due_placement_id) == (24, None)
    made = changed(gpu, 0, current_type=A4C.type_id, placement_id=0)
    (there,) = join((made,), (owner,), (), frozenset())
    assert (there.placement_id, there.due_placement_id) == (0, 24)
    untold = changed(gpu, 0, current_type=A4C.type_id)
    (unseen,) = join((untold,), (owner,), (), frozenset())
    assert (unseen.placement_id, unseen.due_placement_id) == (None, None)


def test_a_place_means_nothing_on_a_gpu_of_one_size():
    gpu = replace(a100(), mixed_size=False)
    (away,) = join((gpu,), (vm(1, promised(gpu, A4C, placement_id=24)),), (), frozenset())
    assert away.placement_id is None
