# SPDX-License-Identifier: Apache-2.0
"""Create a VM: read the host, plan, claim, execute, read the VM again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import DEFAULT_PLACEMENT_POLICY
from vgpuctl.config.vm_request import FIELDS, VmRequest
from vgpuctl.domain.render import render_domain
from vgpuctl.errors import Exists
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.request import DomainDesign, PlacementSpec
from vgpuctl.model.results.vms import ChangedVmResult, DiskResult, PlannedVmResult, SourceResult, StateWord
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, DiskRole, VmState
from vgpuctl.observe import ReadScope, observe, scope_of_request
from vgpuctl.operations.facts import gather_host_facts
from vgpuctl.operations.guards import require_system_libvirt, require_writable
from vgpuctl.operations.plans.choose import choose_vgpus, vm_name
from vgpuctl.operations.plans.create import check_network_configs, design_domain, reserves_slots, vm_creation_plan
from vgpuctl.operations.plans.facts import HostFacts, check_facts
from vgpuctl.operations.plans.reserve import tentative_placement
from vgpuctl.operations.plans.vgpu_results import planned_vgpu
from vgpuctl.operations.report_vm import add_to_vm, report_vm
from vgpuctl.operations.transaction import Owner, Transaction
from vgpuctl.ports.step import Plan
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class PreparedVm(Value):
    """A planned new VM; nothing is written yet. It can be made by a transaction."""

    seen: Snapshot
    request: VmRequest
    uuid: str
    facts: HostFacts
    design: DomainDesign
    warnings: tuple[str, ...]
    start: bool

    @property
    def scope(self) -> ReadScope:
        """What to read in order to choose its vGPUs."""
        return scope_of_request(self.request)

    @property
    def owner(self) -> Owner:
        """The VM; one that reserves no slots while it is off gets no claims."""
        reserves = reserves_slots(self.request, start=self.start)
        return Owner(self.design.name, self.design.record, is_new=True, reserves=reserves)

    def choose(self, seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Return the vGPUs of the design, or those for a later snapshot."""
        return self.design.record.vgpus if seen is self.seen else choose_vgpus(seen, self.request, self.uuid)

    def design_with(self, vgpus: tuple[AssignedVgpu, ...]) -> DomainDesign:
        """Return the domain with these vGPUs."""
        return design_domain(self.seen, self.request, self.facts, self.uuid, vgpus)

    def plan(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps that make it with these vGPUs."""
        return vm_creation_plan(seen, self.request, self.facts, self.design_with(vgpus), start=self.start)


def prepare_vm(host: Host, look: Callable[[ReadScope], Snapshot], request: VmRequest, *, start: bool) -> PreparedVm:
    """Read the host and plan a new VM; whatever prevents it is raised before anything is written."""
    uuid = host.new_uuid()
    snapshot = look(scope_of_request(request))
    require_system_libvirt(snapshot)
    refuse_existing_vm(snapshot, vm_name(request, uuid))
    has_slots = reserves_slots(request, start=start)
    vgpus = choose_vgpus(snapshot, request, uuid) if has_slots else tentative_placement(snapshot, request, uuid)
    facts = gather_host_facts(host, snapshot, request, vgpus)
    warnings = (*check_facts(snapshot, request, vgpus, facts), *check_network_configs(snapshot, [request]))
    design = design_domain(snapshot, request, facts, uuid, vgpus)
    return PreparedVm(snapshot, request, uuid, facts, design, warnings, start)


def refuse_existing_vm(snapshot: Snapshot, name: str) -> None:
    """Refuse a name that a VM already has.

    Raises:
        Exists: with the VM and what to do.
    """
    vm = snapshot.vm(name)
    if vm is not None:
        raise Exists(
            f"a VM {name} already exists ({vm.state})",
            hint=f"choose another name, or vgpuctl show-vm {name}",
            vm=name,
            uuid=vm.uuid,
        )


def render_xml(host: Host, request: VmRequest) -> str:
    """Return the domain XML that create-vm would define; writes nothing."""
    prepared = prepare_vm(host, partial(observe, host), request, start=True)
    return render_domain(prepared.design, prepared.facts.template)


def create_vm(
    host: Host, context: Context, request: VmRequest, *, start: bool
) -> Outcome[ChangedVmResult | PlannedVmResult]:
    """Create a VM that does not exist yet; if a GPU's driver refuses, the other GPUs are tried.

    Raises:
        VgpuctlError: the reason; everything created has been undone.
    """
    require_writable(host, context)

    def prepare(tx: Transaction) -> PreparedVm:
        prepared = prepare_vm(host, tx.look, request, start=start)
        if not prepared.owner.reserves:
            tx.note(prepared.owner.name, prepared.uuid)
        return prepared

    with Transaction(host, context) as tx:
        made = tx.make(prepare)
    prepared, design = made.making, made.making.design_with(made.vgpus)
    sources = field_sources(request, prepared.seen.placement_spec)
    if context.dry_run:
        planned = replace(_planned_vm(design, "absent", present=False), sources=sources)
        return Outcome(True, planned, made.steps, prepared.warnings, made.plan.notes, dry_run=True)
    unobserved = _planned_vm(design, VmState.UNKNOWN, present=prepared.owner.reserves)
    outcome = report_vm(host, unobserved, made.steps, made.plan.notes, (*prepared.warnings, *made.warnings))
    return add_to_vm(outcome, sources=sources)


def field_sources(request: VmRequest, placement: PlacementSpec) -> Mapping[str, SourceResult]:
    """Return the value and the source of every field. `placement`: the placement settings of host.yaml."""
    values = {
        name: field.shown(value)
        for name, field in FIELDS.items()
        if field.shown is not None and (value := getattr(request, field.attribute)) is not field.empty
    }
    sources = dict(request.sources)
    if request.mode != "vgpu":
        values["gpus"] = request.gpus
    if request.mode != "passthrough":
        values["placement"] = request.placement or placement.policy or DEFAULT_PLACEMENT_POLICY
        default_source = "host.yaml" if placement.policy is not None else "default"
        sources["placement"] = "command-line" if request.placement is not None else default_source
    return {name: SourceResult(value, sources.get(name, "default")) for name, value in values.items()}


def _planned_vm(design: DomainDesign, state: StateWord, *, present: bool) -> PlannedVmResult:
    """Return what is known of a VM from its design: not made yet, or just made and the host cannot be read."""
    return PlannedVmResult(
        name=design.name,
        uuid=design.uuid,
        state=state,
        vgpus=tuple(planned_vgpu(v, design.name, present=present) for v in design.record.vgpus),
        disks=tuple(
            DiskResult(
                path=d.path,
                device="cdrom" if d.role is DiskRole.SEED else "disk",
                size_bytes=d.capacity_bytes or None,
                base=d.base,
                copied_from=d.copied_from,
                made=True,
            )
            for d in design.record.disks
        ),
    )
