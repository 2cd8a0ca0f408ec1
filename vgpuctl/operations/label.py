# SPDX-License-Identifier: Apache-2.0
"""Change a VM's labels and owner. Only its record changes, so it may run."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.request import VmRequest
from vgpuctl.model.results.vms import VmReport
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.guards import find_vm, refuse_busy_vm, require_system_libvirt
from vgpuctl.operations.plans.change import with_labels
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.vm_diff import with_all_labels
from vgpuctl.operations.plans.vm_results import vm_result
from vgpuctl.operations.plans.vm_update import describe_labels
from vgpuctl.operations.power import refuse_unfinished
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.transaction import Context, Transaction
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def change_labels(
    host: Host, request: VmRequest, fields: Set[str], *, dry_run: bool, wait_seconds: float, progress: Progress
) -> Outcome[VmReport]:
    """Give the request's VM its labels and its owner, those of them that are in `fields`.

    Raises:
        InvalidInput: the VM would have too many labels.
        Unmanaged: vgpuctl has no record of the VM.
        Busy: another vgpuctl works on it.
    """
    snapshot = observe(host, scope_of_vm(request.name or ""))
    vm = find_vm(snapshot, request.name or "")
    require_system_libvirt(snapshot)
    record = own_record(vm, "change")
    refuse_unfinished(vm, record)
    request = with_all_labels(vm, request)
    new_record = with_labels(vm, record, request, fields)
    if new_record == record:
        return Outcome(False, vm_result(snapshot, vm), warnings=snapshot.warnings, dry_run=dry_run)
    changes = ", ".join(text for field, text in describe_labels(record, request).items() if field in fields)
    step = WriteRecord(vm.name, vm.uuid, new_record, record, f"change VM {vm.name}: {changes}")
    steps = (step.describe(),)
    result = vm_result(snapshot, replace(vm, record=new_record))
    if dry_run:
        return Outcome(True, result, steps, snapshot.warnings, dry_run=True)
    with Transaction(host, Context(progress, wait_seconds)) as tx:
        tx.note((vm.uuid,))
        refuse_busy_vm(host, vm)
        tx.carry_out(Plan((step,)))
    return report_vm(host, result, steps)
