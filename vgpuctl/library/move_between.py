# SPDX-License-Identifier: Apache-2.0
"""Move a VM from one host to another by the calls of both hosts.

Neither host calls the other one: whoever reaches both drives the move, on the source, on the target or elsewhere. It
can stop at any instant; the same call goes on from what both hosts have (`move_end`).
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.errors import (
    Busy,
    Failed,
    Interrupted,
    LibvirtFailed,
    PartlyApplied,
    Refused,
    VgpuctlError,
)
from vgpuctl.library.move_end import finish_here, settle, show_both
from vgpuctl.model.hint_commands import address_of, command_on, end_migration_command
from vgpuctl.model.outcome import confirm_everything
from vgpuctl.model.results.migration import (
    EndedMigrationResult,
    EstimateResult,
    MigratedVmResult,
    MigrationOfferResult,
    MigrationPlaceResult,
    MigrationReasonResult,
)
from vgpuctl.model.vm import VmState
from vgpuctl.operations.arrive import refused_move
from vgpuctl.operations.plans.migration_end import RUNS_THERE, MigrationEnd
from vgpuctl.operations.plans.migration_estimate import (
    choose_max_downtime,
    doubt_about_limit,
    downtime_steps,
    estimate_downtime,
)
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.library.migration import MigrationCalls
    from vgpuctl.model.outcome import Confirm
    from vgpuctl.model.results.migration import SentVmResult


class MoveRequest(Value):
    """How a VM moves. `target_uri`: the target's libvirt, as the source's libvirt reaches it.

    `offline`: it is off while it moves; one that runs is shut down first, and started on the target. `copies_disks`:
    disks that only the source has are copied. `insecure`: memory and disks may go unencrypted. `max_downtime_ms`: for
    how long the VM may stand still; None: from the estimate. `address`: where memory is sent to. `peer`: the target's
    name for hints on the source, None for its own one.
    """

    target_uri: str
    offline: bool = False
    copies_disks: bool = False
    insecure: bool = False
    max_downtime_ms: int | None = None
    bandwidth_mib_s: int | None = None
    parallel: int | None = None
    address: str | None = None
    peer: str | None = None

    @property
    def live_options(self) -> tuple[str, ...]:
        """The options of it that are for a live move alone."""
        values = {
            "--max-downtime": self.max_downtime_ms,
            "--bandwidth": self.bandwidth_mib_s,
            "--connections": self.parallel,
            "--address": self.address,
            "--insecure-network": self.insecure or None,
        }
        return tuple(option for option, value in values.items() if value is not None)


class MovePlan(Value):
    """What both hosts say about a move: where its vGPUs go, every reason against it, how long the VM stands still.

    `is_running`: it ran on the source before the move.
    """

    offer: MigrationOfferResult
    place: MigrationPlaceResult
    is_running: bool
    estimate: EstimateResult
    limits_ms: tuple[int, ...]

    @property
    def reasons(self) -> tuple[MigrationReasonResult, ...]:
        """Why it cannot move, from both sides."""
        return (*self.offer.reasons, *self.place.reasons)

    def result(self, request: MoveRequest) -> MigratedVmResult:
        """Return what would be done."""
        return MigratedVmResult(
            name=self.offer.name,
            uuid=self.offer.uuid,
            source=self.offer.host.name,
            target=self.place.host.name,
            is_live=not request.offline,
            is_running=self.is_running,
            vgpus=self.place.vgpus,
            copied_disks=self.place.copied_disks,
            estimate=self.estimate,
            cautions=(*self.offer.warnings, *self.place.warnings),
            max_downtime_ms=self.limits_ms[-1] if self.limits_ms else None,
        )


def plan_move(source: MigrationCalls, target: MigrationCalls, name: str, request: MoveRequest) -> MovePlan:
    """Ask both hosts, and change nothing.

    Raises:
        VgpuctlError: a host does not answer, or has no such VM.
    """
    offer = source.offer_vm(name, offline=request.offline).data
    place, is_running = _prepare(target, offer, request, dry_run=True), offer.state != VmState.STOPPED
    if request.offline:
        return MovePlan(offer, place, is_running, EstimateResult(None), ())
    network = None if request.bandwidth_mib_s is None else request.bandwidth_mib_s << 20
    estimate = estimate_downtime(offer, place, network)
    limit = choose_max_downtime(estimate) if request.max_downtime_ms is None else request.max_downtime_ms
    return MovePlan(offer, place, is_running, estimate, downtime_steps(limit))


def check_move(source: MigrationCalls, target: MigrationCalls, name: str, request: MoveRequest) -> MigratedVmResult:
    """Return what would be done.

    Raises:
        Refused: it cannot move, with every reason of both hosts.
        VgpuctlError: as `plan_move`.
    """
    here, there = show_both(source, target, name, request.peer)
    if here.role is not None or there.role is not None:
        raise Busy(
            f"an earlier move of {name} from {here.host} to {there.host} has not ended",
            hint=f"omit --dry-run: the command ends it first; or {end_migration_command(name, there.host)}",
            vm=name,
        )
    plan = plan_move(source, target, name, request)
    if plan.reasons:
        raise _refused(plan, request)
    doubt = doubt_about_limit(plan.estimate, plan.limits_ms[-1]) if plan.limits_ms else None
    cautions = () if doubt is None else (MigrationReasonResult(plan.offer.host.name, doubt),)
    result = plan.result(request)
    return replace(result, cautions=(*result.cautions, *cautions))


def _refused(plan: MovePlan, request: MoveRequest) -> Refused:
    """Return the error with every reason; --offline does not go together with options of a live move."""
    live, reasons = request.live_options, plan.reasons
    if live:
        words = f"use --offline (without {', '.join(live)})"
        reasons = tuple(
            reason if reason.hint is None else replace(reason, hint=reason.hint.replace("add --offline", words))
            for reason in reasons
        )
    return refused_move(plan.offer.name, reasons)


def _prepare(
    target: MigrationCalls, offer: MigrationOfferResult, request: MoveRequest, *, dry_run: bool = False
) -> MigrationPlaceResult:
    return target.prepare_incoming(
        offer,
        copies_disks=request.copies_disks,
        offline=request.offline,
        needs_tls=not (request.insecure or request.offline),
        dry_run=dry_run,
    ).data


def move_vm(
    source: MigrationCalls,
    target: MigrationCalls,
    name: str,
    request: MoveRequest,
    *,
    confirm: Confirm = confirm_everything,
    monotonic: Callable[[], float] = time.monotonic,
) -> MigratedVmResult:
    """Move a VM; a move of it that was interrupted is ended first. `confirm` is asked before it is shut down for that.

    Raises:
        Refused: it cannot move, with every reason of both hosts; nothing was changed.
        ResultUnknown: it is not known which host has it; the same call, or `settle`, finds out.
        VgpuctlError: why not; it is where it was.
    """
    begin = monotonic()
    settled = settle(source, target, name, peer=request.peer)
    if settled.outcome == MigrationEnd.TARGET:
        return _already_there(target, settled, round(monotonic() - begin, 1))
    plan = plan_move(source, target, name, request)
    if plan.reasons:
        raise _refused(plan, request)
    shuts_down = request.offline and plan.is_running
    confirm(f"Shut down VM {name}, move it to {plan.place.host.name}, and start it there?" if shuts_down else "", ())
    paused_ms: int | None = None
    cautions: tuple[MigrationReasonResult, ...] = ()
    try:
        if shuts_down:
            source.stop_vm(plan.offer.uuid)
            again = source.offer_vm(name, offline=True).data
            if again.reasons:  # somebody has saved it or made a snapshot while it was shut down
                raise refused_move(plan.offer.name, again.reasons)
            plan = replace(plan, offer=again)
        sent, pause = _send(source, target, plan, request, monotonic)
        if sent.downtime_ms is not None and not request.offline:
            paused_ms = sent.downtime_ms + round(1000 * pause)
    except VgpuctlError as error:
        cautions = _end_after_failure(source, target, plan, request, error)
    if shuts_down:
        _start_there(target, plan)
    result = plan.result(request)
    seconds = round(monotonic() - begin, 1)
    return replace(result, cautions=(*result.cautions, *cautions), seconds=seconds, paused_ms=paused_ms)


def _already_there(target: MigrationCalls, settled: EndedMigrationResult, seconds: float) -> MigratedVmResult:
    """Return the result of a move that an earlier call has begun, and this one has ended."""
    is_running = target.show_migration(settled.uuid or settled.name).data.state == VmState.RUNNING
    off = "" if is_running else f"; it is off: vgpuctl --host {address_of(settled.target)} start-vm {settled.name}"
    note = MigrationReasonResult(settled.target, f"the interrupted move of {settled.name} to it was ended{off}")
    return MigratedVmResult(
        name=settled.name,
        uuid=settled.uuid or "",
        source=settled.source,
        target=settled.target,
        is_live=is_running,
        is_running=is_running,
        vgpus=(),
        copied_disks=(),
        estimate=EstimateResult(None),
        cautions=(note,),
        seconds=seconds,
    )


def _send(
    source: MigrationCalls, target: MigrationCalls, plan: MovePlan, request: MoveRequest, monotonic: Callable[[], float]
) -> tuple[SentVmResult, float]:
    """Move it; return what was sent, and how many seconds it took from then on until it ran on the target."""
    offer = plan.offer
    sent = source.migrate_out(
        offer.uuid,
        _prepare(target, offer, request),
        target_uri=request.target_uri,
        peer=request.peer,
        migrate_uri=None if request.address is None else f"tcp://{request.address}",
        tls=not request.insecure,
        limits_ms=plan.limits_ms,
        bandwidth_mib_s=request.bandwidth_mib_s,
        parallel=request.parallel,
    ).data
    begin = monotonic()
    finish_here(target, offer.uuid, offer.id)
    pause = monotonic() - begin
    source.finish_migration(offer.uuid, migration_id=offer.id, outcome=RUNS_THERE)
    return sent, pause


def _start_there(target: MigrationCalls, plan: MovePlan) -> None:
    """Start a VM that was shut down for its move, which is done.

    Raises:
        VgpuctlError: why it does not start; it is on the target, and off.
    """
    try:
        target.start_vm(plan.offer.uuid)
    except VgpuctlError as error:
        error.changed = True
        error.left.append(f"{plan.offer.name} is on {plan.place.host.name}, and off")
        raise


def _end_after_failure(
    source: MigrationCalls, target: MigrationCalls, plan: MovePlan, request: MoveRequest, failure: VgpuctlError
) -> tuple[MigrationReasonResult, ...]:
    """After a failure, end the move on both hosts. Return what its caller should know if the VM is on the target.

    Raises:
        VgpuctlError: the failure: the VM is where it was, and nothing is left on the target; or `left` says what is.
    """
    uuid, name, here = plan.offer.uuid, plan.offer.name, plan.offer.host.name
    source, target = source.uninterrupted(), target.uninterrupted()
    try:
        settled = settle(source, target, uuid, peer=request.peer)
        if settled.outcome == MigrationEnd.TARGET:
            return (_went_on(plan, failure, "nothing to do"),)
        is_gone = settled.outcome == MigrationEnd.NONE and not source.show_migration(uuid).data.exists
        if is_gone and target.show_migration(uuid).data.exists:  # only what libvirt does not know is left here
            return (_went_on(plan, failure, f"{command_on(here, 'reconcile-host')} removes what may be left of it"),)
        state = settled.state
        if request.offline and plan.is_running:
            source.start_vm(uuid)
            state = VmState.RUNNING
    except VgpuctlError as error:
        failure.left.append(f"the move is not ended, and {name} may be paused or off: {error.message}")
        failure.hint = f"run the same command again, or {end_migration_command(name, plan.place.host.name)}"
        raise failure from error
    undone = _undone(failure)
    undone.undone.append(f"{name} is on {here}, as before")
    _tell_where(undone, plan, state)
    raise undone from failure


def _went_on(plan: MovePlan, failure: VgpuctlError, rest: str) -> MigrationReasonResult:
    """Return what to say of a failure after which the VM was found on the target. `rest`: what is still to be done."""
    cause, name = _undone(failure), plan.offer.name
    runs = f"{name} runs there" if plan.is_running else f"{name} is there, and off"
    if isinstance(cause, Interrupted):
        what = f"{cause.stopped_by} came too late"
    else:
        first, _, _ = cause.message.partition("\n")
        what = f"the move broke off ({first}), and both hosts were asked since"
    return MigrationReasonResult(plan.place.host.name, f"{what}: {runs}; {rest}")


def _tell_where(error: VgpuctlError, plan: MovePlan, state: str | None) -> None:
    """Add to the error of a move that has ended on its source where the VM is, and where there is more to read."""
    name, here, there = plan.offer.name, plan.offer.host.name, plan.place.host.name
    error.facts |= {"vm_host": here, "vm_state": state}
    where = f"{name} still runs on {here}" if state == VmState.RUNNING else f"{name} is on {here}, {state}"
    if isinstance(error, Interrupted):
        error.message = f"the move was stopped by {error.stopped_by}: {where}"
    elif "\n" not in error.message:  # lines of reasons say what they are about
        error.message = f"{error.message}; {where}"
    if isinstance(error, LibvirtFailed) and error.hint is None:
        log = shlex.quote(f"/var/log/libvirt/qemu/{name}.log")
        error.hint = f"on {here} and on {there}: tail -n 30 {log}; journalctl -n 30 -u libvirtd -u virtqemud"


def _undone(failure: VgpuctlError) -> VgpuctlError:
    """Return the error for a move of which nothing is left: what failed first, and not that something is left."""
    cause: BaseException = failure
    while isinstance(cause, PartlyApplied) and isinstance(cause.__cause__, VgpuctlError):
        cause = cause.__cause__
    if isinstance(cause, VgpuctlError) and not isinstance(cause, PartlyApplied):
        cause.left.clear()
        return cause
    return Failed(failure.message.removesuffix("; the undo is incomplete"), hint=failure.hint, **failure.facts)
