# SPDX-License-Identifier: Apache-2.0
"""Plan a VM's new system disk: a clone of another image replaces the VM's current clone, or a full copy a copy.

vgpuctl records the new disk as a spare and creates it. One redefinition switches it in and makes the old disk the
spare. Then the old disk is deleted and removed from the record. So the record always names what to keep and what to
remove.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from itertools import count

from vgpuctl.errors import Busy, InUse, InvalidInput, Refused
from vgpuctl.model.port_values import DomainLeftovers, ImageInfo, PoolInfo
from vgpuctl.model.vm import DiskRole, ManagedDisk, Vm, VmRecord
from vgpuctl.operations.plans.chains import find_moved_disk, how_to_merge
from vgpuctl.operations.plans.choose import disk_stem, disk_volume_name
from vgpuctl.operations.plans.remove import describe_leftovers
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.refresh_disk import CreateSpareDisk, DeleteSpareDisk, SwitchDisk
from vgpuctl.operations.steps.storage import StartPool
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import replace


def system_disk(vm: Vm, record: VmRecord) -> ManagedDisk:
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


def refuse_unbootable(vm: Vm, image: ImageInfo) -> None:
    """Refuse an image that the VM's firmware cannot boot.

    Raises:
        InvalidInput: naming both.
    """
    if image.firmware in ("uefi", "bios") and image.firmware != vm.firmware:
        raise InvalidInput(
            f"{image.path} boots only with {image.firmware.upper()}, and {vm.name} has {vm.firmware.upper()}",
            hint="vgpuctl list-images shows the others; or create another VM from this one",
            image=image.path,
            vm=vm.name,
        )


def free_volume_names(vm: Vm, record: VmRecord, old: ManagedDisk) -> Iterator[str]:
    """Return volume names for a disk in the same pool as the old one, in the order to try them."""
    stem = disk_stem(vm.name, vm.uuid)
    used = {d.volume for d in record.disks if d.pool == old.pool}
    names = (disk_volume_name(stem, n, old.format) for n in count())
    return (name for name in names if name not in used)


def new_disk(old: ManagedDisk, image: ImageInfo, volume: str) -> ManagedDisk:
    """Return the clone or copy to create next to the old disk, as that was made, and never smaller."""
    path = f"{posixpath.dirname(old.path)}/{volume}"
    size = max(old.capacity_bytes, image.virtual_size_bytes)
    disk = ManagedDisk(old.pool, volume, path, size, base_format=image.format, format=old.format)
    return replace(disk, copied_from=image.path) if old.copied_from else replace(disk, base=image.path)


def disk_switch_plan(
    vm: Vm, record: VmRecord, old: ManagedDisk, new: ManagedDisk, image: ImageInfo, pool: PoolInfo | None
) -> Plan:
    """Return the steps up to and including the switch; they can be undone."""
    record_with_both = _record_with_spare(record, old, replace(new, role=DiskRole.SPARE), own=old)
    new_record = record_after_switch(record, old, new)
    steps: list[Step] = [] if pool is None or pool.active else [StartPool(pool.name)]
    steps += [
        WriteRecord(vm.name, vm.uuid, record_with_both, record, f"record {new.path} for VM {vm.name}"),
        CreateSpareDisk(vm.name, vm.uuid, new, image.backing_chain),
        SwitchDisk(vm.name, vm.uuid, old.path, new.path, record_with_both, new_record),
    ]
    return Plan(tuple(steps), vms_required_off=(vm.uuid,))


def record_after_switch(record: VmRecord, old: ManagedDisk, new: ManagedDisk) -> VmRecord:
    """Return the record after the switch: the new disk is the VM's, and the old one still exists."""
    return _record_with_spare(record, old, replace(old, role=DiskRole.SPARE), own=new)


def _record_with_spare(record: VmRecord, old: ManagedDisk, spare: ManagedDisk, *, own: ManagedDisk) -> VmRecord:
    return replace(record, disks=(*(own if d == old else d for d in record.disks), spare))


def spare_removal_plan(vm: Vm, record: VmRecord) -> Plan:
    """Return the steps that delete every spare and its record entry; reconcile uses them after a crash."""
    new_record = replace(record, disks=tuple(d for d in record.disks if d.role is not DiskRole.SPARE))
    clones = tuple(d for d in record.data_disks() if d.image is not None)
    delete_steps = (DeleteSpareDisk(vm.name, vm.uuid, d, clones) for d in record.spare_disks())
    record_step = WriteRecord(vm.name, vm.uuid, new_record, record, _forget_text(vm, record))
    return Plan((*delete_steps, record_step), undo_on_failure=False)


def _forget_text(vm: Vm, record: VmRecord) -> str:
    paths = ", ".join(disk.path for disk in record.spare_disks())
    return f"remove {paths} from the record of VM {vm.name}"
