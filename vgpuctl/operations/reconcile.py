# SPDX-License-Identifier: Apache-2.0
"""Finish or undo what a crash left, with the steps of create and delete.

It touches only what vgpuctl can prove to be its own: a claim whose VM and operation are gone, or a VM whose record
says that it is half created or half removed while no operation works on it. It leaves unmanaged devices and VMs alone.
docs/developers/crashes.md has everything that it looks for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_disk_sources
from vgpuctl.errors import Busy, LibvirtFailed, NotFound, PartlyApplied, Refused, VgpuctlError
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.host import FindingResult, ReconcileResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, RecordState, Vm, VmRecord
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.claims import report_unreadable, reread_claims
from vgpuctl.observe.definition import find_unreferenced_vgpus, lost_text, read_vm
from vgpuctl.operations.claim import claims_of_record, drop_ended_work, read_vms_in_progress
from vgpuctl.operations.drained_vms import drop_stale_notes, find_abandoned_vms
from vgpuctl.operations.guards import require_system_libvirt, require_writable
from vgpuctl.operations.images import refuse_shared_deletion
from vgpuctl.operations.interrupted_moves import check_moving
from vgpuctl.operations.leftovers import read_domain_leftovers
from vgpuctl.operations.plans.change import detach_steps
from vgpuctl.operations.plans.remove import (
    release_steps,
    unproven_carriers,
    vm_removal_plan,
)
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.plans.vgpus import refuse_unreadable_entries
from vgpuctl.operations.power import start_vm, why_not_startable
from vgpuctl.operations.refresh import spare_removal_plan
from vgpuctl.operations.steps.claims import ReleaseClaim, TakeClaim
from vgpuctl.operations.steps.domain import STOPPED_STATES, SetRecordState, find_missing_resources
from vgpuctl.operations.transaction import Transaction
from vgpuctl.operations.unowned import (
    FindingKey,
    ReconcileFinding,
    check_host_vgpus,
    check_waiting,
    check_without_record,
    find_unfinished_files,
    find_unowned,
    find_unused_discs,
    give_place,
    why_no_place,
)
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

MAX_ROUNDS = 5
DRY_RUN_NOTE = "the host is checked again after these steps: more may follow"


def reconcile(host: Host, context: Context, only: Collection[str] | None = None) -> Outcome[ReconcileResult]:
    """Find and fix problems in rounds until none is left; one failure does not stop the rest and is raised at the end.

    `only`: fix no others than the findings with these texts (`what`), and only while the whole host can be read.
    A fix may uncover further problems: a VM that is removed leaves claims that were stray. A dry run shows the
    findings of the first round only. The result has what was fixed and what is left: a finding that is gone before its
    turn was the work of another command, which ended meanwhile.

    Raises:
        PartlyApplied: problems remain after the last round.
        VgpuctlError: the first failure, after all other fixes were tried; `left` lists all failures.
    """
    require_writable(host, context)
    all_findings: dict[FindingKey, ReconcileFinding] = {}
    fixed: set[FindingKey] = set()
    failed: dict[FindingKey, VgpuctlError] = {}
    steps: list[str] = []
    previous: list[FindingKey] = []
    for rounds in range(MAX_ROUNDS + 1):
        host.operations.end()  # what a fix of the round before could not finish belongs to an operation that has ended
        snapshot, findings = _find(host, context, only)
        all_findings |= {key: f for key, f in findings.items() if key not in all_findings}
        fixable = [f for f in findings.values() if f.has_fix and f.key not in failed]
        if not fixable or previous == [f.key for f in fixable]:  # none left, or unchanged: others may work on it
            break
        previous = [f.key for f in fixable]
        if rounds == MAX_ROUNDS:
            raise _rounds_error(fixable)
        if context.dry_run:
            steps += [line for f in fixable for line in f.steps]
            break
        done, errors = _fix_each(host, context, fixable)
        fixed |= {finding.key for finding in done}
        steps += [line for finding in done for line in finding.steps]
        failed |= errors
    if not context.dry_run:
        with report_unreadable("which operations have ended"):
            host.operations.remove_ended()
    if failed:
        first = next(iter(failed.values()))
        first.changed = first.changed or bool(steps)
        first.left = [line for error in failed.values() for line in (error.left or [error.message])]
        raise first
    results = tuple(
        FindingResult(f.kind, f.what, f.action) for key, f in all_findings.items() if key in fixed or key in findings
    )
    notes = (DRY_RUN_NOTE,) if context.dry_run and steps else ()
    return Outcome(
        bool(steps), ReconcileResult(results), tuple(steps), snapshot.warnings, notes, dry_run=context.dry_run
    )


def _find(
    host: Host, context: Context, only: Collection[str] | None
) -> tuple[Snapshot, dict[FindingKey, ReconcileFinding]]:
    snapshot = _observe(host, context)
    if only is not None:
        _require_whole(snapshot)
    return snapshot, {f.key: f for f in find_problems(host, snapshot) if only is None or f.what in only}


def _observe(host: Host, context: Context) -> Snapshot:
    snapshot = observe(host, ReadScope(models=False))
    require_system_libvirt(snapshot)
    if not context.dry_run:
        refuse_unreadable_entries(snapshot)
        drop_stale_notes(host, snapshot)
        drop_ended_work(host)
    return snapshot


def _require_whole(snapshot: Snapshot) -> None:
    """Refuse to fix chosen findings of a host that was not read whole: they are fixed while nobody watches.

    Raises:
        Busy: with what was not read.
    """
    if snapshot.unread_texts:
        raise Busy(
            f"not all of this host could be read: {snapshot.unread_texts[0]}",
            hint="vgpuctl reconcile-host --dry-run shows what is left",
        )


def _rounds_error(unfixed: list[ReconcileFinding]) -> PartlyApplied:
    error = PartlyApplied(
        f"after {MAX_ROUNDS} rounds there is still something to fix: another program may be changing this host",
        hint="vgpuctl reconcile-host --dry-run shows what is left",
    )
    error.left = [f"{f.what}: {f.action}" for f in unfixed]
    return error


def _fix_each(
    host: Host, context: Context, findings: list[ReconcileFinding]
) -> tuple[list[ReconcileFinding], dict[FindingKey, VgpuctlError]]:
    """Fix one after the other; return those that this fixed, and the errors of those that it could not fix."""
    done: list[ReconcileFinding] = []
    errors: dict[FindingKey, VgpuctlError] = {}
    for finding in findings:
        try:
            if _fix(host, context, finding):
                done.append(finding)
        except VgpuctlError as error:
            errors[finding.key] = error
    return done, errors


def _fix(host: Host, context: Context, finding: ReconcileFinding) -> bool:
    """Take the claims, check that the finding still holds, and fix it.

    Returns whether anything was done: another vgpuctl may have been faster.

    Raises:
        VgpuctlError: why it cannot be fixed.
    """
    if finding.vm is not None:
        context.subjects.add_vm(finding.vm.name, finding.vm.uuid)
    if finding.vm is not None and finding.starts_vm:
        vm = finding.vm
        return start_vm(host, context, vm.uuid).changed
    if finding.vm is not None and finding.places_vm:
        return give_place(host, context, finding.vm.uuid)
    plan = finding.plan or Plan(())
    removes = any(isinstance(step, ReleaseClaim) for step in plan.steps)
    with Transaction(host, context) as tx:
        tx.take_over(finding.claims, include_missing=finding.vm is not None, leaving=removes)
        if not _is_unchanged(host, finding):
            tx.release()
            return False
        tx.carry_out(plan)
    return True


def _is_unchanged(host: Host, finding: ReconcileFinding) -> bool:
    """Return whether the finding still holds. It does not for a VM started since: that VM keeps its vGPUs."""
    if finding.vm is None:
        claimed = {c.carrier for c in reread_claims(host, (c.carrier for c in finding.claims))}
        if any(host.hypervisor.find_domain(c.vm_uuid) is not None for c in finding.claims):
            return False
        return all(c.carrier in claimed for c in finding.claims)
    if finding.vm.uuid in read_vms_in_progress(host):
        return False
    domain = host.hypervisor.find_domain(finding.vm.uuid)
    if domain is None:
        return False
    current = read_vm(host, domain)
    if (finding.vm.state in STOPPED_STATES) != (current.state in STOPPED_STATES):
        return False
    return current.record == finding.vm.record and current.has_unreadable_record == finding.vm.has_unreadable_record


def find_problems(host: Host, snapshot: Snapshot) -> tuple[ReconcileFinding, ...]:
    """Return every problem on the host."""
    findings: list[ReconcileFinding] = []
    for write in snapshot.stuck_writes:
        text = f"process {write.process.pid} waits in the kernel writing {write.path}"
        findings.append(ReconcileFinding("stuck-write", text, "it ends when the device is released"))
    in_progress = read_vms_in_progress(host)
    claiming_uuids = {c.vm_uuid for c in snapshot.claims if c.carrier in snapshot.live_claim_carriers}
    for vm in (v for v in snapshot.vms if v.uuid not in in_progress):
        findings += _check_vm(host, snapshot, vm, is_in_progress=vm.uuid in claiming_uuids)
    findings += [*check_host_vgpus(host, snapshot), *find_unowned(host, snapshot), *find_unfinished_files(host)]
    findings += [] if in_progress else find_unused_discs(host, snapshot)
    return (*findings, *_find_drained(host, snapshot))


def _find_drained(host: Host, snapshot: Snapshot) -> list[ReconcileFinding]:
    """Return the VMs that a command shut down temporarily and that nobody starts again, because the command is gone."""
    findings = []
    for gpu, vm in find_abandoned_vms(host, snapshot):
        if gpu is None:
            text = f"VM {vm.name} was shut down for a refresh or a move, and has not been started again"
            problem = why_no_place(host, vm)
            action = f"start VM {vm.name}" if problem is None else f"nothing while it has no place: {problem}"
            findings.append(ReconcileFinding("drained", text, action, vm=vm, starts_vm=problem is None))
            continue
        text = f"VM {vm.name} was shut down for the setup of GPU {gpu}, and has not been started again"
        stuck = any(
            w.gpu == gpu for w in snapshot.stuck_writes
        )  # starting it reports that, and reads nothing on the GPU
        problem = None if stuck else why_not_startable(host, snapshot, vm)
        if problem is None:
            findings.append(ReconcileFinding("drained", text, f"start VM {vm.name}", vm=vm, starts_vm=True))
        else:
            retry = f"the same command again, vgpuctl set-mode {gpu} MODE or vgpuctl apply also starts {vm.name}"
            action = f"nothing before the GPU is set up: {problem}; {retry}"
            findings.append(ReconcileFinding("drained", text, action, vm=vm))
    return findings


def _check_vm(host: Host, snapshot: Snapshot, vm: Vm, *, is_in_progress: bool) -> list[ReconcileFinding]:
    """Return what is wrong with one VM; `is_in_progress`: a live operation holds claims for it."""
    if vm.record is None:
        return check_without_record(host, snapshot, vm)
    if is_in_progress:
        return []
    held_record = replace(vm.record, vgpus=with_slot(snapshot, vm, vm.record))
    claims = claims_of_record(host, vm.name, held_record)
    if any(w.gpu in {v.gpu for v in held_record.vgpus} for w in snapshot.stuck_writes):
        return []
    if vm.record.migration is not None:
        return check_moving(host, snapshot, vm, vm.record, vm.record.migration, claims)
    if vm.record.state is not RecordState.READY:
        return _check_unfinished(host, snapshot, vm, vm.record, held_record, claims)
    if vm.record.waiting_vgpus():
        return [check_waiting(host, snapshot, vm, vm.record)]
    if vm.record.spare_disks():
        return _check_refresh(host, snapshot, vm, vm.record, claims)
    return _check_ready(host, snapshot, vm, vm.record, held_record, claims)


def _check_unfinished(
    host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord, held_record: VmRecord, claims: tuple[Claim, ...]
) -> list[ReconcileFinding]:
    """Return the finding for a half created or half removed VM; `held_record` has only the vGPUs it has now."""
    half = "made" if record.state is RecordState.CREATING else "removed"
    if vm.state not in STOPPED_STATES:
        return _check_unfinished_running(host, vm, record, half, claims)
    try:
        leftovers = read_domain_leftovers(host, vm)
    except NotFound:
        return []
    try:
        refuse_shared_deletion(host, snapshot, vm, record)
    except (Refused, LibvirtFailed) as error:
        return [ReconcileFinding(f"half-{half}", f"VM {vm.name} is half {half}", f"nothing: {error.message}")]
    unproven = unproven_carriers(snapshot, vm, held_record)
    plan = vm_removal_plan(vm, held_record, leftovers, keep_disks=False, keep_devices=unproven)
    return [ReconcileFinding(f"half-{half}", f"VM {vm.name} is half {half}", f"remove VM {vm.name}", plan, claims, vm)]


def _check_unfinished_running(
    host: Host, vm: Vm, record: VmRecord, half: str, claims: tuple[Claim, ...]
) -> list[ReconcileFinding]:
    """Return the finding for an unfinished VM that was started: nothing is removed; a complete one becomes ready."""
    text = f"VM {vm.name} is {vm.state}, and its record says it is half {half}"
    domain = host.hypervisor.find_domain(vm.uuid)
    missing = find_missing_resources(host, domain) if domain is not None else ()
    if missing:
        action = f"nothing while it is not off: it lacks {', '.join(missing)}; vgpuctl delete-vm {vm.name} removes it"
        return [ReconcileFinding(f"half-{half}", text, action, vm=vm)]
    ready = SetRecordState(vm.name, vm.uuid, replace(record, state=RecordState.READY), previous=record)
    action = f"record VM {vm.name} as ready: vgpuctl removes nothing that runs"
    return [ReconcileFinding(f"half-{half}", text, action, Plan((ready,), undo_on_failure=False), claims, vm)]


def _check_ready(
    host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord, held_record: VmRecord, claims: tuple[Claim, ...]
) -> list[ReconcileFinding]:
    """Return what a finished VM lacks, or has without needing it."""
    unproven = unproven_carriers(snapshot, vm, record)
    unreferenced = find_unreferenced_vgpus(vm, record)
    if unreferenced and not _is_half_done(host, snapshot, record, unreferenced):
        text = f"another program took {lost_text(unreferenced)} out of the definition of VM {vm.name}"
        forget = hint_commands.detach_command(vm, unreferenced[0].carrier)
        action = f"nothing: put it back: {hint_commands.start_command(vm)}; forget it: {forget}"
        return [ReconcileFinding("vgpu-lost", text, action, vm=vm)]
    if unreferenced:
        text = f"VM {vm.name} does not refer to {', '.join(v.carrier for v in unreferenced)} of its record"
        plan = Plan(detach_steps(vm, record, unreferenced, unproven, 0), undo_on_failure=False)
        return [
            ReconcileFinding("half-attached", text, f"remove it, also from the record of {vm.name}", plan, claims, vm)
        ]
    if held_record.reserve_while_running and held_record.vgpus and vm.state in STOPPED_STATES:
        return _check_unneeded(host, vm, held_record, claims)
    claimed = {c.carrier for c in snapshot.claims}
    missing = tuple(c for c in claims if c.carrier not in claimed | unproven and _is_present(snapshot, c.carrier))
    if missing:
        text = f"VM {vm.name} has no claim on {', '.join(c.carrier for c in missing)}"
        plan = Plan(tuple(TakeClaim(c) for c in missing), undo_on_failure=False)
        return [ReconcileFinding("claim-lost", text, "write the claim again", plan, vm=vm)]
    return []


def _is_half_done(host: Host, snapshot: Snapshot, record: VmRecord, vgpus: tuple[AssignedVgpu, ...]) -> bool:
    """Return whether a command was killed while it attached or detached one of these vGPUs.

    A VM that reserves its vGPUs only while it runs has no claim that would show it.
    """
    claims = {c.carrier: c for c in snapshot.claims if c.vm_uuid == record.vm_uuid}
    held_claims = [claims[v.carrier] for v in vgpus if v.carrier in claims]
    if any(claim.leaving for claim in held_claims) or (record.reserve_while_running and len(held_claims) < len(vgpus)):
        return True
    with report_unreadable("which commands were killed"):
        return bool(host.operations.killed(frozenset(claim.operation for claim in held_claims)))


def _check_unneeded(host: Host, vm: Vm, held_record: VmRecord, claims: tuple[Claim, ...]) -> list[ReconcileFinding]:
    """Return a finding if a stopped VM holds vGPUs that it reserves only while it runs; a managed save needs them."""
    try:
        if read_domain_leftovers(host, vm).managed_save:
            return []
    except NotFound:
        return []
    text = (
        f"VM {vm.name} is off and still has {', '.join(v.carrier for v in held_record.vgpus)}, which it "
        "reserves only while it runs"
    )
    plan = Plan(release_steps(vm, held_record.vgpus), undo_on_failure=False, vms_required_off=(vm.uuid,))
    return [ReconcileFinding("not-needed", text, "; ".join(s.describe() for s in plan.steps), plan, claims, vm)]


def _check_refresh(
    host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord, claims: tuple[Claim, ...]
) -> list[ReconcileFinding]:
    paths = ", ".join(d.path for d in record.spare_disks())
    text = f"a refresh of VM {vm.name} was interrupted, which left {paths}"
    domain = host.hypervisor.find_domain(vm.uuid) if vm.state not in STOPPED_STATES else None
    if domain is not None and any(
        d.path in parse_disk_sources(domain.xml, domain.live_xml).files for d in record.spare_disks()
    ):
        return [
            ReconcileFinding("half-refreshed", text, f"nothing while the VM uses it: vgpuctl stop-vm {vm.name} first")
        ]
    try:
        refuse_shared_deletion(host, snapshot, vm, replace(record, disks=record.spare_disks()))
    except (Refused, LibvirtFailed) as error:
        return [ReconcileFinding("half-refreshed", text, f"nothing: {error.message}")]
    return [ReconcileFinding("half-refreshed", text, f"delete {paths}", spare_removal_plan(vm, record), claims, vm)]


def _is_present(snapshot: Snapshot, carrier: str) -> bool:
    return any(v.carrier == carrier and v.present for v in snapshot.vgpus)
