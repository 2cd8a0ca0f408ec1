# SPDX-License-Identifier: Apache-2.0
"""At every moment of a refresh, the record names the disks to keep and the disks to remove."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned, vm
from vgpuctl.errors import Busy, InUse, InvalidInput, Refused
from vgpuctl.model.port_values import DomainLeftovers, ImageInfo
from vgpuctl.model.vm import DiskRef, DiskRole, ManagedDisk, VmState
from vgpuctl.operations.refresh import (
    disk_switch_plan,
    free_volume_names,
    new_disk,
    record_after_switch,
    refuse_saved_states,
    refuse_unbootable,
    spare_removal_plan,
    system_disk,
)
from vgpuctl.value import replace

VM = vm(1, assigned(a100(), A4C, 0), state=VmState.STOPPED)
STEM = f"{VM.name}-{VM.uuid[:8]}"
OLD = ManagedDisk("default", f"{STEM}.qcow2", f"/pool/{STEM}.qcow2", 20, "/old.qcow2", "qcow2")
DATA = ManagedDisk("default", f"{STEM}-1.qcow2", f"/pool/{STEM}-1.qcow2", 30)
SEED = ManagedDisk("default", f"{STEM}-seed.iso", f"/pool/{STEM}-seed.iso", 0, role=DiskRole.SEED)
RECORD = replace(VM.record, disks=(OLD, DATA, SEED))
WHOLE = replace(VM, record=RECORD, disks=tuple(DiskRef("disk", "", d.path, "qcow2") for d in RECORD.disks))
IMAGE = ImageInfo("/new.qcow2", "raw", 25, "both")
NEW = new_disk(OLD, IMAGE, "new.qcow2")


def roles(record):
    return [(d.path, str(d.role)) for d in record.disks]


def test_the_record_names_both_disks_while_there_are_two():
    steps = disk_switch_plan(WHOLE, RECORD, OLD, NEW, IMAGE, None).steps
    assert [type(s).__name__ for s in steps] == ["WriteRecord", "CreateSpareDisk", "SwitchDisk"]
    kept = [(DATA.path, "disk"), (SEED.path, "seed")]
    assert roles(steps[0].record) == [(OLD.path, "disk"), *kept, (NEW.path, "spare")]
    assert (steps[2].old_record, steps[2].new_record) == (steps[0].record, record_after_switch(RECORD, OLD, NEW))
    assert roles(steps[2].new_record) == [(NEW.path, "disk"), *kept, (OLD.path, "spare")]


def test_what_is_dropped_is_the_spare_and_then_the_record_forgets_it():
    plan = spare_removal_plan(WHOLE, record_after_switch(RECORD, OLD, NEW))
    drop, record = plan.steps
    assert (drop.disk.path, drop.required_disks, plan.undo_on_failure) == (OLD.path, (NEW,), False)
    assert roles(record.record) == [(NEW.path, "disk"), (DATA.path, "disk"), (SEED.path, "seed")]


def test_the_new_disk_is_in_the_same_pool_and_never_smaller():
    assert (NEW.path, NEW.capacity_bytes, NEW.base, NEW.base_format) == ("/pool/new.qcow2", 25, "/new.qcow2", "raw")
    assert new_disk(OLD, replace(IMAGE, virtual_size_bytes=5), "x").capacity_bytes == 20


def test_names_that_the_record_has_are_passed_over():
    names = free_volume_names(WHOLE, RECORD, OLD)
    assert [next(names), next(names)] == [f"{STEM}-2.qcow2", f"{STEM}-3.qcow2"]
    assert next(free_volume_names(WHOLE, replace(RECORD, disks=(DATA,)), OLD)) == f"{STEM}.qcow2"


def test_the_clone_is_the_system_disk():
    assert system_disk(WHOLE, RECORD) == OLD


@pytest.mark.parametrize(
    ("seen", "record", "error"),
    [
        (WHOLE, record_after_switch(RECORD, OLD, NEW), Busy),
        (WHOLE, replace(RECORD, disks=(DATA, SEED)), Refused),
        (WHOLE, replace(RECORD, vgpus=()), Refused),
        (replace(WHOLE, disks=()), RECORD, Refused),
    ],
)
def test_a_vm_without_one_is_refused(seen, record, error):
    with pytest.raises(error):
        system_disk(seen, record)


@pytest.mark.parametrize(
    "kept", [{"managed_save": True}, {"snapshots": ("before-update",)}, {"checkpoints": ("monday",)}]
)
def test_states_of_the_old_disk_are_named(kept):
    refuse_saved_states(WHOLE, DomainLeftovers(nvram="/vars.fd", tpm=True))
    with pytest.raises(InUse, match=r"before-update|monday|managed save"):
        refuse_saved_states(WHOLE, DomainLeftovers(nvram="/vars.fd", **kept))


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
