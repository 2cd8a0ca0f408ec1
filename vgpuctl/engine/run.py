# SPDX-License-Identifier: Apache-2.0
"""Carry a plan out, and take it back when a step fails or a signal comes.

A step that fails is undone too, unless it says that the thing is somebody else's (`InUse`, `Exists`,
FileExistsError): then it made nothing. The first signal undoes; a second one, during the undo, stops it. When
something cannot be undone, the claims and the domain that say whose it is are kept: reconcile finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from vgpuctl.model.commands import to_stop
from vgpuctl.model.outcome import Progress
from vgpuctl.model.step import Plan, Step
from vgpuctl.steps.claims import HoldClaim, runs_with
from vgpuctl.steps.domain import KeepDefinition, StartDomain, StopDomain, not_off

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def carry_out(world: World, plan: Plan, progress: Progress, done: Sequence[Step] = ()) -> tuple[str, ...]:
    """Do every step and read it back; `done` are steps performed before, undone with the rest.

    Returns what the user must know: which steps came about otherwise than by this.

    Raises:
        VgpuctlError: the step's own error, with `undone` filled.
        PartlyApplied: the undo failed, or a removal stopped half-way; `left` says what remains. A removal that
            only has to be tried again keeps its own error, and so does a write that the kernel has parked: nothing
            can be taken back there until it comes back.
    """
    performed = list(done)
    finished = 0
    told: list[str | None] = []
    try:
        progress.planned(tuple(s.describe() for s in (*done, *plan.steps)))
        for number, step in enumerate(done, start=1):
            progress.finished(number, step.describe())
        for number, step in enumerate(plan.steps, start=len(done) + 1):
            progress.started(number, step.describe())
            if not plan.undo_on_failure and not isinstance(step, StopDomain | KeepDefinition):
                refuse_started(world, plan)
            told.append(_perform(world, step, performed))
            step.verify(world)
            progress.finished(number, step.describe())
            finished += 1
    except BaseException as error:
        failure = as_failure(error)
        if plan.undo_on_failure:
            take_back(world, performed, progress, failure, plan.off)
        elif finished or not _changed_nothing(failure):
            failure.left += [s.describe() for s in plan.steps[finished:]]
        retry = isinstance(failure, Stuck) or (isinstance(failure, Temporary) and not plan.undo_on_failure)
        if retry and failure.left:
            failure.hint = _then_reconcile(failure)
        if failure.left and not isinstance(failure, Interrupted) and not retry:
            raise _partly(failure) from error
        if failure is error:
            raise
        raise failure from error
    return tuple(text for text in told if text is not None)


def refuse_started(world: World, plan: Plan) -> None:
    """Refuse to take something away from a VM that has to be off for it.

    Raises:
        InUse: it is not off.
    """
    for uuid in plan.off:
        on = not_off(world, uuid)
        if on is not None:
            raise InUse(
                f"{on}: another program started it just now, and nothing is taken from a VM that is not off",
                hint=f"{_stop_command(world, uuid)}, then run the command again",
                vm_uuid=uuid,
            )


def _stop_command(world: World, uuid: str) -> str:
    from vgpuctl.domain.parse import parse  # with lxml, which libvirt's hook does without

    try:
        record = world.hypervisor.find_domain(uuid)
        vm = parse(record.xml, record.state, world.machine_id) if record is not None else None
    except (ValueError, VgpuctlError):
        vm = None
    return to_stop(vm) if vm is not None else f"virsh shutdown {uuid}"


def _changed_nothing(failure: VgpuctlError) -> bool:
    """Say whether the step itself says that it changed nothing: a refusal or "try again"."""
    return isinstance(failure, (Refused, Temporary))


def _perform(world: World, step: Step, performed: list[Step]) -> str | None:
    performed.append(step)
    try:
        return step.perform(world)
    except BaseException as error:
        if isinstance(step, StartDomain) or isinstance(error, Exists | InUse | FileExistsError):
            performed.pop()  # one that runs although our start failed is not ours to stop
        raise


def as_failure(error: BaseException) -> VgpuctlError:
    """Return the error to report; anything but our own is a bug or an OS error told as it is."""
    if isinstance(error, VgpuctlError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted", signal_number=2)
    if isinstance(error, OSError):
        text = f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
        return FileFailed(text, errno=error.errno, path=error.filename)
    return VgpuctlError(f"{type(error).__name__}: {error}", hint="this is a bug in vgpuctl; run again with -v")


def take_back(
    world: World, performed: Sequence[Step], progress: Progress, failure: VgpuctlError, off: Sequence[str] = ()
) -> None:
    """Undo steps in reverse; what cannot be undone is added to the failure's `left`, and the rest goes on.

    Only a VM of `off` that is not off ends it, whoever started it: nothing is taken from under a running VM. What this
    run started is stopped first, and a claim on what no VM runs with is released all the same.
    """
    waiting = list(performed)
    while waiting:
        step = waiting.pop()
        text = step.describe()
        on = next(filter(None, (not_off(world, uuid) for uuid in off)), None)
        if on is not None and not _apart(world, step):
            failure.left += [f"{on}: nothing of it is undone", text, *(s.describe() for s in reversed(waiting))]
            return
        if failure.left and getattr(step, "tells_owner", False):
            failure.left.append(f"{text}: kept, it says whose the rest is")
            continue
        try:
            progress.undoing(text)
            step.undo(world)
            failure.undone.append(text)
        except (Interrupted, KeyboardInterrupt):
            failure.left += [text, *(s.describe() for s in reversed(waiting))]
            return
        except Exception as error:  # noqa: BLE001 - every other step must still be tried; the reason is told
            failure.left.append(f"{text}: {error}")


def _apart(world: World, step: Step) -> bool:
    """Say whether a step may be undone while its VM is not off: our own start, and a claim on what it does not have."""
    return isinstance(step, StartDomain) or (isinstance(step, HoldClaim) and not runs_with(world, step.claim))


def _then_reconcile(failure: VgpuctlError) -> str:
    return "; ".join(filter(None, (failure.hint, "then: vgpuctl reconcile")))


def _partly(failure: VgpuctlError) -> PartlyApplied:
    partly = PartlyApplied(
        f"{failure.message}; what was done could not be taken back completely",
        hint=_then_reconcile(failure),
        **{**failure.facts, "cause": failure.code},
    )
    partly.undone, partly.left = failure.undone, failure.left
    return partly
