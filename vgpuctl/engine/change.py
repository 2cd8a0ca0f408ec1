# SPDX-License-Identifier: Apache-2.0
"""Change a stopped VM in place: its profile, memory, vCPUs, network or reserve, for set-profile and ensure-vm.

The new vGPU is claimed, the old device removed, the new one made; then one definition switches the VM over, its record
with it; then the old claim goes. A crash before the switch leaves a claim that no VM's record names, and one after it
the old claim: reconcile removes both. A device that is missing then is made again at the start. A VM that reserves its
places only while it runs gets no claim and no device here; one that is to keep them from now on gets both.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from vgpuctl.capacity.where import selected
from vgpuctl.engine.attach import own_all, want_types
from vgpuctl.engine.claim import claim_carriers, claims_of, give_back_unused, on_other_gpus
from vgpuctl.engine.done import done
from vgpuctl.engine.facts import host_memory_mib
from vgpuctl.engine.guards import find_vm, refuse_stuck, refuse_worked_on, require_system, require_writable
from vgpuctl.engine.move import definition
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.power import leftovers_of, settled
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import Busy, InUse, InvalidInput, NotFound, Refused
from vgpuctl.model.outcome import Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan, Step
from vgpuctl.model.vm import Claim, Promise, PromisedVgpu, Vm
from vgpuctl.model.wish import VmWish, Where
from vgpuctl.plan.change import Swap, swap, typed_profiles
from vgpuctl.plan.differ import kept_where, types_of
from vgpuctl.plan.facts import refuse_memory
from vgpuctl.plan.in_place import Goal, Job, chosen, expected, steps_of
from vgpuctl.plan.remove import own_promise
from vgpuctl.plan.report import vm_value
from vgpuctl.plan.reserve import wish_for
from vgpuctl.steps.claims import HoldClaim
from vgpuctl.steps.domain import OFF
from vgpuctl.value import field_names, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

IN_PLACE = frozenset({"profile", "memory", "vcpus", "network", "reserve"})
"""The fields that a stopped VM takes without being made anew."""


def set_profile(world: World, wish: VmWish, *, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Give a stopped VM other profiles in place of those it has.

    Raises:
        InUse: it runs.
        NotFound: `gpu` means no GPU of this host.
        VgpuctlError: why not; the VM is as it was.
    """
    if wish.where.gpus or wish.where.not_gpus:
        selected(observe(world, Want()), wish.where)
    return change_vm(world, wish, frozenset({"profile"}), dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)


def change_vm(
    world: World, wish: VmWish, fields: Set[str], *, dry_run: bool, wait_seconds: float, progress: Progress
) -> Outcome:
    """Make these fields (of `IN_PLACE`) of the wish's VM what the wish says.

    Raises:
        InUse: it runs.
        VgpuctlError: why not; the VM is as it was.
    """
    if not dry_run:
        require_writable(world)
    return on_other_gpus(
        lambda exclude: _changed(
            world,
            wish,
            frozenset(fields),
            exclude,
            dry_run=dry_run,
            wait_seconds=wait_seconds,
            progress=progress,
        )
    )


