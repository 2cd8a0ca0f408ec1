# SPDX-License-Identifier: Apache-2.0
"""Ownership of a device: managed, unmanaged, leaked, with a lost record, a copy."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values import A4C, T2Q, a100, assigned, changed, claim, t4, vm, vm_uuid, with_mdevs
from vgpuctl.backends.mdev import carrier_uuid
from vgpuctl.model.gpu import Backend, Gpu, GpuMode, Ownership
from vgpuctl.model.vm import GPU_SETUP_CLAIM, HostdevRef, HostVgpu, Vm, VmState
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


def owned(number: int = 1, **more: object) -> Vm:
    """Return a VM with a vGPU on the first function of a GPU in its record, or in its definition alone."""
    return vm(number, assigned(a100(), A4C), **more)


PROVEN = carrier_uuid(vm_uuid(1), 0)
MDEVS = with_mdevs(t4(), 0, (PROVEN, T2Q.type_id))
CLAIM = claim(assigned(a100(), A4C), 1)
SET_UP = replace(CLAIM, carrier=a100().address, vm=GPU_SETUP_CLAIM, command="vgpuctl set-mig 0000:3b:00.0 --off")
WHOLE = a100(backend=Backend.PASSTHROUGH, mode=GpuMode.PASSTHROUGH)
MANAGED, UNMANAGED, LEAKED = Ownership.MANAGED, Ownership.UNMANAGED, Ownership.LEAKED
CASES: dict[str, tuple[Gpu, dict[str, Any], dict[str, Any]]] = {
    "an assigned device is managed": (
        _carrying(), {"vms": [owned()]},
        {"owner": MANAGED, "present": True, "vm": "vdi-001", "profile": "A100-4C"},
    ),
    "an assigned missing device is managed and absent": (
        a100(), {"vms": [owned()]}, {"owner": MANAGED, "present": False, "function": CLAIM.function}
    ),
    "an assigned whole function is present": (
        WHOLE,
        {"vms": [vm(1, assigned(WHOLE, A4C, carrier=WHOLE.address, function=WHOLE.address, profile=None))]},
        {"present": True},
    ),
    "a device without owner is unmanaged": (
        _carrying(), {}, {"owner": UNMANAGED, "profile": "A100-4C", "framebuffer_mib": 4096}
    ),
    "a claim of a living process counts as managed": (
        a100(), {"claims": [CLAIM], "live": {CLAIM.carrier}}, {"owner": MANAGED, "present": False, "reason": None}
    ),
    "a claim whose VM and process are gone is leaked and says so": (
        _carrying(), {"claims": [CLAIM]},
        {
            "owner": LEAKED, "present": True,
            "reason": "claimed for VM vdi-001 by process 100; neither exists any more",
        },
    ),
    "without libvirt no claim is called leaked": (
        _carrying(), {"claims": [CLAIM], "owners_known": False}, {"owner": MANAGED}
    ),
    "a GPU whose set-up was killed is of no VM but of the command": (
        a100(), {"claims": [SET_UP]},
        {
            "owner": LEAKED, "vm": None, "holder_text": "'vgpuctl set-mig 0000:3b:00.0 --off'",
            "reason": "half set up: process 100 (vgpuctl set-mig 0000:3b:00.0 --off) is gone",
        },
    ),
    "a GPU that is being set up": (
        a100(), {"claims": [SET_UP], "live": {a100().address}}, {"owner": MANAGED, "vm": None, "reason": None}
    ),
    "a claim of a VM without record is managed": (
        _carrying(), {"vms": [owned(record=None)], "claims": [CLAIM]}, {"owner": MANAGED, "reason": "record lost"}
    ),
    "a claim of a VM whose record cannot be read": (
        _carrying(), {"vms": [owned(record=None, has_unreadable_record=True)], "claims": [CLAIM]},
        {"owner": MANAGED, "reason": "unreadable record"},
    ),
    "an mdev of a VM whose record cannot be read": (
        MDEVS, {"vms": [vm(1, assigned(MDEVS, T2Q, carrier=PROVEN), record=None, has_unreadable_record=True)]},
        {"owner": MANAGED, "reason": "unreadable record"},
    ),
    "an mdev proves its VM by its UUID when record and claim are lost": (
        MDEVS, {"vms": [vm(1, assigned(MDEVS, T2Q, carrier=PROVEN), record=None)]},
        {"owner": MANAGED, "vm": "vdi-001", "reason": "record lost"},
    ),
    "a copy that refers to another VM's mdev does not own it": (
        MDEVS, {"vms": [vm(2, assigned(MDEVS, T2Q, carrier=PROVEN), record=None)]},
        {"owner": UNMANAGED, "vm": "vdi-002"},
    ),
    "a copied record leaves the device to the original": (
        _carrying(), {"vms": [owned(2, record=None), owned()]}, {"owner": MANAGED, "vm": "vdi-001"}
    ),
    "an unmanaged VM takes its VF": (
        a100(), {"vms": [vm(7, assigned(a100(), A4C, 5), record=None)]},
        {"owner": UNMANAGED, "function": a100().functions[5].address, "vm": "vdi-007"},
    ),
    "an unmanaged VM takes its whole GPU": (
        a100(), {"vms": [vm(7, record=None, hostdevs=(HostdevRef("pci", a100().address, True),))]},
        {"carrier": a100().address, "owner": UNMANAGED, "present": True},
    ),
    "a claim that cannot be read takes its VF": (
        a100(), {"unreadable": (a100().functions[2].address,)},
        {"function": a100().functions[2].address, "reason": "its claim cannot be read"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("gpu", "host", "expected"), CASES.values(), ids=CASES)
def test_who_owns_what_is_on_a_gpu(gpu, host, expected):
    claims, live = tuple(host.get("claims", ())), frozenset(host.get("live", ()))
    (result,) = resolve_ownership(
        (gpu,), tuple(host.get("vms", ())), claims, live, host.get("unreadable", ()),
        owners_known=host.get("owners_known", True),
    )  # fmt: skip
    assert {name: getattr(result, name) for name in expected} == expected


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
