# SPDX-License-Identifier: Apache-2.0
"""Attach vGPUs to a VM that exists and detach them; also while it runs, and also when vgpuctl did not create it.

Attaching: claim, record, create, attach. Detaching does the same in reverse, and waits for the guest. A crash in
between leaves a record that names a vGPU to which the VM does not refer: reconcile removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.capacity.ownership import RECORD_LOST
from vgpuctl.engine.claim import (
    claim_carriers,
    claims_of_record,
    release_unused_claims,
    retry_excluding_gpus,
    take_over_claims,
)
from vgpuctl.engine.execute import execute_plan
from vgpuctl.engine.guards import find_vm, refuse_busy_vm, refuse_stuck_gpus, require_system_libvirt, require_writable
from vgpuctl.engine.power import refuse_unfinished, reobserve_vm
from vgpuctl.engine.report_vm import report_vm
from vgpuctl.errors import Busy, NoCapacity, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.request import VmRequest
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, Vm, VmRecord, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.plan import change
from vgpuctl.plan.remove import own_record, unproven_carriers
from vgpuctl.plan.report import vm_value
from vgpuctl.plan.reserve import hypothetical_empty, with_slot
from vgpuctl.ports.step import Plan, Step
from vgpuctl.steps.attach import require_free_ports
from vgpuctl.steps.claims import TakeClaim
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

LIVE_STATES = (VmState.RUNNING, VmState.PAUSED)


def attach(host: Host, request: VmRequest, *, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Attach the requested profiles to the VM; if a GPU's driver refuses, the other GPUs are tried.

    Raises:
        VgpuctlError: the reason; everything created has been undone.
    """
    if not dry_run:
        require_writable(host)
    return retry_excluding_gpus(
        lambda exclude: _attach(host, request, exclude, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)
    )


def scope_of_profiles(request: VmRequest) -> ReadScope:
    """Return the scope to read in order to place the requested profiles."""
    return ReadScope(types=True, profiles=frozenset(text for text, _ in request.profiles))


def _attach(
    host: Host, request: VmRequest, exclude: frozenset[str], *, dry_run: bool, wait_seconds: float, progress: Progress
) -> Outcome:
    snapshot = observe(host, scope_of_profiles(request))
    vm = find_vm(snapshot, request.name or "")
    require_system_libvirt(snapshot)
    record = _attachable_record(snapshot, vm)
    live = _is_live(vm)
    has_slots = live or not record.reserve_while_running
    profiles = change.expand_profiles(request)
    if live:
        domain = host.hypervisor.find_domain(vm.uuid)
        require_free_ports(vm.name, domain.live_xml if domain else None, len(profiles), hint_commands.stop_command(vm))
    snapshots = iter([snapshot])

    def next_snapshot() -> Snapshot:
        return next(snapshots, None) or observe(host, scope_of_profiles(request))

    def choose(current: Snapshot) -> tuple[AssignedVgpu, ...]:
        if has_slots:
            return change.choose_added_vgpus(current, request, record, exclude)
        try:
            return change.choose_added_vgpus(change.with_taken(current, vm, record.vgpus), request, record, exclude)
        except NoCapacity:
            return change.choose_added_vgpus(
                change.with_taken(hypothetical_empty(current), vm, record.vgpus), request, record
            )

    def make_claims(new_vgpus: tuple[AssignedVgpu, ...]) -> tuple[Claim, ...]:
        refuse_busy_vm(host, vm)
        return claims_of_record(host, vm.name, replace(record, vgpus=new_vgpus)) if has_slots else ()

    if dry_run:
        new_vgpus = choose(snapshot)
        steps = change.attach_steps(snapshot, vm, record, profiles, new_vgpus, live=live)
        planned_steps: list[Step] = [*(TakeClaim(c) for c in make_claims(new_vgpus)), *steps]
        return Outcome(True, vm_value(snapshot, vm), tuple(s.describe() for s in planned_steps), dry_run=True)
    fresh, new_vgpus, claim_steps = claim_carriers(host, next_snapshot, choose, make_claims, wait_seconds)
    old_vgpus = with_slot(snapshot, vm, record)
    claim_steps = take_all_claims(host, vm, replace(record, vgpus=old_vgpus), claim_steps, wait_seconds)
    try:
        plan = Plan(
            change.attach_steps(fresh, vm, record, profiles, new_vgpus, live=live),
            vms_required_off=() if live else (vm.uuid,),
        )
    except BaseException:
        release_unused_claims(host, claim_steps)
        raise
    execute_plan(host, plan, progress, claim_steps)
    return report_vm(host, vm_value(snapshot, vm), claim_steps, plan)


