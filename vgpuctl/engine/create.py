# SPDX-License-Identifier: Apache-2.0
"""Create a VM: read the host, plan, claim, execute, read the VM again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.config.vm_fields import DEFAULT_PLACEMENT_POLICY
from vgpuctl.domain.render import render_domain
from vgpuctl.engine.claim import claim_carriers, claims_of_record
from vgpuctl.engine.execute import execute_plan
from vgpuctl.engine.facts import demand_warnings, gather_host_facts
from vgpuctl.engine.guards import require_system_libvirt, require_writable
from vgpuctl.engine.report_vm import report_vm
from vgpuctl.engine.vm_in_progress import vm_in_progress
from vgpuctl.errors import Exists, NoCapacity, VgpuctlError
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.request import DomainDesign, PlacementSpec, VmRequest
from vgpuctl.model.sizes import format_mib
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, DiskRole
from vgpuctl.observe import observe, scope_of_request
from vgpuctl.plan.choose import choose_vgpus, vm_name
from vgpuctl.plan.create import design_domain, reserves_slots, vm_creation_plan
from vgpuctl.plan.facts import HostFacts, check_facts
from vgpuctl.plan.report import planned_vgpu
from vgpuctl.plan.reserve import tentative_placement
from vgpuctl.ports.step import Plan
from vgpuctl.steps.claims import TakeClaim
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class PreparedVm(Value):
    """A planned new VM; nothing is written yet."""

    snapshot: Snapshot
    request: VmRequest
    uuid: str
    facts: HostFacts
    design: DomainDesign
    warnings: tuple[str, ...]
    exclude: frozenset[str]
    start: bool


def prepare_vm(
    host: Host, request: VmRequest, exclude: frozenset[str] = frozenset(), *, start: bool = True
) -> PreparedVm:
    """Read the host and plan a new VM; whatever prevents it is raised before anything is written."""
    uuid = host.new_uuid()
    snapshot = observe(host, scope_of_request(request))
    require_system_libvirt(snapshot)
    refuse_existing_vm(snapshot, vm_name(request, uuid))
    has_slots = reserves_slots(request, start=start)
    vgpus = (
        choose_vgpus(snapshot, request, uuid, exclude) if has_slots else tentative_placement(snapshot, request, uuid)
    )
    facts = gather_host_facts(host, snapshot, request, vgpus)
    warnings = (*check_facts(snapshot, request, vgpus, facts), *demand_warnings(host, snapshot, request))
    design = design_domain(snapshot, request, facts, uuid, vgpus)
    return PreparedVm(snapshot, request, uuid, facts, design, warnings, exclude, start)


def refuse_existing_vm(snapshot: Snapshot, name: str) -> None:
    """Refuse a name that a VM already has.

    Raises:
        Exists: with the VM and what to do.
    """
    vm = snapshot.vm(name)
    if vm is not None:
        raise Exists(
            f"a VM {name} exists already ({vm.state})",
            hint=f"choose another name, or vgpuctl show-vm {name}",
            vm=name,
            uuid=vm.uuid,
        )


def render_xml(host: Host, request: VmRequest) -> str:
    """Return the domain XML that create-vm would define; writes nothing."""
    prepared = prepare_vm(host, request)
    return render_domain(prepared.design, prepared.facts.template)


def create_vm(
    host: Host,
    request: VmRequest,
    *,
    start: bool,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Create a VM that does not exist yet; if a GPU's driver refuses, the other GPUs are tried.

    Raises:
        VgpuctlError: the reason; everything created has been undone.
    """
    if not dry_run:
        require_writable(host)
    exclude: frozenset[str] = frozenset()
    refused: NoCapacity | None = None
    while True:
        try:
            prepared = prepare_vm(host, request, exclude, start=start)
        except VgpuctlError:
            if refused is not None:
                raise refused from None
            raise
        if dry_run:
            return _dry_run_outcome(host, prepared)
        try:
            return _create(host, prepared, wait_seconds=wait_seconds, progress=progress)
        except NoCapacity as error:
            gpu = error.facts.get("gpu")
            if not isinstance(gpu, str) or "errno" not in error.facts or gpu in exclude:
                raise
            refused, exclude = error, exclude | {gpu}


