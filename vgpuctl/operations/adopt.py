# SPDX-License-Identifier: Apache-2.0
"""Adopt VMs that another program made with a vGPU, a VF or a whole GPU, and let them go again. Nothing restarts.

Adopting: claim, record. Letting go: record, release the claims. A crash in between leaves claims that are marked as
adopted, of a VM without a record: reconcile releases them, and touches neither the devices nor the VM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config import rules
from vgpuctl.domain.domain_xml import parse_hostdevs
from vgpuctl.errors import Busy
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Vm, VmRecord
from vgpuctl.observe import ReadScope, observe, scope_of_vm
from vgpuctl.observe.definition import refuse_changed_definition
from vgpuctl.observe.mdevctl import MdevctlStart, find_definition
from vgpuctl.observe.pci import find_absent
from vgpuctl.operations.claim import claims_of_record
from vgpuctl.operations.guards import (
    deleted_meanwhile,
    find_vm_to_change,
    refuse_stuck_gpus,
    refuse_unfinished,
    require_writable,
)
from vgpuctl.operations.plans import adopt as plans
from vgpuctl.operations.plans.change import own_record_or_new
from vgpuctl.operations.plans.choose import refuse_invalid_host_file
from vgpuctl.operations.plans.remove import own_record, refuse_transient_vms
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

SCOPE = ReadScope(types=True)
"""An mdev's GPU is known only when all are read."""


class Adoption(Value):
    """What a VM's record says once it is adopted, the vGPUs that are new in it, and notes for the user."""

    record: VmRecord
    vgpus: tuple[AssignedVgpu, ...]
    notes: tuple[str, ...] = ()


def adopt(host: Host, context: Context, name: str) -> Outcome[VmReport]:
    """Manage a VM that another program made: record and claim the vGPUs, VFs and whole GPUs that it has.

    Nothing else of the VM changes, and it may run. A VM that is managed already stays as it is.

    Raises:
        Unmanaged: its record is a copy, or cannot be read.
        Refused: it has nothing to adopt, or something that vgpuctl cannot manage.
        InUse: another VM has one of its devices.
        HostCannot: one of its devices does not exist now.
        Busy: another vgpuctl works on it.
    """
    require_writable(host, context)
    snapshot = observe(host, SCOPE)
    vm = find_vm_to_change(context, snapshot, name)
    adoption = _plan_adoption(host, snapshot, vm)
    if adoption is None:
        return Outcome(False, vm_result(snapshot, vm), warnings=snapshot.warnings, dry_run=context.dry_run)
    added = replace(adoption.record, vgpus=adoption.vgpus)
    steps = _lines(host, vm, adoption, added)
    if context.dry_run:
        return Outcome(True, vm_result(snapshot, vm), steps, snapshot.warnings, adoption.notes, dry_run=True)
    with Transaction(host, context) as tx:
        current = tx.take_over_vm(vm, added, SCOPE, snapshot)
        _refuse_changed_devices(host, current, vm, adoption)
        tx.carry_out(Plan((plans.write_step(vm, adoption.record),)))
    return report_vm(host, vm_result(snapshot, vm), steps, adoption.notes)


def _plan_adoption(host: Host, snapshot: Snapshot, vm: Vm) -> Adoption | None:
    """Return what adopting a VM means; None for a VM that is managed already.

    Raises:
        VgpuctlError: as `adopt`.
    """
    record = own_record_or_new(vm, snapshot.machine_id)
    if record.created_vm:
        return None
    refuse_unfinished(vm, record)
    refuse_invalid_host_file(snapshot)
    refuse_transient_vms((vm,))
    vgpus = _find_vgpus(host, snapshot, vm, record)
    if not vgpus:
        if record.vgpus:
            return None
        raise plans.no_device_error(vm)
    refuse_stuck_gpus(snapshot, [v.gpu for v in vgpus])
    params, notes = _read_params(host, vgpus)
    adopted = plans.adopted_record(record, vgpus, params)
    refuse_changed_definition(vm, adopted, snapshot.gpus)
    return Adoption(adopted, adopted.vgpus[len(record.vgpus) :], notes)


