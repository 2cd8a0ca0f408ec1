# SPDX-License-Identifier: Apache-2.0
"""Make a VM match a request: ensure-vm, which Ansible uses too, and set-vm, which changes the fields that differ.

The state and the `LABEL_FIELDS` change at any time, the `UPDATABLE_FIELDS` of a stopped VM. set-vm refuses a running
one, or with `drain` shuts it down, changes it and starts it again; whether the change is possible is known before. Any
other difference of an existing VM is refused with before and after, so that a playbook never rebuilds a desktop by
surprise.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from typing import TYPE_CHECKING

from vgpuctl.config.rules import find_missing_fields
from vgpuctl.config.vm_request import FIELDS, LABEL_FIELDS, UPDATABLE_FIELDS, VmRequest
from vgpuctl.errors import HostCannot, InvalidInput, NoCapacity, NotFound, SpecDiffers, VgpuctlError
from vgpuctl.gpu.profiles import find_types
from vgpuctl.model import hint_commands
from vgpuctl.model.gpu import VgpuType
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.planned_fields import planned_fields
from vgpuctl.model.results import ABSENT
from vgpuctl.model.results.vms import ChangedVmResult, PlannedVmResult, VmReport, VmResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import UNRESPONSIVE_STATES, Vm, VmState
from vgpuctl.observe import ReadScope, observe, observe_devices, scope_of_request, scope_of_vm
from vgpuctl.operations import change, last_state, planned_change, power
from vgpuctl.operations.change import change_vm, must_be_off_error
from vgpuctl.operations.controlled import refuse_other_desktop
from vgpuctl.operations.create import create_vm, reserves_slots
from vgpuctl.operations.gpu_transaction import with_vm_stopped
from vgpuctl.operations.guards import (
    find_vm,
    find_vm_to_change,
    refuse_change,
    refuse_unfinished,
    refuse_unresponsive_vm,
    require_libvirt,
    require_writable,
)
from vgpuctl.operations.guest_setup import find_other_disc
from vgpuctl.operations.plans.remove import own_record, refuse_transient_vms
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.plans.vm_diff import (
    FieldValues,
    describe_differences,
    diff_vm,
    fixed_field_hint,
    is_on_requested_gpu,
    record_gpus,
    resolve_vm_profile,
    set_vm_command,
    vm_gpu_types,
)
from vgpuctl.operations.report_vm import add_to_vm, report_vm
from vgpuctl.operations.steps.domain import STOPPED_STATES, StartDomain, StopDomain
from vgpuctl.operations.whole_progress import WholeProgress
from vgpuctl.placement.constraints import allowed_addresses, match_gpus
from vgpuctl.value import field_names, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def ensure_vm(
    host: Host, context: Context, request: VmRequest, *, state: str
) -> Outcome[ChangedVmResult | PlannedVmResult]:
    """Bring a VM to `state` ("present", "absent", "started", "stopped") and report before and after.

    A request with only a name is enough for a VM that exists, and for one that must be absent.

    Raises:
        InvalidInput: the VM does not exist, and the request lacks fields that creating it needs.
        SpecDiffers: the VM exists and differs in fields that cannot change in place; facts hold before and after.
    """
    name = _require_name(request)
    snapshot = observe(host, scope_of_vm(name))
    require_libvirt(snapshot)
    vm = snapshot.vm(name)
    before = vm_result(snapshot, vm) if vm is not None else None
    if vm is None:
        if context.if_generation is not None:
            find_vm(snapshot, name)  # the caller read one, which is gone
        if state == "absent":
            return _absent_vm(name, snapshot, dry_run=context.dry_run)
        refuse_incomplete_request(request)
        start = state != "stopped"
        new = create_vm(host, context, request, start=start)
        created = reserves_slots(request, start=start)
        return _with_before_after(new, None, "started" if start else "stopped", created=created)
    refuse_change(context, vm)
    refuse_other_desktop(context, vm)
    if state == "absent":
        deleted = power.delete_vm(host, context, vm.name, keep_disks=False)
        return add_to_vm(deleted, before=before, after=None)
    changed = _change_existing(host, context, snapshot, vm, request, state)
    return _with_before_after(changed, before, state)


def _change_existing(
    host: Host, context: Context, snapshot: Snapshot, vm: Vm, request: VmRequest, state: str
) -> Outcome[VmReport]:
    """Change the fields that differ, then the state."""
    fields = _fields_to_update(host, snapshot, vm, request)
    if not fields:
        return _apply_state(host, context, snapshot, vm, state)
    changed = change.change_vm(host, context, request, fields)
    if context.dry_run and vm.state in STOPPED_STATES:  # it would start on what it has after the change
        start = (StartDomain(vm.name, vm.uuid).describe(),) if state == "started" else ()
        return replace(changed, steps=(*changed.steps, *start))
    after = replace(context, if_generation=None) if changed.changed else context  # this call changed it
    try:
        reached = _apply_state(host, after, snapshot, vm, state)
    except VgpuctlError as error:
        error.changed = error.changed or not context.dry_run
        raise
    data = reached.data if reached.changed and not context.dry_run else changed.data
    warnings = tuple(dict.fromkeys((*changed.warnings, *reached.warnings)))
    return replace(reached, changed=True, data=data, steps=(*changed.steps, *reached.steps), warnings=warnings)


def _require_name(request: VmRequest) -> str:
    if request.name is None:
        raise InvalidInput("ensure-vm needs the VM's name", hint="add name: to the spec")
    return request.name


def _absent_vm(name: str, snapshot: Snapshot, *, dry_run: bool) -> Outcome[PlannedVmResult]:
    """Return the outcome for a VM that does not exist and must not; its fields are those of a deleted one."""
    absent = PlannedVmResult(name, None, "absent", before=None, after=None)
    return Outcome(False, absent, warnings=snapshot.warnings, dry_run=dry_run)


def refuse_incomplete_request(request: VmRequest) -> None:
    """Refuse a request that is not enough to create a VM.

    Raises:
        InvalidInput: with the missing field.
    """
    gpus = request.gpus if request.is_explicit("gpus") else None
    fields = {"mode": request.mode, "profile": request.profiles, "gpu": request.gpu, "gpus": gpus}
    missing = find_missing_fields(fields)
    if missing:
        field = "profile" if request.mode == "vgpu" else "gpu"
        list_command = "vgpuctl list-profiles" if field == "profile" else "vgpuctl list-gpus --all"
        raise InvalidInput(
            f"VM {request.name} does not exist, and cannot be created because the spec has no {field}: "
            + missing[0].text,
            hint=f"add {field}: to the spec; {list_command} shows the choices",
            vm=request.name,
            problems=[{"path": field, "problem": missing[0].text}],
        )


def _with_before_after(
    outcome: Outcome[VmReport], before: VmResult | None, state: str, *, created: bool = False
) -> Outcome[ChangedVmResult | PlannedVmResult]:
    """Add the VM before and after; after a dry run, as expected. `created`: the VM and its vGPUs are new."""
    after: VmReport = outcome.data
    if isinstance(after, VmResult):
        after = VmResult(**{name: getattr(after, name) for name in field_names(VmResult)})
    else:
        after = replace(after, sources=ABSENT)
    if outcome.dry_run and outcome.changed:
        after = replace(after, state=VmState.RUNNING if state == "started" else VmState.STOPPED)
        attached = True if state == "started" else None
        present = created or state == "started"
        after = replace(
            after,
            vgpus=tuple(replace(v, present=present or v.present, attached=attached) for v in after.vgpus),
        )
    return add_to_vm(outcome, before=before, after=after)


def _matching_gpus(host: Host, snapshot: Snapshot, vm: Vm, request: VmRequest) -> frozenset[str]:
    """Return which of the VM's GPUs a requested model matches; reads model names only if needed."""
    if not request.gpu or is_on_requested_gpu(vm, request):
        return frozenset()
    scope = ReadScope(gpu_addresses=frozenset(record_gpus(vm)))
    observed = observe_devices(host, scope, vms=snapshot.vms, status=snapshot.hypervisor)
    return frozenset(g.address for model in request.gpu for g in match_gpus(observed.gpus, model))


