# SPDX-License-Identifier: Apache-2.0
"""The plan of a new VM and the one that removes it: the order of their steps, and its disks."""

from __future__ import annotations

import pytest

from tests.hosts import request
from tests.values import A4C, a100, assigned, snapshot, vm, vm_uuid
from vgpuctl.domain.render import compile_template, read_builtin_template
from vgpuctl.errors import InUse, Unmanaged
from vgpuctl.model.port_values import DomainLeftovers, HypervisorCapabilities, ImageInfo, NetworkInfo, PoolInfo
from vgpuctl.model.request import ExistingDisk, NewDisk
from vgpuctl.model.vm import DiskRef, DiskRole, ManagedDisk, RecordState
from vgpuctl.operations.create import design_domain, disks_to_create, has_boot_source, vm_creation_plan
from vgpuctl.operations.plans.chains import build_chains, recorded_references, refuse_shared_disks
from vgpuctl.operations.plans.choose import choose_vgpus, vm_name
from vgpuctl.operations.plans.facts import HostFacts
from vgpuctl.operations.plans.guest_devices import GuestHost
from vgpuctl.operations.plans.remove import describe_leftovers, own_record, vm_removal_plan
from vgpuctl.value import replace

UUID = vm_uuid(0xABCDEF)
GIB = 1 << 30
IMAGE = ImageInfo("/srv/base.qcow2", "qcow2", 20 * GIB, "both")
SNAPSHOT = snapshot(a100())


def facts(pool: PoolInfo | None = None) -> HostFacts:
    return HostFacts(
        capabilities=HypervisorCapabilities(kvm=True, uefi=True, emulator="/usr/bin/qemu-system-x86_64"),
        guest=GuestHost(networks={"default": NetworkInfo("default", True)}),
        pool=pool,
        template=compile_template(read_builtin_template("vm") or ""),
        files={IMAGE.path: IMAGE, "/srv/old.raw": ImageInfo("/srv/old.raw", "raw", GIB)},
    )


def plan(wanted, pool=None, *, start=True):
    result = facts(pool)
    design = design_domain(SNAPSHOT, wanted, result, UUID, choose_vgpus(SNAPSHOT, wanted, UUID))
    return vm_creation_plan(SNAPSHOT, wanted, result, design, start=start), design


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (None, ["CreatePool"]),
        (PoolInfo("default", "dir", False, "/pool"), ["StartPool"]),
        (PoolInfo("default", "dir", True, "/pool"), []),
    ],
)
def test_the_steps_come_in_the_order_that_leaves_nothing_unowned(pool, words):
    steps, _ = plan(request("A100-4C", 2), pool)
    names = [type(s).__name__ for s in steps.steps]
    assert names == [
        "DefineDomain",
        *words,
        "CreateVolume",
        "SetVgpuType",
        "SetVgpuType",
        "SetRecordState",
        "StartDomain",
    ]


def test_without_a_name_the_vm_is_called_by_its_uuid():
    assert vm_name(request(name="x"), UUID) == "x"
    assert vm_name(replace(request(), name=None), UUID) == "vgpu-00000000"


def test_the_default_disk_is_empty_with_40_gib_and_a_note():
    steps, design = plan(request("A100-4C", name="vm"))
    (disk,) = design.record.disks
    assert (disk.capacity_bytes, disk.base, disk.volume) == (40 * GIB, None, "vm-00000000.qcow2")
    assert design.boot == ("hd", "network")
    assert "vm's disk is empty" in steps.notes[0]


@pytest.mark.parametrize(
    ("changes", "made", "boot"),
    [
        ({"image": IMAGE.path}, [(20 * GIB, IMAGE.path)], ("hd",)),
        ({"image": IMAGE.path, "disks": (NewDisk(1024),)}, [(20 * GIB, IMAGE.path), (GIB, None)], ("hd",)),
        ({"disks": (NewDisk(1024), NewDisk(2048))}, [(GIB, None), (2 * GIB, None)], ("hd", "network")),
        ({"disks": (ExistingDisk("/srv/old.raw"),)}, [], ("hd",)),
        ({"cdrom": "/srv/cd.iso"}, [], ("cdrom", "hd")),
        ({"cdrom": "/srv/cd.iso", "disks": (NewDisk(1024),)}, [(GIB, None)], ("cdrom", "hd")),
    ],
)
def test_disks_and_the_boot_device(changes, made, boot):
    wanted = request("A100-4C", **changes)
    _, design = plan(wanted)
    assert [(d.capacity_bytes, d.base) for d in design.record.disks] == made
    assert len({d.path for d in design.disks}) == len(design.disks)
    assert design.boot == boot
    assert has_boot_source(wanted) == ("network" not in boot)


def test_disks_lie_in_the_pools_directory():
    (disk,) = disks_to_create(request("A100-4C", name="vm"), facts(PoolInfo("fast", "dir", True, "/fast/")), UUID)
    assert disk.path == "/fast/vm-00000000.qcow2"


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


@pytest.mark.parametrize(("role", "keep"), [(DiskRole.DISK, True), (DiskRole.SEED, False)])
def test_keep_disks_is_hinted_only_where_possible(role, keep):
    shared = ManagedDisk("default", "x", "/x", 1, role=role)
    mine = replace(OURS, record=replace(OURS.record, disks=(shared,)))
    clone = replace(vm(2), disks=(DiskRef("cdrom", "sda", "/x", "raw"),))
    with pytest.raises(InUse) as raised:
        refuse_shared_disks(chains(snapshot(a100(), vms=(mine, clone))), mine, mine.record)
    assert ("--keep-disks" in str(raised.value.hint)) is keep
