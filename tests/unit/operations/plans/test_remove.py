# SPDX-License-Identifier: Apache-2.0
"""Removal reverses the creation, and removes only what vgpuctl manages."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned, snapshot, taken, vm
from vgpuctl.errors import InUse, Unmanaged
from vgpuctl.model.gpu import Ownership
from vgpuctl.model.port_values import DomainLeftovers
from vgpuctl.model.vm import DiskRef, DiskRole, ManagedDisk, RecordState, VmState
from vgpuctl.operations.plans.chains import build_chains, recorded_references, refuse_shared_disks
from vgpuctl.operations.plans.remove import describe_leftovers, leaked_removal_plan, own_record, vm_removal_plan
from vgpuctl.value import replace

DISK = ManagedDisk("default", "vm.qcow2", "/pool/vm.qcow2", 1, base="/srv/base.qcow2")
OURS = vm(1, assigned(a100(), A4C, 0), assigned(a100(), A4C, 1, index=1))


def chains(observed):
    """File references from records alone."""
    return build_chains(observed, recorded_references(observed, ()))


def names(plan):
    return [type(s).__name__ for s in plan.steps]


def test_a_running_vm_goes_in_the_order_that_leaves_nothing_unowned():
    record = replace(OURS.record, disks=(DISK,))
    plan = vm_removal_plan(OURS, record, DomainLeftovers(), keep_disks=False)
    assert names(plan) == [
        "StopDomain",
        "SetRecordState",
        "ClearVgpuType",
        "ClearVgpuType",
        "DeleteVolume",
        "UndefineDomain",
        "ReleaseClaim",
        "ReleaseClaim",
    ]
    assert plan.steps[1].record.state is RecordState.REMOVING
    assert not plan.undo_on_failure


def test_a_stopped_vm_is_not_stopped():
    plan = vm_removal_plan(replace(OURS, state=VmState.STOPPED), OURS.record, DomainLeftovers(), keep_disks=False)
    assert "StopDomain" not in names(plan)


def test_kept_disks_are_noted_and_leave_the_record_for_reconcile():
    plan = vm_removal_plan(OURS, replace(OURS.record, disks=(DISK,)), DomainLeftovers(), keep_disks=True)
    assert "DeleteVolume" not in names(plan)
    assert plan.steps[1].record.disks == ()
    assert plan.notes == ("disk /pool/vm.qcow2 is kept",)


def test_the_base_image_is_in_no_step():
    plan = vm_removal_plan(OURS, replace(OURS.record, disks=(DISK,)), DomainLeftovers(), keep_disks=False)
    assert not [s for s in plan.steps if "/srv/base.qcow2" in s.describe()]


def test_what_undefine_takes_with_it_is_named():
    left = DomainLeftovers("/nvram/vm.fd", True, True, ("before-update",), ("c1",))
    words = describe_leftovers(left)
    assert words == (
        "NVRAM /nvram/vm.fd",
        "its TPM state",
        "its managed save",
        "snapshots before-update",
        "checkpoints c1",
    )
    assert all(w in vm_removal_plan(OURS, OURS.record, left, keep_disks=False).steps[-3].describe() for w in words)


@pytest.mark.parametrize("copied", [False, True])
def test_unmanaged_vms_are_refused_with_a_reason(copied):
    other = replace(OURS, record=None, copied_record=OURS.record if copied else None)
    with pytest.raises(Unmanaged) as raised:
        own_record(other, "delete")
    assert ("copy" in str(raised.value)) == copied
    assert "virsh" in str(raised.value.hint)


@pytest.mark.parametrize("named", [ManagedDisk("", "", "/newer", 0, base=DISK.path), ManagedDisk("", "", DISK.path, 0)])
def test_a_disk_that_only_an_unreadable_record_names_is_not_deleted(named):
    mine = replace(OURS, record=replace(OURS.record, disks=(DISK,)))
    newer = vm(2, record=None, has_unreadable_record=True, unreadable_disks=(named,))
    with pytest.raises(InUse, match=f"{DISK.path} cannot be deleted: VM vdi-002"):
        refuse_shared_disks(chains(snapshot(a100(), vms=(mine, newer))), mine, mine.record)


@pytest.mark.parametrize("doing", ["start", "stop", "delete", "change"])
def test_a_record_that_cannot_be_read_is_refused_and_reconcile_is_no_hint(doing):
    other = replace(OURS, record=None, has_unreadable_record=True)
    with pytest.raises(Unmanaged, match="cannot read: a newer one may have written it") as raised:
        own_record(other, doing)
    assert f"virsh dumpxml {OURS.name}" in str(raised.value.hint)
    assert "upgrade vgpuctl" in str(raised.value.hint)
    assert "reconcile" not in str(raised.value.hint)


@pytest.mark.parametrize(
    ("present", "steps"), [(True, ["ClearVgpuType", "ReleaseClaim"]), (False, ["ClearVgpuType", "ReleaseClaim"])]
)
def test_a_leak_is_removed_with_its_claim_last(present, steps):
    assert names(leaked_removal_plan(taken(a100(), A4C, owner=Ownership.LEAKED, present=present))) == steps


@pytest.mark.parametrize(("role", "keep"), [(DiskRole.DISK, True), (DiskRole.SEED, False)])
def test_keep_disks_is_hinted_only_where_possible(role, keep):
    shared = ManagedDisk("default", "x", "/x", 1, role=role)
    mine = replace(OURS, record=replace(OURS.record, disks=(shared,)))
    clone = replace(vm(2), disks=(DiskRef("cdrom", "sda", "/x", "raw"),))
    with pytest.raises(InUse) as raised:
        refuse_shared_disks(chains(snapshot(a100(), vms=(mine, clone))), mine, mine.record)
    assert ("--keep-disks" in str(raised.value.hint)) is keep
