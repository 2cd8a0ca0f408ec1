# SPDX-License-Identifier: Apache-2.0
"""Create, ensure and delete vGPUs without a VM: observe, claim, write host.yaml, create the device, observe again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.backends import backend_for
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import Busy, InvalidInput, VgpuctlError
from vgpuctl.model.gpu import Vgpu
from vgpuctl.model.outcome import Context, Outcome, QueryResult, with_data
from vgpuctl.model.results.gpus import (
    AbsentVgpuResult,
    EnsuredVgpuResult,
    ListedVgpuResult,
    NamedVgpuResult,
    VgpuResult,
)
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, HostVgpu
from vgpuctl.observe import ReadScope, observe, observe_devices, scope_of_request
from vgpuctl.observe.claims import refuse_claimed_name
from vgpuctl.observe.ownership import host_vgpu_owner
from vgpuctl.operations.claim import claims_of_record
from vgpuctl.operations.guards import refuse_stuck_gpus, require_system_libvirt, require_writable
from vgpuctl.operations.plans import vgpus as plans
from vgpuctl.operations.plans.results import planned_vgpu, vgpu_result, with_companions
from vgpuctl.operations.transaction import Owner, Transaction
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, extend, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

VGPU_SCOPE = ReadScope(types=True, models=False)


def list_vgpus(host: Host, *, unassigned: bool = False) -> QueryResult[tuple[ListedVgpuResult, ...]]:
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
    records = {vm.uuid: vm.record for vm in snapshot.vms if vm.record is not None}
    results = []
    for vgpu in listed:
        record = records.get(vgpu.vm_uuid or "")
        of_vm = {"owner": record.owner if record else None, "labels": record.labels if record else {}}
        if vgpu.name is not None:
            results.append(extend(ListedVgpuResult, host_vgpu_result(entries[vgpu.name], vgpu), **of_vm))
        else:
            results.append(extend(ListedVgpuResult, vgpu_result(vgpu), hostdev=None, usage=(), **of_vm))
    return QueryResult(with_companions(results), (*snapshot.warnings, *plans.carrier_conflicts(snapshot)))


def host_vgpu_result(entry: HostVgpu, vgpu: Vgpu) -> NamedVgpuResult:
    """Return the result of a vGPU of host.yaml: its location, and the element for a VM's definition."""
    return _with_hostdev(vgpu_result(vgpu), plans.assigned_from_entry(entry, vgpu))


def _with_hostdev(result: VgpuResult, vgpu: AssignedVgpu) -> NamedVgpuResult:
    return extend(
        NamedVgpuResult,
        result,
        hostdev=plans.hostdev_element(vgpu),
        usage=backend_for(vgpu.backend).usage_commands(vgpu),
    )


