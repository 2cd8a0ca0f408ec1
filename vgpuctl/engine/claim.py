# SPDX-License-Identifier: Apache-2.0
"""The work under the host lock: read the devices again, choose slots, write or take over claims. Milliseconds.

A carrier is what carries a vGPU: an mdev, a VF or a whole function. A slot is a free carrier with its placement.

Nothing else happens while the lock is held: no libvirt call, no NVML call, no write to a device. If a GPU filled up
between the first snapshot and the lock, the caller reads the host again. So "no capacity" is reported only when it is
true.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from vgpuctl.errors import Busy, InUse, NoCapacity, NotFound
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, VmRecord
from vgpuctl.observe import ReadScope, observe_devices
from vgpuctl.observe.host_file import HOST_FILE_FIELDS
from vgpuctl.plan.claims import build_claims, with_type_id
from vgpuctl.steps.claims import TakeClaim, is_claim_in_use, reread_claims
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

MAX_ATTEMPTS = 8

ActionResult = TypeVar("ActionResult")
ChooseVgpus = Callable[[Snapshot], tuple[AssignedVgpu, ...]]
MakeClaims = Callable[[tuple[AssignedVgpu, ...]], tuple[Claim, ...]]


def claims_of_record(host: Host, name: str, record: VmRecord) -> tuple[Claim, ...]:
    """Return the claims that a VM's record requires, with this process as their holder."""
    return build_claims(name, record, host.processes.current_process(), host.processes.command_line())


def claim_carriers(
    host: Host, observe_gpus: Callable[[], Snapshot], choose: ChooseVgpus, make_claims: MakeClaims, wait_seconds: float
) -> tuple[Snapshot, tuple[AssignedVgpu, ...], tuple[TakeClaim, ...]]:
    """Choose carriers and claim them; return the snapshot read under the lock, the choice and the claims held.

    Raises:
        NoCapacity, InUse: no room, or a function that is not free; a fresh snapshot confirmed it.
        Locked: the lock could not be acquired in time.
    """
    in_use: InUse | None = None
    for _ in range(MAX_ATTEMPTS):
        before = observe_gpus()
        planned = choose(before)
        try:
            return _claim_under_lock(host, before, planned, choose, make_claims, wait_seconds)
        except NoCapacity:
            continue
        except InUse as error:
            in_use = error
    after = observe_gpus()
    choose(after)
    raise in_use or Busy("other commands kept taking what was just free", hint="run the command again")


def _claim_under_lock(
    host: Host,
    before: Snapshot,
    planned: tuple[AssignedVgpu, ...],
    choose: ChooseVgpus,
    make_claims: MakeClaims,
    wait_seconds: float,
) -> tuple[Snapshot, tuple[AssignedVgpu, ...], tuple[TakeClaim, ...]]:
    if not planned:
        return before, planned, ()
    scope = recheck_scope(before, planned)
    held: list[TakeClaim] = []
    with host.claims.lock(wait_seconds):
        fresh = observe_devices(host, scope, vms=before.vms, status=before.hypervisor)
        unchanged = is_unchanged(before, fresh, {v.gpu for v in planned})
        chosen = planned if unchanged else choose(fresh)
        try:
            for claim in make_claims(chosen):
                held.append(TakeClaim(with_type_id(claim, fresh)))
                held[-1].perform(host)
        except BaseException:
            for step in reversed(held):
                step.undo(host)
            raise
    return fresh, chosen, tuple(held)


def recheck_scope(before: Snapshot, planned: tuple[AssignedVgpu, ...]) -> ReadScope:
    """Return the smallest scope to read under the lock: the GPUs chosen, and the availability of the types requested.

    host.yaml is part of it: a GPU that it closed meanwhile is not used. An unchanged text is not parsed again.
    """
    addresses = frozenset(v.gpu for v in planned)
    profiles = {v.profile for v in planned}
    gpus = tuple(g for g in before.gpus if g.address in addresses)
    type_ids = frozenset(t.type_id for g in gpus for t in g.types if t.profile in profiles or t.pool_units is not None)
    return ReadScope(types=True, models=False, gpu_addresses=addresses, type_ids=type_ids, cached_gpus=gpus)


