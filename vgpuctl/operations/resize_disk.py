# SPDX-License-Identifier: Apache-2.0
"""Grow a disk of a VM, while it runs or while it is off; the guest grows its partition and file system itself.

The disk grows first, then the record gets the new size. A crash in between leaves a disk that is larger than its record
says; the same command again writes the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import InUse, NotFound, Refused
from vgpuctl.model.hint_commands import stop_command
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.vm import ManagedDisk, Vm
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.attach import LIVE_STATES
from vgpuctl.operations.guards import find_vm_to_change, refuse_unfinished, require_writable
from vgpuctl.operations.plans import resize_disk as plans
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.plans.transient import refuse_transient_vms
from vgpuctl.operations.plans.vm_results import vm_result
from vgpuctl.operations.power import read_domain_leftovers
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.transaction import Transaction
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
    disk = plans.select_disk(vm, record, disk_name)
    _refuse_busy_states(host, vm)
    pool = plans.require_started_pool(host.storage.pool(disk.pool), disk)
    volume = host.storage.volume(disk.pool, disk.volume)
    if volume is None:
        raise NotFound(
            f"the disk {disk.path} of {vm.name} does not exist", hint=f"virsh vol-list {disk.pool}", disk=disk.path
        )
    is_live = vm.state in LIVE_STATES
    plan = plans.resize_plan(vm, record, disk, size_mib << 20, pool, volume.capacity_bytes, live=is_live)
    steps = tuple(s.describe() for s in plan.steps)
    before = vm_result(snapshot, vm)
    if context.dry_run or not steps:
        return Outcome(
            bool(steps), before, steps, snapshot.warnings, _notes(vm, disk) if steps else (), context.dry_run
        )
    held = replace(record, vgpus=with_slot(snapshot, vm, record))
    with Transaction(host, context) as tx:
        tx.take_over_vm(vm, held, scope_of_vm(vm.uuid))
        if not held.vgpus:
            tx.note(vm.name, vm.uuid)
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
