# SPDX-License-Identifier: Apache-2.0
"""VMs that are off and have no place, because they gave it up for a move: leaving a place, and getting one.

Leaving: record, remove the device, release the claim. From the record on, the VM waits for a place, and others may
take its last one. Getting one is start-vm's way: claim, make the device, and define the VM again with the new record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, VgpuctlError
from vgpuctl.model.hint_commands import start_command
from vgpuctl.model.outcome import Context
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm, VmRecord
from vgpuctl.observe import ReadScope, observe, scope_of_request, scope_of_vm
from vgpuctl.operations.change import refuse_managed_save, require_changeable_vm
from vgpuctl.operations.claim import claims_of_record
from vgpuctl.operations.guards import require_writable
from vgpuctl.operations.place_and_start import place_and_start
from vgpuctl.operations.plans.reserve import choose_slots, request_from_record, with_slot
from vgpuctl.operations.plans.vm_update import MoveTarget, leave_steps
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.transaction import Transaction
from vgpuctl.operations.unowned import ReconcileFinding
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def give_up_place(host: Host, context: Context, name: str, carrier: str) -> None:
    """Let a vGPU of a stopped VM give up its place; the VM waits for another one.

    Raises:
        InUse: the VM runs, or has a managed save.
        Busy: the VM no longer has this vGPU.
        VgpuctlError: the reason; the VM is unchanged.
    """
    require_writable(host, context)
    snapshot = observe(host, ReadScope(types=True))
    vm, record = require_changeable_vm(snapshot, name, "place")
    vgpu = next((v for v in with_slot(snapshot, vm, record) if v.carrier == carrier), None)
    if vgpu is None:
        raise Busy(f"{vm.name} no longer has {carrier}", hint="run the command again", vm=vm.name)
    refuse_managed_save(host, vm)
    held_record = replace(record, vgpus=with_slot(snapshot, vm, record))
    with Transaction(host, context) as tx:
        tx.take_over_vm(vm, held_record, scope_of_vm(vm.uuid), leaving=True)
        claims = claims_of_record(host, vm.name, replace(record, vgpus=(vgpu,)))
        tx.carry_out(Plan(leave_steps(snapshot, vm, record, vgpu, claims), vms_required_off=(vm.uuid,)))


def give_place(host: Host, context: Context, name: str, *, target: MoveTarget | None = None) -> bool:
    """Give a stopped VM that waits for a place one: at `target`, otherwise its last one, or any if that is taken.

    Returns whether it waited for one.

    Raises:
        NoCapacity: there is none; the VM waits.
        VgpuctlError: the reason; the VM is unchanged.
    """
    require_writable(host, context)
    vm, record = require_changeable_vm(observe(host, scope_of_vm(name)), name, "place")
    if record.always_reserves:
        return False
    place_and_start(host, context, vm, record, target=target, start=False)
    return True


def why_no_place(host: Host, vm: Vm) -> str | None:
    """Return why there is no place for a VM that waits for one; None if there is one, or it does not wait."""
    record = vm.record
    if record is None or not record.waiting_vgpus():
        return None
    try:
        choose_slots(observe(host, scope_of_request(request_from_record(vm, record, record.vgpus))), vm, record)
    except VgpuctlError as error:
        return error.message
    return None


def check_waiting(host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord) -> ReconcileFinding:
    """Return the finding for a VM that waits for a place: a stopped one gets one, a running one has one already."""
    waiting = record.waiting_vgpus()
    text = f"VM {vm.name} gave up its place for {', '.join(sorted(str(v.profile) for v in waiting))} for a move"
    if vm.state not in STOPPED_STATES:
        held = with_slot(snapshot, vm, record)
        if len(held) < len(record.vgpus):
            return ReconcileFinding("no-place", text, "nothing while it is not off", vm=vm)
        action = f"record the place that VM {vm.name} has"
        plan = Plan((WriteRecord(vm.name, vm.uuid, replace(record, vgpus=held), record, action),))
        claims = claims_of_record(host, vm.name, replace(record, vgpus=held))
        return ReconcileFinding("no-place", text, action, plan, claims, vm)
    problem = why_no_place(host, vm)
    if problem is not None:
        action = f"nothing: {problem}; try again: {start_command(vm)}"
        return ReconcileFinding("no-place", text, action, vm=vm)
    return ReconcileFinding("no-place", text, f"give VM {vm.name} a place", vm=vm, places_vm=True)
