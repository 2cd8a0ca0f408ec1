# SPDX-License-Identifier: Apache-2.0
"""The one act under the host lock: read the devices again, place, write the claims. Milliseconds.

Nothing else happens while the lock is held: no libvirt call, no NVML, no device write. A GPU that filled up
between the first look and the lock makes the caller look again, so that the answer is "no capacity" only when
it is true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.engine.observe import Want, observe_devices
from vgpuctl.engine.observe.host_file import SAID
from vgpuctl.errors import Busy, InUse, NoCapacity, NotFound
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Claim, Promise, PromisedVgpu
from vgpuctl.plan.claims import claims_for, typed
from vgpuctl.steps.claims import HoldClaim, claims_on, runs_with
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

LOOKS = 8

Done = TypeVar("Done")
Choose = Callable[[Snapshot], tuple[PromisedVgpu, ...]]
Claims = Callable[[tuple[PromisedVgpu, ...]], tuple[Claim, ...]]


def claims_of(world: World, name: str, promise: Promise) -> tuple[Claim, ...]:
    """Return the claims that a VM's promise stands for, as this process would hold them."""
    return claims_for(name, promise, world.processes.this(), world.processes.command())


def claim_carriers(
    world: World, look: Callable[[], Snapshot], choose: Choose, claims: Claims, wait_seconds: float
) -> tuple[Snapshot, tuple[PromisedVgpu, ...], tuple[HoldClaim, ...]]:
    """Choose carriers and claim them; returns the look under the lock, the choice and the claims held.

    Raises:
        NoCapacity, InUse: no room, or a function that is not free, also on a look taken anew.
        Locked: the lock could not be had in time.
    """
    in_use: InUse | None = None
    for _ in range(LOOKS):
        before = look()
        planned = choose(before)
        try:
            return _claim(world, before, planned, choose, claims, wait_seconds)
        except NoCapacity:
            continue
        except InUse as error:
            in_use = error
    after = look()
    choose(after)
    raise in_use or Busy("other commands kept taking what was just free", hint="run the command again")


def _claim(
    world: World,
    before: Snapshot,
    planned: tuple[PromisedVgpu, ...],
    choose: Choose,
    claims: Claims,
    wait_seconds: float,
) -> tuple[Snapshot, tuple[PromisedVgpu, ...], tuple[HoldClaim, ...]]:
    if not planned:
        return before, planned, ()
    want = narrow(before, planned)
    held: list[HoldClaim] = []
    with world.claims.lock(wait_seconds):
        fresh = observe_devices(world, want, vms=before.vms, status=before.hypervisor)
        same = unchanged(before, fresh, {v.gpu for v in planned})
        chosen = planned if same else choose(fresh)
        try:
            for claim in claims(chosen):
                held.append(HoldClaim(typed(claim, fresh)))
                held[-1].perform(world)
        except BaseException:
            for step in reversed(held):
                step.undo(world)
            raise
    return fresh, chosen, tuple(held)


def narrow(before: Snapshot, planned: tuple[PromisedVgpu, ...]) -> Want:
    """Return the least to read under the lock: the GPUs chosen, and the availability of the types wanted.

    host.yaml is among it: what it closed meanwhile is not used. The text of a moment ago is not parsed again.
    """
    only = frozenset(v.gpu for v in planned)
    profiles = {v.profile for v in planned}
    gpus = tuple(g for g in before.gpus if g.address in only)
    ids = frozenset(t.type_id for g in gpus for t in g.types if t.profile in profiles or t.units is not None)
    return Want(types=True, models=False, only=only, type_ids=ids, known=gpus)


def unchanged(before: Snapshot, fresh: Snapshot, gpus: set[str]) -> bool:
    """Say whether nothing that a choice depends on changed on these GPUs."""
    if before is fresh:
        return True
    if before.stuck != fresh.stuck or before.host_file_problem != fresh.host_file_problem:
        return False
    for address in gpus:
        old, new = before.gpu(address), fresh.gpu(address)
        if old is None or new is None or before.taken_on(address) != fresh.taken_on(address):
            return False
        if any(getattr(old, key) != getattr(new, key) for key in SAID):
            return False
        if [(f.address, f.problem, f.driver) for f in old.functions] != [
            (f.address, f.problem, f.driver) for f in new.functions
        ]:
            return False
    return True


