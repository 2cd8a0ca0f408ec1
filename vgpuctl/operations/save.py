# SPDX-License-Identifier: Apache-2.0
"""Save running VMs: memory and devices go to libvirt's own file (managed save), and the next start goes on from it.

The VM is off then and keeps its vGPUs, also with `reserve: running`: what is saved can only go on with them. libvirt's
hook, reconcile-host and every command that changes a VM leave one with a managed save as it is. A save is no request
that the VM be off: after a boot the agent starts a VM that should run, which then goes on.

What can be known before is refused first: by what drivers say of each vGPU, then by QEMU, which is asked as for a move.
A crash leaves a VM that runs on, or one that is off with its memory saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.backends import backend_for
from vgpuctl.backends.save import find_save_switch, save_steps
from vgpuctl.backends.versions import programs_too_old_to_move
from vgpuctl.domain.move_facts import parse_move_facts
from vgpuctl.errors import HostCannot, Interrupted, PartlyApplied, Refused, VgpuctlError
from vgpuctl.makers import maker_of
from vgpuctl.model import hint_commands
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm, VmRecord, VmState
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.vgpu_migration import read_vgpu_migration
from vgpuctl.operations.guards import (
    deleted_meanwhile,
    find_vm_to_change,
    refuse_stuck_gpus,
    refuse_unfinished,
    require_writable,
)
from vgpuctl.operations.leftovers import read_domain_leftovers
from vgpuctl.operations.plans.migration_reasons import SourceFacts, find_unsendable
from vgpuctl.operations.plans.remove import own_record, refuse_transient_vms
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.steps.save import SaveDomain
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def save_vm(host: Host, context: Context, name: str) -> Outcome[VmReport]:
    """Save a running VM; it is off then. One that is saved already stays as it is.

    Raises:
        Unmanaged: vgpuctl does not manage the VM.
        Refused: it is neither running nor saved.
        HostCannot: a device of it cannot be saved.
        Busy: something else works on the VM, or it is unfinished.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "save")
    refuse_unfinished(vm, record)
    if vm.state in STOPPED_STATES and read_domain_leftovers(host, vm).managed_save:
        return Outcome(False, vm_result(snapshot, vm), warnings=snapshot.warnings, dry_run=context.dry_run)
    _refuse_unless_running(vm)
    refuse_transient_vms((vm,))
    refuse_stuck_gpus(snapshot, [v.gpu for v in record.vgpus])
    _refuse_unsavable(host, snapshot, vm)
    plan = _plan(snapshot, vm, record)
    steps = tuple(step.describe() for step in plan.steps)
    if context.dry_run:
        return Outcome(True, vm_result(snapshot, vm), steps, snapshot.warnings, plan.notes, dry_run=True)
    try:
        with Transaction(host, context) as tx:
            tx.hold_vm(snapshot, vm, record)
            tx.carry_out(plan)
    except VgpuctlError as error:
        _explain_saved(host, vm, error)
        raise
    host.claims.remove_drained_vm(vm.uuid)
    return report_vm(host, vm_result(snapshot, vm), steps, plan.notes)


def _explain_saved(host: Host, vm: Vm, error: VgpuctlError) -> None:
    """Change the error of a save that is complete all the same, so that it says this: nothing is to be undone then."""
    try:
        domain = host.hypervisor.find_domain(vm.uuid)
        is_off = domain is not None and domain.state in STOPPED_STATES
        if not is_off or not host.hypervisor.leftovers(vm.uuid).managed_save:
            return
    except VgpuctlError:
        return
    why = f"{error.stopped_by} came too late" if isinstance(error, Interrupted) else error.message
    error.message = f"{vm.name} is saved, and off: {why.removesuffix('; the undo is incomplete')}"
    error.hint = f"{hint_commands.start_command(vm)} goes on from its saved memory"
    error.left = [f"the saved memory of {vm.name}"] if isinstance(error, PartlyApplied) else []
    error.changed = True


def _refuse_unless_running(vm: Vm) -> None:
    if vm.state is VmState.RUNNING:
        return
    raise Refused(
        f"{vm.name} is {vm.state}: only a running VM can be saved",
        hint=hint_commands.run_command(vm),
        vm=vm.name,
        state=str(vm.state),
    )


def _refuse_unsavable(host: Host, snapshot: Snapshot, vm: Vm) -> None:
    """Refuse a VM that QEMU or a driver cannot save.

    Raises:
        HostCannot: with every reason. Busy: somebody has just deleted it.
    """
    backends = {backend_for(vgpu.backend) for vgpu in (() if vm.record is None else vm.record.vgpus)}
    reasons = list(programs_too_old_to_move(backends, snapshot.hypervisor))
    domain = host.hypervisor.find_domain(vm.uuid)
    if domain is None:
        raise deleted_meanwhile(vm)
    facts = SourceFacts(
        host="",
        vm=vm,
        domain=parse_move_facts(domain.live_xml or domain.xml),
        blockers=host.hypervisor.migration_blockers(vm.uuid),
        vgpus=read_vgpu_migration(host, snapshot, vm),
        has_old_programs=bool(reasons),
    )
    reasons += find_unsendable(facts)
    switches = (find_save_switch(host, gpu) for gpu in _gpus_of(snapshot, vm))
    reasons += [reason for reason in switches if reason is not None]
    if reasons:
        raise HostCannot(
            f"{vm.name} cannot be saved: {'; '.join(reasons)}",
            hint=f"{hint_commands.stop_command(vm)} shuts it down instead",
            check="not-movable",
            vm=vm.name,
            against=reasons,
        )


def _gpus_of(snapshot: Snapshot, vm: Vm) -> tuple[Gpu, ...]:
    addresses = dict.fromkeys(v.gpu for v in snapshot.vgpus if v.vm_uuid == vm.uuid)
    return tuple(gpu for address in addresses if (gpu := snapshot.gpu(address)) is not None)


def _plan(snapshot: Snapshot, vm: Vm, record: VmRecord) -> Plan:
    prepare = tuple(
        step
        for vgpu in record.vgpus
        if (gpu := snapshot.gpu(vgpu.gpu)) is not None
        for step in save_steps(vm.name, gpu, vgpu.carrier)
    )
    notes = (maker_of(gpu).saved_note for gpu in _gpus_of(snapshot, vm))
    return Plan(
        (*prepare, SaveDomain(vm.name, vm.uuid)),
        notes=tuple(dict.fromkeys(note for note in notes if note is not None)),
    )
