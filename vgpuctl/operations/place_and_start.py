# SPDX-License-Identifier: Apache-2.0
"""Place a VM wherever there is room, and start it: it does not always reserve its slots, or cannot have them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.backends import backend_for
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.domain_xml import has_no_video
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.request import DesignHostdev
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, Vm, VmRecord
from vgpuctl.observe import ReadScope, scope_of_request
from vgpuctl.observe.claims import refuse_concurrent_command
from vgpuctl.observe.definition import find_unreferenced_vgpus, lost_text, refuse_changed_definition
from vgpuctl.operations.devices import find_displaced
from vgpuctl.operations.facts import find_gpu_holders
from vgpuctl.operations.guards import refuse_gpus_in_setup, refuse_stuck_gpus, refuse_vgpus_in_other_vms
from vgpuctl.operations.plans.change import design_hostdev
from vgpuctl.operations.plans.devices import check_devices, missing_device_steps, uses_force_console
from vgpuctl.operations.plans.displaced import without_displaced
from vgpuctl.operations.plans.facts import refuse_open_gpus
from vgpuctl.operations.plans.reserve import choose_slots, request_from_record, with_slot
from vgpuctl.operations.plans.vm_results import vm_result
from vgpuctl.operations.plans.vm_update import MoveTarget, choose_slot_at_target
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.attach import RedefineDomain
from vgpuctl.operations.steps.domain import StartDomain
from vgpuctl.operations.transaction import Owner, Transaction, deleted_meanwhile
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class Start(Value):
    """A VM that is off and lacks slots, with a look for them; a transaction can make it.

    `target`: the only place for a vGPU that waits for one. `start` False: the VM stays off. `displaced`: the carriers
    whose recorded slot cannot come back.
    """

    host: Host
    seen: Snapshot
    scope: ReadScope
    vm: Vm
    record: VmRecord
    dry_run: bool
    target: MoveTarget | None
    start: bool
    displaced: frozenset[str]

    @property
    def owner(self) -> Owner:
        """The VM."""
        held = with_slot(*without_displaced(self.seen, self.vm, self.record, self.displaced))
        return Owner(self.vm.name, self.record, self.vm, held)

    def choose(self, seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Return a slot for each of its vGPUs without one."""
        seen, vm, record = without_displaced(seen, self.vm, self.record, self.displaced)
        if self.target is None:
            return choose_slots(seen, vm, record)
        return choose_slot_at_target(seen, vm, record, self.target)

    def plan(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps after the claims."""
        seen, _, waiting = without_displaced(seen, self.vm, self.record, self.displaced)
        kept = with_slot(seen, self.vm, waiting)
        record = replace(self.record, vgpus=_in_record_order(self.record, kept, vgpus))
        return _plan(self.host, seen, self.vm, self.record, record, dry_run=self.dry_run, start=self.start)


def place_and_start(
    host: Host, context: Context, vm: Vm, record: VmRecord, *, target: MoveTarget | None = None, start: bool = True
) -> Outcome[VmReport]:
    """Start a VM in its recorded slots if they are free and still exist, else in other free ones.

    The order is: claim, create the devices, switch the definition over, start. A crash in between leaves claims and
    devices of a stopped VM. reconcile removes those that it reserves only while it runs, and completes a vGPU that
    waits for a place.

    `target`: the only place for a vGPU that waits for one. `start` False: the VM stays off.
    """
    scope = scope_of_request(request_from_record(vm, record, record.vgpus))

    def prepare(tx: Transaction) -> Start:
        seen = tx.look(scope)
        displaced = frozenset(find_displaced(host, seen, record))
        if not context.dry_run:
            _drop_claims(host, context, vm, [c for c in seen.claims if c.carrier in displaced])
        return Start(host, seen, scope, vm, record, context.dry_run, target, start, displaced)

    with Transaction(host, context) as tx:
        made = tx.make(prepare)
    before = vm_result(made.making.seen, vm)
    if context.dry_run:
        return Outcome(True, before, made.steps, dry_run=True)
    return report_vm(host, before, made.steps, warnings=made.warnings)


def _drop_claims(host: Host, context: Context, vm: Vm, claims: Sequence[Claim]) -> None:
    """Remove a VM's claims on slots that cannot come back: their devices are gone, and an mdev keeps its UUID."""
    if claims:
        with host.claims.lock(context.wait_seconds):
            refuse_concurrent_command(host, vm.name, vm.uuid)
            context.subjects.add_claims(claims)
            for claim in claims:
                host.claims.remove(claim.carrier, vm.uuid)


def _plan(
    host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord, target_record: VmRecord, *, dry_run: bool, start: bool
) -> Plan:
    """Return the steps after the claims: create devices, change the definition if a slot changed, start."""
    refuse_stuck_gpus(snapshot, [v.gpu for v in target_record.vgpus])
    refuse_gpus_in_setup(snapshot, [v.gpu for v in target_record.vgpus])
    recheck_devices(host, snapshot, target_record)
    refuse_changed_definition(vm, record, snapshot.gpus)
    refuse_vgpus_in_other_vms(snapshot, vm, target_record.vgpus)
    steps: list[Step] = [*missing_device_steps(snapshot, vm, target_record)]
    steps += definition_steps(host, vm, record, target_record, dry_run=dry_run)
    steps += [StartDomain(vm.name, vm.uuid)] if start else []
    return Plan(tuple(steps), vms_required_off=(vm.uuid,))


def definition_steps(
    host: Host, vm: Vm, record: VmRecord, target_record: VmRecord, *, dry_run: bool
) -> tuple[Step, ...]:
    """Return the step that writes a changed record and puts back the vGPUs that the definition lacks, if any."""
    if target_record == record and not find_unreferenced_vgpus(vm, record):
        return ()
    return move_steps(vm, record, target_record, read_domain_xml(host, vm, dry_run=dry_run))


def _in_record_order(record: VmRecord, *parts: tuple[AssignedVgpu, ...]) -> tuple[AssignedVgpu, ...]:
    """Return the vGPUs of `parts` in the record's order, each index once."""
    by_index = {v.index: v for part in parts for v in part}
    return tuple(by_index[v.index] for v in record.vgpus)


def read_domain_xml(host: Host, vm: Vm, *, dry_run: bool) -> str:
    """Return a VM's definition for a change; it includes secrets only if the VM will be defined again.

    Raises:
        NotFound: the VM was deleted.
    """
    if not dry_run:
        return host.hypervisor.definition(vm.uuid)
    domain = host.hypervisor.find_domain(vm.uuid)
    if domain is None:
        raise deleted_meanwhile(vm)
    return domain.xml


def recheck_devices(host: Host, snapshot: Snapshot, record: VmRecord) -> None:
    """Repeat the checks of creation: since then the host may have rebooted, or taken the device itself."""
    check_devices(snapshot, record)
    passthrough_gpus = tuple(v for v in record.vgpus if backend_for(v.backend).takes_whole_gpu)
    if passthrough_gpus:
        refuse_open_gpus(find_gpu_holders(host, passthrough_gpus), force_console=uses_force_console(record))


def move_steps(vm: Vm, old_record: VmRecord, new_record: VmRecord, xml: str) -> tuple[Step, ...]:
    """Return the step that redefines a VM; both records name the same vGPUs in the same order.

    An mdev keeps its UUID on any GPU, so only the record changes. A vGPU that the definition lacks is put back.
    """
    lost = {v.carrier for v in find_unreferenced_vgpus(vm, old_record)}
    pairs = list(zip(old_record.vgpus, new_record.vgpus, strict=True))
    hostdev_changes = tuple(
        (None if old.carrier in lost else old.carrier, _hostdev_of(new, new_record, xml))
        for old, new in pairs
        if old.carrier != new.carrier or old.carrier in lost
    )
    descriptions = tuple(_describe_change(old, new) for old, new in pairs if old != new)
    descriptions += tuple(f"put back {lost_text((new,))}" for old, new in pairs if old.carrier in lost)
    record = None if old_record == new_record else new_record
    new_xml = edit_domain(xml, DomainEdit(hostdev_changes=hostdev_changes, record=record))
    return (RedefineDomain(vm.name, vm.uuid, new_xml, xml, descriptions),)


def _hostdev_of(vgpu: AssignedVgpu, record: VmRecord, xml: str) -> DesignHostdev:
    """Return the hostdev of a vGPU; a VM without a video card shows the screen of its first one."""
    return replace(design_hostdev(vgpu, record), display=vgpu == record.vgpus[0] and has_no_video(xml))


def _describe_change(old: AssignedVgpu, new: AssignedVgpu) -> str:
    name, before = old.profile or old.backend, "no place" if old.waits_for_place else old.function
    return f"{name}: {before} -> {new.function}"
