# SPDX-License-Identifier: Apache-2.0
"""Rebuild a VM from another base image: its system disk becomes a new clone, or a full copy; everything else stays.

It keeps name, uuid, MAC address, vGPUs, NVRAM, TPM, the other disks and the seed for cloud-init. vgpuctl records the
new disk as a spare and creates it. One redefinition switches it in and makes the old disk the spare. Then the old disk
is deleted, or moved to the bin, and removed from the record. So the record always names what to keep and what not.

Until the VM uses the new disk, a failure undoes everything. After that the VM is refreshed, and only the old disk still
has to be deleted.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from vgpuctl.domain.record import record_after
from vgpuctl.errors import Busy, InUse, InvalidInput, NotFound, Refused, VgpuctlError
from vgpuctl.model import hint_commands
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.port_values import DomainLeftovers, ImageInfo, PoolInfo
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import UNRESPONSIVE_STATES, DiskRole, ManagedDisk, Vm, VmRecord
from vgpuctl.observe import ReadScope, observe, scope_of_vm
from vgpuctl.operations.controlled import mark_of, with_mark
from vgpuctl.operations.deleted_disks import prepare_bins, with_bin_entry
from vgpuctl.operations.gpu_transaction import with_vm_stopped
from vgpuctl.operations.guards import (
    find_vm,
    find_vm_to_change,
    refuse_change,
    refuse_stuck_gpus,
    refuse_unfinished,
    refuse_unresponsive_vm,
    refuse_vgpus_in_other_vms,
    require_writable,
)
from vgpuctl.operations.guest_setup import setup_for_new_disk
from vgpuctl.operations.images import find_backing_chains, image_hints
from vgpuctl.operations.limits import count_removal
from vgpuctl.operations.plans.chains import BackingChains, find_moved_disk, how_to_merge, refuse_shared_disks
from vgpuctl.operations.plans.choose import disk_stem, disk_volume_name
from vgpuctl.operations.plans.facts import check_files, check_full_size, check_pool
from vgpuctl.operations.plans.remove import describe_leftovers, own_record, refuse_transient_vms
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.plans.results import image_of, vm_result
from vgpuctl.operations.power import read_domain_leftovers
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.domain import STOPPED_STATES, StartDomain, StopDomain
from vgpuctl.operations.steps.refresh_disk import CreateSpareDisk, DeleteSpareDisk, SwitchDisk
from vgpuctl.operations.steps.storage import StartPool
from vgpuctl.operations.transaction import Transaction
from vgpuctl.operations.whole_progress import WholeProgress
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


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


def _free_volume_names(vm: Vm, record: VmRecord, old: ManagedDisk) -> Iterator[str]:
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
    vm: Vm,
    record: VmRecord,
    old: ManagedDisk,
    new: ManagedDisk,
    image: ImageInfo,
    pool: PoolInfo | None,
    spare: ManagedDisk,
    setup: tuple[Step, ...] = (),
    desktop: DesktopMark | None = None,
) -> Plan:
    """Return the steps up to and including the switch; they can be undone. `setup`: what the new guest needs.

    `desktop`: the mark that the record gets with the switch; None: it keeps its own.
    """
    record_with_both = _record_with_spare(record, old, replace(new, role=DiskRole.SPARE), own=old)
    new_record = record_after_switch(replace(record, desktop=desktop or record.desktop), old, new, spare)
    steps: list[Step] = [] if pool is None or pool.active else [StartPool(pool.name)]
    steps += setup
    steps += [
        WriteRecord(vm.name, vm.uuid, record_with_both, record, f"record {new.path} for VM {vm.name}"),
        CreateSpareDisk(vm.name, vm.uuid, new, image.backing_chain),
        SwitchDisk(vm.name, vm.uuid, old.path, new.path, record_after(record_with_both, record), new_record),
    ]
    return Plan(tuple(steps), vms_required_off=(vm.uuid,))


def record_after_switch(record: VmRecord, old: ManagedDisk, new: ManagedDisk, spare: ManagedDisk) -> VmRecord:
    """Return the record after the switch: the new disk is the VM's, and the old one still exists, as `spare`."""
    return _record_with_spare(record, old, spare, own=new)


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