def give_back(world: World, held: Sequence[HoldClaim]) -> None:
    """Release claims for which nothing was made yet."""
    for step in reversed(held):
        step.undo(world)


def give_back_unused(world: World, held: Sequence[HoldClaim]) -> None:
    """Release a VM's claims, but not on what it has while it is not off: another program may have started it."""
    give_back(world, [step for step in held if not runs_with(world, step.claim)])


def on_other_gpus(act: Callable[[frozenset[str]], Done]) -> Done:
    """Do it, and again without each GPU whose driver refused although its numbers looked right.

    Raises:
        NoCapacity: the last driver's refusal, when no GPU is left.
    """
    exclude: frozenset[str] = frozenset()
    refused: NoCapacity | None = None
    while True:
        try:
            return act(exclude)
        except NoCapacity as error:
            gpu = error.facts.get("gpu")
            if not isinstance(gpu, str) or "errno" not in error.facts or gpu in exclude:
                raise refused or error from None
            refused, exclude = error, exclude | {gpu}
        except NotFound as error:
            raise refused or error from None  # no GPU that is left knows the profile


def reclaim(
    world: World,
    claims: tuple[Claim, ...],
    wait_seconds: float,
    *,
    lost: bool = True,
    seen: Snapshot | None = None,
    leaving: bool = False,
) -> tuple[HoldClaim, ...]:
    """Make a VM's claims this process's own; refused while another live process works on it.

    A claim that is not there, as after a reboot, is written anew and returned; with `lost` False it is left out.
    `seen`: a look whose types say what the devices will be; without it the claims keep what they say of that.
    `leaving`: vGPUs of the VM are going to be removed. libvirt's hook refuses to start it from now on; whether it was
    started before is to be looked at after this.

    Raises:
        Busy: another vgpuctl works on this VM.
    """
    with world.claims.lock(wait_seconds):
        present = {c.carrier: c for c in claims_on(world, claims)}
        for claim in claims:
            if claim.carrier in present:
                _refuse_taken(world, claim, present[claim.carrier])
        wanted = [replace(c, leaving=leaving) for c in claims if lost or c.carrier in present]
        mine = [_with_type(c, present.get(c.carrier), seen) for c in wanted]
        try:
            for claim in mine:
                HoldClaim(claim).renew(world)
        except BaseException:
            _put_back(world, mine, present)
            raise
    return tuple(HoldClaim(c) for c in mine if c.carrier not in present)


def _with_type(claim: Claim, before: Claim | None, seen: Snapshot | None) -> Claim:
    kept = claim if before is None else replace(claim, type_id=before.type_id)
    return kept if seen is None else typed(kept, seen)


def _refuse_taken(world: World, claim: Claim, other: Claim) -> None:
    if other.vm_uuid != claim.vm_uuid:
        raise Busy(
            f"{claim.carrier} is claimed for {other.holder}",
            hint="vgpuctl reconcile, then run the command again",
            carrier=claim.carrier,
            vm=other.vm,
        )
    if other.process != claim.process and world.processes.alive(other.process):
        raise Busy(
            f"process {other.process.pid} works on {other.holder}: {other.command}",
            hint="wait for it, then run the command again",
            pid=other.process.pid,
            vm=other.vm,
        )


def _put_back(world: World, mine: Sequence[Claim], before: Mapping[str, Claim]) -> None:
    """Leave the claims as they were when they could not all be taken over."""
    for claim in mine:
        with suppress(OSError):
            if claim.carrier in before:
                world.claims.renew(before[claim.carrier])
            else:
                world.claims.remove(claim.carrier, claim.vm_uuid)
