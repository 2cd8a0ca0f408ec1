# SPDX-License-Identifier: Apache-2.0
"""Keep the system disk of a VM as it is: from then on a refresh brings this state back, and not that of the image.

So a guest is set up once: its name, keys and membership of a domain are below the disk that a refresh throws away. The
disk becomes the base of a new clone, which the VM uses in its place; the record names both. A refresh from an image
makes everything again.
"""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import request_of_record
from vgpuctl.errors import InUse, NotShutDown, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.port_values import ImageInfo
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.vm import CLEAN_STOP, UNRESPONSIVE_STATES, DiskRole, Vm, VmRecord
from vgpuctl.operations.gpu_transaction import with_vm_stopped
from vgpuctl.operations.guards import refuse_unresponsive_vm, require_writable
from vgpuctl.operations.guest_setup import steps_without_secrets
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.domain import STOPPED_STATES, StartDomain, StopDomain
from vgpuctl.operations.system_disk import SystemDisk, disk_switch_plan, new_disk, read_system_disk
from vgpuctl.operations.transaction import Transaction
from vgpuctl.operations.whole_progress import WholeProgress
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import extend, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class PreparePlan(SystemDisk):
    """A checked change of one VM; nothing is written yet."""

    plan: Plan


def prepare_vm(host: Host, context: Context, name: str, *, drain: bool) -> Outcome[VmReport]:
    """Keep a VM's system disk as it is; the VM goes on with a clone of it.

    `drain`: a running VM is shut down first, within `wait_seconds`, and started again.

    Raises:
        InUse: the VM runs, or has snapshots or a saved state.
        NotShutDown: its guest did not shut down, or libvirt does not know that.
        Refused: its disk is a full copy, was kept before, or belongs to a desktop that has or had a user.
    """
    require_writable(host, context)
    plan = _plan_prepare(host, context, name, drain=drain)
    vm = plan.vm
    is_running = vm.state not in STOPPED_STATES
    stop = StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=context.wait_seconds)
    around: tuple[list[Step], list[Step]] = ([stop], [StartDomain(vm.name, vm.uuid)]) if is_running else ([], [])
    steps = tuple(step.describe() for step in (*around[0], *plan.plan.steps, *around[1]))
    before, notes = vm_result(plan.snapshot, vm), _password_notes(vm, plan.record)
    if context.dry_run:
        return Outcome(True, before, steps, plan.snapshot.warnings, notes, dry_run=True)
    if is_running:
        context.confirm(f"Shut down VM {vm.name}, keep its first disk, and start it again?", steps)
    whole = replace(context, progress=WholeProgress(context.progress, steps))
    with_vm_stopped(host, whole, vm, partial(_keep_disk, host, whole, vm.uuid), "prepared")
    return report_vm(host, before, steps, notes)


def _password_notes(vm: Vm, record: VmRecord) -> tuple[str, ...]:
    """Return a note about a computer of a domain that changes its password, where vgpuctl has not prevented that."""
    request = request_of_record(record.request_fields)
    if request.domain_join is None or request.off_after_setup:
        return ()
    key = r"HKLM\SYSTEM\CurrentControlSet\Services\Netlogon\Parameters"
    return (
        f"{vm.name} is in a domain, where it changes its password every 30 days, and a refresh would bring an old one "
        f"back, unless its guest has DisablePasswordChange=1 in {key}; --off-after-setup sets that",
    )


def _plan_prepare(host: Host, context: Context, name: str, *, drain: bool) -> PreparePlan:
    """Read the VM and its disk, and refuse one that cannot be kept. `drain`: it is shut down before."""
    system = read_system_disk(host, context, name, "prepare")
    vm, record = system.vm, system.record
    image = _refuse_unsuitable(host, system)
    if vm.state in STOPPED_STATES:
        _refuse_unclean(vm)
    elif not drain:
        raise InUse(
            f"{vm.name} is {vm.state}; its disk can be kept only after its guest has shut down",
            hint=f"{hint_commands.off_command(vm)}{'' if vm.state in UNRESPONSIVE_STATES else ', or use --drain'}",
            vm=vm.name,
            state=str(vm.state),
        )
    else:
        refuse_unresponsive_vm(vm)
    kept = replace(system.disk, role=DiskRole.PREPARED)
    added_disk = new_disk(system.disk, image, system.free_volume)
    setup = steps_without_secrets(host, vm, record)
    plan = disk_switch_plan(vm, record, system.disk, added_disk, image, system.pool, (kept,), setup)
    return extend(PreparePlan, system, plan=plan)


def _keep_disk(host: Host, context: Context, uuid: str) -> None:
    """Plan again, take over the VM's claims for this process, and carry the plan out."""
    plan = _plan_prepare(host, context, uuid, drain=False)
    with Transaction(host, context) as tx:
        tx.hold_vm(plan.snapshot, plan.vm, plan.record)
        tx.carry_out(plan.plan)


def _refuse_unclean(vm: Vm) -> None:
    """Refuse the disk of a guest that was switched off.

    Raises:
        NotShutDown: it was, or nobody knows.
    """
    if vm.stop_reason == CLEAN_STOP:
        return
    why = "libvirt does not know" if vm.stop_reason is None else f"libvirt says: {vm.stop_reason}"
    raise NotShutDown(
        f"whether the guest of {vm.name} shut down is not certain ({why}): its disk may be damaged, or its setup not "
        "finished",
        hint=f"{hint_commands.start_command(vm)}; then vgpuctl prepare-vm {shlex.quote(vm.name)} --drain",
        vm=vm.name,
        reason=vm.stop_reason,
    )


def _refuse_unsuitable(host: Host, system: SystemDisk) -> ImageInfo:
    """Return the disk as the base of another one.

    Raises:
        Refused: as `prepare_vm`.
    """
    vm, record, disk = system.vm, system.record, system.disk
    again = f"vgpuctl refresh-vm {shlex.quote(vm.name)} --image {shlex.quote(record.image or '')}"
    if record.prepared_disk is not None:
        path = record.prepared_disk.path
        raise Refused(f"{vm.name} is prepared already: {path}", hint=f"{again} makes everything again", vm=vm.name)
    if disk.copied_from is not None:
        raise Refused(
            f"{disk.path} is a full copy of {disk.copied_from}, as in a logical pool: nothing can lie below it",
            hint="create the VM with --storage-pool of a directory",
            vm=vm.name,
            disk=disk.path,
        )
    if record.desktop is not None and record.desktop.dirty:
        text = f"a user was let into {vm.name}, so its disk is not kept for others"
        raise Refused(text, hint=again, vm=vm.name, desktop=record.desktop.id)
    image = host.storage.image(disk.path)
    if image is None:
        hint = f"virsh domblklist --inactive {shlex.quote(vm.name)}"
        raise Refused(f"{disk.path} does not exist", hint=hint, vm=vm.name, disk=disk.path)
    return image
