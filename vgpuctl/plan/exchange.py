# SPDX-License-Identifier: Apache-2.0
"""Plan vGPUs of stopped VMs that take each other's places: all are removed, then each is made at its new place.

No call changes two definitions, so one of the VMs decides. What the others are to have is in their records before
anything is removed, and counts as soon as the record of that one names its new vGPU; until then all of it is undone.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.backends import of
from vgpuctl.capacity.room import free_functions
from vgpuctl.errors import NoCapacity
from vgpuctl.model.gpu import Backend, Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import Claim, Exchange, Promise, PromisedVgpu, Vm
from vgpuctl.model.wish import VmWish
from vgpuctl.plan.change import added, hostdev, promised, without
from vgpuctl.plan.choose import as_taken, make_steps
from vgpuctl.plan.in_place import Goal, Job, at_goal, redefined, taken_out
from vgpuctl.plan.remove import not_provably_ours
from vgpuctl.steps.plug import DropClaim, SwitchOver, WriteRecord
from vgpuctl.value import Value, replace


class Going(Value):
    """A vGPU of a VM that goes to its goal; `wish` asks for it there."""

    vm: Vm
    promise: Promise
    wish: VmWish
    old: PromisedVgpu
    goal: Goal


def going(job: Job) -> Going:
    """Return what a move of a vGPU is in an exchange."""
    if job.goal is None:
        raise ValueError("only a move can be exchanged")
    return Going(job.vm, job.promise, job.wish, job.swap.go[0], job.goal)


def places_at_once(seen: Snapshot, moves: Sequence[Going]) -> tuple[PromisedVgpu, ...]:
    """Return where each goes when all of them have left. Nothing is made on a function that one of them has.

    Raises:
        NoCapacity: a GPU has too few functions that are free before any has left.
        VgpuctlError: as `choose`.
    """
    _refuse_few_functions(seen, moves)
    olds = [move.old for move in moves]
    functions = {v.function for v in olds}
    found: list[PromisedVgpu] = []
    for move in moves:
        gone = without(seen, olds)
        gone = replace(gone, gpus=tuple(_not_on(gpu, functions) for gpu in gone.gpus))
        (new,) = at_goal(gone, move.goal, move.old, added(gone, move.wish, move.promise, go=(move.old,)))
        found.append(new)
        seen = replace(seen, vgpus=(*seen.vgpus, as_taken(new, move.vm.name, move.vm.uuid)))
    return tuple(found)


def _refuse_few_functions(seen: Snapshot, moves: Sequence[Going]) -> None:
    for gpu in seen.gpus:
        coming = sorted(move.vm.name for move in moves if move.goal.gpu == gpu.address)
        free = len(free_functions(gpu, seen.taken_on(gpu.address)))
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


def after(seen: Snapshot, moves: Sequence[Going], new: Sequence[PromisedVgpu]) -> Snapshot:
    """Return the snapshot as it will be when these have moved: their functions are free, and the new ones made.

    What the driver offers then is its secret, as in `without`; records and definitions are those from before.
    """
    olds = {move.old.carrier for move in moves}
    functions = {move.old.function for move in moves}
    gone = without(seen, [move.old for move in moves])
    gpus = tuple(_freed(gpu, functions, olds) for gpu in gone.gpus)
    made = [replace(as_taken(v, m.vm.name, m.vm.uuid), present=True) for m, v in zip(moves, new, strict=True)]
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
    there = tuple(replace(f, available={}) if f.address in functions else f for f in gpu.functions)
    return replace(gpu, functions=there)


def exchange_steps(seen: Snapshot, jobs: Sequence[Job], new: Sequence[PromisedVgpu]) -> tuple[Step, ...]:
    """Return the steps after the claims, all of which can be undone; the last one switches the first VM over."""
    first, *others = jobs
    decides = new[0]
    steps: list[Step] = []
    for job, vgpu in zip(others, new[1:], strict=True):
        note = Exchange(job.swap.go[0].carrier, vgpu, first.vm.uuid, decides.carrier)
        what = f"record that VM {job.vm.name} goes to {vgpu.function} when VM {first.vm.name} is at {decides.function}"
        noted = replace(job.promise, exchange=note)
        steps.append(WriteRecord(job.vm.name, job.vm.uuid, noted, job.promise, what))
    for job in jobs:
        steps += taken_out(job)
    leave = frozenset[str]().union(*(not_provably_ours(job.snapshot, job.vm, job.promise) for job in jobs))
    cleared = without(seen, [v for job in jobs for v in job.swap.go if v.carrier not in leave])
    for vgpu in new:
        steps += make_steps(cleared, vgpu)
    return (*steps, redefined(first, (decides,)))


def following_steps(jobs: Sequence[Job], new: Sequence[PromisedVgpu], olds: Sequence[Claim]) -> tuple[Step, ...]:
    """Return the steps after those: the other VMs are switched over too, and the former places given up."""
    first, *_ = jobs
    steps: list[Step] = []
    for job, vgpu in zip(jobs[1:], new[1:], strict=True):
        note = Exchange(job.swap.go[0].carrier, vgpu, first.vm.uuid, new[0].carrier)
        steps.append(switched_over(job.vm, replace(job.promise, exchange=note), note))
    return (*steps, *(DropClaim(c) for c in olds))


def switched_over(vm: Vm, promise: Promise, note: Exchange) -> Step:
    """Return the step that gives a VM what its record says of an exchange."""
    stay = tuple(v for v in promise.vgpus if v.carrier != note.carrier)
    after = replace(promised(promise, (*stay, note.vgpu)), exchange=None)
    return SwitchOver(vm.name, vm.uuid, note.carrier, hostdev(note.vgpu, promise), after, promise)


def decided(snapshot: Snapshot, note: Exchange) -> bool:
    """Say whether the VM that decides an exchange has its new vGPU."""
    other = snapshot.vm(note.with_vm)
    promise = other.promise if other is not None else None
    return promise is not None and any(v.carrier == note.with_carrier for v in promise.vgpus)


def finishing_steps(
    snapshot: Snapshot, vm: Vm, promise: Promise, note: Exchange, olds: Sequence[Claim]
) -> tuple[Step, ...]:
    """Return what is left of an exchange that was decided: the former device goes, the VM is switched over."""
    leave = not_provably_ours(snapshot, vm, promise)
    there = {v.carrier for v in snapshot.vgpus if v.present} - leave
    old = [v for v in promise.vgpus if v.carrier == note.carrier and v.carrier in there]
    steps = [step for v in old for step in of(v.backend).remove(v)]
    return (*steps, switched_over(vm, promise, note), *(DropClaim(c) for c in olds))


def abandoning_steps(
    snapshot: Snapshot, vm: Vm, promise: Promise, note: Exchange, news: Sequence[Claim]
) -> tuple[Step, ...]:
    """Return what takes an exchange back that was not decided: the new device goes, then the record of it.

    `news`: the claim on the new place.
    """
    claimed = {c.carrier for c in snapshot.claims if c.vm_uuid == vm.uuid}
    made = [note.vgpu] if note.vgpu.carrier in claimed else []
    steps = [step for v in made for step in of(v.backend).remove(v)]
    there = WriteRecord(vm.name, vm.uuid, replace(promise, exchange=None), promise, f"record that VM {vm.name} stays")
    return (*steps, *(DropClaim(c) for c in news if made), there)
