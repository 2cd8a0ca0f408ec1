# SPDX-License-Identifier: Apache-2.0
"""Start, stop, reboot and delete VMs that vgpuctl created.

A VM that reboots keeps its QEMU, and so its vGPUs, their placements and its claims; libvirt runs no hook. Its reset is
an event of libvirt (VIR_DOMAIN_EVENT_ID_REBOOT). When its agent answered before, it is waited for again.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.errors import (
    HostCannot,
    Interrupted,
    InUse,
    LibvirtFailed,
    NoCapacity,
    NotRebooted,
    PartlyApplied,
    Refused,
    Stale,
    VgpuctlError,
)
from vgpuctl.model import hint_commands
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.port_values import RebootOutcome
from vgpuctl.model.results.vms import KeptDiskResult, PlannedVmResult, VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm, VmRecord, VmState
from vgpuctl.observe import ReadScope, observe, observe_devices, scope_of_vm
from vgpuctl.operations.claim import claims_of_record
from vgpuctl.operations.deleted_disks import prepare_bins, with_bin_entry
from vgpuctl.operations.devices import MissingDevices
from vgpuctl.operations.guards import (
    deleted_meanwhile,
    find_vm_to_change,
    refuse_busy_vm,
    refuse_change,
    refuse_changed_vm,
    refuse_moving,
    refuse_start_between,
    refuse_stuck_gpus,
    refuse_unfinished,
    refuse_unresponsive_vm,
    refuse_vgpus_in_other_vms,
    require_writable,
)
from vgpuctl.operations.images import refuse_shared_deletion
from vgpuctl.operations.leftovers import read_domain_leftovers
from vgpuctl.operations.limits import count_removal
from vgpuctl.operations.place_and_start import Redefinition, place_and_start
from vgpuctl.operations.plans.remove import (
    disks_to_delete,
    own_record,
    refuse_transient_vms,
    release_steps,
    unproven_carriers,
    vm_removal_plan,
)
from vgpuctl.operations.plans.reserve import with_slot
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.domain import RUNNING_STATES, STOPPED_STATES, StopDomain, find_missing_resources
from vgpuctl.operations.steps.volume_bin import refuse_pool_without_bin
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


RESET_SECONDS = 10.0
"""The least time in which libvirt must report a reset; it takes milliseconds."""
_PAUSE_SECONDS = 1.0


def start_vm(host: Host, context: Context, name: str) -> Outcome[VmReport]:
    """Start a VM; vGPUs that are missing, as after a reboot, are created again first."""
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "start")
    refuse_unfinished(vm, record)
    refuse_start_between(vm)
    if vm.state not in STOPPED_STATES:
        if not context.dry_run:
            host.claims.remove_drained_vm(vm.uuid)
        warnings = (*lost_vgpu_warnings(snapshot, vm), *snapshot.warnings)
        return Outcome(False, vm_result(snapshot, vm), warnings=warnings, dry_run=context.dry_run)
    try:
        cached = _with_types(host, snapshot, vm, record) if record.always_reserves else None
        outcome = place_and_start(host, context, vm, record, cached=cached)
    except VgpuctlError as error:
        running_outcome = (
            None
            if context.dry_run or error.left or isinstance(error, (Interrupted, Stale))
            else _report_started(host, vm)
        )
        if running_outcome is None:
            raise
        outcome = running_outcome
    if not context.dry_run:
        host.claims.remove_drained_vm(vm.uuid)
    return outcome


def place_vm(host: Host, context: Context, name: str) -> Outcome[VmReport]:
    """Give a VM that is off other slots in place of those that cannot come back; it stays off."""
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "place")
    refuse_unfinished(vm, record)
    if vm.state not in STOPPED_STATES:
        return Outcome(False, vm_result(snapshot, vm))
    return place_and_start(host, context, vm, record, start=False)


def _report_started(host: Host, vm: Vm) -> Outcome[VmReport] | None:
    """Return the outcome for a VM that another program started; None unless it runs with everything it should have."""
    with suppress(VgpuctlError):
        domain = host.hypervisor.find_domain(vm.uuid)
        if domain is not None and domain.state in RUNNING_STATES and not find_missing_resources(host, domain):
            snapshot, current_vm = reobserve_vm(host, vm)
            warnings = (f"another program started VM {vm.name}", *snapshot.warnings)
            return Outcome(False, vm_result(snapshot, current_vm), warnings=warnings)
    return None


def reobserve_vm(host: Host, vm: Vm) -> tuple[Snapshot, Vm]:
    """Observe a VM again after its claims were taken: another vgpuctl may have changed it meanwhile.

    Raises:
        NotFound: it was deleted.
    """
    snapshot = observe(host, scope_of_vm(vm.uuid))
    current_vm = snapshot.vm(vm.uuid)
    if current_vm is None:
        raise deleted_meanwhile(vm)
    return snapshot, current_vm


def _with_types(host: Host, snapshot: Snapshot, vm: Vm, record: VmRecord) -> Snapshot:
    """Return a snapshot with all GPUs of the VM and, if one of its devices must be created, their types."""
    has_gpus = all(snapshot.gpu(v.gpu) is not None for v in record.vgpus)
    if has_gpus and all(v.present for v in snapshot.vgpus if v.vm_uuid == vm.uuid):
        return snapshot
    scope = ReadScope(types=True, models=False, gpu_addresses=frozenset(v.gpu for v in record.vgpus))
    return observe_devices(host, scope, vms=snapshot.vms, status=snapshot.hypervisor)


def lost_vgpu_warnings(snapshot: Snapshot, vm: Vm) -> tuple[str, ...]:
    """Return a sentence for each vGPU that a running VM lacks: it runs, and another program took the vGPU from it."""
    again = f"{hint_commands.stop_command(vm)}, then {hint_commands.start_command(vm)}, puts it back"
    return tuple(
        f"{vm.name} runs without {v.profile or v.backend} ({v.carrier}), which its record has: {again}"
        for v in snapshot.vgpus
        if v.vm_uuid == vm.uuid and v.attached is False
    )


def why_not_startable(host: Host, snapshot: Snapshot, vm: Vm) -> str | None:
    """Return why a stopped VM could not start on its recorded vGPUs; None if it can or gets new slots at each start.

    A GPU that is half set up lacks the VFs, or the GPU instance, that the VM needs.
    """
    if vm.record is None or not vm.record.always_reserves:
        return None
    try:
        seen = _with_types(host, snapshot, vm, vm.record)
        definition = Redefinition(host, vm, vm.record, dry_run=True)
        MissingDevices(seen, scope_of_vm(vm.uuid), vm, vm.record, definition).plan(seen, ())
    except (HostCannot, NoCapacity) as error:
        return error.message
    return None


def stop_vm(host: Host, context: Context, name: str, *, force: bool) -> Outcome[VmReport]:
    """Stop a VM; it keeps its vGPU unless it reserves it only to run. Without `force` the guest is asked to shut down.

    The caller wants the VM off: reconcile then does not start it again for a command that was killed before.
    """
    outcome = stop_for_restart(host, context, name, force=force)
    if not context.dry_run:
        host.claims.remove_drained_vm(outcome.data.uuid or "")
    return outcome


def stop_for_restart(host: Host, context: Context, name: str, *, force: bool) -> Outcome[VmReport]:
    """Stop a VM as `stop_vm` does, and keep the note that it must be started again."""
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "stop")
    refuse_unfinished(vm, record)
    if vm.state in STOPPED_STATES:
        return Outcome(False, vm_result(snapshot, vm), warnings=snapshot.warnings, dry_run=context.dry_run)
    refuse_transient_vms((vm,))
    if not force:
        refuse_unresponsive_vm(vm)
    stop = StopDomain(vm.name, vm.uuid, force, context.wait_seconds)
    held_vgpus = with_slot(snapshot, vm, record) if record.reserve_while_running else ()
    plan = Plan(
        (stop, *release_steps(vm, held_vgpus)),
        undo_on_failure=not held_vgpus,
        vms_required_off=(vm.uuid,) if held_vgpus else (),
    )
    steps = tuple(s.describe() for s in plan.steps)
    if context.dry_run:
        return Outcome(True, vm_result(snapshot, vm), steps, dry_run=True)
    with Transaction(host, context) as tx:
        if held_vgpus:
            tx.take_over(claims_of_record(host, vm.name, replace(record, vgpus=held_vgpus)), leaving=True)
        refuse_changed_vm(host, context, vm)
        tx.carry_out(plan)
    return report_vm(host, vm_result(snapshot, vm), steps)


def _require_pools(host: Host, record: VmRecord) -> None:
    """Refuse a removal before it begins if the VM's disks could not be deleted.

    Raises:
        HostCannot: naming the pool and the disk.
        Refused: a disk must wait in the bin, and its pool can have none.
    """
    for disk in record.disks:
        refuse_pool_without_bin(host, disk)
        if host.storage.pool(disk.pool) is None and host.storage.image(disk.path) is not None:
            raise HostCannot(
                f"the storage pool {disk.pool} no longer exists, so {disk.path} cannot be deleted",
                hint="define the pool again (virsh pool-define-as), or use --keep-disks",
                check="pool",
                pool=disk.pool,
                path=disk.path,
            )


def _record_of_held(snapshot: Snapshot, vm: Vm) -> VmRecord:
    """Return the record of a VM to delete, with only the vGPUs it has now: other VMs may have the rest."""
    record = own_record(vm, "delete")
    refuse_moving(vm, record)
    return replace(record, vgpus=with_slot(snapshot, vm, record))


def _with_bin_entries(host: Host, context: Context, vm: Vm, record: VmRecord) -> VmRecord:
    return replace(record, disks=tuple(with_bin_entry(host, context, vm, disk) for disk in record.disks))


def delete_vm(host: Host, context: Context, name: str, *, keep_disks: bool) -> Outcome[VmReport]:
    """Remove a VM with its vGPUs and the disks that vgpuctl created; never a base image or an unmanaged VM.

    Disks that an account with `keep_deleted_days` deletes move to the bin.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = _with_bin_entries(host, context, vm, _record_of_held(snapshot, vm))
    refuse_stuck_gpus(snapshot, [v.gpu for v in record.vgpus])
    refuse_vgpus_in_other_vms(snapshot, vm, record.vgpus)
    removed_record = replace(record, disks=disks_to_delete(record, keep_disks=keep_disks))
    refuse_shared_deletion(host, snapshot, vm, removed_record)
    _require_pools(host, removed_record)
    unproven = unproven_carriers(snapshot, vm, record)
    plan = vm_removal_plan(vm, record, read_domain_leftovers(host, vm), keep_disks=keep_disks, keep_devices=unproven)
    steps = tuple(s.describe() for s in plan.steps)
    if context.dry_run:
        return Outcome(True, vm_result(snapshot, vm), steps, snapshot.warnings, plan.notes, dry_run=True)
    context.confirm(f"Delete VM {vm.name}?{'' if vm.state in STOPPED_STATES else f' It is {vm.state}.'}", steps)
    was_off = vm.state in STOPPED_STATES
    with Transaction(host, context) as tx:
        tx.take_over(claims_of_record(host, vm.name, record), leaving=True)
        current_snapshot, vm = reobserve_vm(host, vm)
        refuse_change(context, vm)
        if was_off and vm.state not in STOPPED_STATES:
            raise InUse(
                f"{vm.name} was off at the time of the question, and has been started since",
                hint=f"vgpuctl delete-vm {vm.name} deletes it anyway; a user may be working on it",
                vm=vm.name,
            )
        record = _with_bin_entries(host, context, vm, _record_of_held(current_snapshot, vm))
        refuse_vgpus_in_other_vms(current_snapshot, vm, record.vgpus)
        removed_record = replace(record, disks=disks_to_delete(record, keep_disks=keep_disks))
        refuse_shared_deletion(host, current_snapshot, vm, removed_record)
        leftovers = read_domain_leftovers(host, vm)
        plan = vm_removal_plan(vm, record, leftovers, keep_disks=keep_disks, keep_devices=unproven)
        prepare_bins(host, removed_record.disks)
        count_removal(host, context)
        if context.fleet is not None and context.fence is not None:
            context.fence.note_deletion(vm.uuid)
        if not record.vgpus:
            tx.note(vm.name, vm.uuid)
        tx.carry_out(plan)
    host.claims.remove_drained_vm(vm.uuid)
    kept_disks = tuple(d for d in record.disks if d not in removed_record.disks)
    disks = tuple(KeptDiskResult(d.path, d.capacity_bytes, d.base, d.copied_from) for d in kept_disks)
    return Outcome(True, PlannedVmResult(vm.name, vm.uuid, "absent", disks=disks), steps, snapshot.warnings, plan.notes)