def _dry_run_outcome(host: Host, prepared: PreparedVm) -> Outcome:
    has_slots = reserves_slots(prepared.request, start=prepared.start)
    claims = claims_of_record(host, prepared.design.name, prepared.design.record) if has_slots else ()
    plan = vm_creation_plan(prepared.snapshot, prepared.request, prepared.facts, prepared.design, start=prepared.start)
    steps = (*(TakeClaim(c).describe() for c in claims), *(s.describe() for s in plan.steps))
    design = prepared.design
    data: dict[str, object] = {
        "name": design.name,
        "uuid": design.uuid,
        "state": "absent",
        "vgpus": [planned_vgpu(v, design.name) for v in design.record.vgpus],
        "disks": _planned_disks(design),
        "sources": field_sources(prepared.request, prepared.snapshot.placement_spec),
    }
    return Outcome(True, data, steps, prepared.warnings, plan.notes, dry_run=True)


def field_sources(request: VmRequest, placement: PlacementSpec) -> Mapping[str, object]:
    """Return the value and the source of every field. `placement`: the placement settings of host.yaml."""
    values: dict[str, object] = {
        "memory": format_mib(request.memory_mib),
        "vcpus": request.vcpus,
        "image": request.image,
        "network": request.network,
        "os": request.os,
        "storage_pool": request.storage_pool,
        "mode": request.mode,
        "hotplug_slots": request.hotplug_slots,
        "pci_window": request.pci_window,
        "template": request.template,
        "reserve": request.reserve,
    }
    if request.cloud_init is not None:
        values["cloud_init"] = request.cloud_init.path
    sources = dict(request.sources)
    if request.mode != "passthrough":
        values["placement"] = request.constraints.policy or placement.policy or DEFAULT_PLACEMENT_POLICY
        default_source = "host.yaml" if placement.policy is not None else "default"
        sources["placement"] = "command-line" if request.constraints.policy is not None else default_source
    return {name: {"value": value, "source": sources.get(name, "default")} for name, value in values.items()}


def _create(host: Host, prepared: PreparedVm, *, wait_seconds: float, progress: Progress) -> Outcome:
    snapshot, design, held = _claim_slots(host, prepared, wait_seconds)
    plan = _plan_or_release(host, held, snapshot, prepared, design)
    with vm_in_progress(host, () if held else (design.uuid,)):
        notes = execute_plan(host, plan, progress, held)
    return report_vm(
        host,
        _unobserved_value(design, present=bool(held)),
        held,
        plan,
        (*prepared.warnings, *notes),
        sources=field_sources(prepared.request, prepared.snapshot.placement_spec),
    )


def _claim_slots(
    host: Host, prepared: PreparedVm, wait_seconds: float
) -> tuple[Snapshot, DomainDesign, tuple[TakeClaim, ...]]:
    """Claim the slots of a new VM; one that reserves none while it is off is defined as planned."""
    request, uuid = prepared.request, prepared.uuid
    if not reserves_slots(request, start=prepared.start):
        return prepared.snapshot, prepared.design, ()
    snapshots = iter([prepared.snapshot])

    def next_snapshot() -> Snapshot:
        return next(snapshots, None) or observe(host, scope_of_request(request))

    def design_with(vgpus: tuple[AssignedVgpu, ...]) -> DomainDesign:
        return design_domain(prepared.snapshot, request, prepared.facts, uuid, vgpus)

    def make_claims(vgpus: tuple[AssignedVgpu, ...]) -> tuple[Claim, ...]:
        design = design_with(vgpus)
        return claims_of_record(host, design.name, design.record)

    def choose(snapshot: Snapshot) -> tuple[AssignedVgpu, ...]:
        return choose_vgpus(snapshot, request, uuid, prepared.exclude)

    snapshot, vgpus, held = claim_carriers(host, next_snapshot, choose, make_claims, wait_seconds)
    return snapshot, design_with(vgpus), held


def _plan_or_release(
    host: Host,
    held: tuple[TakeClaim, ...],
    snapshot: Snapshot,
    prepared: PreparedVm,
    design: DomainDesign,
) -> Plan:
    """Make the plan; if even that fails (a template), release the claims."""
    try:
        return vm_creation_plan(snapshot, prepared.request, prepared.facts, design, start=prepared.start)
    except BaseException:
        for step in reversed(held):
            step.undo(host)
        raise


def _unobserved_value(design: DomainDesign, *, present: bool) -> dict[str, object]:
    """Return what is known of a VM just created, for the case that the host can no longer be read."""
    return {
        "name": design.name,
        "uuid": design.uuid,
        "state": "unknown",
        "vgpus": [planned_vgpu(v, design.name) | {"present": present} for v in design.record.vgpus],
        "disks": _planned_disks(design),
    }


def _planned_disks(design: DomainDesign) -> list[dict[str, object]]:
    return [
        {
            "path": d.path,
            "size_bytes": d.capacity_bytes or None,
            "base": d.base,
            "device": "cdrom" if d.role is DiskRole.SEED else "disk",
            "made": True,
        }
        for d in design.record.disks
    ]