def _attachable_record(snapshot: Snapshot, vm: Vm) -> VmRecord:
    """Return the VM's current record; an empty one for a VM that vgpuctl did not create.

    Raises:
        Unmanaged: its record is a copy, or cannot be parsed.
        Busy: a change of it is unfinished, or it has lost its record.
    """
    record = change.own_record_or_new(vm, snapshot.machine_id)
    if vm.record is not None:
        refuse_unfinished(vm, vm.record)
        refuse_stuck_gpus(snapshot, [v.gpu for v in vm.record.vgpus])
    elif any(v.vm_uuid == vm.uuid and v.reason == RECORD_LOST for v in snapshot.vgpus):
        raise Busy(f"{vm.name} has lost its record", hint="vgpuctl reconcile writes it again", vm=vm.name)
    return record


def _is_live(vm: Vm) -> bool:
    if vm.state not in (*LIVE_STATES, VmState.STOPPED):
        raise Refused(
            f"{vm.name} is {vm.state}: its devices can be changed while it runs or is off",
            hint=hint_commands.stop_command(vm, force=True),
            vm=vm.name,
        )
    return vm.state in LIVE_STATES


def take_all_claims(
    host: Host,
    vm: Vm,
    record: VmRecord,
    new_claims: tuple[TakeClaim, ...],
    wait_seconds: float,
    *,
    leaving: bool = False,
) -> tuple[TakeClaim, ...]:
    """Take over the claims of the VM's other vGPUs too, and check that nobody changed the VM meanwhile.

    `leaving`: some of them are about to be removed.

    Returns every claim to undo; on failure these claims and `new_claims` are released.

    Raises:
        Busy: another vgpuctl works on the VM, or has changed it.
    """
    claim_steps = new_claims
    try:
        claim_steps = (
            *new_claims,
            *take_over_claims(host, claims_of_record(host, vm.name, record), wait_seconds, leaving=leaving),
        )
        refuse_busy_vm(host, vm)
        _, current_vm = reobserve_vm(host, vm)
        if _vm_fingerprint(current_vm) != _vm_fingerprint(vm):
            raise Busy(f"{vm.name} was changed meanwhile", hint="run the command again", vm=vm.name)
    except BaseException:
        release_unused_claims(host, claim_steps)
        raise
    return claim_steps


def _vm_fingerprint(vm: Vm) -> tuple[object, ...]:
    """Return what must not change between the plan and the claims."""
    return vm.record, vm.copied_record, vm.has_unreadable_record, vm.state, vm.hostdevs


def detach(
    host: Host, name: str, carriers: Sequence[str] = (), *, dry_run: bool, wait_seconds: float, progress: Progress
) -> Outcome:
    """Detach vGPUs from a VM, all if no carrier is named, and remove them.

    Raises:
        Busy: the guest of a running VM did not release one in time; that vGPU stays present, recorded and claimed.
        VgpuctlError: the reason.
    """
    if not dry_run:
        require_writable(host)
    snapshot = observe(host, ReadScope(models=False))
    vm = find_vm(snapshot, name)
    require_system_libvirt(snapshot)
    record = own_record(vm, "take vGPUs from")
    refuse_unfinished(vm, record)
    removed = change.select_vgpus(vm, record, carriers)
    refuse_stuck_gpus(snapshot, [v.gpu for v in removed])
    _is_live(vm)
    unproven = unproven_carriers(snapshot, vm, record)
    plan = Plan(change.detach_steps(vm, record, removed, unproven, wait_seconds), undo_on_failure=False)
    if dry_run or not removed:
        steps = tuple(s.describe() for s in plan.steps)
        return Outcome(bool(removed), vm_value(snapshot, vm), steps, snapshot.warnings, dry_run=dry_run)
    take_all_claims(host, vm, replace(record, vgpus=with_slot(snapshot, vm, record)), (), wait_seconds, leaving=True)
    execute_plan(host, plan, progress)
    return report_vm(host, vm_value(snapshot, vm), (), plan)
