# SPDX-License-Identifier: Apache-2.0
"""Query what fits on this host together, and move VMs so that more fits: stop, assign another slot, start again.

Each move is complete in itself: it claims its target, changes the VM as set-profile does, and starts it. After a
failure or a crash the VMs moved before stay where they are; the same command then plans again from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from vgpuctl.capacity.constraints import select_gpus
from vgpuctl.capacity.fit import FitResult, PlannedVgpu, check_fit
from vgpuctl.engine.change import move_vgpu
from vgpuctl.engine.exchange import exchange
from vgpuctl.engine.guards import require_system_libvirt, require_writable
from vgpuctl.engine.place_and_start import deleted_meanwhile
from vgpuctl.engine.power import read_domain_leftovers
from vgpuctl.engine.with_vm_stopped import with_vm_stopped
from vgpuctl.errors import Busy, NotFound, VgpuctlError
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import Outcome, Progress, QueryResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm
from vgpuctl.observe import ReadScope, observe
from vgpuctl.plan.choose import refuse_invalid_host_file
from vgpuctl.plan.moves import (
    MovesPlan,
    pin_reason,
    plan_defragmentation,
    plan_room_moves,
)
from vgpuctl.plan.rounds import Round, check_rounds, describe_round
from vgpuctl.plan.vm_update import MoveTarget
from vgpuctl.steps.domain import STOPPED_STATES
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

ProfileCounts = Sequence[tuple[str, int]]


def query_fit(host: Host, profiles: ProfileCounts, gpu: str | None = None) -> tuple[QueryResult, bool | None]:
    """Return whether these counts of profiles fit together now, with their slots or the reason; None: unknown."""
    snapshot = observe(host, ReadScope(types=True, models=gpu is not None))
    refuse_invalid_host_file(snapshot)
    result = check_fit(snapshot, select_gpus(snapshot, gpu), profiles)
    return QueryResult(_fit_value(result), snapshot.warnings), result.fits


def _fit_value(result: FitResult) -> dict[str, object]:
    return {
        "fits": result.fits,
        "why": result.reason,
        "wanted": _counts(result.requested.items()),
        "places": [_spot_value(spot) for spot in result.planned],
        "too_many": _counts(result.excess),
        "fewest": result.is_minimal,
        "gpus": [
            {
                "address": gpu_room.gpu.address,
                "model": gpu_room.gpu.model,
                "profile": gpu_room.profile,
                "free": gpu_room.room.free,
                "free_at_least": gpu_room.room.guaranteed or 0,
                "reasons": list(gpu_room.room.reasons),
            }
            for gpu_room in result.rooms
        ],
    }


def _counts(counts: Iterable[tuple[str, int]]) -> list[dict[str, object]]:
    return [{"profile": profile, "count": number} for profile, number in counts]


def _spot_value(spot: PlannedVgpu) -> dict[str, object]:
    return {"profile": spot.profile, "gpu": spot.gpu.address, "placement_id": spot.placement_id}


def make_room(
    host: Host, profiles: ProfileCounts, *, max_moves: int | None, yes: bool, wait_seconds: float, progress: Progress
) -> Outcome:
    """Plan the fewest moves that make room for these profiles; with `yes` carry them out.

    Raises:
        NoCapacity: no moves make enough room.
        VgpuctlError: a move failed; `left` lists the moves that were not done.
    """
    snapshot, gpus, pinned_vms = _observe(host, yes=yes)
    plan = plan_room_moves(snapshot, gpus, profiles, pinned_vms, max_moves)
    return _outcome(host, snapshot, plan, profiles, yes=yes, wait_seconds=wait_seconds, progress=progress)


def defragment(host: Host, *, max_moves: int | None, yes: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Plan moves after which more of the largest profiles fit; with `yes` carry them out.

    Raises:
        VgpuctlError: a move failed; `left` lists the moves that were not done.
    """
    snapshot, gpus, pinned_vms = _observe(host, yes=yes)
    plan = plan_defragmentation(snapshot, gpus, pinned_vms, max_moves)
    return _outcome(host, snapshot, plan, (), yes=yes, wait_seconds=wait_seconds, progress=progress)


