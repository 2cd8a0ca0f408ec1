# SPDX-License-Identifier: Apache-2.0
"""Change fields of a VM that exists: those that differ, and no others. Labels and owner change at any time.

For everything else the VM must be off: a running one is refused, or with `drain` shut down, changed and started again.
Whether the change is possible is known before the VM is shut down.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import LABEL_FIELDS, UPDATABLE_FIELDS, VmRequest
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.vms import VmReport, VmResult
from vgpuctl.model.vm import Vm
from vgpuctl.observe import ReadScope, observe, scope_of_vm
from vgpuctl.operations.change import allowed_addresses, change_vm, must_be_off_error
from vgpuctl.operations.ensure_vm import diff_request, refuse_unknown_profile
from vgpuctl.operations.guards import find_vm_to_change, refuse_unresponsive_vm, require_writable
from vgpuctl.operations.plans.transient import refuse_transient_vms
from vgpuctl.operations.plans.vm_diff import record_gpus
from vgpuctl.operations.plans.vm_results import vm_result
from vgpuctl.operations.refresh import WholeProgress
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.domain import STOPPED_STATES, StartDomain, StopDomain
from vgpuctl.operations.with_vm_stopped import with_vm_stopped
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def set_vm(host: Host, context: Context, request: VmRequest, *, drain: bool) -> Outcome[VmReport]:
    """Give a VM the explicit fields of the request.

    `drain`: a running VM is shut down first if it must be off, within `wait_seconds`, and started again whether the
    change succeeds or fails. Then `confirm` is asked; otherwise it gets an empty question.

    Raises:
        InUse: the VM runs.
        NotFound: there is no such VM, GPU or profile.
        PartlyApplied: the VM is changed, but could not be started again.
        VgpuctlError: the reason; the VM is unchanged.
    """
    require_writable(host, context)
    names_gpus = bool(request.gpu or request.not_gpu)
    snapshot = observe(host, ReadScope() if names_gpus else scope_of_vm(request.name or ""))
    vm = find_vm_to_change(context, snapshot, request.name or "")
    before, _ = diff_request(host, snapshot, vm, request)
    fields = before.keys() & {*UPDATABLE_FIELDS, *LABEL_FIELDS} - {"gpu"}
    if names_gpus and not record_gpus(vm) <= allowed_addresses(snapshot, request.constraints):
        fields |= {"gpu"}
    if not fields:
        return Outcome(False, vm_result(snapshot, vm), warnings=snapshot.warnings, dry_run=context.dry_run)
    offline_fields = fields - set(LABEL_FIELDS)
    if offline_fields and vm.state not in STOPPED_STATES:
        if not drain:
            if "profile" in fields:
                refuse_unknown_profile(host, snapshot, request)
            raise must_be_off_error(vm, ", ".join(sorted(offline_fields)), can_drain=True)
        return _change_drained(host, context, vm, request, fields)
    if not context.dry_run:
        context.confirm("", ())
    return change_vm(host, context, request, fields)


def _change_drained(host: Host, context: Context, vm: Vm, request: VmRequest, fields: Set[str]) -> Outcome[VmReport]:
    """Change a running VM: shut it down, change it, start it again."""
    refuse_unresponsive_vm(vm)
    refuse_transient_vms((vm,))
    planned = change_vm(host, replace(context, dry_run=True), request, fields, assume_off=True)
    stop = StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=context.wait_seconds)
    steps = (stop.describe(), *planned.steps, StartDomain(vm.name, vm.uuid).describe())
    if context.dry_run:
        data = replace(planned.data, state=vm.state)
        if isinstance(data, VmResult) and "reserve" not in fields:
            data = replace(data, reserve=vm.record.reserve if vm.record else None)
        return replace(planned, data=data, steps=steps)
    context.confirm(f"Shut down VM {vm.name}, change it, and start it again?", steps)
    whole = replace(context, progress=WholeProgress(context.progress, steps))
    with_vm_stopped(host, whole, vm, partial(change_vm, host, whole, request, fields), "changed")
    return report_vm(host, planned.data, steps)
