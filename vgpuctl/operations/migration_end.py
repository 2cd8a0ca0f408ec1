# SPDX-License-Identifier: Apache-2.0
"""What one host has of a VM that moves, and the end of the move on it: the VM runs here from now on, or it does not.

Nobody decides here on which host that is: `decide_end` does, from what both have. Each host only checks that its part
of the decision is possible. Neither is done under a VM that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import Busy, InUse, InvalidInput, NotFound
from vgpuctl.model.hint_commands import end_migration_command
from vgpuctl.model.migration import SOURCE_ROLES, MigrationMark, MigrationRole
from vgpuctl.model.outcome import Context, Outcome, QueryResult
from vgpuctl.model.results.migration import FinishedMigrationResult, MigrationStateResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import RecordState, Vm, VmRecord, VmState
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.host_name import read_host_name
from vgpuctl.operations.deleted_disks import prepare_bins, with_bin_entry
from vgpuctl.operations.guards import find_vm_to_change, require_libvirt, require_writable
from vgpuctl.operations.images import refuse_shared_deletion
from vgpuctl.operations.leftovers import read_domain_leftovers
from vgpuctl.operations.limits import count_removal
from vgpuctl.operations.plans.chains import is_source
from vgpuctl.operations.plans.migration_end import LETS_GO, RUNS_HERE, RUNS_THERE
from vgpuctl.operations.plans.remove import unproven_carriers, vm_removal_plan
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.steps.migration import ResumeVm, StopPausedDomain
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

NOTHING = "nothing"


def show_migration(host: Host, context: Context, name: str) -> QueryResult[MigrationStateResult]:
    """Return what this host has of a VM that moves; `exists` is false where it has none of this name or uuid."""
    snapshot = observe(host, scope_of_vm(name))
    require_libvirt(snapshot)
    here = read_host_name(host)
    domain = host.hypervisor.find_domain(name)
    if domain is None:
        return QueryResult(MigrationStateResult(here, host.machine_id, name, None, exists=False), snapshot.warnings)
    vm = parse_domain(domain.xml, domain.state, host.machine_id)
    mark = None if vm.record is None else vm.record.migration
    is_removing = vm.record is not None and vm.record.state is RecordState.REMOVING and vm.state in STOPPED_STATES
    data = MigrationStateResult(
        host=here,
        machine_id=host.machine_id,
        name=domain.name,
        uuid=domain.uuid,
        exists=not is_removing,
        state=str(domain.state),
        stop_reason=domain.stop_reason,
        id=None if mark is None else mark.id,
        role=None if mark is None else str(mark.role),
        peer=None if mark is None else mark.peer,
        peer_machine_id=None if mark is None else mark.peer_machine_id,
        copies_disks=mark is not None and mark.copies_disks,
        is_migrating=domain.state not in STOPPED_STATES and host.hypervisor.is_migrating(domain.uuid),
        is_copy=vm.record is None,
        is_removing=is_removing,
        is_offline=mark is not None and mark.is_offline,
    )
    return QueryResult(data, snapshot.warnings)


def finish_migration(
    host: Host, context: Context, name: str, *, migration_id: str, outcome: str, seen: str | None = None
) -> Outcome[FinishedMigrationResult]:
    """End a move on this host: the VM `runs-here` from now on, or `runs-there`, on the other host, and nothing is left.

    A removal that was interrupted is finished; it is of no move any more, so `migration_id` does not matter. `seen`:
    what it was here when that was decided, as `MigrationStateResult.seen`. `lets-go`: one that waits, paused, is off
    from now on, and all of it stays until it `runs-there`. A second call changes nothing: its answer is `nothing`.

    Raises:
        InvalidInput: it is another move. Busy: the decision is not possible here, or something else works on it.
        VgpuctlError: a step failed; the same call goes on from there.
    """
    require_writable(host, context)
    if outcome not in (RUNS_HERE, RUNS_THERE, LETS_GO):
        raise InvalidInput(f"outcome '{outcome}' is neither {RUNS_HERE} nor {RUNS_THERE}")
    snapshot = observe(host, scope_of_vm(name))
    require_libvirt(snapshot)
    here = read_host_name(host)
    try:
        vm = find_vm_to_change(context, snapshot, name)
    except NotFound:
        return Outcome(False, FinishedMigrationResult(here, name, NOTHING))
    record = vm.record
    is_removing = record is not None and record.state is RecordState.REMOVING and outcome == RUNS_THERE
    if record is None or (record.migration is None and not is_removing):
        return Outcome(False, FinishedMigrationResult(here, vm.name, NOTHING))
    _refuse_other(host, vm, record.migration, migration_id, seen)
    if outcome == RUNS_HERE and record.migration is not None:
        plan = _stay_plan(vm, record, record.migration)
    elif outcome == LETS_GO:
        plan = Plan(_off_steps(vm, record, record.migration)[0], undo_on_failure=False)
    else:
        plan = leave_plan(host, context, snapshot, vm, record, record.migration)
    steps = tuple(step.describe() for step in plan.steps)
    data = FinishedMigrationResult(here, vm.name, outcome)
    if context.dry_run:
        return Outcome(True, data, steps, snapshot.warnings, dry_run=True)
    if outcome == RUNS_THERE and record.migration is not None and record.migration.role is MigrationRole.ARRIVED:
        count_removal(host, context)
    with Transaction(host, context) as tx:
        held = replace(record, vgpus=with_slot(snapshot, vm, record))
        tx.take_over_vm(vm, held, scope_of_vm(vm.uuid), snapshot, leaving=outcome == RUNS_THERE)
        tx.note(vm.name, vm.uuid)
        tx.carry_out(plan)
    return Outcome(True, data, steps, snapshot.warnings, plan.notes)


def _refuse_other(host: Host, vm: Vm, mark: MigrationMark | None, migration_id: str, seen: str | None) -> None:
    """Refuse to end a move that is another one, or that has gone on since its end was decided.

    Raises:
        InvalidInput: it is another move. Busy: it is not as it was.
    """
    if mark is not None and mark.id != migration_id:
        raise InvalidInput(f"{vm.name} is in another move here, with {mark.peer}", vm=vm.name, id=mark.id)
    if mark is not None and seen not in (None, f"{mark.role} {vm.state}"):
        raise Busy(
            f"the move of {vm.name} has just gone on here: it was {seen}, and is {mark.role} {vm.state}",
            hint="run the command again",
            vm=vm.name,
        )
    if host.hypervisor.is_migrating(vm.uuid):
        raise Busy(f"libvirt is moving {vm.name} now", hint=f"virsh domjobabort {vm.name} ends it", vm=vm.name)


def _stay_plan(vm: Vm, record: VmRecord, mark: MigrationMark) -> Plan:
    """Return the steps after which the VM is one of this host, and runs if it is paused for the move.

    Raises:
        Busy: not all of it has come here.
    """
    has_come = mark.role in (*SOURCE_ROLES, MigrationRole.ARRIVED) or mark.is_offline
    if not has_come and vm.state is not VmState.RUNNING:
        raise Busy(
            f"{vm.name} cannot run here: not all of it has come from {mark.peer}",
            hint=end_migration_command(vm.name, mark.peer),
            vm=vm.name,
            role=mark.role,
        )
    ready = replace(record, state=RecordState.READY, migration=None)
    resume = (ResumeVm(vm.name, vm.uuid),) if vm.state is VmState.PAUSED else ()  # once recorded, nobody would do it
    write = WriteRecord(vm.name, vm.uuid, ready, record, f"record that {vm.name} is a VM of this host")
    return Plan((*resume, write), undo_on_failure=False)


def leave_plan(
    host: Host, context: Context | None, snapshot: Snapshot, vm: Vm, record: VmRecord, mark: MigrationMark | None
) -> Plan:
    """Return the steps after which nothing of the VM is here; files that the other host uses stay.

    `mark`: None: it is half removed, and its record names what is left. `context`: of the caller, whose deleted disks
    may go to the bin; None: they do not.

    Raises:
        Busy: it runs here.
    """
    if vm.state not in (*STOPPED_STATES, VmState.PAUSED):
        hint = None if mark is None else f"where it runs, it stays: {end_migration_command(vm.name, mark.peer)}"
        text = f"{vm.name} is {vm.state} here: nothing of it is removed"
        raise Busy(text, hint=hint, vm=vm.name, state=str(vm.state))
    own_disks = record.disks if mark is None or mark.copies_disks else ()
    kept: dict[str, str] = {}
    if mark is not None and context is not None:
        kept = _disks_to_keep(host, snapshot, vm, replace(record, disks=own_disks))
        own_disks = tuple(d for d in own_disks if d.path not in kept)
        if mark.role in (*SOURCE_ROLES, MigrationRole.ARRIVED) or mark.is_offline:  # it may be the only copy
            own_disks = tuple(with_bin_entry(host, context, vm, d) for d in own_disks)
            if not context.dry_run:
                prepare_bins(host, own_disks)
    removed = replace(record, migration=None, disks=own_disks)
    held = replace(removed, vgpus=with_slot(snapshot, vm, removed))
    force_off, vm = _off_steps(vm, record, mark)
    stopped = replace(vm, state=VmState.STOPPED)
    leftovers = read_domain_leftovers(host, vm)
    unproven = unproven_carriers(snapshot, vm, held)
    summary = ""
    if mark is not None and mark.role in SOURCE_ROLES:  # else the next steps look as if the VM were deleted
        summary = f"record that {vm.name} is on {mark.peer}, and remove what is left of it here"
    plan = vm_removal_plan(stopped, held, leftovers, keep_disks=False, keep_devices=unproven, summary=summary)
    notes = tuple(f"disk {path} is kept: {why}" for path, why in kept.items())
    return replace(plan, steps=(*force_off, *plan.steps), notes=(*plan.notes, *notes))


def _off_steps(vm: Vm, record: VmRecord, mark: MigrationMark | None) -> tuple[tuple[Step, ...], Vm]:
    """Return the steps after which a paused VM is off, and the VM with the record that it has then."""
    if vm.state is not VmState.PAUSED:
        return (), vm
    write = None
    if mark is not None and mark.role is MigrationRole.LEAVING:
        left = replace(record, migration=replace(mark, role=MigrationRole.LEFT))
        write = WriteRecord(vm.name, vm.uuid, left, record)
        vm = replace(vm, record=write.written)
    return (StopPausedDomain(vm.name, vm.uuid, write),), vm


def _disks_to_keep(host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord) -> dict[str, str]:
    """Return the disks of a VM that has gone which must stay, with the reason: others need them, or they did not go."""
    kept = {}
    for disk in record.disks:
        if disk in record.data_disks() and not any(is_source(one, disk) for one in vm.disks):
            kept[disk.path] = f"it is not in the definition of {vm.name}, so it was not copied"
            continue
        try:
            refuse_shared_deletion(host, snapshot, vm, replace(record, disks=(disk,)))
        except InUse as error:
            kept[disk.path] = error.message
    return kept