def _find_vgpus(host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord) -> tuple[AssignedVgpu, ...]:
    """Return the devices of a VM that can be adopted, after everything that prevents it."""
    hostdevs = plans.new_hostdevs(vm, record)
    vgpus = plans.choose_adopted(snapshot, vm, record)
    definitions = {h.carrier: find_definition(host.sysfs, h.carrier) for h in hostdevs if h.kind == "mdev"}
    for uuid in plans.find_absent_mdevs(snapshot, hostdevs):
        raise plans.missing_mdev_error(vm, uuid, is_defined=definitions[uuid] is not None)
    if not vgpus:
        for function in sorted(find_absent(host.sysfs, plans.find_other_functions(snapshot, hostdevs))):
            raise plans.missing_function_error(vm, function)
    for uuid in (uuid for uuid, start in definitions.items() if start is MdevctlStart.AUTO):
        raise plans.autostart_error(vm, uuid)
    configured = _configured_carriers(host, vm)
    for vgpu in (v for v in vgpus if v.carrier not in configured):
        raise plans.live_only_error(vm, vgpu.carrier)
    return vgpus


def _configured_carriers(host: Host, vm: Vm) -> frozenset[str]:
    """Return what a VM's definition names; a running VM may have more."""
    if vm.live_carriers is None:
        return frozenset(h.carrier for h in vm.hostdevs)
    domain = host.hypervisor.find_domain(vm.uuid)
    if domain is None:
        raise deleted_meanwhile(vm)
    return frozenset(h.carrier for h in parse_hostdevs(domain.xml))


def _read_params(host: Host, vgpus: tuple[AssignedVgpu, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the plugin parameters of vGPUs by carrier, and a note for each whose parameters are not understood."""
    params: dict[str, str] = {}
    notes: list[str] = []
    for vgpu in (v for v in vgpus if v.profile is not None):
        bus = "pci" if ":" in vgpu.carrier else "mdev"
        path = f"/sys/bus/{bus}/devices/{vgpu.carrier}/nvidia/vgpu_params"
        try:
            words = host.sysfs.read(path).replace(",", " ").split()
            params[vgpu.carrier] = ",".join(f"{key}={value}" for key, value in rules.vgpu_params(words).items())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            notes.append(f"the plugin parameters of {vgpu.carrier} are not kept: {path}: {reason}")
    return params, tuple(notes)


def _lines(host: Host, vm: Vm, adoption: Adoption, added: VmRecord) -> tuple[str, ...]:
    """Return the steps as text."""
    claims = claims_of_record(host, vm.name, added)
    steps = (*(TakeClaim(claim) for claim in claims), plans.write_step(vm, adoption.record))
    return tuple(step.describe() for step in steps)


def _refuse_changed_devices(host: Host, current: Snapshot, vm: Vm, adoption: Adoption) -> None:
    """Check, with the claims in hand, that the devices are as planned: somebody may have removed or taken one.

    Raises:
        VgpuctlError: as `adopt`.
        Busy: they are others now.
    """
    by_carrier = {v.carrier: v for v in current.vgpus}
    for planned in adoption.vgpus:
        vgpu = by_carrier.get(planned.carrier)
        if vgpu is None or plans.is_another_device(current, planned, vgpu):
            raise Busy(
                f"{planned.carrier} of {vm.name} was removed or changed in the meantime",
                hint="run the command again",
                vm=vm.name,
                carrier=planned.carrier,
            )
        plans.refuse_other_users(current, vm, vgpu)


def release(host: Host, context: Context, name: str) -> Outcome[VmReport]:
    """Let an adopted VM go: its record and claims are removed, the VM and its devices stay as they are.

    A VM without a record stays as it is.

    Raises:
        Unmanaged: its record is a copy, or cannot be read.
        Refused: vgpuctl created it, or attached a vGPU to it.
        Busy: another vgpuctl works on it.
    """
    require_writable(host, context)
    scope = scope_of_vm(name)
    snapshot = observe(host, scope)
    vm = find_vm_to_change(context, snapshot, name)
    if vm.record is None and vm.copied_record is None and not vm.has_unreadable_record:
        plans.refuse_lost_record(vm, snapshot.vgpus)
        return Outcome(False, vm_result(snapshot, vm), warnings=snapshot.warnings, dry_run=context.dry_run)
    record = own_record(vm, "change")
    refuse_unfinished(vm, record)
    plans.require_released(vm, record)
    claims = claims_of_record(host, vm.name, record)
    plan = Plan(plans.release_record_steps(vm, record, claims))
    steps = tuple(step.describe() for step in plan.steps)
    if context.dry_run:
        return Outcome(True, vm_result(snapshot, vm), steps, snapshot.warnings, dry_run=True)
    with Transaction(host, context) as tx:
        tx.take_over_vm(vm, record, scope_of_vm(vm.uuid), snapshot)
        tx.carry_out(plan)
    return report_vm(host, vm_result(snapshot, vm), steps)