def is_unchanged(before: Snapshot, fresh: Snapshot, gpus: set[str]) -> bool:
    """Say whether everything that a choice depends on is unchanged on these GPUs."""
    if before is fresh:
        return True
    if before.stuck_writes != fresh.stuck_writes or before.host_file_problem != fresh.host_file_problem:
        return False
    for address in gpus:
        old, new = before.gpu(address), fresh.gpu(address)
        if old is None or new is None or before.vgpus_on(address) != fresh.vgpus_on(address):
            return False
        if any(getattr(old, key) != getattr(new, key) for key in HOST_FILE_FIELDS):
            return False
        if [(f.address, f.problem, f.driver) for f in old.functions] != [
            (f.address, f.problem, f.driver) for f in new.functions
        ]:
            return False
    return True


def release_claims(host: Host, claim_steps: Sequence[TakeClaim]) -> None:
    """Release claims whose devices were not created yet."""
    for step in reversed(claim_steps):
        step.undo(host)


def release_unused_claims(host: Host, claim_steps: Sequence[TakeClaim]) -> None:
    """Release a VM's claims, except those in use while the VM is not off: another program may have started it."""
    release_claims(host, [step for step in claim_steps if not is_claim_in_use(host, step.claim)])


def retry_excluding_gpus(action: Callable[[frozenset[str]], ActionResult]) -> ActionResult:
    """Run the action; repeat it without each GPU whose driver refused although it reported room.

    Raises:
        NoCapacity: the last driver's refusal, when no GPU is left.
    """
    exclude: frozenset[str] = frozenset()
    refused: NoCapacity | None = None
    while True:
        try:
            return action(exclude)
        except NoCapacity as error:
            gpu = error.facts.get("gpu")  # with an errno it is the driver's refusal, else our own count
            if not isinstance(gpu, str) or "errno" not in error.facts or gpu in exclude:
                raise refused or error from None
            refused, exclude = error, exclude | {gpu}
        except NotFound as error:
            raise refused or error from None  # none of the remaining GPUs offers the profile


def take_over_claims(
    host: Host,
    claims: tuple[Claim, ...],
    wait_seconds: float,
    *,
    include_missing: bool = True,
    snapshot: Snapshot | None = None,
    leaving: bool = False,
) -> tuple[TakeClaim, ...]:
    """Make this process the holder of a VM's claims; refused while another live process works on the VM.

    A missing claim, as after a reboot, is written again and returned; with `include_missing` False it is left out.
    `snapshot`: its types give the type id of each device; without it the claims keep the type ids that they have.
    `leaving`: vGPUs of the VM are about to be removed. From now on libvirt's hook refuses to start the VM. After this
    call the caller must check whether the VM was started before.

    Raises:
        Busy: another vgpuctl works on this VM.
    """
    with host.claims.lock(wait_seconds):
        present = {c.carrier: c for c in reread_claims(host, claims)}
        for claim in claims:
            if claim.carrier in present:
                _refuse_other_holder(host, claim, present[claim.carrier])
        requested = [replace(c, leaving=leaving) for c in claims if include_missing or c.carrier in present]
        updated = [_with_known_type(c, present.get(c.carrier), snapshot) for c in requested]
        try:
            for claim in updated:
                TakeClaim(claim).take_over(host)
        except BaseException:
            _restore_claims(host, updated, present)
            raise
    return tuple(TakeClaim(c) for c in updated if c.carrier not in present)


def _with_known_type(claim: Claim, before: Claim | None, snapshot: Snapshot | None) -> Claim:
    updated = claim if before is None else replace(claim, type_id=before.type_id)
    return updated if snapshot is None else with_type_id(updated, snapshot)


def _refuse_other_holder(host: Host, claim: Claim, other: Claim) -> None:
    if other.vm_uuid != claim.vm_uuid:
        raise Busy(
            f"{claim.carrier} is claimed for {other.holder_text}",
            hint="vgpuctl reconcile, then run the command again",
            carrier=claim.carrier,
            vm=other.vm,
        )
    if other.process != claim.process and host.processes.is_alive(other.process):
        raise Busy(
            f"process {other.process.pid} works on {other.holder_text}: {other.command}",
            hint="wait for it, then run the command again",
            pid=other.process.pid,
            vm=other.vm,
        )


def _restore_claims(host: Host, claims: Sequence[Claim], before: Mapping[str, Claim]) -> None:
    """Restore the former claims when not all of them could be taken over."""
    for claim in claims:
        with suppress(OSError):
            if claim.carrier in before:
                host.claims.replace(before[claim.carrier])
            else:
                host.claims.remove(claim.carrier, claim.vm_uuid)
