# SPDX-License-Identifier: Apache-2.0
"""Changes of a running VM that wait until it is off: its record keeps them, and the host agent makes them then.

A later plan replaces what it names of an earlier one, and a change that is made at once is no longer planned.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

from vgpuctl.config.vm_request import CONSTRAINT_FIELDS, FIELDS, LABEL_FIELDS, VmRequest
from vgpuctl.errors import InvalidInput
from vgpuctl.model.numbers import format_mib
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.planned_fields import PLANNED, planned_fields
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.vm import Vm, VmRecord
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.operations.change import change_record, change_vm
from vgpuctl.operations.guards import require_writable
from vgpuctl.operations.plans.change import with_request_fields, without_planned
from vgpuctl.operations.plans.remove import refuse_transient_vms
from vgpuctl.operations.plans.results import planned_texts
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


NOTE = "the host agent changes the VM when it is off; vgpuctl doctor agent says whether it runs"


def plan_change(host: Host, context: Context, vm: Vm, request: VmRequest, fields: Set[str]) -> Outcome[VmReport]:
    """Keep what a request changes for when its VM, which runs, is off. `fields`: what differs now.

    Raises:
        InvalidInput: a field changes at any time.
        VgpuctlError: the change would not be possible if the VM was off now.
    """
    refuse_transient_vms((vm,))
    at_once = sorted(fields & set(LABEL_FIELDS))
    if at_once:
        raise InvalidInput(
            f"{request.name}: {', '.join(at_once)} can change while it runs",
            hint="change it with another set-vm, without --when-off",
            vm=request.name,
        )
    change_vm(host, replace(context, dry_run=True), request, fields, assume_off=True)
    given = {name for name in FIELDS if request.is_explicit(name)}
    names = fields | (given & set(CONSTRAINT_FIELDS) if fields & {"profile", "gpu"} else set())
    values = {name: _argument(request, name) for name in FIELDS if name in names}
    done = _set_plan(host, context, vm.name, given, values)
    return replace(done, notes=(*done.notes, NOTE))


def forget_plan(host: Host, context: Context, name: str, fields: Set[str] | None = None) -> Outcome[VmReport]:
    """Plan these fields of a VM no longer; None: none at all."""
    return _set_plan(host, context, name, fields, {})


def _set_plan(
    host: Host, context: Context, name: str, fields: Set[str] | None, values: Mapping[str, Any]
) -> Outcome[VmReport]:
    """Replace what is planned for these fields, None for all."""
    require_writable(host, context)

    def build(record: VmRecord) -> tuple[VmRecord, str]:
        left = without_planned(record, planned_fields(record).keys() if fields is None else fields)
        planned = {**planned_fields(left), **values}
        changed = with_request_fields(left, **{PLANNED: planned}) if planned else left
        texts = ", ".join(f"{field} {text}" for field, text in planned_texts(changed).items()) or "nothing"
        return changed, f"plan for VM {name} when it is off: {texts}"

    return change_record(host, context, observe(host, scope_of_vm(name)), name, build)


def _argument(request: VmRequest, name: str) -> Any:
    """Return a field's value as set-vm takes it."""
    return format_mib(request.memory_mib) if name == "memory" else FIELDS[name].text_in(request)
