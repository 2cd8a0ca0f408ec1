# SPDX-License-Identifier: Apache-2.0
"""Which disk is meant, and which steps make it larger."""

from __future__ import annotations

import pytest

from tests.values import vm
from vgpuctl.errors import HostCannot, InvalidInput, NotFound, Refused
from vgpuctl.model.port_values import PoolInfo
from vgpuctl.model.vm import DiskRef, DiskRole, ManagedDisk, Vm, VmRecord
from vgpuctl.operations.resize_disk import require_started_pool, resize_plan, select_disk
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.storage import GrowDisk
from vgpuctl.value import replace

GIB = 1 << 30
LOGICAL = PoolInfo("vg0", "logical", active=True, path="/dev/vg0", capacity_bytes=100 * GIB, available_bytes=50 * GIB)
DIRECTORY = PoolInfo("default", "dir", active=True, path="/d", capacity_bytes=100 * GIB, available_bytes=GIB)
FIRST = ManagedDisk("vg0", "a", "/dev/vg0/a", 10 * GIB, format="raw")
SECOND = ManagedDisk("vg0", "a-1", "/dev/vg0/a-1", 10 * GIB, format="raw")
SEED = ManagedDisk("vg0", "a-seed", "/dev/vg0/a-seed", 0, role=DiskRole.SEED, format="raw")


def vm_with(*disks: ManagedDisk) -> tuple[Vm, VmRecord]:
    base = vm(1)
    assert base.record is not None
    record = replace(base.record, disks=disks)
    refs = tuple(DiskRef("disk", f"vd{chr(97 + n)}", d.path, d.format) for n, d in enumerate(disks))
    return replace(base, disks=(*refs, DiskRef("disk", "sda", "/mine", "raw")), record=record), record


@pytest.mark.parametrize("name", ["vdb", "a-1", "/dev/vg0/a-1"])
def test_a_disk_has_three_names(name: str) -> None:
    assert select_disk(*vm_with(FIRST, SECOND), name) == SECOND


def test_the_only_disk_needs_no_name_and_a_seed_is_none() -> None:
    assert select_disk(*vm_with(FIRST, SEED), None) == FIRST
    with pytest.raises(InvalidInput, match=r"vda \(/dev/vg0/a\), vdb \(/dev/vg0/a-1\)"):
        select_disk(*vm_with(FIRST, SECOND), None)
    with pytest.raises(Refused, match="no disk that vgpuctl made"):
        select_disk(*vm_with(SEED), None)
    with pytest.raises(NotFound):
        select_disk(*vm_with(FIRST, SECOND), "vdz")
    with pytest.raises(Refused, match="did not make /mine"):
        select_disk(*vm_with(FIRST), "sda")


def kinds(size: float, volume: float = 10, pool: PoolInfo = LOGICAL) -> list[type]:
    machine, record = vm_with(replace(FIRST, format="raw" if pool is LOGICAL else "qcow2"))
    disk = record.disks[0]
    return [
        type(s) for s in resize_plan(machine, record, disk, int(size * GIB), pool, int(volume * GIB), live=False).steps
    ]


@pytest.mark.parametrize("pool", [LOGICAL, DIRECTORY])
def test_what_is_missing_is_done(pool: PoolInfo) -> None:
    assert kinds(10, pool=pool) == []
    assert kinds(11, pool=pool) == [GrowDisk, WriteRecord]
    assert kinds(11, volume=11, pool=pool) == [WriteRecord]
    with pytest.raises(Refused, match="has 10 GiB, and 9 GiB is less"):
        kinds(9, pool=pool)
    with pytest.raises(Refused, match="has 8 GiB"):
        kinds(11, volume=8, pool=pool)


def test_lvm_may_have_rounded_the_size_up() -> None:
    assert kinds(10.5, volume=11) == [WriteRecord]
    with pytest.raises(Refused, match="has 11 GiB"):
        kinds(10.5, volume=11, pool=DIRECTORY)


def test_the_record_gets_the_new_size_of_this_disk_alone() -> None:
    machine, record = vm_with(FIRST, SECOND)
    plan = resize_plan(machine, record, SECOND, 20 * GIB, LOGICAL, 10 * GIB, live=True)
    grow, write = plan.steps
    assert isinstance(grow, GrowDisk)
    assert isinstance(write, WriteRecord)
    assert write.record == replace(record, disks=(FIRST, replace(SECOND, capacity_bytes=20 * GIB)))
    assert grow.describe().endswith("10 GiB -> 20 GiB, while it runs")


def test_a_pool_must_be_there_and_started() -> None:
    assert require_started_pool(LOGICAL, FIRST) is LOGICAL
    for pool in (None, replace(LOGICAL, active=False)):
        with pytest.raises(HostCannot, match="vg0"):
            require_started_pool(pool, FIRST)
