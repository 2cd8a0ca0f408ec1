# SPDX-License-Identifier: Apache-2.0
"""A VM's system disk, a clone of an image, and how another disk takes its place: for a refresh, and to keep it.

vgpuctl records the new disk as a spare and creates it. One redefinition switches it in and gives the former disks their
new roles. So the record always names what to keep and what not. Until the VM uses the new disk, a failure undoes
everything.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from vgpuctl.domain.record import record_after
from vgpuctl.errors import Busy, InUse, NotFound, Refused
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.outcome import Context
from vgpuctl.model.port_values import DomainLeftovers, ImageInfo, PoolInfo
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import DiskRole, ManagedDisk, Vm, VmRecord
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.guards import find_vm_to_change, refuse_stuck_gpus, refuse_unfinished, refuse_vgpus_in_other_vms
from vgpuctl.operations.leftovers import read_domain_leftovers
from vgpuctl.operations.plans.chains import find_moved_disk, how_to_merge
from vgpuctl.operations.plans.choose import disk_stem, disk_volume_name
from vgpuctl.operations.plans.facts import check_pool
from vgpuctl.operations.plans.remove import describe_leftovers, own_record, refuse_transient_vms
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.refresh_disk import CreateSpareDisk, SwitchDisk
from vgpuctl.operations.steps.storage import StartPool
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class SystemDisk(Value):
    """A VM whose system disk can be replaced, as far as that does not depend on the new one."""

    snapshot: Snapshot
    vm: Vm
    record: VmRecord
    disk: ManagedDisk
    pool: PoolInfo
    free_volume: str


def read_system_disk(host: Host, context: Context, name: str, action: str) -> SystemDisk:
    """Read a VM and its system disk, and refuse one that cannot be replaced.

    Raises:
        VgpuctlError: the reason.
    """
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, action)
    refuse_unfinished(vm, record)
    refuse_transient_vms((vm,))
    refuse_stuck_gpus(snapshot, [v.gpu for v in record.vgpus])
    refuse_vgpus_in_other_vms(snapshot, vm, with_slot(snapshot, vm, record))
    disk = _system_disk(vm, record)
    refuse_saved_states(vm, read_domain_leftovers(host, vm))
    pool = host.storage.pool(disk.pool)
    check_pool(disk.pool, pool)
    if pool is None:
        raise NotFound(
            f"the storage pool {disk.pool} of {disk.path} no longer exists",
            hint="virsh pool-define-as defines it again",
            pool=disk.pool,
        )
    names = _free_volume_names(vm, record, disk)
    free_name = next(n for n in names if not pool.active or host.storage.volume(pool.name, n) is None)
    return SystemDisk(snapshot, vm, record, disk, pool, free_name)


def _system_disk(vm: Vm, record: VmRecord) -> ManagedDisk:
    """Return the disk that can be recreated: a clone of an image, which the VM refers to.

    Raises:
        Busy: an earlier refresh was interrupted.
        Refused: it has no such disk, or no vGPU.
    """
    if record.spare_disks():
        raise Busy(
            f"an earlier refresh of {vm.name} was interrupted: {record.spare_disks()[0].path} must be deleted",
            hint="vgpuctl reconcile-host, then run the command again",
            vm=vm.name,
        )
    if not record.vgpus:
        raise Refused(
            f"{vm.name} has no vGPU, whose claim vgpuctl needs to lock the VM meanwhile",
            hint=f"vgpuctl attach-vgpu {vm.name} --profile PROFILE",
            vm=vm.name,
        )
    clones = [d for d in record.data_disks() if d.image is not None]
    if not clones:
        raise Refused(
            f"{vm.name} has no disk that vgpuctl made as a clone of an image, so there is nothing to rebuild",
            hint=f"vgpuctl show-vm {vm.name} shows its disks; vgpuctl create-vm --image creates one with a clone",
            vm=vm.name,
        )
    if not any(d.source == clones[0].path for d in vm.disks):
        current = find_moved_disk(vm, clones[0])
        now = f": it uses {current.source} now" if current is not None else ""
        raise Refused(
            f"{vm.name} no longer refers to {clones[0].path}, the disk that was created for it{now}",
            hint=f"virsh domblklist --inactive {vm.name}"
            if current is None
            else how_to_merge(vm, current, is_above=True),
            vm=vm.name,
            disk=clones[0].path,
        )
    return clones[0]


def refuse_saved_states(vm: Vm, leftovers: DomainLeftovers) -> None:
    """Refuse a VM with snapshots or a saved state: they belong to the disk that would be replaced.

    Raises:
        InUse: naming them.
    """
    saved_states = describe_leftovers(replace(leftovers, nvram=None, tpm=False))
    if saved_states:
        raise InUse(
            f"{vm.name} has {', '.join(saved_states)}, which would be useless without its current disk",
            hint=f"virsh managedsave-remove {vm.name}; virsh snapshot-delete {vm.name} SNAPSHOT",
            vm=vm.name,
            snapshots=list(leftovers.snapshots),
            checkpoints=list(leftovers.checkpoints),
            managed_save=leftovers.managed_save,
        )


def _free_volume_names(vm: Vm, record: VmRecord, old: ManagedDisk) -> Iterator[str]:
    """Return volume names for a disk in the same pool as the old one, in the order to try them.

    Their numbers only grow: a disk in the bin may be a clone of one that is gone, and must not get another below it.
    """
    stem = disk_stem(vm.name, vm.uuid)
    number = re.compile(rf"{re.escape(stem)}(?:-([0-9]+))?(?:\.{old.format})?", re.ASCII)
    used = [match[1] or "0" for d in record.disks if d.pool == old.pool and (match := number.fullmatch(d.volume))]
    return (disk_volume_name(stem, n, old.format) for n in count(max(map(int, used), default=-1) + 1))


def new_disk(old: ManagedDisk, image: ImageInfo, volume: str) -> ManagedDisk:
    """Return the clone or copy to create next to the old disk, as that was made, and never smaller.

    `image`: the image, or what is prepared.
    """
    path = f"{posixpath.dirname(old.path)}/{volume}"
    size = max(old.capacity_bytes, image.virtual_size_bytes)
    disk = ManagedDisk(old.pool, volume, path, size, base_format=image.format, format=old.format)
    return replace(disk, copied_from=image.path) if old.copied_from else replace(disk, base=image.path)


def disk_switch_plan(
    vm: Vm,
    record: VmRecord,
    old: ManagedDisk,
    new: ManagedDisk,
    image: ImageInfo,
    pool: PoolInfo | None,
    replaced: tuple[ManagedDisk, ...],
    setup: tuple[Step, ...] = (),
    desktop: DesktopMark | None = None,
) -> Plan:
    """Return the steps up to and including the switch; they can be undone. `setup`: what the new guest needs.

    `replaced`: as `record_after_switch` has it. `desktop`: the mark that the record gets with the switch; None: it
    keeps its own.
    """
    record_with_both = replace(record, disks=(*record.disks, replace(new, role=DiskRole.SPARE)))
    new_record = record_after_switch(replace(record, desktop=desktop or record.desktop), old, new, replaced)
    steps: list[Step] = [] if pool is None or pool.active else [StartPool(pool.name)]
    steps += setup
    steps += [
        WriteRecord(vm.name, vm.uuid, record_with_both, record, f"record {new.path} for VM {vm.name}"),
        CreateSpareDisk(vm.name, vm.uuid, new, image.backing_chain),
        SwitchDisk(vm.name, vm.uuid, old.path, new.path, record_after(record_with_both, record), new_record),
    ]
    return Plan(tuple(steps), vms_required_off=(vm.uuid,))


def record_after_switch(
    record: VmRecord, old: ManagedDisk, new: ManagedDisk, replaced: tuple[ManagedDisk, ...]
) -> VmRecord:
    """Return the record after the switch: the new disk is the VM's in place of the old one.

    `replaced`: what still exists of the VM's former disks, with the roles that they get.
    """
    paths = {disk.path for disk in replaced}
    disks = (new if d == old else d for d in record.disks if d == old or d.path not in paths)
    return replace(record, disks=(*disks, *replaced))