class RefreshPlan(Value):
    """A checked refresh of one VM; nothing is written yet."""

    snapshot: Snapshot
    vm: Vm
    record: VmRecord
    old_disk: ManagedDisk
    spare: ManagedDisk
    new_disk: ManagedDisk
    make_plan: Plan
    drop_plan: Plan
    warnings: tuple[str, ...]


def refresh_vm(
    host: Host, context: Context, name: str, image: str, *, from_image: str | None = None, drain: bool
) -> Outcome[VmReport]:
    """Give a VM a new clone of `image` as its system disk; what was written to the old disk is lost.

    `from_image`: a VM whose system disk was not made from this image is left alone.
    `drain`: a running VM is shut down first, within `wait_seconds`, and started again whether the refresh succeeds
    or fails.

    Raises:
        InUse: the VM runs, has snapshots, or another VM's disk is a clone of its disk.
        PartlyApplied: the VM is refreshed, but the old disk could not be deleted or the VM could not be started again.
        VgpuctlError: the reason; the VM is unchanged.
    """
    require_writable(host, context)
    if from_image is not None:
        if mark_of(context) is not None:
            raise InvalidInput("a mark goes with a refresh, and from_image may leave the VM alone", hint="omit one")
        left_alone = _left_alone(host, context, name, from_image)
        if left_alone is not None:
            return left_alone
    plan = _plan_refresh(host, context, name, image)
    vm = plan.vm
    is_running = vm.state not in STOPPED_STATES
    if is_running and not drain:
        raise _running_error(vm)
    refuse_unresponsive_vm(vm)
    stop = StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=context.wait_seconds)
    around: tuple[list[Step], list[Step]] = ([stop], [StartDomain(vm.name, vm.uuid)]) if is_running else ([], [])
    steps = tuple(s.describe() for s in (*around[0], *plan.make_plan.steps, *plan.drop_plan.steps, *around[1]))
    loss = f"all data on {plan.old_disk.path} will be {'lost' if plan.spare.bin_entry is None else 'in the bin'}"
    if plan.old_disk.image == image:
        loss += f", and {vm.name} already is made from {image}"
    if context.dry_run:
        warnings = (*plan.snapshot.warnings, *plan.warnings)
        return Outcome(True, vm_result(plan.snapshot, vm), steps, warnings, (loss,), dry_run=True)
    context.confirm(f"Rebuild VM {vm.name} from {image}? {loss[0].upper()}{loss[1:]}.", steps)
    count_removal(host, context)  # the old disk goes, as with a deletion
    whole = replace(context, progress=WholeProgress(context.progress, steps))
    with_vm_stopped(host, whole, vm, partial(_replace_disk, host, whole, plan, image), "refreshed")
    return report_vm(host, vm_result(plan.snapshot, vm), steps, (), plan.warnings)


def _running_error(vm: Vm) -> InUse:
    return InUse(
        f"{vm.name} is {vm.state}; its disk can be replaced only while it is off",
        hint=f"{hint_commands.off_command(vm)}{'' if vm.state in UNRESPONSIVE_STATES else ', or use --drain'}",
        vm=vm.name,
        state=str(vm.state),
    )


def _left_alone(host: Host, context: Context, name: str, from_image: str) -> Outcome[VmReport] | None:
    """Return the unchanged VM if its system disk was not made from `from_image`, None if it was."""
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm(snapshot, name)
    refuse_change(context, vm)
    own_record(vm, "refresh")
    if image_of(vm) == from_image:
        return None
    note = f"VMs whose first disk is not made from {from_image} are left alone"
    return Outcome(False, vm_result(snapshot, vm), (), snapshot.warnings, (note,), dry_run=context.dry_run)


