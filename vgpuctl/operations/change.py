# SPDX-License-Identifier: Apache-2.0
"""Change a VM in place: the `LABEL_FIELDS` at any time, the `UPDATABLE_FIELDS` while it is off.

It claims the new carrier, removes the old device and creates the new one. Then one call of libvirt defines the VM with
the new device and the new record, and the old claim is released. A crash before that call leaves a claim that no VM's
record names; a crash after it leaves the old claim. reconcile removes both. If the crash left the VM without its
device, starting the VM creates it. A VM that reserves its slots only while it runs gets neither claim nor device here;
one that is changed to reserve them always gets both.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import (
    CONSTRAINT_FIELDS,
    FIELDS,
    GUEST_FIELDS,
    LABEL_FIELDS,
    SECRET_FIELDS,
    VmRequest,
    request_of_record,
    requested_values,
    with_constraints,
)
from vgpuctl.errors import Busy, InUse, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import UNRESPONSIVE_STATES, AssignedVgpu, Claim, Vm, VmRecord, VmState
from vgpuctl.observe import ReadScope, observe, scope_of_vm
from vgpuctl.observe.guest_drivers import read_guest_driver
from vgpuctl.operations.attach import scope_of_profiles
from vgpuctl.operations.claim import claims_of_record
from vgpuctl.operations.facts import host_memory_mib, read_guest_host, read_topology
from vgpuctl.operations.guards import (
    find_vm,
    find_vm_to_change,
    refuse_busy_vm,
    refuse_change,
    refuse_changed_vm,
    refuse_stuck_gpus,
    refuse_unfinished,
    refuse_vgpus_in_other_vms,
    require_system_libvirt,
    require_writable,
)
from vgpuctl.operations.guest_setup import changed_setup
from vgpuctl.operations.leftovers import read_domain_leftovers, refuse_managed_save
from vgpuctl.operations.place_and_start import read_domain_xml
from vgpuctl.operations.plans.change import VgpuChanges, diff_vgpus, expand_profiles, with_recorded_fields
from vgpuctl.operations.plans.facts import refuse_excess_memory
from vgpuctl.operations.plans.guest_devices import HostTopology, check_nics
from vgpuctl.operations.plans.guest_driver import check_guest_driver
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.reserve import request_from_record, with_slot
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.plans.vm_diff import current_values, describe_differences, vm_gpu_types, with_all_labels
from vgpuctl.operations.plans.vm_update import (
    MoveTarget,
    VmUpdate,
    choose_update_vgpus,
    redefine_step,
    update_steps,
    updated_vm_result,
)
from vgpuctl.operations.render_node import other_render_node
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.attach import WriteRecord
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.steps.seed import WriteSetup
from vgpuctl.operations.transaction import Owner, Transaction
from vgpuctl.placement.constraints import allowed_addresses
from vgpuctl.ports.step import Plan
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def change_vm(
    host: Host, context: Context, request: VmRequest, fields: Set[str], *, assume_off: bool = False
) -> Outcome[VmReport]:
    """Set these fields (of `UPDATABLE_FIELDS` and `LABEL_FIELDS`) of the request's VM to the requested values.

    `assume_off`: plan a running VM as it will be when it was shut down; only for a dry run.

    Raises:
        InUse: it runs, and not only its labels and its owner change.
        VgpuctlError: the reason; the VM is unchanged.
    """
    require_writable(host, context)
    if fields <= set(LABEL_FIELDS):
        return _change_labels(host, context, request, fields)
    changed_fields = frozenset(fields)
    scope = _scope_of_fields(request, changed_fields)
    if "memory" in fields:
        refuse_excess_memory(request.memory_mib, host_memory_mib(host))

    def prepare(snapshot: Snapshot) -> VmUpdate:
        if assume_off:
            snapshot = _with_vm_off(snapshot, request, changed_fields)
        return _build_update(host, context, snapshot, request, changed_fields)

    update = prepare(observe(host, replace(scope, vm=request.name)))  # enough to see whether anything changes
    if "gpu" in fields and update.vm.render_node is not None:  # but not where QEMU may draw
        update = prepare(observe(host, scope))
    if (
        not update.vgpu_changes.removed
        and update.render_node is None
        and not update.vgpu_changes.added_profiles
        and not update.changed_fields - {"profile", "gpu"}
    ):
        return Outcome(
            False, vm_result(update.snapshot, update.vm), warnings=update.snapshot.warnings, dry_run=context.dry_run
        )
    return _make_update(host, prepare, scope, context)


def _change_labels(host: Host, context: Context, request: VmRequest, fields: Set[str]) -> Outcome[VmReport]:
    """Give the request's VM its labels and its owner, those of them that are in `fields`.

    Raises:
        InvalidInput: the VM would have too many labels.
        Unmanaged: vgpuctl has no record of the VM.
        Busy: another vgpuctl works on it.
    """
    snapshot = observe(host, scope_of_vm(request.name or ""))
    vm = find_vm_to_change(context, snapshot, request.name or "")
    whole = with_all_labels(vm, request)

    def build(record: VmRecord) -> tuple[VmRecord, str]:
        before, after = current_values(vm, whole), requested_values(whole)
        changes = describe_differences({name: before[name] for name in fields}, after)
        return with_recorded_fields(vm, record, whole, fields), f"change VM {vm.name}: {changes}"

    setup = None
    if fields & {*GUEST_FIELDS}:
        setup = partial(changed_setup, host, context, snapshot, vm, renew=fields & {*SECRET_FIELDS})
    return change_record(host, context, snapshot, vm.name, build, setup)


def change_record(
    host: Host,
    context: Context,
    snapshot: Snapshot,
    name: str,
    build: Callable[[VmRecord], tuple[VmRecord, str]],
    setup: Callable[[VmRecord], tuple[WriteSetup, tuple[str, ...]]] | None = None,
) -> Outcome[VmReport]:
    """Change only the record of a VM, whatever its state. `build` returns the new one, and the step in words.

    `setup`: returns what sets up the guest as the new record says, and warnings.

    Raises:
        Unmanaged: vgpuctl has no record of the VM.
        Busy: another vgpuctl works on it.
        VgpuctlError: as `build`.
    """
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "change")
    refuse_unfinished(vm, record)
    new_record, what = build(record)
    if new_record == record:
        return Outcome(False, vm_result(snapshot, vm), warnings=snapshot.warnings, dry_run=context.dry_run)
    plan = Plan((WriteRecord(vm.name, vm.uuid, new_record, record, what),))
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    if setup is not None:
        first, warnings = setup(new_record)
        notes = (f"the guest of {vm.name} gets it at its next boot",) if first.unread else ()
        plan = replace(plan, steps=(first, *plan.steps))  # the record last: the same command again finishes a crash
    steps = tuple(step.describe() for step in plan.steps)
    result = vm_result(snapshot, replace(vm, record=new_record))
    if context.dry_run:
        return Outcome(True, result, steps, (*snapshot.warnings, *warnings), notes, dry_run=True)
    with Transaction(host, context) as tx:
        tx.note(vm.name, vm.uuid)
        refuse_busy_vm(host, vm)
        if context.if_generation is not None:  # of two requests for the same generation one gets the claims
            held = replace(record, vgpus=with_slot(snapshot, vm, record))
            tx.take_over(claims_of_record(host, vm.name, held), include_missing=False)
        refuse_changed_vm(host, context, vm)
        tx.carry_out(plan)
    return report_vm(host, result, steps, notes, warnings)


def move_vgpu(host: Host, context: Context, name: str, carrier: str, target: MoveTarget) -> Outcome[VmReport]:
    """Create a vGPU of a stopped VM elsewhere, and switch the VM over to it.

    Raises:
        InUse: the VM runs.
        Busy: the VM no longer has this vGPU.
        NoCapacity: its new slot is no longer free.
        VgpuctlError: the reason; the VM is unchanged.
    """
    require_writable(host, context)

    def prepare(snapshot: Snapshot) -> VmUpdate:
        return _build_move_update(host, context, snapshot, name, carrier, target)

    return _make_update(host, prepare, ReadScope(types=True), context)


def _build_move_update(
    host: Host, context: Context, snapshot: Snapshot, name: str, carrier: str, target: MoveTarget
) -> VmUpdate:
    """Return the checked VM update that moves a vGPU of a stopped VM; nothing is placed yet."""
    vm, record = require_changeable_vm(context, snapshot, name, "place")
    old = next((v for v in record.vgpus if v.carrier == carrier), None)
    if old is None or old.profile is None:
        raise Busy(f"{vm.name} no longer has {carrier}", hint="run the command again", vm=vm.name)
    refuse_stuck_gpus(snapshot, [target.gpu])
    refuse_managed_save(host, vm)
    changes = VgpuChanges(tuple(v for v in record.vgpus if v is not old), (old,), (old.profile,))
    move_request = with_constraints(request_from_record(vm, record, (old,)), GpuConstraints(gpus=(target.gpu,)))
    request = _request_for_added(move_request, record, changes)
    xml = read_domain_xml(host, vm, dry_run=False)
    return VmUpdate(snapshot, vm, record, request, frozenset({"profile"}), changes, xml, record.reserve, (), target)


class _UpdateMaking(Value):
    """A VM update with what to read for it; a transaction can make it."""

    update: VmUpdate
    scope: ReadScope
    old_claims: tuple[Claim, ...]

    @property
    def seen(self) -> Snapshot:
        """The snapshot from which it was built."""
        return self.update.snapshot

    @property
    def owner(self) -> Owner:
        """The VM; it gets claims if it reserves its slots after the change."""
        update = self.update
        held, leaving = update.vgpus_with_slot, bool(self.old_claims)
        begins_to_reserve = update.reserves_slots and update.record.reserve_while_running  # then all are chosen
        keeps = () if begins_to_reserve else update.vgpu_changes.kept
        return Owner(
            update.vm.name, update.record, update.vm, held, keeps, leaving=leaving, reserves=update.reserves_slots
        )

    def choose(self, seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Return the vGPUs that it adds, if the definition with them is possible; else nothing is claimed."""
        chosen = choose_update_vgpus(seen, self.update)
        redefine_step(self.update, chosen)
        return chosen

    def plan(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps after the claims."""
        steps = update_steps(seen, self.update, vgpus, self.old_claims)
        return Plan(steps, vms_required_off=(self.update.vm.uuid,))


def _make_update(
    host: Host, build: Callable[[Snapshot], VmUpdate], scope: ReadScope, context: Context
) -> Outcome[VmReport]:
    """Choose and claim the new slots, then carry the update out; in a dry run, only report what would be done."""

    def prepare(tx: Transaction) -> _UpdateMaking:
        update = build(tx.look(scope))
        removed = {v.carrier for v in (*update.vgpu_changes.removed, *update.freed_vgpus)}
        held_record = replace(update.record, vgpus=update.vgpus_with_slot)
        claims = claims_of_record(host, update.vm.name, held_record)
        return _UpdateMaking(update, scope, tuple(c for c in claims if c.carrier in removed))

    with Transaction(host, context) as tx:
        made = tx.make(prepare)
    update = made.making.update
    if context.dry_run:
        return Outcome(True, updated_vm_result(update, made.vgpus), made.steps, update.warnings, dry_run=True)
    return report_vm(host, vm_result(update.snapshot, update.vm), made.steps, warnings=update.warnings)


def _scope_of_fields(request: VmRequest, fields: frozenset[str]) -> ReadScope:
    if fields & {"reserve", "gpu"}:
        return ReadScope(types=True, every_function=True)
    return scope_of_profiles(request) if "profile" in fields else scope_of_vm(request.name or "")


def _build_update(
    host: Host, context: Context, snapshot: Snapshot, request: VmRequest, fields: frozenset[str]
) -> VmUpdate:
    """Read the VM and refuse what cannot be changed. A dry run reads the definition without its secrets."""
    vm, record = require_changeable_vm(context, snapshot, request.name or "", ", ".join(sorted(fields)))
    request = with_all_labels(vm, request)
    if "networks" in fields:
        check_nics(snapshot, request.nics, read_guest_host(host, request), own_uuid=vm.uuid)
    if "display" in fields and request.display and not record.vgpus:
        raise Refused(f"{vm.name} has no vGPU whose screen could be shown", vm=vm.name)
    topology = read_topology(host) if fields & {"cpu_pin", "hugepages", "memory"} else HostTopology()
    changes = VgpuChanges(record.vgpus, (), ())
    if "profile" in fields:
        changes = diff_vgpus(vm, record, expand_profiles(request), vm_gpu_types(snapshot, vm))
        _refuse_whole_devices(vm, record)
    if "gpu" in fields:
        _refuse_whole_devices(vm, record)
        allowed = allowed_addresses(snapshot, request.constraints)
        changes = changes.moving([v for v in changes.kept if v.gpu not in allowed])
    if changes.removed or changes.added_profiles:
        refuse_managed_save(host, vm)
        request = _request_for_added(request, record, changes)
    xml = read_domain_xml(host, vm, dry_run=context.dry_run)
    reserve = request.reserve if "reserve" in fields else record.reserve
    is_saved = read_domain_leftovers(host, vm).managed_save
    frees_slots = "reserve" in fields and reserve == "running" and not is_saved
    freed = changes.kept if frees_slots else ()
    setup: WriteSetup | None = None
    warnings: tuple[str, ...] = ()
    if fields & {*GUEST_FIELDS}:
        new_record = with_recorded_fields(vm, record, request, fields)
        setup, warnings = changed_setup(host, context, snapshot, vm, new_record, renew=fields & {*SECRET_FIELDS})
    driver = None
    if "guest_driver" in fields and request.guest_driver is not None:
        driver = read_guest_driver(host, request.guest_driver)
        machine = host.hypervisor.capabilities().arch
        warnings = (*warnings, *check_guest_driver(snapshot, driver, record.vgpus, machine, request.os))
    if is_saved and fields != {"reserve"}:
        warnings = (*warnings, f"{vm.name} is saved: it goes on as it was, and the change holds from its next boot on")
    update = VmUpdate(
        snapshot, vm, record, request, fields, changes, xml, reserve, freed, None, topology, setup, driver, warnings
    )
    if "gpu" in fields:
        return replace(update, render_node=other_render_node(host, snapshot, vm, request))
    return update


def _with_vm_off(snapshot: Snapshot, request: VmRequest, fields: frozenset[str]) -> Snapshot:
    """Return the snapshot in which a running VM is off and keeps its slots: the change must have room among the others.

    A VM that reserves its slots only while it runs gives them up when it is shut down, and is to run again afterwards.
    """
    vm = find_vm(snapshot, request.name or "")
    record = vm.record
    if record is not None and "reserve" not in fields:
        record = replace(record, reserve="always")
    off = replace(vm, state=VmState.STOPPED, record=record)
    return replace(snapshot, vms=tuple(off if other.uuid == vm.uuid else other for other in snapshot.vms))


def require_changeable_vm(context: Context, snapshot: Snapshot, name: str, what: str) -> tuple[Vm, VmRecord]:
    """Return a VM that may be changed now, and its record."""
    vm = find_vm(snapshot, name)
    require_system_libvirt(snapshot)
    refuse_change(context, vm)
    record = own_record(vm, "change")
    refuse_unfinished(vm, record)
    if vm.state not in STOPPED_STATES:
        raise must_be_off_error(vm, what)
    refuse_stuck_gpus(snapshot, [v.gpu for v in record.vgpus])
    refuse_vgpus_in_other_vms(snapshot, vm, with_slot(snapshot, vm, record))
    return vm, record


def must_be_off_error(vm: Vm, what: str, *, can_drain: bool = False) -> InUse:
    """Return the error for a change of a VM that runs. `can_drain`: the command has --drain."""
    by_drain = "; or add --drain" if can_drain and vm.state not in UNRESPONSIVE_STATES else ""
    return InUse(
        f"{vm.name} is {vm.state}; its {what} can be changed only while it is off",
        hint=f"{hint_commands.off_command(vm)}, then run the command again{by_drain}",
        vm=vm.name,
        state=str(vm.state),
    )


def _refuse_whole_devices(vm: Vm, record: VmRecord) -> None:
    whole_devices = [v.carrier for v in record.vgpus if v.profile is None]
    if whole_devices:
        raise Refused(
            f"{vm.name} has {', '.join(whole_devices)}, which is not a vGPU and has no profile",
            hint=f"vgpuctl detach-vgpu {vm.name}, then vgpuctl attach-vgpu {vm.name} --profile PROFILE",
            vm=vm.name,
        )


def _request_for_added(request: VmRequest, record: VmRecord, changes: VgpuChanges) -> VmRequest:
    """Return the request for the added vGPUs alone. What it does not give comes from the VM's record."""
    recorded = request_of_record(record.request_fields)
    counts = {profile: changes.added_profiles.count(profile) for profile in changes.added_profiles}
    where = {name: getattr(recorded, name) for name in CONSTRAINT_FIELDS if not FIELDS[name].is_given(request)}
    return replace(request, mode="vgpu", profiles=tuple(counts.items()), vgpu_params=recorded.vgpu_params, **where)