def _changed(
    world: World,
    wish: VmWish,
    fields: frozenset[str],
    exclude: frozenset[str],
    *,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    job = _job(world, wish, fields, dry_run=dry_run)
    if "memory" in fields:
        refuse_memory(wish.memory_mib, host_memory_mib(world))
    if not job.swap.go and not job.swap.come and not job.fields - {"profile"}:
        return Outcome(False, vm_value(job.snapshot, job.vm), warnings=job.snapshot.warnings, dry_run=dry_run)
    want = _want(wish, fields)
    return _done(world, job, want, exclude, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)


def move_vgpu(world: World, name: str, carrier: str, goal: Goal, *, wait_seconds: float, progress: Progress) -> Outcome:
    """Make a vGPU of a stopped VM elsewhere, and switch the VM over to it.

    Raises:
        InUse: the VM runs.
        Busy: the VM has no such vGPU any more.
        NoCapacity: its new place is not free any more.
        VgpuctlError: why not; the VM is as it was.
    """
    require_writable(world)
    want = Want(types=True)
    job = moving(world, observe(world, want), name, carrier, goal)
    return _done(world, job, want, frozenset(), dry_run=False, wait_seconds=wait_seconds, progress=progress)


def moving(world: World, snapshot: Snapshot, name: str, carrier: str, goal: Goal) -> Job:
    """Return the move of a vGPU of a stopped VM as the change that it is, checked; nothing is placed yet."""
    vm, promise = _changeable(snapshot, name, "place")
    old = next((v for v in promise.vgpus if v.carrier == carrier), None)
    if old is None or old.profile is None:
        raise Busy(f"{vm.name} does not have {carrier} any more", hint="run the command again", vm=vm.name)
    refuse_stuck(snapshot, [goal.gpu])
    _refuse_saved(world, vm)
    exchange = Swap(tuple(v for v in promise.vgpus if v is not old), (old,), (old.profile,))
    asked = replace(wish_for(vm, promise, (old,)), where=Where(gpus=(goal.gpu,)))
    wish = _placed(asked, promise, exchange)
    xml = definition(world, vm, dry_run=False)
    return Job(snapshot, vm, promise, wish, frozenset({"profile"}), exchange, xml, promise.reserve, (), goal)


def _done(
    world: World,
    job: Job,
    want: Want,
    exclude: frozenset[str],
    *,
    dry_run: bool,
    wait_seconds: float,
    progress: Progress,
) -> Outcome:
    """Claim, look again, carry out; or say what would be done."""

    def choose(seen: Snapshot) -> tuple[PromisedVgpu, ...]:
        return chosen(seen, job, exclude)

    def claims(new: tuple[PromisedVgpu, ...]) -> tuple[Claim, ...]:
        refuse_worked_on(world, job.vm)
        return claims_of(world, job.vm.name, replace(job.promise, vgpus=new)) if job.takes else ()

    gone = {v.carrier for v in (*job.swap.go, *job.free)}
    owned = replace(job.promise, vgpus=job.has)
    olds = tuple(c for c in claims_of(world, job.vm.name, owned) if c.carrier in gone)
    if dry_run:
        new = choose(job.snapshot)
        shown: list[Step] = [*(HoldClaim(c) for c in claims(new)), *steps_of(job.snapshot, job, new, olds)]
        return Outcome(True, expected(job, new), tuple(s.describe() for s in shown), dry_run=True)
    looks = iter([job.snapshot])

    def look() -> Snapshot:
        return next(looks, None) or observe(world, want)

    fresh, new, mine = claim_carriers(world, look, choose, claims, wait_seconds)
    mine = own_all(world, job.vm, owned, mine, wait_seconds, leaving=bool(olds))
    try:
        plan = Plan(steps_of(fresh, job, new, olds), off=(job.vm.uuid,))
    except BaseException:
        give_back_unused(world, mine)
        raise
    carry_out(world, plan, progress, mine)
    return done(world, vm_value(job.snapshot, job.vm), mine, plan)


def _want(wish: VmWish, fields: frozenset[str]) -> Want:
    if "reserve" in fields:
        return Want(types=True, every_function=True)
    return want_types(wish) if "profile" in fields else Want(models=False)


def _job(world: World, wish: VmWish, fields: frozenset[str], *, dry_run: bool) -> Job:
    """Look, and refuse what cannot be changed; the definition's secrets are read only to define it again."""
    snapshot = observe(world, _want(wish, fields))
    vm, promise = _changeable(snapshot, wish.name or "", ", ".join(sorted(fields)))
    if "network" in fields:
        _require_network(world, wish.network)
    exchange = Swap(promise.vgpus, (), ())
    if "profile" in fields:
        exchange = swap(vm, promise, typed_profiles(wish), types_of(snapshot, vm))
        _refuse_whole(vm, promise)
        if exchange.go:
            _refuse_saved(world, vm)
        wish = _placed(wish, promise, exchange)
    xml = definition(world, vm, dry_run=dry_run)
    reserve = wish.reserve if "reserve" in fields else promise.reserve
    lends = "reserve" in fields and reserve == "running" and not leftovers_of(world, vm).managed_save
    return Job(snapshot, vm, promise, wish, fields, exchange, xml, reserve, exchange.stay if lends else ())


def _changeable(snapshot: Snapshot, name: str, what: str) -> tuple[Vm, Promise]:
    """Return a VM that may be changed now, and its promise."""
    vm = find_vm(snapshot, name)
    require_system(snapshot)
    promise = own_promise(vm, "change")
    settled(vm, promise)
    if vm.state not in OFF:
        raise InUse(
            f"{vm.name} is {vm.state}; its {what} can be changed only while it is off",
            hint=f"stop it first: vgpuctl stop-vm {vm.name}; then run the command again",
            vm=vm.name,
            state=str(vm.state),
        )
    refuse_stuck(snapshot, [v.gpu for v in promise.vgpus])
    return vm, promise


def _refuse_saved(world: World, vm: Vm) -> None:
    """Refuse to take a vGPU from a VM whose memory libvirt has saved with it: it could not be started without it."""
    if leftovers_of(world, vm).managed_save:
        raise InUse(
            f"{vm.name} has a managed save, which can be restored only with the vGPUs that it has",
            hint=f"start and stop it: vgpuctl start-vm {vm.name}; or virsh managedsave-remove {vm.name}",
            vm=vm.name,
        )


def _refuse_whole(vm: Vm, promise: Promise) -> None:
    whole = [v.carrier for v in promise.vgpus if v.profile is None]
    if whole:
        raise Refused(
            f"{vm.name} has {', '.join(whole)}, which is no vGPU and has no profile",
            hint=f"vgpuctl detach {vm.name}, then vgpuctl attach {vm.name} --profile PROFILE",
            vm=vm.name,
        )


def _require_network(world: World, name: str) -> None:
    network = world.hypervisor.network(name)
    if network is None:
        raise NotFound(f"there is no network {name}", hint="virsh net-list --all", network=name)
    if not network.active:
        raise InvalidInput(f"the network {name} is not active", hint=f"virsh net-start {name}", network=name)


def _placed(wish: VmWish, promise: Promise, exchange: Swap) -> VmWish:
    """Return the wish for those vGPUs alone that come, on the GPU and with the parameters the VM was made with."""
    kept = promise.asked
    params = kept.get("vgpu_params")
    counts = {text: exchange.come.count(text) for text in exchange.come}
    return replace(
        wish,
        mode="vgpu",
        profiles=tuple(counts.items()),
        where=_where(wish.where, kept_where(kept)),
        vgpu_params=tuple((str(k), str(v)) for k, v in params.items()) if isinstance(params, dict) else (),
    )


def _where(typed: Where, kept: Where) -> Where:
    """Return where the new vGPUs may go: as typed, and for the rest as the VM was made."""
    given = {name: value for name in field_names(typed) if (value := getattr(typed, name)) not in (None, ())}
    return replace(kept, **given)