def _plan_refresh(host: Host, context: Context, name: str, image: str) -> RefreshPlan:
    """Read the VM, the image and the pool, and refuse a refresh that cannot work."""
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "refresh")
    refuse_unfinished(vm, record)
    refuse_transient_vms((vm,))
    refuse_stuck_gpus(snapshot, [v.gpu for v in record.vgpus])
    refuse_vgpus_in_other_vms(snapshot, vm, with_slot(snapshot, vm, record))
    old_disk = _system_disk(vm, record)
    chains = find_backing_chains(host, snapshot, image, old_disk.path)
    image_info = _usable_image(host, image, chains)
    refuse_unbootable(vm, image_info)
    refuse_saved_states(vm, read_domain_leftovers(host, vm))
    refuse_shared_disks(chains, vm, replace(record, disks=(old_disk,)), can_keep=False)
    pool = host.storage.pool(old_disk.pool)
    check_pool(old_disk.pool, pool)
    check_full_size(pool, [max(old_disk.capacity_bytes, image_info.virtual_size_bytes)])
    if pool is None:
        raise NotFound(
            f"the storage pool {old_disk.pool} of {old_disk.path} no longer exists",
            hint="virsh pool-define-as defines it again",
            pool=old_disk.pool,
        )
    names = _free_volume_names(vm, record, old_disk)
    free_name = next(n for n in names if not pool.active or host.storage.volume(pool.name, n) is None)
    added_disk = new_disk(old_disk, image_info, free_name)
    spare = replace(with_bin_entry(host, context, vm, old_disk), role=DiskRole.SPARE)
    marked = with_mark(context, vm, record, is_refreshed=True)
    switched = record_after_switch(marked, old_disk, added_disk, spare)
    setup, warnings = setup_for_new_disk(host, context, snapshot, vm, record)
    drop_plan = spare_removal_plan(vm, record_after(switched, record_after(record, record)))  # two writes before it
    return RefreshPlan(
        snapshot,
        vm,
        record,
        old_disk,
        spare,
        added_disk,
        disk_switch_plan(vm, record, old_disk, added_disk, image_info, pool, spare, setup, marked.desktop),
        drop_plan,
        warnings,
    )


def check_image(host: Host, image: str) -> None:
    """Refuse an image that no VM could be rebuilt from, whatever VM it is.

    Raises:
        NotFound, InvalidInput, HostCannot, Refused, InUse: as `check_files`.
    """
    _usable_image(
        host, image, find_backing_chains(host, observe(host, ReadScope(models=False, gpu_addresses=frozenset())), image)
    )


def _usable_image(host: Host, image: str, chains: BackingChains) -> ImageInfo:
    image_info = host.storage.image(image)
    check_files(chains, {image: image_info}, image_hints(host, {image: image_info}), bases=[image])
    if image_info is None:
        raise NotFound(f"file {image} does not exist", path=image)
    return image_info


def _replace_disk(host: Host, context: Context, checked: RefreshPlan, image: str) -> None:
    """Plan again, take over the VM's claims for this process, and carry out both plans."""
    refresh_plan = _plan_refresh(host, context, checked.vm.uuid, image)
    if refresh_plan.old_disk != checked.old_disk:
        raise InUse(
            f"{checked.vm.name} has just been changed: its disk is {refresh_plan.old_disk.path} now",
            hint="run the command again",
            vm=checked.vm.name,
        )
    if refresh_plan.vm.state not in STOPPED_STATES:
        raise InUse(
            f"{refresh_plan.vm.name} has just been started", hint="run the command again", vm=refresh_plan.vm.name
        )
    held_record = replace(
        refresh_plan.record, vgpus=with_slot(refresh_plan.snapshot, refresh_plan.vm, refresh_plan.record)
    )
    with Transaction(host, context) as tx:
        tx.take_over_vm(refresh_plan.vm, held_record, scope_of_vm(refresh_plan.vm.uuid))
        if not held_record.vgpus:
            tx.note(refresh_plan.vm.name, refresh_plan.vm.uuid)
        prepare_bins(host, (refresh_plan.spare,))
        tx.carry_out(refresh_plan.make_plan)
        try:
            tx.carry_out(refresh_plan.drop_plan)
        except VgpuctlError as error:
            error.changed = True
            raise