def _matching_types(host: Host, snapshot: Snapshot, vm: Vm, request: VmRequest) -> tuple[VgpuType, ...]:
    """Return the types of the VM's GPUs that a requested profile may mean; reads them only if the record lacks it."""
    recorded = {v.profile for v in vm.record.vgpus} if vm.record else set()
    unresolved = frozenset(
        profile for profile, _ in request.profiles if resolve_vm_profile(vm, profile) not in recorded
    )
    if not unresolved:
        return ()
    scope = ReadScope(
        types=True, models=False, gpu_addresses=frozenset(record_gpus(vm)), profiles=unresolved, cached_vgpus=()
    )
    return vm_gpu_types(observe_devices(host, scope, vms=snapshot.vms, status=snapshot.hypervisor), vm)


def _refuse_unknown_profile(host: Host, snapshot: Snapshot, request: VmRequest) -> list[str]:
    """Read the types of the GPUs, and return as `profile_doubts`.

    Raises:
        NotFound: as `profile_doubts`.
    """
    scope = scope_of_request(request)
    return profile_doubts(observe_devices(host, scope, vms=snapshot.vms, status=snapshot.hypervisor), request)


def profile_doubts(snapshot: Snapshot, request: VmRequest) -> list[str]:
    """Return a hint for each profile that no GPU offers now, but may at another time.

    `snapshot` has the GPUs' types.

    Raises:
        NotFound: no GPU of this host offers a profile: it is misspelt. The hint suggests similar names.
    """
    doubts = []
    for profile, _ in request.profiles:
        try:
            find_types(snapshot, snapshot.gpus, profile)
        except (NoCapacity, HostCannot):
            doubts.append(
                f"check the name {profile}: no GPU offers it now, and one in use may hide what no longer fits"
            )
        except NotFound:
            raise
        except InvalidInput:
            pass  # it is the short name of several types: each GPU here offers one of them
    return doubts


