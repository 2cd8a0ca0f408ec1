# SPDX-License-Identifier: Apache-2.0
"""Plan vGPUs of stopped VMs that take each other's places: all are removed, then each is made at its new place.

No call changes two definitions, so one of the VMs decides. What the others are to have is in their records before
anything is removed, and counts as soon as the record of that one names its new vGPU; until then all of it is undone.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.backends import backend_for
from vgpuctl.capacity.room import list_free_functions
from vgpuctl.errors import NoCapacity
from vgpuctl.model.gpu import Backend, Gpu
from vgpuctl.model.request import VmRequest
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, Exchange, Vm, VmRecord
from vgpuctl.plan.change import choose_added_vgpus, design_hostdev, record_with_vgpus, with_freed
from vgpuctl.plan.choose import as_taken_vgpu, make_steps
from vgpuctl.plan.remove import unproven_carriers
from vgpuctl.plan.vm_update import MoveTarget, VmUpdate, device_removal_steps, place_at_target, redefine_step
from vgpuctl.ports.step import Step
from vgpuctl.steps.attach import ReleaseReplacedClaim, SwitchOver, WriteRecord
from vgpuctl.value import Value, replace


class Going(Value):
    """A vGPU of a VM that goes to its goal; `wish` asks for it there."""

    vm: Vm
    record: VmRecord
    request: VmRequest
    old: AssignedVgpu
    goal: MoveTarget


def going(job: VmUpdate) -> Going:
    """Return what a move of a vGPU is in an exchange."""
    if job.move_target is None:
        raise ValueError("only a move can be exchanged")
    return Going(job.vm, job.record, job.request, job.vgpu_changes.removed[0], job.move_target)


def places_at_once(seen: Snapshot, moves: Sequence[Going]) -> tuple[AssignedVgpu, ...]:
    """Return where each goes when all of them have left. Nothing is made on a function that one of them has.

    Raises:
        NoCapacity: a GPU has too few functions that are free before any has left.
        VgpuctlError: as `choose`.
    """
    _refuse_few_functions(seen, moves)
    olds = [move.old for move in moves]
    functions = {v.function for v in olds}
    found: list[AssignedVgpu] = []
    for move in moves:
        gone = with_freed(seen, olds)
        gone = replace(gone, gpus=tuple(_not_on(gpu, functions) for gpu in gone.gpus))
        (new,) = place_at_target(
            gone, move.goal, move.old, choose_added_vgpus(gone, move.request, move.record, removed=(move.old,))
        )
        found.append(new)
        seen = replace(seen, vgpus=(*seen.vgpus, as_taken_vgpu(new, move.vm.name, move.vm.uuid)))
    return tuple(found)


def _refuse_few_functions(seen: Snapshot, moves: Sequence[Going]) -> None:
    for gpu in seen.gpus:
        coming = sorted(move.vm.name for move in moves if move.goal.gpu == gpu.address)
        free = len(list_free_functions(gpu, seen.vgpus_on(gpu.address)))
        if gpu.backend is not Backend.MDEV_PF and free < len(coming):
            raise NoCapacity(
                f"no room on {gpu.address} for {', '.join(coming)} at once: each needs a VF there that is free before"
                f" others leave, {len(coming)} in all, and {free} of {len(gpu.functions)} are free",
                hint=f"vgpuctl show-gpu {gpu.address} shows who has them; detach and delete-vm give one up",
                gpu=gpu.address,
                free=free,
                needed=len(coming),
                vms=coming,
            )


def after(seen: Snapshot, moves: Sequence[Going], new: Sequence[AssignedVgpu]) -> Snapshot:
    """Return the snapshot as it will be when these have moved: their functions are free, and the new ones made.

    What the driver offers then is its secret, as in `without`; records and definitions are those from before.
    """
    olds = {move.old.carrier for move in moves}
    functions = {move.old.function for move in moves}
    gone = with_freed(seen, [move.old for move in moves])
    gpus = tuple(_freed(gpu, functions, olds) for gpu in gone.gpus)
    made = [replace(as_taken_vgpu(v, m.vm.name, m.vm.uuid), present=True) for m, v in zip(moves, new, strict=True)]
    return replace(gone, gpus=gpus, vgpus=(*gone.vgpus, *made))


def _freed(gpu: Gpu, functions: set[str], carriers: set[str]) -> Gpu:
    """Return a GPU of which these functions carry nothing, or not these carriers any more."""
    there = tuple(
        replace(f, current_type=None, mdevs=tuple(m for m in f.mdevs if m.uuid not in carriers))
        if f.address in functions
        else f
        for f in gpu.functions
    )
    return replace(gpu, functions=there)


def _not_on(gpu: Gpu, functions: set[str]) -> Gpu:
    """Return a GPU of which these VFs offer nothing."""
    if gpu.backend is Backend.MDEV_PF:
        return gpu
    there = tuple(replace(f, available_instances={}) if f.address in functions else f for f in gpu.functions)
    return replace(gpu, functions=there)


def exchange_steps(seen: Snapshot, jobs: Sequence[VmUpdate], new: Sequence[AssignedVgpu]) -> tuple[Step, ...]:
    """Return the steps after the claims, all of which can be undone; the last one switches the first VM over."""
    first, *others = jobs
    decides = new[0]
    steps: list[Step] = []
    for job, vgpu in zip(others, new[1:], strict=True):
        note = Exchange(job.vgpu_changes.removed[0].carrier, vgpu, first.vm.uuid, decides.carrier)
        what = f"record that VM {job.vm.name} goes to {vgpu.function} when VM {first.vm.name} is at {decides.function}"
        noted = replace(job.record, exchange=note)
        steps.append(WriteRecord(job.vm.name, job.vm.uuid, noted, job.record, what))
    for job in jobs:
        steps += device_removal_steps(job)
    leave = frozenset[str]().union(*(unproven_carriers(job.snapshot, job.vm, job.record) for job in jobs))
    cleared = with_freed(seen, [v for job in jobs for v in job.vgpu_changes.removed if v.carrier not in leave])
    for vgpu in new:
        steps += make_steps(cleared, vgpu)
    return (*steps, redefine_step(first, (decides,)))


def following_steps(jobs: Sequence[VmUpdate], new: Sequence[AssignedVgpu], olds: Sequence[Claim]) -> tuple[Step, ...]:
    """Return the steps after those: the other VMs are switched over too, and the former places given up."""
    first, *_ = jobs
    steps: list[Step] = []
    for job, vgpu in zip(jobs[1:], new[1:], strict=True):
        note = Exchange(job.vgpu_changes.removed[0].carrier, vgpu, first.vm.uuid, new[0].carrier)
        steps.append(switched_over(job.vm, replace(job.record, exchange=note), note))
    return (*steps, *(ReleaseReplacedClaim(c) for c in olds))


def switched_over(vm: Vm, record: VmRecord, note: Exchange) -> Step:
    """Return the step that gives a VM what its record says of an exchange."""
    stay = tuple(v for v in record.vgpus if v.carrier != note.carrier)
    after = replace(record_with_vgpus(record, (*stay, note.vgpu)), exchange=None)
    return SwitchOver(vm.name, vm.uuid, note.carrier, design_hostdev(note.vgpu, record), after, record)


def decided(snapshot: Snapshot, note: Exchange) -> bool:
    """Say whether the VM that decides an exchange has its new vGPU."""
    other = snapshot.vm(note.with_vm)
    record = other.record if other is not None else None
    return record is not None and any(v.carrier == note.with_carrier for v in record.vgpus)


def finishing_steps(
    snapshot: Snapshot, vm: Vm, record: VmRecord, note: Exchange, olds: Sequence[Claim]
) -> tuple[Step, ...]:
    """Return what is left of an exchange that was decided: the former device goes, the VM is switched over."""
    leave = unproven_carriers(snapshot, vm, record)
    there = {v.carrier for v in snapshot.vgpus if v.present} - leave
    old = [v for v in record.vgpus if v.carrier == note.carrier and v.carrier in there]
    steps = [step for v in old for step in backend_for(v.backend).remove_steps(v)]
    return (*steps, switched_over(vm, record, note), *(ReleaseReplacedClaim(c) for c in olds))


def abandoning_steps(
    snapshot: Snapshot, vm: Vm, record: VmRecord, note: Exchange, news: Sequence[Claim]
) -> tuple[Step, ...]:
    """Return what takes an exchange back that was not decided: the new device goes, then the record of it.

    `news`: the claim on the new place.
    """
    claimed = {c.carrier for c in snapshot.claims if c.vm_uuid == vm.uuid}
    made = [note.vgpu] if note.vgpu.carrier in claimed else []
    steps = [step for v in made for step in backend_for(v.backend).remove_steps(v)]
    there = WriteRecord(vm.name, vm.uuid, replace(record, exchange=None), record, f"record that VM {vm.name} stays")
    return (*steps, *(ReleaseReplacedClaim(c) for c in news if made), there)
