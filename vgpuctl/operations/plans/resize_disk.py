# SPDX-License-Identifier: Apache-2.0
"""Plan to grow a VM's disk: which disk is meant, whether it fits, and the steps."""

from __future__ import annotations

from shlex import quote

from vgpuctl.errors import HostCannot, InvalidInput, NoSpace, NotFound, Refused
from vgpuctl.model.numbers import format_bytes
from vgpuctl.model.port_values import PoolInfo
from vgpuctl.model.vm import ManagedDisk, Vm, VmRecord
from vgpuctl.operations.plans.chains import find_moved_disk, how_to_merge
from vgpuctl.operations.plans.pools import check_full_size, is_logical
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.resize_disk import GrowDisk
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import replace


def select_disk(vm: Vm, record: VmRecord, name: str | None) -> ManagedDisk:
    """Return the VM's disk of that name: the guest's (vda), its path or its volume; None: its only disk.

    Raises:
        NotFound: it has no such disk.
        InvalidInput: it has several, and none is named.
        Refused: vgpuctl did not make the disk, or the VM does not refer to it any more.
    """
    targets = {d.source: d.target for d in vm.disks}
    managed_disks = [d for d in record.data_disks() if d.path in targets]
    names = ", ".join(f"{targets[d.path]} ({d.path})" for d in managed_disks)
    _refuse_moved_disk(vm, record, name)
    if name is None:
        if len(managed_disks) == 1:
            return managed_disks[0]
        if managed_disks:
            hint = f"--disk {targets[managed_disks[0].path]}, for example"
            raise InvalidInput(f"{vm.name} has {len(managed_disks)} disks: {names}; say which", hint=hint, vm=vm.name)
        raise Refused(f"{vm.name} has no disk that vgpuctl made", hint=f"virsh domblklist {quote(vm.name)}", vm=vm.name)
    disk = next((d for d in managed_disks if name in (targets[d.path], d.path, d.volume)), None)
    if disk is not None:
        return disk
    other = next((d for d in vm.disks if name in (d.target, d.source)), None)
    if other is not None:
        raise Refused(
            f"vgpuctl did not make {other.source or other.target} of {vm.name}, so it does not resize it",
            hint=f"virsh blockresize {quote(vm.name)} {other.target} SIZE while it runs; else qemu-img resize",
            vm=vm.name,
            disk=other.source,
        )
    raise NotFound(
        f"{vm.name} has no disk {name}",
        hint=f"it has {names}" if names else f"virsh domblklist {quote(vm.name)}",
        vm=vm.name,
        disk=name,
    )


def _refuse_moved_disk(vm: Vm, record: VmRecord, name: str | None) -> None:
    """Refuse a disk in whose place the VM uses another file, as after a snapshot or a block copy."""
    for disk in record.data_disks():
        current = find_moved_disk(vm, disk)
        if current is not None and name in (None, disk.path, disk.volume, current.target, current.source):
            raise Refused(
                f"{vm.name} uses {current.source} now, in place of {disk.path}, which vgpuctl made: after a snapshot, "
                "a block copy or a block commit",
                hint=f"{how_to_merge(vm, current, is_above=True)}; "
                f"or virsh blockresize {quote(vm.name)} {current.target} SIZE",
                vm=vm.name,
                disk=disk.path,
                current=current.source,
            )


def resize_plan(
    vm: Vm,
    record: VmRecord,
    disk: ManagedDisk,
    capacity_bytes: int,
    pool: PoolInfo,
    volume_bytes: int,
    *,
    live: bool,
) -> Plan:
    """Return the steps to grow a disk, whose volume has `volume_bytes` now; none if it has the size already.

    A volume that has the size although the record does not say so was left by an interrupted command, or by LVM, which
    rounds sizes up: only the record is written.

    Raises:
        Refused: the disk is larger already.
        NoSpace: the size does not fit into the pool.
    """
    smallest = disk.capacity_bytes if is_logical(pool) else max(disk.capacity_bytes, volume_bytes)
    if volume_bytes >= capacity_bytes == disk.capacity_bytes:
        return Plan(())
    if capacity_bytes < smallest or volume_bytes < disk.capacity_bytes:
        now = min(volume_bytes, smallest)
        raise Refused(
            f"{disk.path} of {vm.name} has {format_bytes(now)}, and {format_bytes(capacity_bytes)} is less: "
            "vgpuctl never shrinks a disk, which would cut off what the guest has at its end",
            hint=f"give a larger size; vgpuctl show-vm {quote(vm.name)} shows the sizes",
            vm=vm.name,
            disk=disk.path,
            size_bytes=now,
            wanted_bytes=capacity_bytes,
        )
    steps: list[Step] = []
    if capacity_bytes > volume_bytes:
        _check_space(pool, capacity_bytes, volume_bytes)
        steps.append(GrowDisk(vm.name, vm.uuid, disk, capacity_bytes, live))
    resized = replace(disk, capacity_bytes=capacity_bytes)
    new_record = replace(record, disks=tuple(resized if d == disk else d for d in record.disks))
    text = f"record {format_bytes(capacity_bytes)} for {disk.path} of {vm.name}"
    return Plan((*steps, WriteRecord(vm.name, vm.uuid, new_record, record, text)))


def _check_space(pool: PoolInfo, capacity_bytes: int, volume_bytes: int) -> None:
    check_full_size(pool, [capacity_bytes - volume_bytes], growth=True)
    if not is_logical(pool) and pool.capacity_bytes is not None and capacity_bytes > pool.capacity_bytes:
        raise NoSpace(
            f"a disk of {format_bytes(capacity_bytes)} does not fit: the file system of the storage pool "
            f"'{pool.name}' has {format_bytes(pool.capacity_bytes)}",
            hint="give a smaller size",
            pool=pool.name,
            size_bytes=capacity_bytes,
            file_system_bytes=pool.capacity_bytes,
        )


def require_started_pool(pool: PoolInfo | None, disk: ManagedDisk) -> PoolInfo:
    """Return the pool of a disk.

    Raises:
        HostCannot: it is gone, or is not started.
    """
    if pool is None or not pool.active:
        what = "does not exist any more" if pool is None else "is not started"
        raise HostCannot(
            f"the storage pool {disk.pool} of {disk.path} {what}",
            hint="define it again: virsh pool-define-as" if pool is None else f"virsh pool-start {quote(disk.pool)}",
            check="pool",
            pool=disk.pool,
        )
    return pool
