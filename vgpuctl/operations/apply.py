# SPDX-License-Identifier: Apache-2.0
"""Make a host match host.yaml: GPU by GPU in the order of their addresses, by set-mode's and set-scheduler's changes.

Then create the vGPUs of host.yaml that are missing. All blockers on any GPU are reported before the first write. The
last step of the last change writes the desired state to host.yaml, so that host.yaml says what is true. A GPU that
fails is restored; the GPUs before it stay set up. When a vGPU fails, all GPUs stay set up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config.host_spec import dump_value
from vgpuctl.errors import Interrupted, PartlyApplied, Temporary, VerifyFailed, VgpuctlError, named_message
from vgpuctl.model.gpu import Ownership
from vgpuctl.model.outcome import Confirm, Context, Outcome, confirm_everything
from vgpuctl.model.results.host import DifferenceResult, GpuDifferenceResult, HostDifferenceResult, RemovedResult
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.desired_state import ALL_FUNCTIONS_SCOPE, DesiredState
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.gpu_transaction import StopConfirmation, run_transaction
from vgpuctl.operations.guards import require_system_libvirt, require_writable
from vgpuctl.operations.host_plan import (
    GpuPlan,
    build_transaction,
    find_unloaded_schedulers,
    observe_host,
    plan_host,
    raise_refusals,
)
from vgpuctl.operations.host_vgpus import HostVgpuPlan, find_lost_vgpus, make_vgpus, plan_vgpus
from vgpuctl.operations.plans.host_diff import (
    current_gpu_spec,
    describe_removed,
    describe_unapplied_settings,
    diff_settings,
    find_removed_entries,
    gpu_settings,
    merged_gpu_spec,
    missing_device,
    refuse_lost_vgpus,
)
from vgpuctl.operations.plans.scheduler_load import SchedulerNotLoaded
from vgpuctl.operations.steps.host_file import PATH
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


DoneLine = tuple[str, str]
"""What was done on a GPU, or without one: its address or "", and the line."""


def diff_host(host: Host, desired: DesiredState, *, drain: bool) -> Outcome[HostDifferenceResult]:
    """Return what `apply_host` would do, and what prevents it; nothing is changed.

    Raises:
        NotFound: host.yaml names a GPU that this host does not have.
    """
    if desired.current_error is not None:
        host, desired = _with_replaced_file(host, desired), replace(desired, current=desired.spec)
    snapshot, notes = observe_host(host, desired)
    gpu_plans = plan_host(host, snapshot, desired, drain=drain)
    not_loaded = find_unloaded_schedulers(host, snapshot, gpu_plans)
    gpu_plans = tuple(_with_unloaded_scheduler(plan, not_loaded) for plan in gpu_plans)
    vgpu_plans, vgpu_notes = plan_vgpus(host, snapshot, desired, gpu_plans)
    settings = _setting_differences(desired, vgpu_plans)
    removed = find_removed_entries(desired.spec, desired.current, snapshot.gpus)
    lines = _plan_lines(gpu_plans, vgpu_plans)
    changed = bool(settings or lines or removed or desired.current_error) or any(plan.differences for plan in gpu_plans)
    file_lines = tuple(step.describe() for step in desired.file_steps)
    refused = [named_message(plan.gpu.address, str(plan.error)) for plan in gpu_plans if plan.error is not None]
    refused += [f"vGPU {plan.entry.name}: {plan.error}" for plan in vgpu_plans if plan.error is not None]
    data = _outcome_data(gpu_plans, settings, removed)
    warnings = (*snapshot.warnings, *refused, *_texts_of(not_loaded))
    return Outcome(changed, data, (*lines, *file_lines), warnings, (*notes, *vgpu_notes), dry_run=True)


def _plan_lines(gpu_plans: tuple[GpuPlan, ...], vgpu_plans: tuple[HostVgpuPlan, ...]) -> tuple[str, ...]:
    """Return what is done, one line each; nothing for what is refused."""
    vgpus = tuple(plan.line for plan in vgpu_plans if plan.error is None)
    return (*(line for plan in gpu_plans for line in plan.lines), *vgpus)


def _setting_differences(desired: DesiredState, vgpu_plans: tuple[HostVgpuPlan, ...]) -> tuple[DifferenceResult, ...]:
    """Return the differences in the other sections, and the vGPUs that host.yaml keeps and that have no device."""
    missing = [plan.entry.name for plan in vgpu_plans if plan.entry.name in desired.current.vgpus]
    return (
        *diff_settings(desired.spec, desired.current),
        *(missing_device(name, desired.spec.vgpus[name]) for name in missing),
    )


def apply_host(host: Host, context: Context, desired: DesiredState, *, drain: bool) -> Outcome[HostDifferenceResult]:
    """Bring the host to the desired state and write that to host.yaml.

    It asks before another file removes entries, and before running VMs are shut down.

    Raises:
        NeedsConfirmation: the answer is no, or there is no terminal; nothing was changed.
        NotFound, InvalidInput, HostCannot, InUse, Busy: with every GPU on which something prevents the change.
        NoCapacity: there is no room for a missing vGPU of host.yaml.
        PartlyApplied: a GPU failed after others were set up.
        SchedulerNotLoaded: all is done, and the driver has to be loaded with the scheduler of a GPU.
        VgpuctlError: a step failed; what was done on that GPU is undone.
    """
    require_writable(host, context)
    if desired.current_error is not None:
        return _replace_invalid_file(host, context, desired, drain=drain)
    snapshot, notes = observe_host(host, desired)
    require_system_libvirt(snapshot)
    refuse_lost_vgpus(desired.spec, desired.current, desired.source)
    gpu_plans = plan_host(host, snapshot, desired, drain=drain)
    vgpu_plans, vgpu_notes = plan_vgpus(host, snapshot, desired, gpu_plans)
    gpu_errors, vgpu_errors = (
        [plan.error for plan in plans if plan.error is not None] for plans in (gpu_plans, vgpu_plans)
    )
    raise_refusals(gpu_errors, vgpu_errors)
    settings = _setting_differences(desired, vgpu_plans)
    removed = find_removed_entries(desired.spec, desired.current, snapshot.gpus)
    steps = _plan_lines(gpu_plans, vgpu_plans) + tuple(step.describe() for step in desired.file_steps)
    not_loaded = find_unloaded_schedulers(host, snapshot, gpu_plans)
    warnings = (*snapshot.warnings, *_texts_of(not_loaded))
    if steps and not context.dry_run:
        _confirm_removals(desired, removed, context.confirm)
        stops = _confirm_stops(gpu_plans, context.confirm)
        done = _set_up_gpus(host, context, gpu_plans, () if vgpu_plans else desired.file_steps, stops)
        steps = tuple(line for _, line in done)
        if vgpu_plans:
            steps += _create_vgpus(host, context, desired, done)
        warnings = _verify_after(host, gpu_plans, vgpu_plans)
    if not_loaded is not None and not context.dry_run:
        not_loaded.left += steps
        raise not_loaded
    data = _outcome_data(gpu_plans, settings, removed)
    return Outcome(bool(steps), data, steps, warnings, (*notes, *vgpu_notes), dry_run=context.dry_run)


def _with_unloaded_scheduler(plan: GpuPlan, not_loaded: SchedulerNotLoaded | None) -> GpuPlan:
    """Return the plan with the difference of a scheduler that nothing reports and the driver was not loaded with."""
    is_shown = any(row.key == "scheduler" for row in plan.differences)
    if not_loaded is None or plan.gpu.address not in not_loaded.gpus or is_shown:
        return plan
    row = DifferenceResult("scheduler", dump_value(plan.spec.scheduler), None)
    return replace(plan, differences=(*plan.differences, row))


def _texts_of(not_loaded: SchedulerNotLoaded | None) -> tuple[str, ...]:
    return () if not_loaded is None else (f"{not_loaded.message}; {not_loaded.hint}",)


def _confirm_removals(desired: DesiredState, removed: tuple[RemovedResult, ...], confirm: Confirm) -> None:
    """Ask before another file removes entries of host.yaml; with --set the user has named them."""
    if desired.replaces_file and removed:
        what = f"{len(removed)} {'entry loses' if len(removed) == 1 else 'entries lose'} keys or are removed"
        confirm(f"replace {PATH} with {desired.source}? {what}", tuple(describe_removed(entry) for entry in removed))


def _confirm_stops(gpu_plans: tuple[GpuPlan, ...], confirm: Confirm) -> StopConfirmation:
    stops = StopConfirmation(confirm)
    stops.ask(*(plan for gpu_plan in gpu_plans for _, plan in gpu_plan.planned_requests))
    return stops


def _replace_invalid_file(
    host: Host, context: Context, desired: DesiredState, *, drain: bool
) -> Outcome[HostDifferenceResult]:
    """Replace a host.yaml that cannot be parsed with another file, and then make the host match it.

    The file is written first here: without it nobody knows what may be placed where. Every refusal comes before that.
    """
    hypothetical_host = _with_replaced_file(host, desired)
    desired_after = replace(desired, current=desired.spec, file_steps=(), current_error=None)
    planned = apply_host(hypothetical_host, replace(context, dry_run=True), desired_after, drain=drain)
    file_lines = tuple(step.describe() for step in desired.file_steps)
    if context.dry_run:
        return replace(planned, changed=True, steps=(*file_lines, *planned.steps))
    leaked = [v for v in observe(hypothetical_host, ReadScope(models=False)).vgpus if v.owner is Ownership.LEAKED]
    context.confirm(
        f"replace {PATH} with {desired.source}? The present file cannot be read, so what would be lost is not known",
        (
            str(desired.current_error),
            *(f"{v.carrier} on {v.gpu} then has no owner, and reconcile-host removes it" for v in leaked),
        ),
    )
    snapshot, _ = observe_host(hypothetical_host, desired_after)
    _confirm_stops(plan_host(hypothetical_host, snapshot, desired_after, drain=drain), context.confirm)
    execute_plan(host, Plan(steps=desired.file_steps), context.progress)
    try:
        done = apply_host(host, replace(context, confirm=confirm_everything), desired_after, drain=drain)
    except SchedulerNotLoaded as error:
        error.left[:0] = file_lines
        raise
    except VgpuctlError as error:
        raise _partly_applied(
            error, list(file_lines), f"{PATH} is now {desired.source}: vgpuctl apply continues from there"
        ) from error
    return replace(done, changed=True, steps=(*file_lines, *done.steps))


class _HypotheticalHostFile(Value):
    """A host.yaml with the text of another file, to read the host as if that file were in place."""

    text: str

    def read(self) -> str | None:
        """Return the text."""
        return self.text

    def previous_version(self, number: int) -> str | None:
        """Return None: a dry run reads no previous version."""
        return None

    def replace(self, text: str, expected: str | None, *, is_undo: bool = False) -> None:
        """Refuse: a hypothetical file is never written."""
        raise AssertionError(f"a dry run tried to write {PATH}")


def _with_replaced_file(host: Host, desired: DesiredState) -> Host:
    return replace(host, host_file=_HypotheticalHostFile(desired.file.text))


def _create_vgpus(host: Host, context: Context, desired: DesiredState, done: list[DoneLine]) -> tuple[str, ...]:
    """Create the vGPUs and write host.yaml, after the GPUs were set up; return what was done."""
    try:
        return make_vgpus(host, context, desired)
    except VgpuctlError as error:
        if not done:
            raise
        raise _partly_applied(error, _texts(done), _rerun_hint(desired.file_steps)) from error


def _set_up_gpus(
    host: Host, context: Context, gpu_plans: tuple[GpuPlan, ...], file_steps: tuple[Step, ...], stops: StopConfirmation
) -> list[DoneLine]:
    """Set up the GPUs one after the other, and return what was done.

    The last transaction performs `file_steps` too, and undoes its own steps if they fail.
    """
    pending = [(gpu_plan.spec, request, plan) for gpu_plan in gpu_plans for request, plan in gpu_plan.planned_requests]
    if not pending:
        if file_steps:
            execute_plan(host, Plan(steps=file_steps), context.progress)
        return [("", step.describe()) for step in file_steps]
    spec, request, plan = pending[-1]
    pending[-1] = (
        spec,
        replace(request, final_steps=file_steps),
        replace(plan, final_steps=(*plan.final_steps, *file_steps)),
    )
    done: list[DoneLine] = []
    for spec, request, plan in pending:
        try:
            lines = run_transaction(host, context, build_transaction(host, request, spec), plan, stops)
        except VgpuctlError as error:
            if not done:
                raise
            failure = _partly_applied(error, _texts(done), _rerun_hint(file_steps))
            if failure is error:
                raise
            raise failure from error
        done += [(request.gpu_address, line) for line in lines]
    return done


def _texts(done: list[DoneLine]) -> list[str]:
    return [f"GPU {gpu}: {line}" if gpu else line for gpu, line in done]


def _rerun_hint(file_steps: tuple[Step, ...]) -> str:
    addition = ", but host.yaml does not have this yet" if file_steps else ""
    return f"run the command again; the GPUs before it are set up{addition}"


def _partly_applied(error: VgpuctlError, done: list[str], hint: str) -> VgpuctlError:
    """Return the failure of a GPU, or of the vGPUs, after something else was done; that stays done and is listed."""
    error.left += done
    if isinstance(error, Interrupted | Temporary | PartlyApplied):
        error.hint = "; ".join(filter(None, (error.hint, hint)))
        return error
    partly = PartlyApplied(
        error.message, hint="; ".join(filter(None, (error.hint, hint))), **{**error.facts, "cause": error.code}
    )
    partly.undone, partly.left = error.undone, error.left
    return partly


def _verify_after(host: Host, gpu_plans: tuple[GpuPlan, ...], vgpu_plans: tuple[HostVgpuPlan, ...]) -> tuple[str, ...]:
    """Read the host again: a later step or the driver may have reset what was read back as set.

    Raises:
        VerifyFailed: with everything that differs from what was set.
    """
    try:
        snapshot = observe(host, ALL_FUNCTIONS_SCOPE)
    except VgpuctlError as error:
        return (f"the change is done, but the host could not be checked again: {error}",)
    differences = find_lost_vgpus(snapshot, vgpu_plans)
    for plan in gpu_plans:
        gpu = snapshot.gpu(plan.gpu.address)
        differences += describe_unapplied_settings(gpu, plan.spec) if gpu is not None and plan.planned_requests else ()
    if differences:
        raise VerifyFailed(
            f"it was set and verified, but has changed since: {'; '.join(differences)}",
            hint="journalctl -k -n 20; another program may also set these GPUs",
        )
    return snapshot.warnings


def _outcome_data(
    gpu_plans: tuple[GpuPlan, ...], settings: tuple[DifferenceResult, ...], removed: tuple[RemovedResult, ...]
) -> HostDifferenceResult:
    gpus = (
        GpuDifferenceResult(
            address=item.gpu.address,
            model=item.gpu.model,
            before=gpu_settings(current_gpu_spec(item.gpu)),
            after=gpu_settings(merged_gpu_spec(item.gpu, item.spec)),
            differences=item.differences,
            steps=item.lines,
            refused=None if item.error is None else item.error.message,
        )
        for item in gpu_plans
    )
    return HostDifferenceResult(tuple(gpus), settings, removed)
