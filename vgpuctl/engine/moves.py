# SPDX-License-Identifier: Apache-2.0
"""What fits on this host together, and moving VMs so that more does: stopped, given another place, started again.

Each move is whole in itself: it claims its target, changes the VM as set-profile does, and starts it. After a failure
or a crash the VMs moved before stay where they are, and the same command plans anew from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from vgpuctl.capacity.fits import Fit, Spot, fit
from vgpuctl.capacity.where import select_gpus
from vgpuctl.engine.change import move_vgpu
from vgpuctl.engine.exchange import exchange
from vgpuctl.engine.guards import require_system, require_writable
from vgpuctl.engine.move import deleted_meanwhile
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.power import leftovers_of
from vgpuctl.engine.while_off import while_off
from vgpuctl.errors import Busy, NotFound, VgpuctlError
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import Answer, Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm
from vgpuctl.plan.choose import refuse_unknown_host_file
from vgpuctl.plan.in_place import Goal
from vgpuctl.plan.moves import (
    MovesPlan,
    better_by_moves,
    room_by_moves,
    why_pinned,
)
from vgpuctl.plan.rounds import Round, describe_round, refuse_rounds
from vgpuctl.steps.domain import OFF
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

Profiles = Sequence[tuple[str, int]]


def fits(world: World, profiles: Profiles, gpu: str | None = None) -> tuple[Answer, bool | None]:
    """Return whether so many of each profile fit together now, with their places, or why not; None: not known."""
    snapshot = observe(world, Want(types=True, models=gpu is not None))
    refuse_unknown_host_file(snapshot)
    found = fit(snapshot, select_gpus(snapshot, gpu), profiles)
    return Answer(_fit_value(found), snapshot.warnings), found.fits


def _fit_value(found: Fit) -> dict[str, object]:
    return {
        "fits": found.fits,
        "why": found.why,
        "wanted": _counts(found.wanted.items()),
        "places": [_spot_value(s) for s in found.spots],
        "too_many": _counts(found.too_many),
        "fewest": found.fewest,
        "gpus": [
            {
                "address": b.gpu.address,
                "model": b.gpu.model,
                "profile": b.profile,
                "free": b.room.free,
                "free_at_least": b.room.sure or 0,
                "reasons": list(b.room.reasons),
            }
            for b in found.barriers
        ],
    }


def _counts(counts: Iterable[tuple[str, int]]) -> list[dict[str, object]]:
    return [{"profile": profile, "count": number} for profile, number in counts]


def _spot_value(spot: Spot) -> dict[str, object]:
    return {"profile": spot.profile, "gpu": spot.gpu.address, "placement_id": spot.placement_id}


def make_room(
    world: World, profiles: Profiles, *, most: int | None, yes: bool, wait_seconds: float, progress: Progress
) -> Outcome:
    """Plan the fewest moves that make room for these profiles; with `yes` carry them out.

    Raises:
        NoCapacity: no moves make it.
        VgpuctlError: a move failed; `left` says which have not been made.
    """
    snapshot, gpus, stay = _look(world, yes=yes)
    plan = room_by_moves(snapshot, gpus, profiles, stay, most)
    return _outcome(world, snapshot, plan, profiles, yes=yes, wait_seconds=wait_seconds, progress=progress)


def defragment(world: World, *, most: int | None, yes: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Plan moves after which more of the largest profiles fit; with `yes` carry them out.

    Raises:
        VgpuctlError: a move failed; `left` says which have not been made.
    """
    snapshot, gpus, stay = _look(world, yes=yes)
    plan = better_by_moves(snapshot, gpus, stay, most)
    return _outcome(world, snapshot, plan, (), yes=yes, wait_seconds=wait_seconds, progress=progress)


def _look(world: World, *, yes: bool) -> tuple[Snapshot, tuple[Gpu, ...], frozenset[str]]:
    """Look at the host: its GPUs, and the VMs that stay whatever comes."""
    if yes:
        require_writable(world)
    snapshot = observe(world, Want(types=True, models=False))
    require_system(snapshot)
    refuse_unknown_host_file(snapshot)
    return snapshot, select_gpus(snapshot, None), pinned(world, snapshot)


