# SPDX-License-Identifier: Apache-2.0
"""Start a VM that reserves its slots only while it runs, wherever there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claim_carriers, claims_of_record, release_unused_claims, take_over_claims
from vgpuctl.engine.execute import execute_plan
from vgpuctl.engine.facts import find_gpu_holders
from vgpuctl.engine.guards import refuse_busy_vm, refuse_gpus_in_setup, refuse_stuck_gpus
from vgpuctl.engine.report_vm import report_vm
from vgpuctl.errors import Busy, NotFound
from vgpuctl.model.gpu import Backend
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, Vm, VmRecord
from vgpuctl.observe import observe, scope_of_request
from vgpuctl.plan.carrier_move import move_steps
from vgpuctl.plan.devices import check_devices, missing_device_steps, uses_force_console
from vgpuctl.plan.facts import refuse_open_gpu
from vgpuctl.plan.report import vm_value
from vgpuctl.plan.reserve import choose_slots, request_from_record, with_slot
from vgpuctl.ports.step import Plan, Step
from vgpuctl.steps.claims import TakeClaim
from vgpuctl.steps.domain import STOPPED_STATES, StartDomain
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def place_and_start(
    host: Host,
    vm: Vm,
    record: VmRecord,
    exclude: frozenset[str],
    *,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Start a VM that reserves its slots only while it runs: in its recorded slots if free, else in other free ones.

    The order is: claim, create the devices, switch the definition over, start. A crash in between leaves claims and
    devices of a stopped VM, which reconcile removes.
    """
    scope = scope_of_request(request_from_record(vm, record, record.vgpus))
    snapshot = observe(host, scope)
    first_snapshot = iter([snapshot])

    def take_snapshot() -> Snapshot:
        return next(first_snapshot, None) or observe(host, scope)

    def choose(current: Snapshot) -> tuple[AssignedVgpu, ...]:
        return choose_slots(current, vm, record, exclude)

    def build_claims(slots: tuple[AssignedVgpu, ...]) -> tuple[Claim, ...]:
        refuse_busy_vm(host, vm)
        return claims_of_record(host, vm.name, replace(record, vgpus=slots))

    if dry_run:
        slots = choose(snapshot)
        plan = _plan(host, snapshot, vm, record, slots, dry_run=True)
        all_steps = (*(TakeClaim(c) for c in build_claims(slots)), *plan.steps)
        return Outcome(True, vm_value(snapshot, vm), tuple(s.describe() for s in all_steps), dry_run=True)
    _, slots, claim_steps = claim_carriers(host, take_snapshot, choose, build_claims, wait_seconds)
    try:
        held_record = replace(record, vgpus=with_slot(snapshot, vm, record))
        claim_steps = (
            *claim_steps,
            *take_over_claims(host, claims_of_record(host, vm.name, held_record), wait_seconds, snapshot=snapshot),
        )
        snapshot = observe(host, scope)
        _refuse_changed(snapshot, vm)
        plan = _plan(host, snapshot, vm, record, slots, dry_run=False)
    except BaseException:
        release_unused_claims(host, claim_steps)
        raise
    warnings = execute_plan(host, plan, progress, claim_steps)
    return report_vm(host, vm_value(snapshot, vm), claim_steps, plan, warnings)


def _refuse_changed(snapshot: Snapshot, vm: Vm) -> None:
    """Refuse a VM that another command deleted, changed or started before its claims were taken."""
    current_vm = snapshot.vm(vm.uuid)
    if current_vm is None:
        raise deleted_meanwhile(vm)
    if current_vm.record != vm.record or current_vm.hostdevs != vm.hostdevs or current_vm.state not in STOPPED_STATES:
        raise Busy(f"{vm.name} was changed or started meanwhile", hint="run the command again", vm=vm.name)


def _plan(
    host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord, slots: tuple[AssignedVgpu, ...], *, dry_run: bool
) -> Plan:
    """Return the steps after the claims: create devices, change the definition if a slot changed, start."""
    target_record = replace(record, vgpus=_in_record_order(record, with_slot(snapshot, vm, record), slots))
    refuse_stuck_gpus(snapshot, [v.gpu for v in target_record.vgpus])
    refuse_gpus_in_setup(snapshot, [v.gpu for v in target_record.vgpus])
    recheck_devices(host, snapshot, target_record)
    steps: list[Step] = [*missing_device_steps(snapshot, vm, target_record)]
    if target_record != record:
        steps += move_steps(vm, record, target_record, read_domain_xml(host, vm, dry_run=dry_run))
    return Plan((*steps, StartDomain(vm.name, vm.uuid)), vms_required_off=(vm.uuid,))


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


def deleted_meanwhile(vm: Vm) -> NotFound:
    """Return the error for a VM that another command deleted between two snapshots."""
    return NotFound(
        f"there is no VM {vm.name} any more: it was deleted just now",
        hint="vgpuctl list-vms shows those there are",
        vm=vm.name,
    )


def recheck_devices(host: Host, snapshot: Snapshot, record: VmRecord) -> None:
    """Repeat the checks of creation: since then the host may have rebooted, or taken the device itself."""
    check_devices(snapshot, record)
    passthrough_gpus = tuple(v for v in record.vgpus if v.backend is Backend.PASSTHROUGH)
    if passthrough_gpus:
        refuse_open_gpu(
            passthrough_gpus[0].gpu, find_gpu_holders(host, passthrough_gpus), force_console=uses_force_console(record)
        )
