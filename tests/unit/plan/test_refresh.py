# SPDX-License-Identifier: Apache-2.0
"""The record names at every instant of a refresh what is to be kept and what is to be removed."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, promised, vm
from vgpuctl.errors import Busy, InUse, InvalidInput, Refused
from vgpuctl.model.records import DomainLeftovers, ImageRecord
from vgpuctl.model.vm import DiskRef, DiskRole, MadeDisk, VmState
from vgpuctl.plan.refresh import (
    disk_names,
    dropping,
    making,
    new_disk,
    refuse_kept_states,
    refuse_unbootable,
    switched,
    system_disk,
)
from vgpuctl.value import replace

VM = vm(1, promised(a100(), A4C, 0), state=VmState.STOPPED)
STEM = f"{VM.name}-{VM.uuid[:8]}"
OLD = MadeDisk("default", f"{STEM}.qcow2", f"/pool/{STEM}.qcow2", 20, "/old.qcow2", "qcow2")
DATA = MadeDisk("default", f"{STEM}-1.qcow2", f"/pool/{STEM}-1.qcow2", 30)
SEED = MadeDisk("default", f"{STEM}-seed.iso", f"/pool/{STEM}-seed.iso", 0, role=DiskRole.SEED)
PROMISE = replace(VM.promise, disks=(OLD, DATA, SEED))
WHOLE = replace(VM, promise=PROMISE, disks=tuple(DiskRef("disk", "", d.path, "qcow2") for d in PROMISE.disks))
IMAGE = ImageRecord("/new.qcow2", "raw", 25, "both")
NEW = new_disk(OLD, IMAGE, "new.qcow2")


def roles(promise):
    return [(d.path, str(d.role)) for d in promise.disks]


def test_the_record_names_both_disks_while_there_are_two():
    steps = making(WHOLE, PROMISE, OLD, NEW, IMAGE, None).steps
    assert [type(s).__name__ for s in steps] == ["WriteRecord", "MakeSpare", "SwitchDisk"]
    kept = [(DATA.path, "disk"), (SEED.path, "seed")]
    assert roles(steps[0].promise) == [(OLD.path, "disk"), *kept, (NEW.path, "spare")]
    assert (steps[2].before, steps[2].after) == (steps[0].promise, switched(PROMISE, OLD, NEW))
    assert roles(steps[2].after) == [(NEW.path, "disk"), *kept, (OLD.path, "spare")]


def test_what_is_dropped_is_the_spare_and_then_the_record_forgets_it():
    plan = dropping(WHOLE, switched(PROMISE, OLD, NEW))
    drop, record = plan.steps
    assert (drop.disk.path, drop.needed, plan.undo_on_failure) == (OLD.path, (NEW,), False)
    assert roles(record.promise) == [(NEW.path, "disk"), (DATA.path, "disk"), (SEED.path, "seed")]


def test_the_new_disk_is_beside_the_old_one_and_never_smaller():
    assert (NEW.path, NEW.capacity_bytes, NEW.base, NEW.base_format) == ("/pool/new.qcow2", 25, "/new.qcow2", "raw")
    assert new_disk(OLD, replace(IMAGE, virtual_size_bytes=5), "x").capacity_bytes == 20


def test_names_that_the_record_has_are_passed_over():
    names = disk_names(WHOLE, PROMISE, OLD)
    assert [next(names), next(names)] == [f"{STEM}-2.qcow2", f"{STEM}-3.qcow2"]
    assert next(disk_names(WHOLE, replace(PROMISE, disks=(DATA,)), OLD)) == f"{STEM}.qcow2"


def test_the_clone_is_the_system_disk():
    assert system_disk(WHOLE, PROMISE) == OLD


@pytest.mark.parametrize(
    ("seen", "promise", "error"),
    [
        (WHOLE, switched(PROMISE, OLD, NEW), Busy),
        (WHOLE, replace(PROMISE, disks=(DATA, SEED)), Refused),
        (WHOLE, replace(PROMISE, vgpus=()), Refused),
        (replace(WHOLE, disks=()), PROMISE, Refused),
    ],
)
def test_a_vm_without_one_is_refused(seen, promise, error):
    with pytest.raises(error):
        system_disk(seen, promise)


@pytest.mark.parametrize(
    "kept", [{"managed_save": True}, {"snapshots": ("before-update",)}, {"checkpoints": ("monday",)}]
)
def test_states_of_the_old_disk_are_named(kept):
    refuse_kept_states(WHOLE, DomainLeftovers(nvram="/vars.fd", tpm=True))
    with pytest.raises(InUse, match=r"before-update|monday|managed save"):
        refuse_kept_states(WHOLE, DomainLeftovers(nvram="/vars.fd", **kept))


@pytest.mark.parametrize(("needs", "has", "fits"), [("uefi", "bios", False), ("bios", "uefi", False),
                                                    ("uefi", "uefi", True), ("both", "bios", True),
                                                    ("unknown", "uefi", True)])  # fmt: skip
def test_an_image_must_boot_with_the_vms_firmware(needs, has, fits):
    image, seen = replace(IMAGE, firmware=needs), replace(WHOLE, firmware=has)
    if fits:
        refuse_unbootable(seen, image)
        return
    with pytest.raises(InvalidInput, match=f"only with {needs.upper()}, and vdi-001 has {has.upper()}"):
        refuse_unbootable(seen, image)
