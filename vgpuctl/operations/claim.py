# SPDX-License-Identifier: Apache-2.0
"""Claims: those that a record requires, what to read again under the host lock, and taking over those of an owner.

A VM that may hold no claim is noted instead, while an operation works on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, FileFailed, VgpuctlError
from vgpuctl.model.port_values import HypervisorStatus
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import GPU_SETUP_CLAIM, AssignedVgpu, Claim, Operation, VmInProgress, VmRecord
from vgpuctl.observe import ReadScope
from vgpuctl.observe.claims import gpu_setup_error, is_alive, living_operations, report_unreadable, reread_claims
from vgpuctl.observe.host_file import HOST_FILE_FIELDS
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

LIBVIRT_NOT_QUERIED = HypervisorStatus(available=False, uri="", reason="libvirt is not used here")


def claims_of_record(host: Host, name: str, record: VmRecord) -> tuple[Claim, ...]:
    """Return the claims that a VM's record requires, with the current operation as their holder."""
    return build_claims(name, record, host.operations.current())


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


def take_over(
    host: Host, claims: Sequence[Claim], *, include_missing: bool, snapshot: Snapshot | None
) -> tuple[list[Claim], tuple[TakeClaim, ...]]:
    """Write these claims over those of the same owner, under the host lock; return all, and those that were missing.

    Raises:
        Busy: another live operation works on the owner or sets up its GPU, or a carrier is claimed for another owner;
            none was written.
    """
    gpus = {claim.gpu for claim in claims}
    carriers = gpus | {claim.carrier for claim in claims}
    present = {c.carrier: c for c in reread_claims(host, carriers)}
    for gpu in gpus & present.keys():
        _refuse_setup(host, present[gpu])
    for claim in claims:
        if claim.carrier in present:
            _refuse_other_holder(host, claim, present[claim.carrier])
    # read again: an operation may have released its claims and ended between the first read and the checks
    present = {c.carrier: c for c in reread_claims(host, carriers)}
    requested = [claim for claim in claims if include_missing or claim.carrier in present]
    updated = [_with_known_type(claim, present.get(claim.carrier), snapshot) for claim in requested]
    try:
        for claim in updated:
            TakeClaim(claim).take_over(host)
    except VgpuctlError:
        _restore_claims(host, updated, present)
        raise
    return updated, tuple(TakeClaim(claim) for claim in updated if claim.carrier not in present)


def _with_known_type(claim: Claim, before: Claim | None, snapshot: Snapshot | None) -> Claim:
    updated = claim if before is None else replace(claim, type_id=before.type_id)
    return updated if snapshot is None else with_type_id(updated, snapshot)


def _refuse_setup(host: Host, claim: Claim) -> None:
    """Refuse to work on a GPU that another operation sets up: it removes vGPUs there and creates them again."""
    is_other = claim.vm == GPU_SETUP_CLAIM and claim.operation != host.operations.current().id
    if is_other and is_alive(host, claim):
        raise gpu_setup_error(claim)


def _refuse_other_holder(host: Host, claim: Claim, other: Claim) -> None:
    if other.vm_uuid != claim.vm_uuid:
        raise Busy(
            f"{claim.carrier} is claimed for {other.holder_text}",
            hint="vgpuctl reconcile-host, then run the command again",
            carrier=claim.carrier,
            vm=other.vm,
        )
    if other.operation != claim.operation and is_alive(host, other):
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


def build_claims(name: str, record: VmRecord, operation: Operation) -> tuple[Claim, ...]:
    """Return the claims for a VM's record, held by the given operation."""
    return tuple(
        Claim(
            carrier=vgpu.carrier,
            backend=vgpu.backend,
            gpu=vgpu.gpu,
            function=vgpu.function,
            vm=name,
            vm_uuid=record.vm_uuid,
            profile=vgpu.profile,
            framebuffer_mib=vgpu.framebuffer_mib,
            process=operation.process,
            command=operation.command,
            placement_id=vgpu.placement_id,
            spread_group=record.spread_group,
            operation=operation.id,
            account=record.account,
            adopted=vgpu.adopted,
        )
        for vgpu in record.vgpus
    )


def with_type_id(claim: Claim, snapshot: Snapshot) -> Claim:
    """Return the claim with the current id of its profile's type, if the snapshot has the types."""
    gpu = snapshot.gpu(claim.gpu)
    vgpu_type = next((t for t in gpu.types if t.profile == claim.profile), None) if gpu is not None else None
    return claim if vgpu_type is None else replace(claim, type_id=vgpu_type.type_id)


def note_vm_in_progress(host: Host, uuid: str) -> None:
    """Note that this operation works on a VM.

    Raises:
        FileFailed: the note cannot be written; nothing was done.
    """
    try:
        operation = host.operations.current()
        host.claims.add_vm_in_progress(VmInProgress(uuid, operation.process, operation.id))
    except OSError as error:
        raise FileFailed(
            f"cannot record that this command works on the VM: {error.strerror or error}",
            hint="df -h /run; df -i /run; findmnt /run",
            vm=uuid,
            errno=error.errno,
            path=error.filename,
        ) from error


def read_vms_in_progress(host: Host) -> frozenset[str]:
    """Return the uuids of VMs that a live operation works on; an empty set without root.

    Raises:
        FileFailed: the notes cannot be read.
    """
    notes = _read_notes(host)
    living = living_operations(host, (note.operation for note in notes))
    return frozenset(note.vm_uuid for note in notes if note.operation in living)


def drop_ended_work(host: Host) -> None:
    """Drop the notes of operations that have ended; none without root.

    Raises:
        FileFailed: the notes cannot be read.
    """
    notes = _read_notes(host)
    living = living_operations(host, (note.operation for note in notes))
    for note in notes:
        if note.operation not in living:
            host.claims.remove_vm_in_progress(note.vm_uuid, note)


def _read_notes(host: Host) -> tuple[VmInProgress, ...]:
    with report_unreadable("what other commands work on"):
        try:
            return host.claims.vms_in_progress()
        except PermissionError:
            return ()
