# SPDX-License-Identifier: Apache-2.0
"""Make and remove vGPUs without a VM: look, claim, keep in host.yaml, make the device, look again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.capacity.ownership import named_owner
from vgpuctl.engine.claim import claim_carriers, claims_of, give_back, on_other_gpus, reclaim
from vgpuctl.engine.guards import refuse_stuck, require_system, require_writable
from vgpuctl.engine.observe import Want, looked_for, observe, observe_devices
from vgpuctl.engine.run import carry_out
from vgpuctl.errors import Busy, VgpuctlError
from vgpuctl.model.gpu import Vgpu
from vgpuctl.model.outcome import Answer, Confirm, Outcome, Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import Claim, NamedVgpu, PromisedVgpu
from vgpuctl.model.wish import VmWish
from vgpuctl.plan import vgpus as plans
from vgpuctl.plan.report import planned_vgpu, vgpu_value, with_companions
from vgpuctl.steps.claims import HoldClaim, all_claims
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

LOOK = Want(types=True, models=False)


def list_vgpus(world: World, *, unassigned: bool = False) -> Answer:
    """Return every vGPU and whose it is; those that host.yaml keeps have the element for a VM's definition.

    `unassigned`: only those that host.yaml keeps and no VM refers to. One of host.yaml whose place is somebody else's
    is no vGPU to be had, so a warning tells of it.

    Raises:
        InvalidInput: host.yaml cannot be understood, so nobody knows which there are.
    """
    snapshot = observe(world, LOOK)
    plans.refuse_unread(snapshot)
    entries = {entry.name: entry for entry in snapshot.named}
    listed = [v for v in snapshot.vgpus if not unassigned or (v.name is not None and v.vm is None)]
    values = [
        as_listed(entries[v.name], v) if v.name is not None else vgpu_value(v) | {"hostdev": None, "usage": []}
        for v in listed
    ]
    return Answer(with_companions(values), (*snapshot.warnings, *plans.conflicts(snapshot)))


def as_listed(entry: NamedVgpu, seen: Vgpu) -> dict[str, object]:
    """Return what is said of a vGPU of host.yaml: where it is, and the element for a VM's definition."""
    return vgpu_value(seen) | _for_vms(plans.promised(entry, seen))


def _for_vms(vgpu: PromisedVgpu) -> dict[str, object]:
    return {"hostdev": plans.hostdev(vgpu), "usage": list(plans.usage(vgpu))}


def create_vgpu(world: World, wish: VmWish, *, dry_run: bool, wait_seconds: float, progress: Progress) -> Outcome:
    """Make a vGPU without a VM; a GPU whose driver refuses is left out and the next one tried.

    Raises:
        VgpuctlError: why not; what was made has been taken back.
    """
    if not dry_run:
        require_writable(world)
    wanted = replace(wish, name=wish.name or f"vgpu-{world.new_uuid()[:8]}")
    return on_other_gpus(
        lambda exclude: _create(world, wanted, exclude, dry_run=dry_run, wait_seconds=wait_seconds, progress=progress)
    )


def _create(
    world: World, wish: VmWish, exclude: frozenset[str], *, dry_run: bool, wait_seconds: float, progress: Progress
) -> Outcome:
    name = wish.name or ""
    owner = named_owner(world.machine_id, name)
    snapshot = observe(world, looked_for(wish))
    require_system(snapshot)
    looks = iter([snapshot])

    def look() -> Snapshot:
        return next(looks, None) or observe(world, looked_for(wish))

    def choose(seen: Snapshot) -> tuple[PromisedVgpu, ...]:
        plans.refuse_unread(seen)
        plans.refuse_existing(seen, name)
        refuse_claimed(world, owner, name)
        return (plans.chosen(seen, wish, owner, exclude),)

    def claims(new: tuple[PromisedVgpu, ...]) -> tuple[Claim, ...]:
        refuse_claimed(world, owner, name)
        return _claims(world, name, new[0])

    if dry_run:
        (vgpu,) = choose(snapshot)
        shown = (*(HoldClaim(c) for c in claims((vgpu,))), *plans.create_plan(snapshot, name, vgpu).steps)
        return Outcome(True, _planned(name, vgpu), _lines(shown), snapshot.warnings, dry_run=True)
    fresh, (vgpu,), held = claim_carriers(world, look, choose, claims, wait_seconds)
    try:
        plan = plans.create_plan(fresh, name, vgpu)
    except BaseException:
        give_back(world, held)
        raise
    carry_out(world, plan, progress, held)
    return _made(world, snapshot, name, vgpu, _lines((*held, *plan.steps)))


