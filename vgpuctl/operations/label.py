# SPDX-License-Identifier: Apache-2.0
"""Change a VM's labels and owner. Only its record changes, so it may run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.config.labels import limit_labels
from vgpuctl.errors import InvalidInput, Refused
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.vm import VmRecord
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.guards import find_vm, refuse_busy_vm, require_system_libvirt, require_writable
from vgpuctl.operations.plans.change import with_request_fields
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.vm_results import vm_result
from vgpuctl.operations.power import refuse_unfinished
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.transaction import Context, Transaction
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def label_vm(
    host: Host,
    name: str,
    changes: Mapping[str, str | None],
    owner: str | None,
    *,
    replace_all: bool = False,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome[VmReport]:
    """Set labels of a VM, and remove those whose value is None. `replace_all`: it has no other labels afterwards.

    `owner`: None leaves it as it is, "" removes it.

    Raises:
        InvalidInput: the VM would have too many labels.
        Unmanaged: vgpuctl has no record of the VM.
        Busy: another vgpuctl works on it.
    """
    if not dry_run:
        require_writable(host)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm(snapshot, name)
    require_system_libvirt(snapshot)
    record = own_record(vm, "label")
    refuse_unfinished(vm, record)
    merged = {**({} if replace_all else record.labels), **changes}
    labels = {key: value for key, value in merged.items() if value is not None}
    new_owner = record.owner if owner is None else owner or None
    if labels == record.labels and new_owner == record.owner:
        return Outcome(False, vm_result(snapshot, vm), warnings=snapshot.warnings, dry_run=dry_run)
    new_record = _with_labels(vm.name, record, labels, new_owner)
    step = WriteRecord(vm.name, vm.uuid, new_record, record, _describe(vm.name, labels, new_owner))
    steps = (step.describe(),)
    result = vm_result(snapshot, replace(vm, record=new_record))
    if dry_run:
        return Outcome(True, result, steps, snapshot.warnings, dry_run=True)
    with Transaction(host, Context(progress, wait_seconds)) as tx:
        tx.note((vm.uuid,))
        refuse_busy_vm(host, vm)
        tx.carry_out(Plan((step,)))
    return report_vm(host, result, steps)


def _with_labels(name: str, record: VmRecord, labels: Mapping[str, str], owner: str | None) -> VmRecord:
    if record.request_json and not record.request_fields and record.request_json != "{}":
        raise Refused(
            f"the record of {name} cannot be read, so its labels cannot change", hint="virsh dumpxml shows it"
        )
    try:
        values = {"labels": limit_labels(labels) or None, "owner": owner}
    except ValueError as error:
        raise InvalidInput(f"{name}: {error}", hint="remove a label: key-", vm=name) from error
    return with_request_fields(record, **values)


def _describe(name: str, labels: Mapping[str, str], owner: str | None) -> str:
    texts = ", ".join(f"{key}={value}" for key, value in labels.items()) or "no labels"
    return f"record {texts} and {f'the owner {owner}' if owner else 'no owner'} for {name}"
