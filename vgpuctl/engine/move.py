# SPDX-License-Identifier: Apache-2.0
"""Start a VM that reserves its places only while it runs, wherever there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claim_carriers, claims_of, give_back_unused, reclaim
from vgpuctl.engine.done import done
from vgpuctl.engine.facts import holders_of
from vgpuctl.engine.guards import refuse_being_set_up, refuse_stuck, refuse_worked_on
from vgpuctl.engine.observe import looked_for, observe
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import Busy, NotFound
from vgpuctl.model.gpu import Backend
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan, Step
from vgpuctl.model.vm import Claim, Promise, PromisedVgpu, Vm
from vgpuctl.plan.devices import check_devices, device_steps, force_console
from vgpuctl.plan.facts import refuse_held
from vgpuctl.plan.move import move_steps
from vgpuctl.plan.report import vm_value
from vgpuctl.plan.reserve import held, places, wish_for
from vgpuctl.steps.claims import HoldClaim
from vgpuctl.steps.domain import OFF, StartDomain
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def start_anywhere(
    world: World,
    vm: Vm,
    promise: Promise,
    exclude: frozenset[str],
    *,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Start a VM that reserves its places only while it runs: in its own if they are free, else moved to free ones.

    Claim, make, switch the definition over, start: a crash in between leaves claims and devices of a VM that is off,
    which reconcile takes away.
    """
    want = looked_for(wish_for(vm, promise, promise.vgpus))
    snapshot = observe(world, want)
    looks = iter([snapshot])

    def look() -> Snapshot:
        return next(looks, None) or observe(world, want)

    def choose(seen: Snapshot) -> tuple[PromisedVgpu, ...]:
        return places(seen, vm, promise, exclude)

    def claims(new: tuple[PromisedVgpu, ...]) -> tuple[Claim, ...]:
        refuse_worked_on(world, vm)
        return claims_of(world, vm.name, replace(promise, vgpus=new))

    if dry_run:
        new = choose(snapshot)
        plan = _plan(world, snapshot, vm, promise, new, dry_run=True)
        shown = (*(HoldClaim(c) for c in claims(new)), *plan.steps)
        return Outcome(True, vm_value(snapshot, vm), tuple(s.describe() for s in shown), dry_run=True)
    _, new, mine = claim_carriers(world, look, choose, claims, wait_seconds)
    try:
        already = replace(promise, vgpus=held(snapshot, vm, promise))
        mine = (*mine, *reclaim(world, claims_of(world, vm.name, already), wait_seconds, seen=snapshot))
        snapshot = observe(world, want)
        _refuse_changed(snapshot, vm)
        plan = _plan(world, snapshot, vm, promise, new, dry_run=False)
    except BaseException:
        give_back_unused(world, mine)
        raise
    told = carry_out(world, plan, progress, mine)
    return done(world, vm_value(snapshot, vm), mine, plan, told)


def _refuse_changed(snapshot: Snapshot, vm: Vm) -> None:
    """Refuse to go on with a VM that another command deleted, changed or started before it was claimed."""
    now = snapshot.vm(vm.uuid)
    if now is None:
        raise deleted_meanwhile(vm)
    if now.promise != vm.promise or now.hostdevs != vm.hostdevs or now.state not in OFF:
        raise Busy(f"{vm.name} was changed or started meanwhile", hint="run the command again", vm=vm.name)


def _plan(
    world: World, seen: Snapshot, vm: Vm, promise: Promise, new: tuple[PromisedVgpu, ...], *, dry_run: bool
) -> Plan:
    """Return the steps after the claims: devices, the definition if anything is elsewhere now, the start."""
    there = replace(promise, vgpus=_in_order(promise, held(seen, vm, promise), new))
    refuse_stuck(seen, [v.gpu for v in there.vgpus])
    refuse_being_set_up(seen, [v.gpu for v in there.vgpus])
    check_host(world, seen, there)
    steps: list[Step] = [*device_steps(seen, vm, there)]
    if there != promise:
        steps += move_steps(vm, promise, there, definition(world, vm, dry_run=dry_run))
    return Plan((*steps, StartDomain(vm.name, vm.uuid)), off=(vm.uuid,))


def _in_order(promise: Promise, *parts: tuple[PromisedVgpu, ...]) -> tuple[PromisedVgpu, ...]:
    """Return the vGPUs of these parts in the order of the record, each index once."""
    by_index = {v.index: v for part in parts for v in part}
    return tuple(by_index[v.index] for v in promise.vgpus)


def definition(world: World, vm: Vm, *, dry_run: bool) -> str:
    """Return a VM's definition, to change it; its secrets are read only to define it again.

    Raises:
        NotFound: it was deleted.
    """
    if not dry_run:
        return world.hypervisor.definition(vm.uuid)
    record = world.hypervisor.find_domain(vm.uuid)
    if record is None:
        raise deleted_meanwhile(vm)
    return record.xml


def deleted_meanwhile(vm: Vm) -> NotFound:
    """Return the error for a VM that another command deleted between two looks."""
    return NotFound(
        f"there is no VM {vm.name} any more: it was deleted just now",
        hint="vgpuctl list-vms shows those there are",
        vm=vm.name,
    )


def check_host(world: World, snapshot: Snapshot, promise: Promise) -> None:
    """Check what creation checked, again: since then the host may have rebooted, or taken the device."""
    check_devices(snapshot, promise)
    whole = tuple(v for v in promise.vgpus if v.backend is Backend.PASSTHROUGH)
    if whole:
        refuse_held(whole[0].gpu, holders_of(world, whole), force_console=force_console(promise))
