# SPDX-License-Identifier: Apache-2.0
"""Create and delete vGPUs without a VM: observe, claim, write host.yaml, create the device, observe again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.capacity.ownership import host_vgpu_owner
from vgpuctl.engine.claim import (
    claim_carriers,
    claims_of_record,
    release_claims,
    retry_excluding_gpus,
    take_over_claims,
)
from vgpuctl.engine.execute import execute_plan
from vgpuctl.engine.guards import refuse_stuck_gpus, require_system_libvirt, require_writable
from vgpuctl.errors import Busy, VgpuctlError
from vgpuctl.model.gpu import Vgpu
from vgpuctl.model.outcome import Confirm, Outcome, Progress, QueryResult
from vgpuctl.model.request import VmRequest
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, HostVgpu
from vgpuctl.observe import ReadScope, observe, observe_devices, scope_of_request
from vgpuctl.plan import vgpus as plans
from vgpuctl.plan.report import planned_vgpu, vgpu_value, with_companions
from vgpuctl.ports.step import Step
from vgpuctl.steps.claims import TakeClaim, read_claims
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

VGPU_SCOPE = ReadScope(types=True, models=False)


def list_vgpus(host: Host, *, unassigned: bool = False) -> QueryResult:
    """Return every vGPU and its owner; those in host.yaml have the element for a VM's definition.

    `unassigned`: only vGPUs of host.yaml that no VM refers to. An entry of host.yaml whose carrier belongs to somebody
    else is not a usable vGPU; a warning reports it.

    Raises:
        InvalidInput: host.yaml cannot be parsed, so its vGPUs are unknown.
    """
    snapshot = observe(host, VGPU_SCOPE)
    plans.refuse_unreadable_entries(snapshot)
    entries = {entry.name: entry for entry in snapshot.host_vgpus}
    listed = [v for v in snapshot.vgpus if not unassigned or (v.name is not None and v.vm is None)]
    values = [
        host_vgpu_value(entries[v.name], v) if v.name is not None else vgpu_value(v) | {"hostdev": None, "usage": []}
        for v in listed
    ]
    return QueryResult(with_companions(values), (*snapshot.warnings, *plans.carrier_conflicts(snapshot)))


def host_vgpu_value(entry: HostVgpu, vgpu: Vgpu) -> dict[str, object]:
    """Return the JSON value of a vGPU of host.yaml: its location, and the element for a VM's definition."""
    return vgpu_value(vgpu) | _hostdev_value(plans.assigned_from_entry(entry, vgpu))


def _hostdev_value(vgpu: AssignedVgpu) -> dict[str, object]:
    return {"hostdev": plans.hostdev_element(vgpu), "usage": list(plans.usage_commands(vgpu))}


