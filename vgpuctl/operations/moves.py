# SPDX-License-Identifier: Apache-2.0
"""Query what fits on this host together, and move VMs so that more fits: stop, assign another slot, start again.

Each move is complete in itself: it claims its target, changes the VM as set-vm does, and starts it. Where VMs are
in each other's way, some give up their places first and wait. After a failure or a crash the VMs moved before stay
where they are; the same command then plans again from there. reconcile and start-vm give a VM that waits a place.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import Busy, NotFound, VgpuctlError
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.outcome import Context, Outcome, QueryResult
from vgpuctl.model.results.moves import BarrierResult, CountResult, FitsResult, MovesResult, SpotResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm
from vgpuctl.observe import ReadScope, observe, scope_of_request
from vgpuctl.operations.change import move_vgpu
from vgpuctl.operations.gpu_transaction import start_again, stop_and_run, try_start_vm, uninterrupted, with_vm_stopped
from vgpuctl.operations.guards import (
    deleted_meanwhile,
    refuse_others_vm,
    require_system_libvirt,
    require_writable,
    select_one_gpu,
)
from vgpuctl.operations.leftovers import read_domain_leftovers
from vgpuctl.operations.plans.choose import refuse_invalid_host_file
from vgpuctl.operations.plans.choose_whole import WholeGpuOffer, offer_whole_gpus
from vgpuctl.operations.plans.move_order import MoveEntry, VmLeave, VmMove, check_order
from vgpuctl.operations.plans.moves import (
    MovesPlan,
    pin_reason,
    plan_defragmentation,
    plan_empty_gpu,
    plan_room_moves,
    stays_error,
)
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.transaction import Transaction
from vgpuctl.operations.unowned import give_place, give_up_place
from vgpuctl.placement.constraints import select_gpus
from vgpuctl.placement.fit import FitResult, PlannedVgpu, check_fit
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

ProfileCounts = Sequence[tuple[str, int]]
WHOLE_GPU = "whole GPU"
"""Used as the profile of a whole GPU, which has none."""


def query_fit(host: Host, profiles: ProfileCounts, gpu: str | None = None) -> QueryResult[FitsResult]:
    """Return whether these counts of profiles fit together now, with their slots or the reason."""
    snapshot = observe(host, ReadScope(types=True, models=gpu is not None))
    refuse_invalid_host_file(snapshot)
    result = check_fit(snapshot, select_gpus(snapshot, gpu), profiles)
    return QueryResult(_fits_result(result), snapshot.warnings)


def query_whole_fit(host: Host, request: VmRequest) -> QueryResult[FitsResult]:
    """Return whether a VM could get the whole GPUs of a request now: which ones, or why others cannot be given.

    Raises:
        NotFound: it names a GPU that the host does not have.
    """
    snapshot = observe(host, replace(scope_of_request(request), models=True))
    refuse_invalid_host_file(snapshot)
    offer = offer_whole_gpus(snapshot, request, "", "")
    missing = request.gpus - len(offer.functions) if offer.chosen is None else 0
    result = FitsResult(
        fits=offer.chosen is not None,
        why=None,
        wanted=(CountResult(WHOLE_GPU, request.gpus),),
        places=tuple(SpotResult(WHOLE_GPU, gpu.address, None) for gpu in offer.chosen or ()),
        too_many=(CountResult(WHOLE_GPU, max(missing, 1)),) if offer.chosen is None else (),
        gpus=tuple(_whole_barrier(gpu, offer) for gpu in offer.gpus) if offer.chosen is None else (),
    )
    return QueryResult(result, snapshot.warnings)


def _whole_barrier(gpu: Gpu, offer: WholeGpuOffer) -> BarrierResult:
    free, reason = int(gpu.address in offer.functions), offer.reasons.get(gpu.address)
    return BarrierResult(gpu.address, gpu.model, WHOLE_GPU, free, free, () if reason is None else (reason,))


def _fits_result(result: FitResult) -> FitsResult:
    return FitsResult(
        fits=result.fits,
        why=result.reason,
        wanted=_counts(result.requested.items()),
        places=tuple(_spot_result(spot) for spot in result.planned),
        too_many=_counts(result.excess),
        gpus=tuple(
            BarrierResult(
                address=gpu_room.gpu.address,
                model=gpu_room.gpu.model,
                profile=gpu_room.profile,
                free=gpu_room.room.free,
                free_at_least=gpu_room.room.guaranteed or 0,
                reasons=tuple(gpu_room.room.reasons),
            )
            for gpu_room in result.rooms
        ),
    )


def _counts(counts: Iterable[tuple[str, int]]) -> tuple[CountResult, ...]:
    return tuple(CountResult(profile, number) for profile, number in counts)


def _spot_result(spot: PlannedVgpu) -> SpotResult:
    return SpotResult(spot.profile, spot.gpu.address, spot.placement_id)


def make_room(host: Host, context: Context, profiles: ProfileCounts, *, max_moves: int | None) -> Outcome[MovesResult]:
    """Plan the fewest moves that make room for these profiles, and carry them out once they are confirmed.

    Raises:
        NoCapacity: no moves make enough room.
        VgpuctlError: a move failed; `left` lists the moves that were not done.
    """
    snapshot, gpus, pinned_vms = _observe(host, context)
    plan = plan_room_moves(snapshot, gpus, profiles, pinned_vms, max_moves)
    if not context.dry_run:
        _confirm_and_carry_out(host, context, plan)
    taken = () if context.dry_run or not plan.moves else _warn_if_taken(host, profiles)
    return _outcome(plan, (*snapshot.warnings, *taken), dry_run=context.dry_run)


def defragment(host: Host, context: Context, *, max_moves: int | None) -> Outcome[MovesResult]:
    """Plan moves after which more of the largest profiles fit, and carry them out once they are confirmed.

    Raises:
        VgpuctlError: a move failed; `left` lists the moves that were not done.
    """
    snapshot, gpus, pinned_vms = _observe(host, context)
    plan = plan_defragmentation(snapshot, gpus, pinned_vms, max_moves)
    if not context.dry_run:
        _confirm_and_carry_out(host, context, plan)
    return _outcome(plan, snapshot.warnings, dry_run=context.dry_run)


def empty_gpu(host: Host, context: Context, gpu: str) -> Outcome[MovesResult]:
    """Plan moves of a GPU's VMs to other GPUs, and carry them out once they are confirmed.

    Raises:
        NoCapacity: some cannot leave; `result` has the moves of the others.
        NotFound, InvalidInput: `gpu` does not name one GPU of this host.
        VgpuctlError: a move failed; `left` lists the moves that were not done.
    """
    snapshot, _, pinned_vms = _observe(host, context)
    source = select_one_gpu(snapshot, gpu)
    plan = plan_empty_gpu(snapshot, source.address, pinned_vms)
    if not context.dry_run:
        _confirm_and_carry_out(host, context, plan)
    outcome = _outcome(plan, snapshot.warnings, dry_run=context.dry_run)
    if not source.cordoned:
        note = f"new vGPUs may be placed on it; vgpuctl cordon {source.address} prevents that"
        outcome = replace(outcome, notes=(note,))
    if plan.stays:
        error = stays_error(plan.stays, source.address)
        error.result, error.changed = (outcome, not context.dry_run) if plan.moves else (None, False)
        raise error
    return outcome


def _observe(host: Host, context: Context) -> tuple[Snapshot, tuple[Gpu, ...], frozenset[str]]:
    """Return a snapshot of the host, its GPUs, and the VMs that must not be moved."""
    require_writable(host, context)
    snapshot = observe(host, ReadScope(types=True, models=False))
    require_system_libvirt(snapshot)
    refuse_invalid_host_file(snapshot)
    return snapshot, select_gpus(snapshot, None), find_pinned_vms(host, snapshot)


def find_pinned_vms(host: Host, snapshot: Snapshot) -> frozenset[str]:
    """Return the VMs that must not move because libvirt saved their memory together with their devices."""
    pinned_vms = set()
    for vm in snapshot.vms:
        if vm.state in STOPPED_STATES and pin_reason(vm) is None:
            try:
                has_managed_save = read_domain_leftovers(host, vm).managed_save
            except NotFound:
                has_managed_save = True
            pinned_vms |= {vm.uuid} if has_managed_save else set()
    return frozenset(pinned_vms)


def _confirm_and_carry_out(host: Host, context: Context, plan: MovesPlan) -> None:
    if not plan.moves:
        return
    for move in plan.moves:
        refuse_others_vm(context, move.vm)
    number = len({move.vm.uuid for move in plan.moves})
    context.confirm(f"Move {count_text(number, 'VM')}?", tuple(entry.describe() for entry in plan.order))
    carry_out(host, context, plan.order)


def _outcome(plan: MovesPlan, warnings: tuple[str, ...], *, dry_run: bool) -> Outcome[MovesResult]:
    steps = tuple(entry.describe() for entry in plan.order)
    data = MovesResult(
        plan.results(), tuple(_spot_result(spot) for spot in plan.spots), plan.is_minimal, plan.source_gpu, plan.stays
    )
    return Outcome(bool(plan.moves), data, steps, warnings, dry_run=dry_run)


def _warn_if_taken(host: Host, profiles: ProfileCounts) -> tuple[str, ...]:
    """Warn if the room made is no longer free. All moves are done, so a failing check is a warning, not an error."""
    try:
        snapshot = observe(host, ReadScope(types=True, models=False))
        is_free = check_fit(snapshot, select_gpus(snapshot, None), profiles).fits is not False
    except VgpuctlError as error:
        return (f"the change is done, but the host could not be checked again: {error}",)
    return () if is_free else ("another command already took the room that these moves made",)


def carry_out(host: Host, context: Context, order: Sequence[MoveEntry]) -> None:
    """Carry out moves in their order, each only after those before it succeeded.

    Raises:
        VgpuctlError: why one failed; VMs that wait got a place again, and `left` names what is not done.
    """
    waiting: dict[str, Vm] = {}
    remaining = list(order)

    def place_again(failure: VgpuctlError) -> None:
        failure.changed = failure.changed or len(remaining) < len(order)
        retry = "run the same command again: it plans from the new state"
        failure.hint = "; ".join(filter(None, (failure.hint, retry)))
        _place_again(host, context, tuple(waiting.values()), failure)
        failure.left += [f"{later.describe()}: not done" for later in remaining[1:]]

    with Transaction(host, context) as tx:
        tx.on_failure(place_again)
        while remaining:
            entry = remaining[0]
            vm = _current_vm(host, entry, waiting)
            if isinstance(entry, VmLeave):
                tx.note(vm.name, vm.uuid)
                _leave(host, context, entry, vm, waiting)
            else:
                _move(host, context, entry, vm, waiting)
            del remaining[0]


def _current_vm(host: Host, entry: MoveEntry, waiting: dict[str, Vm]) -> Vm:
    """Read the VM's current state: it may have been started or stopped since the plan.

    Raises:
        NotFound: the VM was deleted meanwhile.
        Busy: the VM must not be moved any more.
        NoCapacity: the target slot is taken already; no VM was shut down for it.
    """
    snapshot = observe(host, ReadScope(types=True, models=False))
    vm = snapshot.vm(entry.vm.uuid)
    if vm is None:
        waiting.pop(entry.vm.uuid, None)
        raise deleted_meanwhile(entry.vm)
    reason = pin_reason(vm)
    if isinstance(entry, VmMove):
        reason = pin_reason(vm, may_wait=entry.waits, leaves_gpu=entry.leaves_gpu)
    if reason is not None:
        raise Busy(f"VM {vm.name} is not moved: {reason} now", vm=vm.name, state=str(vm.state))
    check_order(snapshot, [replace(entry, vm=vm)])
    return vm


def _leave(host: Host, context: Context, entry: VmLeave, vm: Vm, waiting: dict[str, Vm]) -> None:
    """Stop the VM if it runs, and let its vGPU give up its slot."""

    def give_up() -> None:
        give_up_place(host, context, vm.uuid, entry.vgpu.carrier)

    stop_and_run(host, context, vm, give_up)
    waiting[vm.uuid] = vm


def _move(host: Host, context: Context, move: VmMove, vm: Vm, waiting: dict[str, Vm]) -> None:
    """Move one vGPU. A VM that was stopped for it, or when it gave up its slot, is started again."""
    if not move.waits:

        def move_it() -> None:
            carrier = move.vgpu.carrier
            move_vgpu(host, context, vm.uuid, carrier, move.target)

        with_vm_stopped(host, context, vm, move_it, "moved")
        return
    give_place(host, context, vm.uuid, target=move.target)
    start_again(host, context, waiting.pop(vm.uuid, vm), "moved")


def _place_again(host: Host, context: Context, waiting: Sequence[Vm], failure: VgpuctlError) -> None:
    """Give VMs that wait a place again after a failure, and start those that ran; `left` gets those that failed."""
    for vm in waiting:
        error: Exception | None = None
        if vm.state not in STOPPED_STATES:
            error = try_start_vm(host, context, vm, frozenset())
        else:
            try:
                give_place(host, uninterrupted(context), vm.uuid)
            except VgpuctlError as problem:
                error = problem
        if error is not None:
            failure.left.append(f"VM {vm.name} has no place: {error}")
            hint = f"vgpuctl reconcile-host, or vgpuctl start-vm {shlex.quote(vm.name)}, assigns one to {vm.name}"
            failure.hint = "; ".join(filter(None, (failure.hint, hint)))
