# SPDX-License-Identifier: Apache-2.0
"""Start and stop VMs on request, and note the request in the record of a VM whose last state counts after a boot.

Other operations that stop a VM for a while, or start it again, use `power`: they are no requests.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, VgpuctlError
from vgpuctl.model.autostart import keeps_last_state
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.vms import VmReport, VmResult
from vgpuctl.model.vm import Vm
from vgpuctl.observe import observe, observe_vm, scope_of_vm
from vgpuctl.operations import power
from vgpuctl.operations.guards import find_vm
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def start_vm(host: Host, context: Context, name: str) -> Outcome[VmReport]:
    """Start a VM as `power.start_vm` does; it should run from now on."""
    return _with_noted_request(host, context, power.start_vm(host, context, name), should_run=True)


def stop_vm(host: Host, context: Context, name: str, *, force: bool) -> Outcome[VmReport]:
    """Stop a VM as `power.stop_vm` does; it should not run from now on, also if its guest takes its time."""
    try:
        outcome = power.stop_vm(host, context, name, force=force)
    except Busy:
        with suppress(VgpuctlError):
            shown = Outcome[VmReport](False, _read_result(host, name))
            _with_noted_request(host, context, shown, should_run=False)
        raise
    return _with_noted_request(host, context, outcome, should_run=False)


def _read_result(host: Host, name: str) -> VmReport:
    snapshot = observe(host, scope_of_vm(name))
    return vm_result(snapshot, find_vm(snapshot, name))


def differs(vm: Vm, *, should_run: bool) -> bool:
    """Return whether a VM's record notes the last request, and that was another one."""
    return vm.record is not None and keeps_last_state(vm.record) and vm.record.should_run is not should_run


def _with_noted_request(
    host: Host, context: Context, outcome: Outcome[VmReport], *, should_run: bool
) -> Outcome[VmReport]:
    """Write the request into the record of a VM that was started or stopped, if it is kept there and is another one.

    Raises:
        Busy: another command changes the record. The VM is started or stopped; the same request again notes it.
    """
    result = outcome.data
    if not isinstance(result, VmResult) or result.should_run in (None, should_run):
        return outcome
    text = f"record that {result.name} should {'run' if should_run else 'be off'} after a boot"
    if context.dry_run:
        return replace(outcome, changed=True, steps=(*outcome.steps, text))
    vm = find_vm(observe_vm(host, result.uuid), result.uuid)
    record = own_record(vm, "change")
    step = WriteRecord(vm.name, vm.uuid, replace(record, should_run=should_run), record, text)
    with Transaction(host, context) as tx:
        tx.note(vm.name, vm.uuid)
        tx.carry_out(Plan((step,)))
    return report_vm(host, result, (*outcome.steps, text), outcome.notes, outcome.warnings)
