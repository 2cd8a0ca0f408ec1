# SPDX-License-Identifier: Apache-2.0
"""The plan of a new VM: claim, define, create, start, in this order, and its disks."""

from __future__ import annotations

import pytest

from tests.hosts import request
from tests.values import a100, snapshot, vm_uuid
from vgpuctl.domain.render import compile_template, read_builtin_template
from vgpuctl.model.port_values import HypervisorCapabilities, ImageInfo, NetworkInfo, PoolInfo
from vgpuctl.model.request import ExistingDisk, NewDisk
from vgpuctl.model.vm import Operation, ProcessId, RecordState
from vgpuctl.operations.claim import build_claims
from vgpuctl.operations.create import design_domain, disks_to_create, has_boot_source, vm_creation_plan
from vgpuctl.operations.plans.choose import choose_vgpus, vm_name
from vgpuctl.operations.plans.facts import HostFacts
from vgpuctl.operations.plans.guest_devices import GuestHost
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


def test_without_start_the_vm_is_not_started_and_still_recorded_as_ready():
    steps, design = plan(request("A100-4C"), start=False)
    assert [type(s).__name__ for s in steps.steps[-2:]] == ["SetVgpuType", "SetRecordState"]
    assert steps.steps[-1].record.state is RecordState.READY
    assert steps.steps[-1].previous == design.record
    assert design.record.state is RecordState.CREATING


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


def test_there_is_a_claim_for_every_carrier():
    _, design = plan(request("A100-4C", 3, name="vm"))
    claims = build_claims(design.name, design.record, Operation("1f", ProcessId(1, 2), "vgpuctl create-vm"))
    assert [c.carrier for c in claims] == [v.carrier for v in design.record.vgpus]
    assert {(c.vm, c.vm_uuid, c.command) for c in claims} == {("vm", UUID, "vgpuctl create-vm")}
