# SPDX-License-Identifier: Apache-2.0
"""Grow a disk of a VM, while it runs or while it is off; the guest grows its partition and file system itself.

The disk grows first, then the record gets the new size. A crash in between leaves a disk that is larger than its record
says; the same command again writes the record.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot, InUse, InvalidInput, NoSpace, NotFound, Refused
from vgpuctl.model.hint_commands import stop_command
from vgpuctl.model.numbers import format_bytes
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.port_values import PoolInfo
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.vm import ManagedDisk, Vm, VmRecord
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.attach import LIVE_STATES
from vgpuctl.operations.guards import find_vm_to_change, refuse_unfinished, require_writable
from vgpuctl.operations.leftovers import read_domain_leftovers
from vgpuctl.operations.plans.chains import find_moved_disk, how_to_merge
from vgpuctl.operations.plans.facts import check_full_size, is_logical
from vgpuctl.operations.plans.remove import own_record, refuse_transient_vms
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.steps.storage import GrowDisk
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def resize_disk(host: Host, context: Context, name: str, size_mib: int, disk_name: str | None) -> Outcome[VmReport]:
    """Grow a VM's disk to this size. `disk_name`: as the guest, or show-vm, calls it; None: its only disk.

    Raises:
        Refused: the disk is larger already, or vgpuctl did not make it.
        NoSpace: the pool has too little space.
        InUse: the VM has a managed save, or was started or stopped meanwhile.
        VgpuctlError: the reason.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "resize disks of")
    refuse_unfinished(vm, record)
    refuse_transient_vms((vm,))
    disk = select_disk(vm, record, disk_name)
    _refuse_busy_states(host, vm)
    pool = _require_started_pool(host.storage.pool(disk.pool), disk)
    volume = host.storage.volume(disk.pool, disk.volume)
    if volume is None:
        raise NotFound(
            f"the disk {disk.path} of {vm.name} does not exist", hint=f"virsh vol-list {disk.pool}", disk=disk.path
        )
    is_live = vm.state in LIVE_STATES
    plan = resize_plan(vm, record, disk, size_mib << 20, pool, volume.capacity_bytes, live=is_live)
    steps = tuple(s.describe() for s in plan.steps)
    before = vm_result(snapshot, vm)
    if context.dry_run or not steps:
        return Outcome(
            bool(steps), before, steps, snapshot.warnings, _notes(vm, disk) if steps else (), context.dry_run
        )
    with Transaction(host, context) as tx:
        tx.hold_vm(snapshot, vm, record)
        tx.carry_out(plan)
    return report_vm(host, before, steps, _notes(vm, disk))


def _refuse_busy_states(host: Host, vm: Vm) -> None:
    if vm.state not in (*LIVE_STATES, *STOPPED_STATES):
        raise Refused(
            f"{vm.name} is {vm.state}: its disks can be resized while it runs or is off",
            hint=stop_command(vm, force=True),
            vm=vm.name,
        )
    if vm.state in STOPPED_STATES and read_domain_leftovers(host, vm).managed_save:
        raise InUse(
            f"{vm.name} has a managed save, whose memory knows the disk with its present size",
            hint=f"start it, and resize the disk while it runs: vgpuctl start-vm {vm.name}",
            vm=vm.name,
        )


def _notes(vm: Vm, disk: ManagedDisk) -> tuple[str, ...]:
    target = next((d.target for d in vm.disks if d.source == disk.path), "its disk")
    when = "now" if vm.state in LIVE_STATES else "when it starts"
    return (
        f"{vm.name} sees the new size of {target} {when}; its partition and file system grow inside the guest: "
        f"cloud-init does that at its next boot, else growpart /dev/{target} 1 and resize2fs or xfs_growfs",
    )


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


def _require_started_pool(pool: PoolInfo | None, disk: ManagedDisk) -> PoolInfo:
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
