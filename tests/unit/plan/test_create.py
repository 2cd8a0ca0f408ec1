# SPDX-License-Identifier: Apache-2.0
"""The plan of a new VM: claim, define, make, start, in this order, and which disks it gets."""

from __future__ import annotations

import pytest

from tests.values import a100, snapshot, vm_uuid
from tests.worlds import wish
from vgpuctl.domain.render import compile_template
from vgpuctl.domain.templates import builtin_template
from vgpuctl.model.records import HypervisorCapabilities, ImageRecord, NetworkRecord, PoolRecord
from vgpuctl.model.vm import ProcessId, PromiseState
from vgpuctl.model.wish import ExistingDisk, NewDisk
from vgpuctl.plan.choose import choose, vm_name
from vgpuctl.plan.claims import claims_for
from vgpuctl.plan.create import create_plan, has_system, made_disks, make_design
from vgpuctl.plan.facts import Facts
from vgpuctl.value import replace

UUID = vm_uuid(0xABCDEF)
GIB = 1 << 30
IMAGE = ImageRecord("/srv/base.qcow2", "qcow2", 20 * GIB, "both")
LOOK = snapshot(a100())


def facts(pool: PoolRecord | None = None) -> Facts:
    return Facts(
        capabilities=HypervisorCapabilities(kvm=True, uefi=True, emulator="/usr/bin/qemu-system-x86_64"),
        network=NetworkRecord("default", True),
        pool=pool,
        template=compile_template(builtin_template("vm") or ""),
        files={IMAGE.path: IMAGE, "/srv/old.raw": ImageRecord("/srv/old.raw", "raw", GIB)},
    )


def plan(wanted, pool=None, *, start=True):
    found = facts(pool)
    design = make_design(LOOK, wanted, found, UUID, choose(LOOK, wanted, UUID))
    return create_plan(LOOK, wanted, found, design, start=start), design


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (None, ["MakePool"]),
        (PoolRecord("default", "dir", False, "/pool"), ["StartPool"]),
        (PoolRecord("default", "dir", True, "/pool"), []),
    ],
)
def test_the_steps_come_in_the_order_that_leaves_nothing_unowned(pool, words):
    steps, _ = plan(wish("A100-4C", 2), pool)
    names = [type(s).__name__ for s in steps.steps]
    assert names == ["DefineDomain", *words, "MakeVolume", "SetType", "SetType", "SetRecord", "StartDomain"]


def test_without_start_the_vm_is_not_started_and_still_recorded_as_ready():
    steps, design = plan(wish("A100-4C"), start=False)
    assert [type(s).__name__ for s in steps.steps[-2:]] == ["SetType", "SetRecord"]
    assert steps.steps[-1].promise.state is PromiseState.READY
    assert steps.steps[-1].was == design.promise
    assert design.promise.state is PromiseState.MAKING


def test_without_a_name_the_vm_is_called_by_its_uuid():
    assert vm_name(wish(name="x"), UUID) == "x"
    assert vm_name(replace(wish(), name=None), UUID) == "vgpu-00000000"


def test_without_a_word_about_disks_there_is_an_empty_one_of_forty_gib_and_a_note():
    steps, design = plan(wish("A100-4C", name="vm"))
    (disk,) = design.promise.disks
    assert (disk.capacity_bytes, disk.base, disk.volume) == (40 * GIB, None, "vm-00000000.qcow2")
    assert design.boot == ("hd", "network")
    assert "no system is on vm's disk" in steps.notes[0]


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
def test_which_disks_are_made_and_what_is_booted(changes, made, boot):
    wanted = wish("A100-4C", **changes)
    _, design = plan(wanted)
    assert [(d.capacity_bytes, d.base) for d in design.promise.disks] == made
    assert len({d.path for d in design.disks}) == len(design.disks)
    assert design.boot == boot
    assert has_system(wanted) == ("network" not in boot)


def test_disks_lie_in_the_pools_directory():
    (disk,) = made_disks(wish("A100-4C", name="vm"), facts(PoolRecord("fast", "dir", True, "/fast/")), UUID)
    assert disk.path == "/fast/vm-00000000.qcow2"


def test_there_is_a_claim_for_every_carrier():
    _, design = plan(wish("A100-4C", 3, name="vm"))
    claims = claims_for(design.name, design.promise, ProcessId(1, 2), "vgpuctl create-vm")
    assert [c.carrier for c in claims] == [v.carrier for v in design.promise.vgpus]
    assert {(c.vm, c.vm_uuid, c.command) for c in claims} == {("vm", UUID, "vgpuctl create-vm")}
