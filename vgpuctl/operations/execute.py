# SPDX-License-Identifier: Apache-2.0
"""Execute a plan, and undo it when a step fails or a signal arrives.

A step that fails is undone too, unless its error says that the thing belongs to somebody else (`InUse`, `Exists`,
FileExistsError): then the step created nothing. The first signal starts the undo; a second one, during the undo, stops
it. When something cannot be undone, the claims and the domain that record its owner are kept: reconcile finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import (
    Exists,
    FileFailed,
    Interrupted,
    InUse,
    PartlyApplied,
    Refused,
    Stuck,
    Temporary,
    VgpuctlError,
)
from vgpuctl.model.hint_commands import stop_command
from vgpuctl.model.outcome import Progress
from vgpuctl.observe.claims import is_claim_in_use
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.operations.steps.domain import StartDomain, explain_not_stopped
from vgpuctl.ports.step import LongStep, Plan, Step, StepReport

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def execute_plan(host: Host, plan: Plan, progress: Progress, earlier_steps: Sequence[Step] = ()) -> tuple[str, ...]:
    """Perform every step and read it back; `earlier_steps` were performed before and are undone with the rest.

    Returns notes for the user: which results came about in another way than by the step itself.

    Raises:
        VgpuctlError: the step's own error, with `undone` filled.
        PartlyApplied: the undo failed, or a removal stopped half-way; `left` lists what remains. A removal that
            only needs a retry keeps its own error. So does a write that is blocked in the kernel: nothing can be
            undone there until it returns.
    """
    performed = list(earlier_steps)
    finished = 0
    notes: list[str | None] = []
    try:
        progress.on_plan(tuple(s.describe() for s in (*earlier_steps, *plan.steps)))
        for number, step in enumerate(earlier_steps, start=1):
            progress.on_step_finish(number, step.describe())
        for number, step in enumerate(plan.steps, start=len(earlier_steps) + 1):
            progress.on_step_start(number, step.describe())
            if not plan.undo_on_failure and not step.precedes_off:
                require_vms_off(host, plan)
            notes.append(_perform(host, step, performed, _reporter(progress, number, step.describe())))
            step.verify(host)
            progress.on_step_finish(number, step.describe())
            finished += 1
    except BaseException as error:
        failure = as_vgpuctl_error(error)
        if plan.undo_on_failure:
            undo_steps(host, performed, progress, failure, plan.vms_required_off)
        elif finished or (performed and not _changed_nothing(failure)):
            failure.left += [s.describe() for s in plan.steps[finished:]]
        retry = isinstance(failure, Stuck) or (isinstance(failure, Temporary) and not plan.undo_on_failure)
        if retry and failure.left:
            failure.hint = _reconcile_hint(failure)
        if failure.left and not isinstance(failure, Interrupted) and not retry:
            raise _partly_applied(failure) from error
        if failure is error:
            raise
        raise failure from error
    return tuple(note for note in notes if note is not None)


def require_vms_off(host: Host, plan: Plan) -> None:
    """Refuse to remove something from a VM that must be off for it.

    Raises:
        InUse: the VM is not off.
    """
    for uuid in plan.vms_required_off:
        reason = explain_not_stopped(host, uuid)
        if reason is not None:
            raise InUse(
                f"{reason}: another program has just started it, and vgpuctl removes nothing from a VM that is not off",
                hint=f"{_stop_command(host, uuid)}, then run the command again",
                vm_uuid=uuid,
            )


def _stop_command(host: Host, uuid: str) -> str:
    try:
        domain = host.hypervisor.find_domain(uuid)
        vm = parse_domain(domain.xml, domain.state, host.machine_id) if domain is not None else None
    except (ValueError, VgpuctlError):
        vm = None
    return stop_command(vm) if vm is not None else f"virsh shutdown {uuid}"


def _changed_nothing(failure: VgpuctlError) -> bool:
    """Say whether the error itself means that the step changed nothing: a refusal or "try again"."""
    return isinstance(failure, (Refused, Temporary)) or getattr(failure, "changed_nothing", False)


def _reporter(progress: Progress, number: int, text: str) -> StepReport:
    def report(percent: float, detail: str = "") -> None:
        progress.on_step_progress(number, f"{text}; {detail}" if detail else text, percent)

    return report


def _perform(host: Host, step: Step, performed: list[Step], report: StepReport) -> str | None:
    performed.append(step)
    try:
        return step.perform_with_progress(host, report) if isinstance(step, LongStep) else step.perform(host)
    except BaseException as error:
        failed_start = isinstance(step, StartDomain) and not isinstance(error, Interrupted | KeyboardInterrupt)
        not_begun = isinstance(error, Interrupted) and error.changed_nothing
        if failed_start or not_begun or isinstance(error, Exists | InUse | FileExistsError):
            performed.pop()  # a VM that runs although our start failed: somebody else started it
        raise


def as_vgpuctl_error(error: BaseException) -> VgpuctlError:
    """Return the error to report: an OS error keeps its text; any other error that is not ours is a bug."""
    if isinstance(error, VgpuctlError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted", signal_number=2)
    if isinstance(error, OSError):
        text = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
        return FileFailed(text, errno=error.errno, path=error.filename)
    return VgpuctlError(f"{type(error).__name__}: {error}", hint="this is a bug in vgpuctl; run again with -v")


def undo_steps(
    host: Host, performed: Sequence[Step], progress: Progress, failure: VgpuctlError, vms_off: Sequence[str] = ()
) -> None:
    """Undo steps in reverse; one that cannot be undone is added to the failure's `left`, and the rest continues.

    The undo ends early only when a VM of `vms_off` is not off, no matter who started it: nothing is removed from a
    running VM. A VM that this run started is stopped first. A claim that no running VM uses is released in any case.
    """
    remaining = list(performed)
    while remaining:
        step = remaining.pop()
        text = step.describe()
        reason = next(filter(None, (explain_not_stopped(host, uuid) for uuid in vms_off)), None)
        if reason is not None and not _may_undo_while_running(host, step):
            failure.left += [f"{reason}: nothing of it is undone", text, *(s.describe() for s in reversed(remaining))]
            return
        if failure.left and step.records_owner:
            failure.left.append(f"{text}: kept, it records the owner of the rest")
            continue
        try:
            progress.on_step_undo(text)
            step.undo(host)
            failure.undone.append(text)
        except (Interrupted, KeyboardInterrupt):
            failure.left += [text, *(s.describe() for s in reversed(remaining))]
            return
        except Exception as error:  # noqa: BLE001 - every other step must still be tried; the reason is reported
            failure.left.append(f"{text}: {error}")


def _may_undo_while_running(host: Host, step: Step) -> bool:
    """Say whether a step may be undone while its VM is not off: our own start, or a claim that the VM does not use."""
    return isinstance(step, StartDomain) or (isinstance(step, TakeClaim) and not is_claim_in_use(host, step.claim))


def _reconcile_hint(failure: VgpuctlError) -> str:
    return "; ".join(filter(None, (failure.hint, "then: vgpuctl reconcile-host")))


def _partly_applied(failure: VgpuctlError) -> PartlyApplied:
    partly = PartlyApplied(
        f"{failure.message}; the undo is incomplete",
        hint=_reconcile_hint(failure),
        **{**failure.facts, "cause": failure.code},
    )
    partly.undone, partly.left = failure.undone, failure.left
    return partly