def _observe(host: Host, *, yes: bool) -> tuple[Snapshot, tuple[Gpu, ...], frozenset[str]]:
    """Return a snapshot of the host, its GPUs, and the VMs that must not be moved."""
    if yes:
        require_writable(host)
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


def _outcome(
    host: Host,
    snapshot: Snapshot,
    plan: MovesPlan,
    profiles: ProfileCounts,
    *,
    yes: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    steps = tuple(describe_round(moves) for moves in plan.rounds)
    data: dict[str, object] = {
        "moves": plan.values(),
        "places": [_spot_value(spot) for spot in plan.spots],
        "fewest": plan.is_minimal,
    }
    if not yes or not plan.moves:
        notes = ("--yes carries it out",) if plan.moves else ()
        return Outcome(bool(plan.moves), data, steps, snapshot.warnings, notes, dry_run=not yes)
    move_in_rounds(host, plan.rounds, wait_seconds, progress)
    return Outcome(True, data, steps, (*snapshot.warnings, *_warn_if_taken(host, profiles)))


def _warn_if_taken(host: Host, profiles: ProfileCounts) -> tuple[str, ...]:
    """Warn if the room made is no longer free. All moves are done, so a failing check is a warning, not an error."""
    if not profiles:
        return ()
    try:
        snapshot = observe(host, ReadScope(types=True, models=False))
        is_free = check_fit(snapshot, select_gpus(snapshot, None), profiles).fits is not False
    except VgpuctlError as error:
        return (f"it is done, but the host could not be looked at again: {error}",)
    return () if is_free else ("the room that was made is taken already: somebody was faster",)


def move_in_rounds(host: Host, rounds: Sequence[Round], wait_seconds: float, progress: Progress) -> None:
    """Carry out the rounds in order, each only after those before it succeeded."""
    for number, moves in enumerate(rounds):
        try:
            _move_round(host, moves, wait_seconds, progress)
        except VgpuctlError as error:
            error.changed = error.changed or number > 0
            error.left += [f"{describe_round(later_round)}: not done" for later_round in rounds[number + 1 :]]
            retry = "the same command again plans from what is there then"
            error.hint = "; ".join(filter(None, (error.hint, retry)))
            raise


def _move_round(host: Host, moves: Round, wait_seconds: float, progress: Progress) -> None:
    """Read the VMs' current states and move them: they may have been started or stopped since the plan.

    Raises:
        NotFound: a VM was deleted meanwhile.
        Busy: a VM must not be moved any more.
        NoCapacity: a target slot is taken already; no VM was shut down for it.
        VgpuctlError: as in `with_vm_stopped`.
    """
    snapshot = observe(host, ReadScope(types=True, models=False))
    current_vms = []
    for move in moves:
        current_vm = snapshot.vm(move.vm.uuid)
        if current_vm is None:
            raise deleted_meanwhile(move.vm)
        reason = pin_reason(current_vm)
        if reason is not None:
            raise Busy(
                f"VM {current_vm.name} is not moved: {reason} now", vm=current_vm.name, state=str(current_vm.state)
            )
        current_vms.append(current_vm)
    check_rounds(snapshot, [tuple(replace(move, vm=vm) for vm, move in zip(current_vms, moves, strict=True))])

    def move_vms() -> None:
        if len(moves) > 1:
            exchange(host, moves, wait_seconds=wait_seconds, progress=progress)
            return
        (move,) = moves
        target, carrier = MoveTarget(move.gpu, move.placement_id), move.vgpu.carrier
        move_vgpu(host, move.vm.uuid, carrier, target, wait_seconds=wait_seconds, progress=progress)

    _with_vms_stopped(host, current_vms, move_vms, wait_seconds, progress)


def _with_vms_stopped(
    host: Host, vms: Sequence[Vm], act: Callable[[], None], wait_seconds: float, progress: Progress
) -> None:
    """Call `act` while all of these VMs are off; those that ran are started again afterwards."""
    if not vms:
        act()
        return
    vm, *others = vms

    def continue_with_others() -> None:
        _with_vms_stopped(host, others, act, wait_seconds, progress)

    with_vm_stopped(host, vm, continue_with_others, "moved", wait_seconds, progress)
