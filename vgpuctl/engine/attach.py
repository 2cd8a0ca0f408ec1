# SPDX-License-Identifier: Apache-2.0
"""Give a vGPU to a VM that exists, and take it back; also while it runs, and also when somebody else made it.

Attaching: claim, record, make, attach. Detaching is the same backwards, and waits for the guest. A crash in between
leaves a record that names a vGPU which the VM does not refer to: reconcile removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.capacity.ownership import LOST
from vgpuctl.engine.claim import claim_carriers, claims_of, give_back_unused, on_other_gpus, reclaim
from vgpuctl.engine.done import done
from vgpuctl.engine.guards import find_vm, refuse_stuck, refuse_worked_on, require_system, require_writable
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.power import look_again, settled
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import Busy, NoCapacity, Refused
from vgpuctl.model import commands
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan, Step
from vgpuctl.model.vm import Claim, Promise, PromisedVgpu, Vm, VmState
from vgpuctl.model.wish import VmWish
from vgpuctl.plan import change
from vgpuctl.plan.remove import not_provably_ours, own_promise
from vgpuctl.plan.report import vm_value
from vgpuctl.plan.reserve import emptied, held
from vgpuctl.steps.claims import HoldClaim
from vgpuctl.steps.plug import refuse_full
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

LIVE = (VmState.RUNNING, VmState.PAUSED)


def attach(world: World, wish: VmWish, *, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Give the VM of the wish's name its profiles; a GPU whose driver refuses is left out and the next one tried.

    Raises:
        VgpuctlError: why not; what was made has been taken back.
    """
    if not dry_run:
        require_writable(world)
    return on_other_gpus(
        lambda exclude: _attach(world, wish, exclude, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)
    )


def want_types(wish: VmWish) -> Want:
    """Return what must be read to place these profiles."""
    return Want(types=True, profiles=frozenset(text for text, _ in wish.profiles))


def _attach(
    world: World,
    wish: VmWish,
    exclude: frozenset[str],
    *,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    snapshot = observe(world, want_types(wish))
    vm = find_vm(snapshot, wish.name or "")
    require_system(snapshot)
    promise = _promise(snapshot, vm)
    live = _is_live(vm)
    takes = live or not promise.lends
    typed = change.typed_profiles(wish)
    if live:
        record = world.hypervisor.find_domain(vm.uuid)
        refuse_full(vm.name, record.live_xml if record else None, len(typed), commands.to_stop(vm))
    looks = iter([snapshot])

    def look() -> Snapshot:
        return next(looks, None) or observe(world, want_types(wish))

    def choose(seen: Snapshot) -> tuple[PromisedVgpu, ...]:
        if takes:
            return change.added(seen, wish, promise, exclude)
        try:
            return change.added(change.beside(seen, vm, promise.vgpus), wish, promise, exclude)
        except NoCapacity:
            return change.added(change.beside(emptied(seen), vm, promise.vgpus), wish, promise)

    def claims(new: tuple[PromisedVgpu, ...]) -> tuple[Claim, ...]:
        refuse_worked_on(world, vm)
        return claims_of(world, vm.name, replace(promise, vgpus=new)) if takes else ()

    if dry_run:
        new = choose(snapshot)
        planned = change.attach_steps(snapshot, vm, promise, typed, new, live=live)
        shown: list[Step] = [*(HoldClaim(c) for c in claims(new)), *planned]
        return Outcome(True, vm_value(snapshot, vm), tuple(s.describe() for s in shown), dry_run=True)
    fresh, new, mine = claim_carriers(world, look, choose, claims, wait_seconds)
    mine = own_all(world, vm, replace(promise, vgpus=held(snapshot, vm, promise)), mine, wait_seconds)
    try:
        plan = Plan(change.attach_steps(fresh, vm, promise, typed, new, live=live), off=() if live else (vm.uuid,))
    except BaseException:
        give_back_unused(world, mine)
        raise
    carry_out(world, plan, progress, mine)
    return done(world, vm_value(snapshot, vm), mine, plan)


def _promise(snapshot: Snapshot, vm: Vm) -> Promise:
    """Return what the VM is promised now; nothing for one that somebody else made.

    Raises:
        Foreign: its record is a copy, or cannot be understood.
        Busy: it is half-way, or has lost its record.
    """
    promise = change.own_or_new(vm, snapshot.machine_id)
    if vm.promise is not None:
        settled(vm, vm.promise)
        refuse_stuck(snapshot, [v.gpu for v in vm.promise.vgpus])
    elif any(v.vm_uuid == vm.uuid and v.reason == LOST for v in snapshot.vgpus):
        raise Busy(f"{vm.name} has lost its record", hint="vgpuctl reconcile writes it again", vm=vm.name)
    return promise


def _is_live(vm: Vm) -> bool:
    if vm.state not in (*LIVE, VmState.STOPPED):
        raise Refused(
            f"{vm.name} is {vm.state}: its devices can be changed while it runs or is off",
            hint=commands.to_stop(vm, force=True),
            vm=vm.name,
        )
    return vm.state in LIVE


def own_all(
    world: World,
    vm: Vm,
    promise: Promise,
    held: tuple[HoldClaim, ...],
    wait_seconds: float,
    *,
    leaving: bool = False,
) -> tuple[HoldClaim, ...]:
    """Make the claims of the VM's other vGPUs this process's own too, and see that nobody changed the VM meanwhile.

    `leaving`: some of them are going to be removed.

    Returns every claim to be undone; on failure those in `held` are given back.

    Raises:
        Busy: another vgpuctl works on the VM, or has changed it.
    """
    mine = held
    try:
        mine = (*held, *reclaim(world, claims_of(world, vm.name, promise), wait_seconds, leaving=leaving))
        refuse_worked_on(world, vm)
        _, now = look_again(world, vm)
        if _changeable(now) != _changeable(vm):
            raise Busy(f"{vm.name} was changed meanwhile", hint="run the command again", vm=vm.name)
    except BaseException:
        give_back_unused(world, mine)
        raise
    return mine


def _changeable(vm: Vm) -> tuple[object, ...]:
    """Return what must not change between the plan and the claims."""
    return vm.promise, vm.copied_promise, vm.unreadable_promise, vm.state, vm.hostdevs


def detach(
    world: World,
    name: str,
    carriers: Sequence[str] = (),
    *,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Take vGPUs from a VM, all when no carrier is named, and remove them.

    Raises:
        Busy: the guest of a running VM has not let one go in time; the vGPU stays made, recorded and claimed.
        VgpuctlError: why not.
    """
    if not dry_run:
        require_writable(world)
    snapshot = observe(world, Want(models=False))
    vm = find_vm(snapshot, name)
    require_system(snapshot)
    promise = own_promise(vm, "take vGPUs from")
    settled(vm, promise)
    go = change.named(vm, promise, carriers)
    refuse_stuck(snapshot, [v.gpu for v in go])
    _is_live(vm)
    leave = not_provably_ours(snapshot, vm, promise)
    plan = Plan(change.detach_steps(vm, promise, go, leave, wait_seconds), undo_on_failure=False)
    if dry_run or not go:
        steps = tuple(s.describe() for s in plan.steps)
        return Outcome(bool(go), vm_value(snapshot, vm), steps, snapshot.warnings, dry_run=dry_run)
    own_all(world, vm, replace(promise, vgpus=held(snapshot, vm, promise)), (), wait_seconds, leaving=True)
    carry_out(world, plan, progress)
    return done(world, vm_value(snapshot, vm), (), plan)