def _lines(steps: tuple[Step, ...]) -> tuple[str, ...]:
    return tuple(step.describe() for step in steps)


def _claims(world: World, name: str, vgpu: PromisedVgpu) -> tuple[Claim, ...]:
    holder, promise = plans.holder_of(world.machine_id, name, vgpu)
    return claims_of(world, holder.name, promise)


def _planned(name: str, vgpu: PromisedVgpu) -> dict[str, object]:
    return planned_vgpu(vgpu, None) | {"name": name} | _for_vms(vgpu)


def refuse_claimed(world: World, owner: str, name: str) -> None:
    """Refuse a name for which a carrier is claimed: somebody makes it just now, or died while making it.

    Raises:
        Busy: naming the process.
    """
    for other in all_claims(world):
        if other.vm_uuid == owner:
            alive = world.processes.alive(other.process)
            raise Busy(
                f"process {other.process.pid} {'makes' if alive else 'was making'} vGPU {name}: {other.command}",
                hint="wait for it, then run the command again" if alive else "vgpuctl reconcile, then run it again",
                pid=other.process.pid,
                vgpu=name,
            )


def _made(world: World, before: Snapshot, name: str, vgpu: PromisedVgpu, steps: tuple[str, ...]) -> Outcome:
    """Look at the host again and report the vGPU as it is now; a look that fails is a warning, no failure."""
    want = Want(types=True, models=False, only=frozenset({vgpu.gpu}), type_ids=frozenset())
    unseen = _planned(name, vgpu) | {"present": True}
    try:
        now = observe_devices(world, want, vms=before.vms, status=before.hypervisor)
    except VgpuctlError as error:
        warning = f"it is done, but the host could not be looked at again: {error}"
        return Outcome(True, unseen, steps, (*before.warnings, warning))
    found = next((v for v in now.vgpus if v.name == name), None)
    data = unseen if found is None else vgpu_value(found) | _for_vms(vgpu)
    return Outcome(True, data, steps, now.warnings)


def delete_vgpu(
    world: World, name: str, *, dry_run: bool, confirm: Confirm, wait_seconds: float, progress: Progress
) -> Outcome:
    """Remove a vGPU without a VM that no VM refers to: its device, its entry in host.yaml, its claim.

    Raises:
        InUse: a VM refers to it, or a process holds it; nothing was changed.
        Busy: another command changed its entry since it was shown.
        VgpuctlError: why not; the same command again removes what is left.
    """
    if not dry_run:
        require_writable(world)
    snapshot, entry, vgpu = _look_for(world, name)
    _, seen = plans.find_named(snapshot, name)
    refuse_stuck(snapshot, [entry.gpu])
    leave = plans.somebody_elses(snapshot, entry, vgpu)
    plan = plans.removal_plan(world.machine_id, entry, vgpu, leave)
    gone = vgpu_value(seen) | {"present": False}
    if dry_run:
        return Outcome(True, vgpu_value(seen), _lines(plan.steps), snapshot.warnings, plan.notes, dry_run=True)
    confirm(f"Delete vGPU {name} ({entry.profile} on GPU {entry.gpu})?", _lines(plan.steps))
    held = reclaim(world, _claims(world, name, vgpu), wait_seconds)
    try:
        _, now, vgpu = _look_for(world, name)
        if now != entry:
            raise Busy(f"vGPU {name} of host.yaml was changed just now", hint="run the command again", vgpu=name)
        plan = plans.removal_plan(world.machine_id, entry, vgpu, leave)
    except BaseException:
        give_back(world, held)
        raise
    carry_out(world, plan, progress)
    return Outcome(True, gone, _lines(plan.steps), snapshot.warnings, plan.notes)


def _look_for(world: World, name: str) -> tuple[Snapshot, NamedVgpu, PromisedVgpu]:
    """Look at the host and return the vGPU of that name, which nobody uses: its entry, and as steps want it."""
    snapshot = observe(world, LOOK)
    require_system(snapshot)
    plans.refuse_unread(snapshot)
    entry, seen = plans.find_named(snapshot, name)
    plans.refuse_used(snapshot, entry)
    return snapshot, entry, plans.promised(entry, seen)
