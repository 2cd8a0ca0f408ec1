# SPDX-License-Identifier: Apache-2.0
"""Rebuild a VM's system disk, from another base image or from what `prepare_vm` kept of it; everything else stays.

It keeps name, uuid, MAC address, vGPUs, NVRAM, TPM, the other disks and the seed for cloud-init. Until the VM uses the
new disk, a failure undoes everything. After that the VM is refreshed, and only the old disk, now a spare, still has to
be deleted, or moved to the bin, and removed from the record.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.domain.record import record_after
from vgpuctl.errors import InUse, InvalidInput, NotFound, Refused, VgpuctlError
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.port_values import ImageInfo
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.vm import UNRESPONSIVE_STATES, DiskRole, ManagedDisk, Vm, VmRecord
from vgpuctl.observe import ReadScope, observe, scope_of_vm
from vgpuctl.operations.controlled import mark_of, with_mark
from vgpuctl.operations.deleted_disks import prepare_bins, with_bin_entry
from vgpuctl.operations.domain_join import blob_for_new_disk
from vgpuctl.operations.gpu_transaction import with_vm_stopped
from vgpuctl.operations.guards import find_vm, refuse_change, refuse_unresponsive_vm, require_writable
from vgpuctl.operations.guest_setup import setup_for_new_disk
from vgpuctl.operations.images import find_backing_chains, image_hints
from vgpuctl.operations.limits import count_removal
from vgpuctl.operations.plans.chains import BackingChains, refuse_shared_disks
from vgpuctl.operations.plans.facts import check_files, check_full_size
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.results import image_of, vm_result
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.domain import STOPPED_STATES, StartDomain, StopDomain
from vgpuctl.operations.steps.refresh_disk import DeleteSpareDisk
from vgpuctl.operations.steps.seed import forget_steps
from vgpuctl.operations.system_disk import SystemDisk, disk_switch_plan, new_disk, read_system_disk, record_after_switch
from vgpuctl.operations.transaction import Transaction
from vgpuctl.operations.whole_progress import WholeProgress
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import extend, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


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


class RefreshPlan(SystemDisk):
    """A checked refresh of one VM; nothing is written yet. `spares`: what is deleted then."""

    spares: tuple[ManagedDisk, ...]
    new_disk: ManagedDisk
    make_plan: Plan
    drop_plan: Plan
    warnings: tuple[str, ...]


def refresh_vm(
    host: Host, context: Context, name: str, image: str | None = None, *, from_image: str | None = None, drain: bool
) -> Outcome[VmReport]:
    """Give a VM a new clone of `image` as its system disk; what was written to the old disk is lost.

    `image` None: of what `prepare_vm` kept. With an image that is deleted, too.
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
    paths = " and ".join(spare.path for spare in plan.spares)
    loss = f"all data on {paths} will be {'lost' if plan.spares[0].bin_entry is None else 'in the bin'}"
    if plan.record.image == image:
        loss += f", and {vm.name} already is made from {image}"
    if context.dry_run:
        warnings = (*plan.snapshot.warnings, *plan.warnings)
        return Outcome(True, vm_result(plan.snapshot, vm), steps, warnings, (loss,), dry_run=True)
    source = image or "what prepare-vm kept"
    context.confirm(f"Rebuild VM {vm.name} from {source}? {loss[0].upper()}{loss[1:]}.", steps)
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


def _plan_refresh(host: Host, context: Context, name: str, image: str | None) -> RefreshPlan:
    """Read the VM, the image and the pool, and refuse a refresh that cannot work."""
    system = read_system_disk(host, context, name, "refresh")
    vm, record, disk = system.vm, system.record, system.disk
    prepared = record.prepared_disk
    if image is None and prepared is None:
        raise Refused(
            f"nothing was prepared for {vm.name}, so it can be made again only from an image",
            hint=f"vgpuctl refresh-vm {vm.name} --image {record.image}; or vgpuctl prepare-vm {vm.name} once its disk "
            "is as it should be",
            vm=vm.name,
        )
    replaced = (disk,) if image is None or prepared is None else (disk, prepared)
    base = image or (prepared.path if prepared is not None else "")
    chains = find_backing_chains(host, system.snapshot, base, disk.path)
    image_info = _usable_image(host, base, chains)
    if image is not None:
        refuse_unbootable(vm, image_info)
    refuse_shared_disks(chains, vm, replace(record, disks=replaced), can_keep=False)
    check_full_size(system.pool, [max(disk.capacity_bytes, image_info.virtual_size_bytes)])
    added_disk = new_disk(disk, image_info, system.free_volume)
    spares = tuple(replace(with_bin_entry(host, context, vm, d), role=DiskRole.SPARE) for d in replaced)
    marked = with_mark(context, vm, record, is_refreshed=True)
    switched = record_after_switch(marked, disk, added_disk, spares)
    is_prepared = image is None
    blob = None if is_prepared else blob_for_new_disk(host, vm, record, added_disk.volume)
    setup, warnings = setup_for_new_disk(host, context, system.snapshot, vm, record, is_prepared=is_prepared, blob=blob)
    switch = disk_switch_plan(vm, record, disk, added_disk, image_info, system.pool, spares, setup, marked.desktop)
    return extend(
        RefreshPlan,
        system,
        spares=spares,
        new_disk=added_disk,
        make_plan=replace(switch, steps=(*switch.steps, *forget_steps(blob))),
        drop_plan=spare_removal_plan(vm, record_after(switched, record_after(record, record))),  # two writes before it
        warnings=warnings,
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


def _replace_disk(host: Host, context: Context, checked: RefreshPlan, image: str | None) -> None:
    """Plan again, take over the VM's claims for this process, and carry out both plans."""
    refresh_plan = _plan_refresh(host, context, checked.vm.uuid, image)
    if refresh_plan.disk != checked.disk:
        raise InUse(
            f"{checked.vm.name} has just been changed: its disk is {refresh_plan.disk.path} now",
            hint="run the command again",
            vm=checked.vm.name,
        )
    if refresh_plan.vm.state not in STOPPED_STATES:
        raise InUse(
            f"{refresh_plan.vm.name} has just been started", hint="run the command again", vm=refresh_plan.vm.name
        )
    with Transaction(host, context) as tx:
        tx.hold_vm(refresh_plan.snapshot, refresh_plan.vm, refresh_plan.record)
        prepare_bins(host, refresh_plan.spares)
        tx.carry_out(refresh_plan.make_plan)
        try:
            tx.carry_out(refresh_plan.drop_plan)
        except VgpuctlError as error:
            error.changed = True
            raise
