# SPDX-License-Identifier: Apache-2.0
"""Plan a VM's new system disk: a clone of another base image in the place of the clone that it has.

The new disk is recorded as a spare, made, and switched in by one definition, which makes the former one the spare; then
that is deleted and forgotten. So the record names at every instant what is to be kept and what is to be removed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from itertools import count

from vgpuctl.errors import Busy, InUse, InvalidInput, Refused
from vgpuctl.model.records import DomainLeftovers, ImageRecord, PoolRecord
from vgpuctl.model.step import Plan, Step
from vgpuctl.model.vm import DiskRole, MadeDisk, Promise, Vm
from vgpuctl.plan.choose import disk_stem
from vgpuctl.plan.remove import describe_leftovers
from vgpuctl.steps.plug import WriteRecord
from vgpuctl.steps.refresh import DropSpare, MakeSpare, SwitchDisk
from vgpuctl.steps.storage import StartPool
from vgpuctl.value import replace


def system_disk(vm: Vm, promise: Promise) -> MadeDisk:
    """Return the disk that can be made anew: a clone of an image, which the VM refers to.

    Raises:
        Busy: an earlier refresh was interrupted.
        Refused: it has no such disk, or no vGPU.
    """
    if promise.spares():
        raise Busy(
            f"an earlier refresh of {vm.name} was interrupted: {promise.spares()[0].path} is to be deleted",
            hint="vgpuctl reconcile, then run the command again",
            vm=vm.name,
        )
    if not promise.vgpus:
        raise Refused(
            f"{vm.name} has no vGPU, by whose claim vgpuctl keeps other commands from it meanwhile",
            hint=f"vgpuctl attach {vm.name} --profile PROFILE",
            vm=vm.name,
        )
    clones = [d for d in promise.own_disks() if d.base is not None]
    if not clones:
        raise Refused(
            f"{vm.name} has no disk that vgpuctl made as a clone of an image, so there is none to make anew",
            hint=f"vgpuctl show-vm {vm.name} shows its disks; vgpuctl create-vm --image makes such a VM",
            vm=vm.name,
        )
    if not any(d.source == clones[0].path for d in vm.disks):
        raise Refused(
            f"{vm.name} does not refer to {clones[0].path} any more, the disk that was made for it",
            hint=f"virsh domblklist --inactive {vm.name}",
            vm=vm.name,
            disk=clones[0].path,
        )
    return clones[0]


def refuse_kept_states(vm: Vm, leftovers: DomainLeftovers) -> None:
    """Refuse a VM with snapshots or a saved state: they are of the disk that would go.

    Raises:
        InUse: naming them.
    """
    kept = describe_leftovers(replace(leftovers, nvram=None, tpm=False))
    if kept:
        raise InUse(
            f"{vm.name} has {', '.join(kept)}, which would be worth nothing without its present disk",
            hint=f"virsh managedsave-remove {vm.name}; virsh snapshot-delete {vm.name} SNAPSHOT",
            vm=vm.name,
            snapshots=list(leftovers.snapshots),
            checkpoints=list(leftovers.checkpoints),
            managed_save=leftovers.managed_save,
        )


def refuse_unbootable(vm: Vm, image: ImageRecord) -> None:
    """Refuse an image that the VM's firmware cannot boot.

    Raises:
        InvalidInput: naming both.
    """
    if image.firmware in ("uefi", "bios") and image.firmware != vm.firmware:
        raise InvalidInput(
            f"{image.path} boots only with {image.firmware.upper()}, and {vm.name} has {vm.firmware.upper()}",
            hint=f"vgpuctl delete-vm {vm.name}, then vgpuctl create-vm {vm.name} --image {image.path}",
            image=image.path,
            vm=vm.name,
        )


def disk_names(vm: Vm, promise: Promise, old: MadeDisk) -> Iterator[str]:
    """Return names for a disk beside the old one, in the order in which they are tried."""
    stem = disk_stem(vm.name, vm.uuid)
    used = {d.volume for d in promise.disks if d.pool == old.pool}
    names = (f"{stem}-{n}.qcow2" if n else f"{stem}.qcow2" for n in count())
    return (name for name in names if name not in used)


def new_disk(old: MadeDisk, image: ImageRecord, volume: str) -> MadeDisk:
    """Return the clone to make beside the old disk, never smaller than that."""
    path = f"{posixpath.dirname(old.path)}/{volume}"
    size = max(old.capacity_bytes, image.virtual_size_bytes)
    return MadeDisk(old.pool, volume, path, size, image.path, image.format)


def making(vm: Vm, promise: Promise, old: MadeDisk, new: MadeDisk, image: ImageRecord, pool: PoolRecord | None) -> Plan:
    """Return the steps up to the switch; they can be taken back."""
    both = _with(promise, old, replace(new, role=DiskRole.SPARE), own=old)
    after = switched(promise, old, new)
    steps: list[Step] = [] if pool is None or pool.active else [StartPool(pool.name)]
    steps += [
        WriteRecord(vm.name, vm.uuid, both, promise, f"record {new.path} for VM {vm.name}"),
        MakeSpare(vm.name, vm.uuid, new, image.chain),
        SwitchDisk(vm.name, vm.uuid, old.path, new.path, both, after),
    ]
    return Plan(tuple(steps), off=(vm.uuid,))


def switched(promise: Promise, old: MadeDisk, new: MadeDisk) -> Promise:
    """Return the record once the new disk is the VM's and the old one is still there."""
    return _with(promise, old, replace(old, role=DiskRole.SPARE), own=new)


def _with(promise: Promise, old: MadeDisk, spare: MadeDisk, *, own: MadeDisk) -> Promise:
    return replace(promise, disks=(*(own if d == old else d for d in promise.disks), spare))


def dropping(vm: Vm, promise: Promise) -> Plan:
    """Return the steps that delete every spare and forget it; reconcile uses them for what a crash left."""
    left = replace(promise, disks=tuple(d for d in promise.disks if d.role is not DiskRole.SPARE))
    clones = tuple(d for d in promise.own_disks() if d.base is not None)
    drops = (DropSpare(vm.name, vm.uuid, d, clones) for d in promise.spares())
    forget = WriteRecord(vm.name, vm.uuid, left, promise, f"record that VM {vm.name} has no other disk any more")
    return Plan((*drops, forget), undo_on_failure=False)