def _fields_to_update(host: Host, snapshot: Snapshot, vm: Vm, request: VmRequest) -> frozenset[str]:
    """Return the fields to change in place.

    Raises:
        NotFound: no GPU of this host offers the requested profile.
        SpecDiffers: a field cannot change in place, or the VM runs.
    """
    before, after = diff_request(host, snapshot, vm, request)
    doubts: list[str] = []
    if "profile" in before:
        doubts = _refuse_unknown_profile(host, snapshot, request)
    other = sorted(before.keys() - {*UPDATABLE_FIELDS, *LABEL_FIELDS})
    if other:
        raise _differs_error(vm, before, after, fixed_field_hint((vm.name,), other, before, after))
    if before.keys() - set(LABEL_FIELDS) and vm.state not in STOPPED_STATES:
        hint = f"{hint_commands.off_command(vm)}, then run the command again to change it in place"
        if vm.state not in UNRESPONSIVE_STATES:
            hint += f"; or {set_vm_command((vm.name,), before.keys(), before, after)} --drain"
        raise _differs_error(vm, before, after, "; ".join((*doubts, hint)))
    return frozenset(before)


def diff_request(
    host: Host, snapshot: Snapshot, vm: Vm, request: VmRequest, *, needs_disc: bool = False
) -> tuple[FieldValues, FieldValues]:
    """Return (before, after) of the explicit fields in which a VM differs from the request.

    `needs_disc`: also where the disc with its guest's driver is gone and the VM runs; while it is off, that is one.

    Raises:
        Busy: the VM is half created or half removed.
        Unmanaged: vgpuctl did not create it.
    """
    refuse_unfinished(vm, own_record(vm, "change"))
    before, after = diff_vm(
        vm, request, _matching_gpus(host, snapshot, vm, request), _matching_types(host, snapshot, vm, request)
    )
    path = request.guest_driver
    if path is None or not request.is_explicit("guest_driver") or "guest_driver" in before:
        return before, after
    disc = find_other_disc(host, vm, path, must_exist=needs_disc or vm.state in STOPPED_STATES)
    return (before, after) if disc is None else ({**before, "guest_driver": disc}, {**after, "guest_driver": path})


def _differs_error(vm: Vm, before: FieldValues, after: FieldValues, hint: str) -> SpecDiffers:
    text = f"{vm.name} exists and differs from the spec: {describe_differences(before, after)}"
    return SpecDiffers(text, hint=hint, vm=vm.name, before=before, after=after)