def reboot_vm(host: Host, context: Context, name: str, *, force: bool) -> Outcome[VmReport]:
    """Ask the guest of a running VM to reboot, or with `force` reset it, and wait until it has.

    Raises:
        Unmanaged: vgpuctl did not make the VM.
        Refused: the VM does not run.
        NotRebooted: the guest has not rebooted in `wait_seconds`; it may do so later.
        Busy: something else works on the VM, or it is unfinished.
        PartlyApplied: the VM went off instead.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    refuse_unfinished(vm, own_record(vm, "reboot"))
    refuse_busy_vm(host, vm)
    _refuse_unless_running(vm)
    steps = (f"{'reset' if force else 'reboot'} VM {vm.name}",)
    if context.dry_run:
        return Outcome(True, vm_result(snapshot, vm), steps, snapshot.warnings, dry_run=True)
    context.progress.on_plan(steps)
    context.progress.on_step_start(1, steps[0])
    start_time = host.clock.monotonic()
    had_agent = _agent_answers(host, vm)
    refuse_changed_vm(host, context, vm)
    try:
        _reboot(host, context, vm, force=force)
        seconds_left = start_time + context.wait_seconds - host.clock.monotonic()
        notes = _wait_for_agent(host, context, vm, seconds_left) if had_agent else ()
    except Interrupted as error:
        error.left.append(f"VM {vm.name}: it was {'reset' if force else 'asked to reboot'}")
        raise
    context.progress.on_step_finish(1, steps[0])
    return report_vm(host, vm_result(snapshot, vm), steps, notes)


def _refuse_unless_running(vm: Vm) -> None:
    if vm.state is VmState.RUNNING:
        return
    raise Refused(
        f"{vm.name} is {vm.state}: only a running VM can reboot",
        hint=hint_commands.run_command(vm),
        vm=vm.name,
        state=str(vm.state),
    )


def _reboot(host: Host, context: Context, vm: Vm, *, force: bool) -> None:
    name = shlex.quote(vm.name)
    with host.hypervisor.watch_reboot(vm.uuid) as reboot:
        if force:
            host.hypervisor.reset(vm.uuid)
        else:
            host.hypervisor.reboot(vm.uuid)
        outcome = reboot.wait(max(context.wait_seconds, RESET_SECONDS) if force else context.wait_seconds)
    if outcome is RebootOutcome.OFF:
        error = PartlyApplied(f"{vm.name} went off instead of rebooting", hint=f"vgpuctl start-vm {name}", vm=vm.name)
        error.left.append(f"VM {vm.name}: it is off")
        raise error
    if outcome is RebootOutcome.UNKNOWN and force:
        text = f"libvirt has not reported that {vm.name} was reset"
        raise NotRebooted(text, hint=f"vgpuctl show-vm {name}", vm=vm.name)
    if outcome is RebootOutcome.UNKNOWN:
        raise NotRebooted(
            f"{vm.name} did not reboot within {context.wait_seconds:g} s",
            hint=f"the guest ignores the request, or is slow; to reset it: vgpuctl reboot-vm {name} --force",
            vm=vm.name,
        )


def _agent_answers(host: Host, vm: Vm) -> bool:
    try:
        return host.hypervisor.guest_addresses(vm.uuid, "agent") is not None
    except LibvirtFailed:
        return False


def _wait_for_agent(host: Host, context: Context, vm: Vm, seconds: float) -> tuple[str, ...]:
    """Wait until the guest's agent answers again; the VM has rebooted in any case. Returns notes."""
    deadline = host.clock.monotonic() + seconds
    while not _agent_answers(host, vm):
        remaining = deadline - host.clock.monotonic()
        if remaining <= 0:
            return (f"its guest agent does not answer yet: vgpuctl wait {shlex.quote(vm.name)} --for guest",)
        context.progress.on_wait()
        host.clock.sleep(min(_PAUSE_SECONDS, remaining))
    return ()
