# SPDX-License-Identifier: Apache-2.0
"""Ownership of a device: managed, unmanaged, leaked, with a lost record, a copy."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values import A4C, T2Q, a100, assigned, changed, claim, t4, vm, vm_uuid, with_mdevs
from vgpuctl.backends.mdev import carrier_uuid
from vgpuctl.model.gpu import Backend, GpuMode, Ownership
from vgpuctl.model.vm import GPU_SETUP_CLAIM, HostdevRef, HostVgpu, VmState
from vgpuctl.observe.ownership import host_vgpu_owner, resolve_ownership
from vgpuctl.value import replace

NOBODY: frozenset[str] = frozenset()


def _carrying(number: int = 0):
    return changed(a100(), number, current_type=A4C.type_id)


@given(st.uuids(), st.integers(0, 15), st.integers(0, 15))
def test_an_mdevs_uuid_follows_from_its_vm_and_index_alone(owner, one, two):
    assert carrier_uuid(str(owner), one) == carrier_uuid(str(owner), one)
    assert (carrier_uuid(str(owner), one) == carrier_uuid(str(owner), two)) == (one == two)
    assert uuid.UUID(carrier_uuid(str(owner), one)).version == 5


def test_an_assigned_device_is_managed():
    gpu = _carrying()
    (result,) = resolve_ownership((gpu,), (vm(1, assigned(gpu, A4C)),), (), NOBODY)
    assert (result.owner, result.present, result.vm, result.profile) == (Ownership.MANAGED, True, "vdi-001", "A100-4C")


def test_an_assigned_missing_device_is_managed_and_absent():
    gpu = a100()
    (result,) = resolve_ownership((gpu,), (vm(1, assigned(gpu, A4C)),), (), NOBODY)
    assert (result.owner, result.present, result.function) == (Ownership.MANAGED, False, gpu.functions[0].address)


def test_a_device_without_owner_is_unmanaged():
    (result,) = resolve_ownership((_carrying(),), (), (), NOBODY)
    assert (result.owner, result.profile, result.framebuffer_mib) == (Ownership.UNMANAGED, "A100-4C", 4096)


def test_a_claim_of_a_live_process_counts_as_managed():
    gpu = a100()
    mine = claim(assigned(gpu, A4C), 1)
    (result,) = resolve_ownership((gpu,), (), (mine,), frozenset({mine.carrier}))
    assert (result.owner, result.present, result.reason) == (Ownership.MANAGED, False, None)


def test_a_claim_whose_vm_and_process_are_gone_is_leaked_and_says_so():
    gpu = _carrying()
    (result,) = resolve_ownership((gpu,), (), (claim(assigned(gpu, A4C), 1),), NOBODY)
    assert (result.owner, result.present) == (Ownership.LEAKED, True)
    assert result.reason == "claimed for VM vdi-001 by process 100; neither exists any more"


def test_a_gpu_whose_set_up_was_killed_is_of_no_vm_but_of_the_command():
    gpu = a100()
    whole = assigned(gpu, A4C)
    whole = replace(
        claim(whole, 1), carrier=gpu.address, vm=GPU_SETUP_CLAIM, command="vgpuctl set-mig 0000:3b:00.0 --off"
    )
    (left,) = resolve_ownership((gpu,), (), (whole,), NOBODY)
    assert (left.owner, left.vm, left.holder_text) == (Ownership.LEAKED, None, "'vgpuctl set-mig 0000:3b:00.0 --off'")
    assert left.reason == "half set up: process 100 (vgpuctl set-mig 0000:3b:00.0 --off) is gone"
    (works,) = resolve_ownership((gpu,), (), (whole,), frozenset({gpu.address}))
    assert (works.owner, works.vm, works.reason) == (Ownership.MANAGED, None, None)


def test_without_libvirt_no_claim_is_called_leaked():
    gpu = _carrying()
    (result,) = resolve_ownership((gpu,), (), (claim(assigned(gpu, A4C), 1),), NOBODY, owners_known=False)
    assert result.owner is Ownership.MANAGED


def test_a_claim_of_a_vm_without_record_is_managed():
    gpu = _carrying()
    bare = vm(1, assigned(gpu, A4C), record=None)
    (result,) = resolve_ownership((gpu,), (bare,), (claim(assigned(gpu, A4C), 1),), NOBODY)
    assert (result.owner, result.reason) == (Ownership.MANAGED, "record lost")


def test_a_device_of_a_vm_whose_record_cannot_be_read_does_not_say_that_it_is_lost():
    gpu = _carrying()
    newer = vm(1, assigned(gpu, A4C), record=None, has_unreadable_record=True)
    (claimed,) = resolve_ownership((gpu,), (newer,), (claim(assigned(gpu, A4C), 1),), NOBODY)
    own = carrier_uuid(vm_uuid(1), 0)
    mdevs = with_mdevs(t4(), 0, (own, T2Q.type_id))
    (proved,) = resolve_ownership(
        (mdevs,), (vm(1, assigned(mdevs, T2Q, carrier=own), record=None, has_unreadable_record=True),), (), NOBODY
    )
    assert [(v.owner, v.reason) for v in (claimed, proved)] == [(Ownership.MANAGED, "unreadable record")] * 2


def test_an_mdev_proves_its_vm_by_its_uuid_when_record_and_claim_are_lost():
    own = carrier_uuid(vm_uuid(1), 0)
    gpu = with_mdevs(t4(), 0, (own, T2Q.type_id))
    bare = vm(1, assigned(gpu, T2Q, carrier=own), record=None)
    (result,) = resolve_ownership((gpu,), (bare,), (), NOBODY)
    assert (result.owner, result.vm, result.reason) == (Ownership.MANAGED, "vdi-001", "record lost")


def test_a_copy_that_refers_to_another_vms_mdev_does_not_own_it():
    own = carrier_uuid(vm_uuid(1), 0)
    gpu = with_mdevs(t4(), 0, (own, T2Q.type_id))
    copy = vm(2, assigned(gpu, T2Q, carrier=own), record=None)
    (result,) = resolve_ownership((gpu,), (copy,), (), NOBODY)
    assert (result.owner, result.vm) == (Ownership.UNMANAGED, "vdi-002")


def test_a_copied_record_leaves_the_device_to_the_original():
    gpu = _carrying()
    original, copy = vm(1, assigned(gpu, A4C)), vm(2, assigned(gpu, A4C), record=None)
    (result,) = resolve_ownership((gpu,), (copy, original), (), NOBODY)
    assert (result.owner, result.vm) == (Ownership.MANAGED, "vdi-001")


def test_an_unmanaged_vm_takes_its_vf():
    gpu = a100()
    foreign = vm(7, assigned(gpu, A4C, 5), record=None)
    (result,) = resolve_ownership((gpu,), (foreign,), (), NOBODY)
    assert (result.owner, result.function, result.vm) == (Ownership.UNMANAGED, gpu.functions[5].address, "vdi-007")


def test_an_unmanaged_vm_takes_its_whole_gpu():
    gpu = a100()
    foreign = vm(7, record=None, hostdevs=(HostdevRef("pci", gpu.address, True),))
    (result,) = resolve_ownership((gpu,), (foreign,), (), NOBODY)
    assert (result.carrier, result.owner, result.present) == (gpu.address, Ownership.UNMANAGED, True)


def test_a_claim_that_cannot_be_read_takes_its_vf():
    gpu = a100()
    (result,) = resolve_ownership((gpu,), (), (), NOBODY, (gpu.functions[2].address,))
    assert (result.function, result.reason) == (gpu.functions[2].address, "its claim cannot be read")


def test_an_assigned_whole_function_is_present():
    gpu = replace(a100(), backend=Backend.PASSTHROUGH, mode=GpuMode.PASSTHROUGH)
    own = assigned(gpu, A4C, carrier=gpu.address, function=gpu.address, profile=None)
    (result,) = resolve_ownership((gpu,), (vm(1, own),), (), NOBODY)
    assert result.present


@pytest.mark.parametrize("kinds", [("device",), ("promise",), ("claim",), ("device", "promise", "claim")])
def test_every_taken_carrier_is_listed_once(kinds):
    gpu = _carrying() if "device" in kinds else a100()
    own = assigned(gpu, A4C)
    vms = (vm(1, own),) if "promise" in kinds else ()
    claims = (claim(own, 1),) if "claim" in kinds else ()
    assert len(resolve_ownership((gpu,), vms, claims, frozenset({own.carrier}))) == 1


def test_carriers_are_sorted_by_gpu_function_and_carrier():
    one, two = _carrying(3), changed(a100("0000:05:00.0"), 1, current_type=A4C.type_id)
    result = resolve_ownership((one, two), (), (), NOBODY)
    assert [v.gpu for v in result] == ["0000:05:00.0", "0000:3b:00.0"]


KEPT = HostVgpu("spare", "A100-4C", "0000:3b:00.0", "0000:3b:00.4")


def test_a_host_vgpu_is_managed_and_never_leaked():
    left = replace(claim(assigned(a100(), A4C), 1), vm_uuid=host_vgpu_owner("m", "spare"))
    for gpu, there in ((_carrying(), True), (a100(), False)):
        for claims in ((), (left,)):
            (result,) = resolve_ownership((gpu,), (), claims, NOBODY, host_vgpus=(KEPT,))
            assert (result.owner, result.present, result.needs_device) == (Ownership.MANAGED, there, not there)
            assert (result.name, result.vm, result.framebuffer_mib, result.holder_text) == (
                "spare",
                None,
                4096,
                "vGPU spare",
            )
    (without,) = resolve_ownership((_carrying(),), (), (left,), NOBODY)
    assert without.owner is Ownership.LEAKED, "this test can tell the difference"


def test_a_vm_that_refers_to_what_host_yaml_keeps_is_its_user():
    user = vm(1, record=None, hostdevs=(HostdevRef("pci", KEPT.carrier, False),))
    (result,) = resolve_ownership((_carrying(),), (user,), (), NOBODY, host_vgpus=(KEPT,))
    assert (result.owner, result.name, result.vm, result.vm_uuid) == (Ownership.MANAGED, "spare", user.name, user.uuid)


def test_a_vm_record_wins_on_one_carrier():
    (result,) = resolve_ownership((_carrying(),), (vm(1, assigned(a100(), A4C)),), (), NOBODY, host_vgpus=(KEPT,))
    assert (result.name, result.vm) == (None, "vdi-001")


def test_another_type_has_a_reason():
    gpu = changed(a100(), 0, current_type="469")
    (result,) = resolve_ownership((gpu,), (), (), NOBODY, host_vgpus=(KEPT,))
    assert result.reason == "it has A100-5C, host.yaml says A100-4C"


def _reserving_vm(number, own, state=VmState.STOPPED):
    made = vm(number, own)
    return replace(made, state=state, record=replace(made.record, reserve="running"))


def test_what_is_reserved_only_to_run_is_taken_by_a_claim_or_a_running_vm_and_by_nothing_else():
    gpu = a100()
    own = assigned(gpu, A4C)
    assert resolve_ownership((gpu,), (_reserving_vm(1, own), _reserving_vm(2, own)), (), NOBODY) == ()
    (result,) = resolve_ownership((gpu,), (_reserving_vm(1, own), _reserving_vm(2, own)), (claim(own, 2),), NOBODY)
    assert (result.vm, result.idle, result.needs_device) == ("vdi-002", True, False)
    (result,) = resolve_ownership((gpu,), (_reserving_vm(1, own), _reserving_vm(2, own, VmState.RUNNING)), (), NOBODY)
    assert (result.vm, result.idle) == ("vdi-002", False)


def test_an_always_reserved_slot_beats_one_reserved_while_running():
    gpu = a100()
    own = assigned(gpu, A4C)
    (result,) = resolve_ownership((gpu,), (_reserving_vm(1, own), vm(2, own, state=VmState.STOPPED)), (), NOBODY)
    assert (result.vm, result.needs_device) == ("vdi-002", True)


def test_a_type_on_a_function_that_nobody_claims_is_not_taken_for_that_of_a_vm_that_is_off():
    gpu = _carrying()
    (result,) = resolve_ownership((gpu,), (_reserving_vm(1, assigned(gpu, A4C)),), (), NOBODY)
    assert (result.owner, result.vm) == (Ownership.UNMANAGED, None)


def test_while_a_command_works_on_it_a_claim_of_a_vm_that_is_off_is_not_idle():
    gpu = a100()
    own = assigned(gpu, A4C)
    (result,) = resolve_ownership((gpu,), (_reserving_vm(1, own),), (claim(own, 1),), frozenset({own.carrier}))
    assert (result.idle, result.reason) == (False, None)


def test_record_and_claim_give_the_target_placement_and_the_device_the_current():
    gpu = replace(a100(), mixed_size=True)
    wanted = assigned(gpu, A4C, placement_id=24)
    owner = vm(1, wanted)
    (away,) = resolve_ownership((gpu,), (owner,), (), frozenset())
    assert (away.placement_id, away.target_placement_id) == (24, None)
    (claimed,) = resolve_ownership((gpu,), (), (replace(claim(wanted, 1), placement_id=24),), frozenset())
    assert (claimed.placement_id, claimed.target_placement_id) == (24, None)
    made = changed(gpu, 0, current_type=A4C.type_id, placement_id=0)
    (there,) = resolve_ownership((made,), (owner,), (), frozenset())
    assert (there.placement_id, there.target_placement_id) == (0, 24)
    untold = changed(gpu, 0, current_type=A4C.type_id)
    (unseen,) = resolve_ownership((untold,), (owner,), (), frozenset())
    assert (unseen.placement_id, unseen.target_placement_id) == (None, None)


def test_a_place_means_nothing_on_a_gpu_of_one_size():
    gpu = replace(a100(), mixed_size=False)
    (away,) = resolve_ownership((gpu,), (vm(1, assigned(gpu, A4C, placement_id=24)),), (), frozenset())
    assert away.placement_id is None