def _apply_state(host: Host, context: Context, snapshot: Snapshot, vm: Vm, state: str) -> Outcome[VmReport]:
    if state == "started" and (vm.state is not VmState.RUNNING or last_state.differs(vm, should_run=True)):
        return last_state.start_vm(host, context, vm.name)
    if state == "stopped" and (vm.state not in STOPPED_STATES or last_state.differs(vm, should_run=False)):
        return last_state.stop_vm(host, context, vm.name, force=False)
    return Outcome(False, vm_result(snapshot, vm), warnings=snapshot.warnings, dry_run=context.dry_run)


def set_vm(
    host: Host, context: Context, request: VmRequest, *, drain: bool, when_off: bool = False
) -> Outcome[VmReport]:
    """Give a VM the explicit fields of the request.

    `drain`: a running VM is shut down first if it must be off, within `wait_seconds`, and started again whether the
    change succeeds or fails. Then `confirm` is asked; otherwise it gets an empty question. `when_off`: a running VM
    changes when it is next off.

    Raises:
        InUse: the VM runs.
        NotFound: there is no such VM, GPU or profile.
        PartlyApplied: the VM is changed, but could not be started again.
        VgpuctlError: the reason; the VM is unchanged.
    """
    require_writable(host, context)
    names_gpus = bool(request.gpu or request.not_gpu)
    snapshot = observe(host, ReadScope() if names_gpus else scope_of_vm(request.name or ""))
    vm = find_vm_to_change(context, snapshot, request.name or "")
    before, _ = diff_request(host, snapshot, vm, request, needs_disc=True)
    fields = before.keys() & {*UPDATABLE_FIELDS, *LABEL_FIELDS} - {"gpu"}
    if names_gpus and not _is_on_allowed_gpus(snapshot, vm, request):
        fields |= {"gpu"}
    if not fields:
        given = frozenset(filter(request.is_explicit, FIELDS))
        if given & planned_fields(vm.record).keys():
            return planned_change.forget_plan(host, context, vm.name, given)
        return Outcome(False, vm_result(snapshot, vm), warnings=snapshot.warnings, dry_run=context.dry_run)
    offline_fields = fields - set(LABEL_FIELDS)
    if offline_fields and vm.state not in STOPPED_STATES:
        if when_off:
            return planned_change.plan_change(host, context, vm, request, fields)
        if not drain:
            if "profile" in fields:
                _refuse_unknown_profile(host, snapshot, request)
            raise must_be_off_error(vm, ", ".join(sorted(offline_fields)), can_drain=True)
        return _change_drained(host, context, vm, request, fields)
    if not context.dry_run:
        context.confirm("", ())
    return change_vm(host, context, request, fields)


def _is_on_allowed_gpus(snapshot: Snapshot, vm: Vm, request: VmRequest) -> bool:
    """Return whether a VM's GPUs, or the GPU on which QEMU draws for it, are among those that the request allows."""
    allowed = allowed_addresses(snapshot, request.constraints)
    if vm.render_node is None:
        return record_gpus(vm) <= allowed
    return any(vm.render_node in gpu.render_paths for gpu in snapshot.gpus if gpu.address in allowed)


def _change_drained(host: Host, context: Context, vm: Vm, request: VmRequest, fields: Set[str]) -> Outcome[VmReport]:
    """Change a running VM: shut it down, change it, start it again."""
    refuse_unresponsive_vm(vm)
    refuse_transient_vms((vm,))
    planned = change_vm(host, replace(context, dry_run=True), request, fields, assume_off=True)
    stop = StopDomain(vm.name, vm.uuid, force=False, deadline_seconds=context.wait_seconds)
    steps = (stop.describe(), *planned.steps, StartDomain(vm.name, vm.uuid).describe())
    if context.dry_run:
        data = replace(planned.data, state=vm.state)
        if isinstance(data, VmResult) and "reserve" not in fields:
            data = replace(data, reserve=vm.record.reserve if vm.record else None)
        return replace(planned, data=data, steps=steps)
    context.confirm(f"Shut down VM {vm.name}, change it, and start it again?", steps)
    whole = replace(context, progress=WholeProgress(context.progress, steps))
    with_vm_stopped(host, whole, vm, partial(change_vm, host, whole, request, fields), "changed")
    return report_vm(host, planned.data, steps)
