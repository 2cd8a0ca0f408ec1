# SPDX-License-Identifier: Apache-2.0
"""Attach vGPUs or whole GPUs to a VM that exists and detach them; also when vgpuctl did not create it.

vGPUs also while it runs; whole GPUs can be attached only while it is off (`plans.whole_gpus`).

Attaching: claim, record, create, attach. Detaching does the same in reverse, and waits for the guest. A crash in
between leaves a record that names a vGPU to which the VM does not refer: reconcile removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.domain.record import record_after
from vgpuctl.errors import Busy, HostCannot, InUse, NoCapacity, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Vm, VmRecord, VmState
from vgpuctl.observe import ReadScope, observe, scope_of_request, scope_of_vm
from vgpuctl.observe.ownership import RECORD_LOST
from vgpuctl.operations.facts import find_gpu_holders, read_bars_mib
from vgpuctl.operations.guards import (
    find_vm_to_change,
    refuse_stuck_gpus,
    refuse_unfinished,
    refuse_vgpus_in_other_vms,
    require_writable,
)
from vgpuctl.operations.leftovers import refuse_managed_save
from vgpuctl.operations.place_and_start import read_domain_xml
from vgpuctl.operations.plans import change, whole_gpus
from vgpuctl.operations.plans.facts import refuse_open_gpus
from vgpuctl.operations.plans.remove import own_record, unproven_carriers
from vgpuctl.operations.plans.reserve import hypothetical_empty, with_slot
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.plans.whole_gpus import topology_notes
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.attach import require_free_ports
from vgpuctl.operations.transaction import Owner, Transaction
from vgpuctl.ports.step import Plan
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

LIVE_STATES = (VmState.RUNNING, VmState.PAUSED)


class Attachment(Value):
    """vGPUs or whole GPUs for a VM that exists; nothing is written yet. It can be made by a transaction."""

    host: Host
    seen: Snapshot
    vm: Vm
    record: VmRecord
    request: VmRequest
    live: bool
    dry_run: bool

    @property
    def scope(self) -> ReadScope:
        """What to read in order to choose them."""
        return scope_of_addition(self.request)

    @property
    def owner(self) -> Owner:
        """The VM; one that is off and reserves its slots only while it runs gets no claims."""
        held = with_slot(self.seen, self.vm, self.record)
        reserves = self.live or not self.record.reserve_while_running
        return Owner(self.vm.name, self.record, self.vm, held, self.record.vgpus, reserves=reserves)

    def choose(self, seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        """Return the new vGPUs; without a claim they may be tentative."""
        if self.owner.reserves:
            return change.choose_added_vgpus(seen, self.request, self.record)
        try:
            return change.choose_added_vgpus(self._with_own(seen), self.request, self.record)
        except (NoCapacity, InUse, HostCannot):
            return change.choose_added_vgpus(self._with_own(hypothetical_empty(seen)), self.request, self.record)

    def _with_own(self, seen: Snapshot) -> Snapshot:
        return change.with_taken(seen, self.vm, self.record.vgpus)

    def plan(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps that give them to the VM."""
        if self.request.mode != "vgpu":
            return self._plan_gpus(seen, vgpus)
        profiles = change.expand_profiles(self.request)
        steps = change.attach_steps(seen, self.vm, self.record, profiles, vgpus, live=self.live)
        return Plan(steps, vms_required_off=() if self.live else (self.vm.uuid,))

    def _plan_gpus(self, seen: Snapshot, vgpus: tuple[AssignedVgpu, ...]) -> Plan:
        """Return the steps that give whole GPUs to the VM, with a PCI window that has room for all that it has then."""
        refuse_open_gpus(find_gpu_holders(self.host, vgpus), force_console=self.request.force_console)
        names = self.request.gpu or tuple(dict.fromkeys(v.gpu for v in vgpus))
        record = change.record_with_vgpus(self.record, (*self.record.vgpus, *vgpus))
        record = change.with_gpu_fields(record, names)
        if self.request.force_console:
            record = change.with_request_fields(record, force_console=True)
        if self.request.force_reset:
            record = change.with_request_fields(record, force_reset=True)
        xml = read_domain_xml(self.host, self.vm, dry_run=self.dry_run)
        bars = read_bars_mib(self.host, record.vgpus)
        window, notes = whole_gpus.window_steps(seen, self.vm, record, xml, bars)
        vm = replace(self.vm, record=record_after(self.record, self.vm.record)) if window else self.vm
        steps = change.attach_steps(seen, vm, self.record, (), vgpus, live=False, new_record=record)
        notes = (*topology_notes(self.seen, record.vgpus), *notes)
        return Plan((*window, *steps), notes=notes, vms_required_off=(self.vm.uuid,))


def attach(host: Host, context: Context, request: VmRequest) -> Outcome[VmReport]:
    """Attach the requested profiles or whole GPUs to the VM; if a GPU's driver refuses, the other GPUs are tried.

    Raises:
        VgpuctlError: the reason; everything created has been undone.
    """
    require_writable(host, context)
    with Transaction(host, context) as tx:
        made = tx.make(lambda tx: _prepare(host, context, tx.look(scope_of_addition(request)), request))
    before = vm_result(made.making.seen, made.making.vm)
    notes = made.plan.notes
    if context.dry_run:
        return Outcome(True, before, made.steps, notes=notes, dry_run=True)
    return report_vm(host, before, made.steps, notes)