def pinned(world: World, snapshot: Snapshot) -> frozenset[str]:
    """Return the VMs that stay where they are because libvirt has saved their memory with their devices."""
    stay = set()
    for vm in snapshot.vms:
        if vm.state in OFF and why_pinned(vm) is None:
            try:
                saved = leftovers_of(world, vm).managed_save
            except NotFound:
                saved = True
            stay |= {vm.uuid} if saved else set()
    return frozenset(stay)


def _outcome(
    world: World,
    snapshot: Snapshot,
    plan: MovesPlan,
    profiles: Profiles,
    *,
    yes: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    steps = tuple(describe_round(moves) for moves in plan.rounds)
    data: dict[str, object] = {
        "moves": plan.values(),
        "places": [_spot_value(spot) for spot in plan.spots],
        "fewest": plan.fewest,
    }
    if not yes or not plan.moves:
        notes = ("--yes carries it out",) if plan.moves else ()
        return Outcome(bool(plan.moves), data, steps, snapshot.warnings, notes, dry_run=not yes)
    move_all(world, plan.rounds, wait_seconds, progress)
    return Outcome(True, data, steps, (*snapshot.warnings, *_room_now(world, profiles)))


def _room_now(world: World, profiles: Profiles) -> tuple[str, ...]:
    """Look whether the room that was made is there; all is done, so a look that fails now is a warning, no failure."""
    if not profiles:
        return ()
    try:
        now = observe(world, Want(types=True, models=False))
        there = fit(now, select_gpus(now, None), profiles).fits is not False
    except VgpuctlError as error:
        return (f"it is done, but the host could not be looked at again: {error}",)
    return () if there else ("the room that was made is taken already: somebody was faster",)


def move_all(world: World, rounds: Sequence[Round], wait_seconds: float, progress: Progress) -> None:
    """Make one round after the other, each only when those before it are made."""
    for number, moves in enumerate(rounds):
        try:
            _move(world, moves, wait_seconds, progress)
        except VgpuctlError as error:
            error.changed = error.changed or number > 0
            error.left += [f"{describe_round(later)}: not done" for later in rounds[number + 1 :]]
            again = "the same command again plans from what is there then"
            error.hint = "; ".join(filter(None, (error.hint, again)))
            raise


def _move(world: World, moves: Round, wait_seconds: float, progress: Progress) -> None:
    """Look whether the VMs run now, and move them: they may have been started or stopped since the plan.

    Raises:
        NotFound: one was deleted meanwhile.
        Busy: one may not be moved any more.
        NoCapacity: a new place is gone already; none was shut down for it.
        VgpuctlError: as `while_off`.
    """
    snapshot = observe(world, Want(types=True, models=False))
    vms = []
    for move in moves:
        seen = snapshot.vm(move.vm.uuid)
        if seen is None:
            raise deleted_meanwhile(move.vm)
        stays = why_pinned(seen)
        if stays is not None:
            raise Busy(f"VM {seen.name} is not moved: {stays} now", vm=seen.name, state=str(seen.state))
        vms.append(seen)
    refuse_rounds(snapshot, [tuple(replace(move, vm=vm) for vm, move in zip(vms, moves, strict=True))])

    def act() -> None:
        if len(moves) > 1:
            exchange(world, moves, wait_seconds=wait_seconds, progress=progress)
            return
        (move,) = moves
        goal, carrier = Goal(move.gpu, move.placement_id), move.vgpu.carrier
        move_vgpu(world, move.vm.uuid, carrier, goal, wait_seconds=wait_seconds, progress=progress)

    _while_all_off(world, vms, act, wait_seconds, progress)


def _while_all_off(
    world: World, vms: Sequence[Vm], act: Callable[[], None], wait_seconds: float, progress: Progress
) -> None:
    """Do it while all of them are off; those that ran run again after it."""
    if not vms:
        act()
        return
    vm, *others = vms

    def rest() -> None:
        _while_all_off(world, others, act, wait_seconds, progress)

    while_off(world, vm, rest, "moved", wait_seconds, progress)
