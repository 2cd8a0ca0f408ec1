# SPDX-License-Identifier: Apache-2.0
"""A VM's license in its seed for cloud-init: written again with the current token, or taken out.

The guest keeps what it has got: the seed is what it gets at its next boot. So the host agent takes the license out
once the guest is licensed, and a secret that nobody needs any more lies nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import request_of_record
from vgpuctl.errors import Refused
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.request import CloudInit
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.vm import DiskRole, Vm, VmRecord
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.licenses import read_license
from vgpuctl.operations.guards import find_vm_to_change, refuse_unfinished, require_writable
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.steps.seed import WriteSetup
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def refresh_license(host: Host, context: Context, name: str, *, clear: bool) -> Outcome[VmReport]:
    """Write a VM's license into its seed, or take it out (`clear`); a VM without a license is left alone.

    Raises:
        Refused: the VM has a license and no seed.
        HostCannot: the seed cannot be read or written.
        VgpuctlError: the license cannot be read, or is none that a guest can use now.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "change the license of")
    refuse_unfinished(vm, record)
    step = license_step(host, vm, record, clear=clear)
    before = vm_result(snapshot, vm)
    if step is None or step.is_done(host):
        left_alone = () if step is not None else ("VMs that were created without --license are left alone",)
        return Outcome(False, before, (), snapshot.warnings, left_alone, dry_run=context.dry_run)
    steps = (step.describe(),)
    running = vm.state not in STOPPED_STATES
    notes = (f"the guest of {vm.name} gets it at its next boot",) if running and not clear else ()
    if context.dry_run:
        return Outcome(True, before, steps, snapshot.warnings, notes, dry_run=True)
    held = replace(record, vgpus=with_slot(snapshot, vm, record))
    with Transaction(host, context) as tx:
        tx.take_over_vm(vm, held, scope_of_vm(vm.uuid))
        if not held.vgpus:
            tx.note(vm.name, vm.uuid)
        tx.carry_out(Plan((step,)))
    return report_vm(host, before, steps, notes)


def license_step(host: Host, vm: Vm, record: VmRecord, *, clear: bool = False) -> WriteSetup | None:
    """Return the step that writes a VM's license into its seed, or takes it out; None for a VM without a license.

    Raises:
        Refused: the VM has a license and no seed.
        VgpuctlError: the license cannot be read, or is none that a guest can use now.
    """
    wanted = request_of_record(record.request_fields)
    if wanted.license_name is None:
        return None
    seed = next((disk for disk in record.disks if disk.role is DiskRole.SEED), None)
    if seed is None:
        raise Refused(
            f"{vm.name} has no seed for cloud-init any more, so its guest gets no license by it",
            hint=f"put the token into the guest by hand; vgpuctl show-vm {vm.name} shows the disks",
            vm=vm.name,
        )
    license = None if clear else read_license(host, wanted.license_name)
    return WriteSetup(vm.name, seed, CloudInit(sharing=wanted.guest_sharing, license=license))