def scope_of_addition(request: VmRequest) -> ReadScope:
    """Return the scope to read in order to place what is added."""
    return scope_of_profiles(request) if request.mode == "vgpu" else scope_of_request(request)


def scope_of_profiles(request: VmRequest) -> ReadScope:
    """Return the scope to read in order to place the requested profiles."""
    return ReadScope(types=True, profiles=frozenset(text for text, _ in request.profiles))


def _prepare(host: Host, context: Context, snapshot: Snapshot, request: VmRequest) -> Attachment:
    vm = find_vm_to_change(context, snapshot, request.name or "")
    record = _attachable_record(snapshot, vm)
    live = _is_live(vm)
    if not live:
        refuse_managed_save(host, vm)
    if request.mode != "vgpu":
        whole_gpus.refuse_adding_gpus(vm, record, live=live)
    elif live:
        domain = host.hypervisor.find_domain(vm.uuid)
        needed = len(change.expand_profiles(request))
        require_free_ports(vm.name, domain.live_xml if domain else None, needed, hint_commands.stop_command(vm))
    return Attachment(host, snapshot, vm, record, request, live, context.dry_run)


def _attachable_record(snapshot: Snapshot, vm: Vm) -> VmRecord:
    """Return the VM's current record; an empty one for a VM that vgpuctl did not create.

    Raises:
        Unmanaged: its record is a copy, or cannot be parsed.
        Busy: a change of it is unfinished, it waits for a place, or it has lost its record.
    """
    record = change.own_record_or_new(vm, snapshot.machine_id)
    if vm.record is not None:
        refuse_unfinished(vm, vm.record)
        if vm.record.waiting_vgpus():  # its definition refers to a place that may be free, and is not its own
            raise Busy(f"{vm.name} waits for a place", hint="vgpuctl reconcile-host assigns one", vm=vm.name)
        refuse_stuck_gpus(snapshot, [v.gpu for v in vm.record.vgpus])
        refuse_vgpus_in_other_vms(snapshot, vm, with_slot(snapshot, vm, vm.record))
    elif any(v.vm_uuid == vm.uuid and v.reason == RECORD_LOST for v in snapshot.vgpus):
        raise Busy(f"{vm.name} has lost its record", hint="vgpuctl reconcile-host restores it", vm=vm.name)
    return record


def _is_live(vm: Vm) -> bool:
    if vm.state not in (*LIVE_STATES, VmState.STOPPED):
        raise Refused(
            f"{vm.name} is {vm.state}: its devices can be changed while it runs or is off",
            hint=hint_commands.stop_command(vm, force=True),
            vm=vm.name,
        )
    return vm.state in LIVE_STATES


def _refuse_unplugging_display(vm: Vm, vgpus: Sequence[AssignedVgpu]) -> None:
    """Refuse to take away a running VM's display: QEMU has another device for it, which cannot be unplugged."""
    shown = {h.carrier for h in vm.hostdevs if h.display} & {v.carrier for v in vgpus}
    if shown:
        raise InUse(
            f"the screen of {min(shown)} is {vm.name}'s console, and QEMU cannot unplug such a device",
            hint=f"stop the VM first: {hint_commands.stop_command(vm)}",
            vm=vm.name,
            carrier=min(shown),
        )


def detach(
    host: Host, context: Context, name: str, carriers: Sequence[str] = (), *, gpus: Sequence[str] = ()
) -> Outcome[VmReport]:
    """Detach vGPUs from a VM, its only one if no carrier is named, and remove them; or with `gpus` these whole GPUs.

    Raises:
        InvalidInput: no carrier is named, and the VM has several vGPUs.
        Busy: the guest of a running VM did not release one in time; that vGPU stays present, recorded and claimed.
        VgpuctlError: the reason.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "remove vGPUs from")
    refuse_unfinished(vm, record)
    removed = whole_gpus.select_whole_gpus(vm, record, gpus) if gpus else change.select_vgpus(vm, record, carriers)
    refuse_stuck_gpus(snapshot, [v.gpu for v in removed])
    refuse_vgpus_in_other_vms(snapshot, vm, with_slot(snapshot, vm, record))
    if _is_live(vm):
        _refuse_unplugging_display(vm, removed)
    else:
        refuse_managed_save(host, vm)
    unproven = unproven_carriers(snapshot, vm, record)
    plan = Plan(change.detach_steps(vm, record, removed, unproven, context.wait_seconds), undo_on_failure=False)
    steps = tuple(s.describe() for s in plan.steps)
    if context.dry_run or not removed:
        return Outcome(bool(removed), vm_result(snapshot, vm), steps, snapshot.warnings, dry_run=context.dry_run)
    held = replace(record, vgpus=with_slot(snapshot, vm, record))
    with Transaction(host, context) as tx:
        tx.take_over_vm(vm, held, scope_of_vm(vm.uuid), leaving=True)
        tx.carry_out(plan)
    return report_vm(host, vm_result(snapshot, vm), steps)