def create_vgpu(host: Host, request: VmRequest, *, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Create a vGPU without a VM; if the driver of a GPU refuses, the next GPU is tried.

    Raises:
        VgpuctlError: the reason; everything created was removed again.
    """
    if not dry_run:
        require_writable(host)
    named_request = replace(request, name=request.name or f"vgpu-{host.new_uuid()[:8]}")
    return retry_excluding_gpus(
        lambda exclude: _create(
            host, named_request, exclude, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress
        )
    )


def _create(
    host: Host, request: VmRequest, exclude: frozenset[str], *, dry_run: bool, wait_seconds: float, progress: Progress
) -> Outcome:
    name = request.name or ""
    owner = host_vgpu_owner(host.machine_id, name)
    snapshot = observe(host, scope_of_request(request))
    require_system_libvirt(snapshot)
    first_snapshot = iter([snapshot])

    def take_snapshot() -> Snapshot:
        return next(first_snapshot, None) or observe(host, scope_of_request(request))

    def choose(current: Snapshot) -> tuple[AssignedVgpu, ...]:
        plans.refuse_unreadable_entries(current)
        plans.refuse_existing_name(current, name)
        refuse_claimed_name(host, owner, name)
        return (plans.choose_vgpu(current, request, owner, exclude),)

    def build_claims(assigned: tuple[AssignedVgpu, ...]) -> tuple[Claim, ...]:
        refuse_claimed_name(host, owner, name)
        return _claims(host, name, assigned[0])

    if dry_run:
        (vgpu,) = choose(snapshot)
        all_steps = (
            *(TakeClaim(c) for c in build_claims((vgpu,))),
            *plans.vgpu_creation_plan(snapshot, name, vgpu).steps,
        )
        return Outcome(True, _planned_value(name, vgpu), _lines(all_steps), snapshot.warnings, dry_run=True)
    claimed_snapshot, (vgpu,), claim_steps = claim_carriers(host, take_snapshot, choose, build_claims, wait_seconds)
    try:
        plan = plans.vgpu_creation_plan(claimed_snapshot, name, vgpu)
    except BaseException:
        release_claims(host, claim_steps)
        raise
    execute_plan(host, plan, progress, claim_steps)
    return _report_vgpu(host, snapshot, name, vgpu, _lines((*claim_steps, *plan.steps)))


def _lines(steps: tuple[Step, ...]) -> tuple[str, ...]:
    return tuple(step.describe() for step in steps)


def _claims(host: Host, name: str, vgpu: AssignedVgpu) -> tuple[Claim, ...]:
    owner, record = plans.placeholder_owner(host.machine_id, name, vgpu)
    return claims_of_record(host, owner.name, record)


def _planned_value(name: str, vgpu: AssignedVgpu) -> dict[str, object]:
    return planned_vgpu(vgpu, None) | {"name": name} | _hostdev_value(vgpu)


def refuse_claimed_name(host: Host, owner: str, name: str) -> None:
    """Refuse a name that has a claim: a process is creating that vGPU now, or died while creating it.

    Raises:
        Busy: naming the process.
    """
    for claim in read_claims(host):
        if claim.vm_uuid == owner:
            alive = host.processes.is_alive(claim.process)
            raise Busy(
                f"process {claim.process.pid} {'makes' if alive else 'was making'} vGPU {name}: {claim.command}",
                hint="wait for it, then run the command again" if alive else "vgpuctl reconcile, then run it again",
                pid=claim.process.pid,
                vgpu=name,
            )


def _report_vgpu(host: Host, before: Snapshot, name: str, vgpu: AssignedVgpu, steps: tuple[str, ...]) -> Outcome:
    """Observe the host again and report the vGPU as it is now; a failure to observe is a warning, not an error."""
    scope = ReadScope(types=True, models=False, gpu_addresses=frozenset({vgpu.gpu}), type_ids=frozenset())
    expected = _planned_value(name, vgpu) | {"present": True}
    try:
        current = observe_devices(host, scope, vms=before.vms, status=before.hypervisor)
    except VgpuctlError as error:
        warning = f"it is done, but the host could not be looked at again: {error}"
        return Outcome(True, expected, steps, (*before.warnings, warning))
    match = next((v for v in current.vgpus if v.name == name), None)
    data = expected if match is None else vgpu_value(match) | _hostdev_value(vgpu)
    return Outcome(True, data, steps, current.warnings)


def delete_vgpu(
    host: Host, name: str, *, dry_run: bool, confirm: Confirm, wait_seconds: float, progress: Progress
) -> Outcome:
    """Remove a vGPU without a VM that no VM refers to: its device, its entry in host.yaml, its claim.

    Raises:
        InUse: a VM refers to it, or a process holds it; nothing was changed.
        Busy: another command changed its entry since it was shown for confirmation.
        VgpuctlError: the reason; the same command again removes what is left.
    """
    if not dry_run:
        require_writable(host)
    snapshot, entry, vgpu = _observe_vgpu(host, name)
    _, shown_vgpu = plans.find_named_vgpu(snapshot, name)
    refuse_stuck_gpus(snapshot, [entry.gpu])
    unproven = plans.unproven_carrier(snapshot, entry, vgpu)
    plan = plans.vgpu_removal_plan(host.machine_id, entry, vgpu, unproven)
    removed_value = vgpu_value(shown_vgpu) | {"present": False}
    if dry_run:
        return Outcome(True, vgpu_value(shown_vgpu), _lines(plan.steps), snapshot.warnings, plan.notes, dry_run=True)
    confirm(f"Delete vGPU {name} ({entry.profile} on GPU {entry.gpu})?", _lines(plan.steps))
    claim_steps = take_over_claims(host, _claims(host, name, vgpu), wait_seconds)
    try:
        _, current_entry, vgpu = _observe_vgpu(host, name)
        if current_entry != entry:
            raise Busy(f"vGPU {name} of host.yaml was changed just now", hint="run the command again", vgpu=name)
        plan = plans.vgpu_removal_plan(host.machine_id, entry, vgpu, unproven)
    except BaseException:
        release_claims(host, claim_steps)
        raise
    execute_plan(host, plan, progress)
    return Outcome(True, removed_value, _lines(plan.steps), snapshot.warnings, plan.notes)


def _observe_vgpu(host: Host, name: str) -> tuple[Snapshot, HostVgpu, AssignedVgpu]:
    """Observe the host and return the unused vGPU of that name: its entry, and in the form that steps need."""
    snapshot = observe(host, VGPU_SCOPE)
    require_system_libvirt(snapshot)
    plans.refuse_unreadable_entries(snapshot)
    entry, vgpu = plans.find_named_vgpu(snapshot, name)
    plans.refuse_used_vgpu(snapshot, entry)
    return snapshot, entry, plans.assigned_from_entry(entry, vgpu)