class NewVgpu(Value):
    """A new vGPU without a VM; nothing is written yet. It can be made by a transaction."""

    seen: Snapshot
    request: VmRequest
    name: str
    vm_uuid: str

    @property
    def scope(self) -> ReadScope:
        """What to read in order to choose it."""
        return scope_of_request(self.request)

    @property
    def owner(self) -> Owner:
        """The vGPU's own name."""
        (vgpu,) = self.choose(self.seen)
        owner, record = plans.placeholder_owner(self.seen.machine_id, self.name, vgpu)
        return Owner(owner.name, record, is_new_name=True)

    def choose(self, seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Return the vGPU."""
        plans.refuse_unreadable_entries(seen)
        plans.refuse_existing_name(seen, self.name)
        return (plans.choose_vgpu(seen, self.request, self.vm_uuid),)

    def plan(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps after the claim."""
        return plans.vgpu_creation_plan(seen, self.name, vgpus[0])


def create_vgpu(host: Host, context: Context, request: VmRequest) -> Outcome[NamedVgpuResult]:
    """Create a vGPU without a VM; if the driver of a GPU refuses, the next GPU is tried.

    Raises:
        VgpuctlError: the reason; everything created was removed again.
    """
    require_writable(host, context)
    name = request.name or f"vgpu-{host.new_uuid()[:8]}"
    named_request = replace(request, name=name)
    owner = host_vgpu_owner(host.machine_id, name)

    def prepare(tx: Transaction) -> NewVgpu:
        snapshot = tx.look(scope_of_request(named_request))
        require_system_libvirt(snapshot)
        plans.refuse_unreadable_entries(snapshot)
        plans.refuse_existing_name(snapshot, name)
        refuse_claimed_name(host, owner)
        return NewVgpu(snapshot, named_request, name, owner)

    with Transaction(host, context) as tx:
        made = tx.make(prepare)
    (vgpu,), snapshot = made.vgpus, made.making.seen
    if context.dry_run:
        return Outcome(True, _planned_result(name, vgpu, present=False), made.steps, snapshot.warnings, dry_run=True)
    return _report_vgpu(host, snapshot, name, vgpu, made.steps)


def _lines(steps: tuple[Step, ...]) -> tuple[str, ...]:
    return tuple(step.describe() for step in steps)


def _claims(host: Host, name: str, vgpu: AssignedVgpu) -> tuple[Claim, ...]:
    owner, record = plans.placeholder_owner(host.machine_id, name, vgpu)
    return claims_of_record(host, owner.name, record)


def _planned_result(name: str, vgpu: AssignedVgpu, *, present: bool) -> NamedVgpuResult:
    return _with_hostdev(replace(planned_vgpu(vgpu, None, present=present), name=name), vgpu)


def _report_vgpu(
    host: Host, before: Snapshot, name: str, vgpu: AssignedVgpu, steps: tuple[str, ...]
) -> Outcome[NamedVgpuResult]:
    """Observe the host again and report the vGPU as it is now; a failure to observe is a warning, not an error."""
    scope = ReadScope(types=True, models=False, gpu_addresses=frozenset({vgpu.gpu}), type_ids=frozenset())
    expected = _planned_result(name, vgpu, present=True)
    try:
        current = observe_devices(host, scope, vms=before.vms, status=before.hypervisor)
    except VgpuctlError as error:
        warning = f"the change is done, but the host could not be checked again: {error}"
        return Outcome(True, expected, steps, (*before.warnings, warning))
    match = next((v for v in current.vgpus if v.name == name), None)
    data = expected if match is None else _with_hostdev(vgpu_result(match), vgpu)
    return Outcome(True, data, steps, current.warnings)


def delete_vgpu(host: Host, context: Context, name: str) -> Outcome[VgpuResult]:
    """Remove a vGPU without a VM that no VM refers to: its device, its entry in host.yaml, its claim.

    Raises:
        InUse: a VM refers to it, or a process holds it; nothing was changed.
        Busy: another command changed its entry since it was shown for confirmation.
        VgpuctlError: the reason; the same command again removes what is left.
    """
    require_writable(host, context)
    snapshot, entry, vgpu = _observe_vgpu(host, name)
    _, shown_vgpu = plans.find_named_vgpu(snapshot, name)
    refuse_stuck_gpus(snapshot, [entry.gpu])
    unproven = plans.unproven_carrier(snapshot, entry, vgpu)
    plan = plans.vgpu_removal_plan(host.machine_id, entry, vgpu, unproven)
    if context.dry_run:
        return Outcome(True, vgpu_result(shown_vgpu), _lines(plan.steps), snapshot.warnings, plan.notes, dry_run=True)
    context.confirm(f"Delete vGPU {name} ({entry.profile} on GPU {entry.gpu})?", _lines(plan.steps))
    with Transaction(host, context) as tx:
        tx.take_over(_claims(host, name, vgpu))
        _, current_entry, vgpu = _observe_vgpu(host, name)
        if current_entry != entry:
            raise Busy(f"vGPU {name} of host.yaml has just been changed", hint="run the command again", vgpu=name)
        plan = plans.vgpu_removal_plan(host.machine_id, entry, vgpu, unproven)
        tx.carry_out(plan)
    removed = replace(vgpu_result(shown_vgpu), present=False)
    return Outcome(True, removed, _lines(plan.steps), snapshot.warnings, plan.notes)


def _observe_vgpu(host: Host, name: str) -> tuple[Snapshot, HostVgpu, AssignedVgpu]:
    """Observe the host and return the unused vGPU of that name: its entry, and in the form that steps need."""
    snapshot = observe(host, VGPU_SCOPE)
    require_system_libvirt(snapshot)
    plans.refuse_unreadable_entries(snapshot)
    entry, vgpu = plans.find_named_vgpu(snapshot, name)
    plans.refuse_used_vgpu(snapshot, entry)
    return snapshot, entry, plans.assigned_from_entry(entry, vgpu)


def ensure_vgpu(
    host: Host, context: Context, request: VmRequest, *, state: str
) -> Outcome[EnsuredVgpuResult | AbsentVgpuResult]:
    """Bring a vGPU without a VM to `state` ("present", "absent") and report before and after.

    A request with only a name is enough for a vGPU that exists, and for one that must be absent.

    Raises:
        InvalidInput: it does not exist, and the request has no profile.
        Exists: host.yaml keeps it and its device is missing.
        SpecDiffers: it exists with another profile, on another GPU, or with other parameters; or its device
            differs from host.yaml.
    """
    name = request.name or ""
    snapshot = observe(
        host,
        ReadScope(types=bool(request.profiles), models=bool(request.gpu or request.not_gpu)),
    )
    plans.refuse_unreadable_entries(snapshot)
    if all(entry.name != name for entry in snapshot.host_vgpus):
        if state == "absent":
            return Outcome(False, AbsentVgpuResult(name), warnings=snapshot.warnings, dry_run=context.dry_run)
        if not request.profiles:
            raise InvalidInput(
                f"vGPU {name} does not exist, and cannot be created without a profile",
                hint="use --profile PROFILE; vgpuctl list-profiles shows the profiles of this host",
                vgpu=name,
            )
        created = create_vgpu(host, context, request)
        return _with_sides(created, None, replace(created.data, present=True))
    entry, device = plans.find_named_vgpu(snapshot, name)
    current = host_vgpu_result(entry, device)
    if state == "absent":
        deleted = delete_vgpu(host, context, name)
        return _with_sides(deleted, current, None)
    plans.refuse_different_request(snapshot, entry, request)
    plans.refuse_changed_device(snapshot, entry, device)
    if not device.present:
        plans.refuse_existing_name(snapshot, name)
    return _with_sides(Outcome(False, current, warnings=snapshot.warnings, dry_run=context.dry_run), current, current)


def _with_sides(
    outcome: Outcome[VgpuResult], before: NamedVgpuResult | None, after: NamedVgpuResult | None
) -> Outcome[EnsuredVgpuResult]:
    return with_data(outcome, extend(EnsuredVgpuResult, outcome.data, before=before, after=after))
