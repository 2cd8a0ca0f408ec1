# SPDX-License-Identifier: Apache-2.0
"""Removal is the creation backwards, and only of what is ours."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, promised, snapshot, taken, vm
from vgpuctl.errors import Foreign, InUse
from vgpuctl.model.gpu import Owner
from vgpuctl.model.records import DomainLeftovers
from vgpuctl.model.vm import DiskRef, DiskRole, MadeDisk, PromiseState, VmState
from vgpuctl.plan.chains import chains_of, known_links, refuse_shared_disks
from vgpuctl.plan.remove import describe_leftovers, orphan_plan, own_promise, removal_plan
from vgpuctl.value import replace

DISK = MadeDisk("default", "vm.qcow2", "/pool/vm.qcow2", 1, base="/srv/base.qcow2")
OURS = vm(1, promised(a100(), A4C, 0), promised(a100(), A4C, 1, index=1))


def chains(look):
    """What records alone say of files."""
    return chains_of(look, known_links(look, ()))


def names(plan):
    return [type(s).__name__ for s in plan.steps]


def test_a_running_vm_goes_in_the_order_that_leaves_nothing_unowned():
    promise = replace(OURS.promise, disks=(DISK,))
    plan = removal_plan(OURS, promise, DomainLeftovers(), keep_disks=False)
    assert names(plan) == [
        "StopDomain",
        "SetRecord",
        "ClearType",
        "ClearType",
        "RemoveVolume",
        "UndefineDomain",
        "ReleaseClaim",
        "ReleaseClaim",
    ]
    assert plan.steps[1].promise.state is PromiseState.REMOVING
    assert not plan.undo_on_failure


def test_a_stopped_vm_is_not_stopped():
    plan = removal_plan(replace(OURS, state=VmState.STOPPED), OURS.promise, DomainLeftovers(), keep_disks=False)
    assert "StopDomain" not in names(plan)


def test_kept_disks_are_told_and_leave_the_record_so_that_reconcile_keeps_them_too():
    plan = removal_plan(OURS, replace(OURS.promise, disks=(DISK,)), DomainLeftovers(), keep_disks=True)
    assert "RemoveVolume" not in names(plan)
    assert plan.steps[1].promise.disks == ()
    assert plan.notes == ("disk /pool/vm.qcow2 is kept",)


def test_the_base_image_is_in_no_step():
    plan = removal_plan(OURS, replace(OURS.promise, disks=(DISK,)), DomainLeftovers(), keep_disks=False)
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
    assert all(w in removal_plan(OURS, OURS.promise, left, keep_disks=False).steps[-3].describe() for w in words)


@pytest.mark.parametrize("copied", [False, True])
def test_what_is_not_ours_is_refused_with_its_reason(copied):
    other = replace(OURS, promise=None, copied_promise=OURS.promise if copied else None)
    with pytest.raises(Foreign) as raised:
        own_promise(other, "delete")
    assert ("copy" in str(raised.value)) == copied
    assert "virsh" in str(raised.value.hint)


@pytest.mark.parametrize("named", [MadeDisk("", "", "/newer", 0, base=DISK.path), MadeDisk("", "", DISK.path, 0)])
def test_a_disk_that_only_an_unreadable_record_names_is_not_deleted(named):
    mine = replace(OURS, promise=replace(OURS.promise, disks=(DISK,)))
    newer = vm(2, record=None, unreadable_promise=True, unreadable_disks=(named,))
    with pytest.raises(InUse, match=f"{DISK.path} cannot be deleted: VM vdi-002"):
        refuse_shared_disks(chains(snapshot(a100(), vms=(mine, newer))), mine, mine.promise)


@pytest.mark.parametrize("doing", ["start", "stop", "delete", "change"])
def test_a_record_that_cannot_be_read_is_refused_and_reconcile_is_no_hint(doing):
    other = replace(OURS, promise=None, unreadable_promise=True)
    with pytest.raises(Foreign, match="cannot read: a newer one may have written it") as raised:
        own_promise(other, doing)
    assert f"virsh dumpxml {OURS.name}" in str(raised.value.hint)
    assert "upgrade vgpuctl" in str(raised.value.hint)
    assert "reconcile" not in str(raised.value.hint)


@pytest.mark.parametrize(
    ("present", "steps"), [(True, ["ClearType", "ReleaseClaim"]), (False, ["ClearType", "ReleaseClaim"])]
)
def test_a_leak_is_removed_with_its_claim_last(present, steps):
    assert names(orphan_plan(taken(a100(), A4C, owner=Owner.LEAKED, present=present))) == steps


@pytest.mark.parametrize(("role", "keep"), [(DiskRole.DISK, True), (DiskRole.SEED, False)])
def test_to_keep_it_is_only_proposed_for_what_can_be_kept(role, keep):
    shared = MadeDisk("default", "x", "/x", 1, role=role)
    mine = replace(OURS, promise=replace(OURS.promise, disks=(shared,)))
    clone = replace(vm(2), disks=(DiskRef("cdrom", "sda", "/x", "raw"),))
    with pytest.raises(InUse) as raised:
        refuse_shared_disks(chains(snapshot(a100(), vms=(mine, clone))), mine, mine.promise)
    assert ("--keep-disks" in str(raised.value.hint)) is keep
