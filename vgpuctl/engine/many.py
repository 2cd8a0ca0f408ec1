# SPDX-License-Identifier: Apache-2.0
"""See to it that several equal VMs exist: those that do are compared, those missing are claimed together and made.

All that are missing are claimed in one act under the host lock, or none. Then each is made and undone by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claim_carriers, claims_of, unchanged
from vgpuctl.engine.create import create_vm, sources
from vgpuctl.engine.crew import Crew, Job, lines
from vgpuctl.engine.ensure import refuse_differences, refuse_incomplete
from vgpuctl.engine.facts import demand_warnings, gather
from vgpuctl.engine.guards import require_system, require_writable
from vgpuctl.engine.observe import Want, looked_for, observe
from vgpuctl.engine.working import working_on
from vgpuctl.errors import Interrupted, InvalidInput, NoCapacity, PartlyApplied, SomeFailed, SpecDiffers, VgpuctlError
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Claim, PromisedVgpu
from vgpuctl.model.wish import DomainDesign, ExistingDisk, VmWish
from vgpuctl.plan.create import create_plan, make_design, takes_place
from vgpuctl.plan.facts import Facts, check_facts
from vgpuctl.plan.many import Choices, choose_many
from vgpuctl.plan.report import planned_vgpu, vm_value
from vgpuctl.steps.claims import HoldClaim
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.outcome import ManyProgress
    from vgpuctl.model.world import World

AGAIN = "run the same command again: it makes the missing ones"


def ensure_many(
    world: World,
    wish: VmWish,
    names: tuple[str, ...],
    *,
    start: bool,
    parallel: int,
    dry_run: bool,
    wait_seconds: float,
    progress: ManyProgress,
) -> Outcome:
    """Make those of the named VMs that are not there, `parallel` at a time; the others must be as wished.

    Raises:
        SpecDiffers: some exist and differ; nothing was made.
        NoCapacity: the missing ones do not all fit; nothing was made.
        SomeFailed: some could not be made and were undone; the others are there.
        PartlyApplied: some could not even be undone.
        Interrupted: a signal came.
    """
    if not dry_run:
        require_writable(world)
    snapshot = observe(world, looked_for(wish))
    require_system(snapshot)
    missing = _missing(world, snapshot, wish, names)
    if not missing:
        return Outcome(False, _data(snapshot, names, frozenset()), warnings=snapshot.warnings, dry_run=dry_run)
    refuse_incomplete(replace(wish, name=missing[0]))
    _refuse_shared_disk(wish, len(missing))
    batch = _Batch(world, wish, missing, snapshot, start=start)
    if dry_run:
        return batch.planned(names)
    jobs = batch.claimed(wait_seconds)
    crew = Crew(world, jobs, parallel, progress)
    with working_on(world, () if batch.takes else (uuid for _, uuid in batch.vms)):
        crew.work()
    _elsewhere(world, wish, crew, start=start, wait_seconds=wait_seconds)
    data, warnings = _now(world, names, crew, batch)
    if crew.failed or crew.stopped is not None:
        raise _failure(crew, data, names)
    steps = lines(jobs)
    return Outcome(True, data, steps, (*batch.warnings, *crew.told, *warnings), _notes(jobs))


def _missing(world: World, snapshot: Snapshot, wish: VmWish, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that no VM has; every VM that differs from the wish is named in one refusal."""
    differ: dict[str, SpecDiffers] = {}
    for name in names:
        vm = snapshot.vm(name)
        if vm is not None:
            try:
                refuse_differences(world, snapshot, vm, replace(wish, name=name))
            except SpecDiffers as error:
                differ[name] = error
    if differ:
        raise SpecDiffers(
            f"{len(differ)} of {len(names)} VMs exist and differ from the spec; nothing was made",
            hint="choose another name, or change each: vgpuctl stop-vm NAME, then set-profile or ensure-vm",
            vms=[{"vm": n, "before": e.facts["before"], "after": e.facts["after"]} for n, e in differ.items()],
            details=[e.message for e in differ.values()],
        )
    return tuple(name for name in names if snapshot.vm(name) is None)


def _refuse_shared_disk(wish: VmWish, count: int) -> None:
    """Refuse to give one disk to several VMs: each would write to it."""
    shared = [d.path for d in wish.disks if isinstance(d, ExistingDisk)]
    if shared and count > 1:
        raise InvalidInput(
            f"{shared[0]} can be the disk of one VM only, and {count} are asked for",
            hint="--image PATH gives each VM a clone of its own",
            disk=shared[0],
        )


class _Batch:
    """The missing VMs, looked at, chosen for and checked; nothing is written before `claimed`."""

    def __init__(self, world: World, wish: VmWish, names: tuple[str, ...], snapshot: Snapshot, *, start: bool) -> None:
        self.world = world
        self.wish = wish
        self.start = start
        self.takes = takes_place(wish, start=start)
        self.vms = tuple((name, world.new_uuid()) for name in names)
        self.snapshot = snapshot
        self.choices: Choices = choose_many(snapshot, wish, self.vms, taking=self.takes)
        flat = _flat(self.choices)
        self.facts: Facts = gather(world, snapshot, wish, flat)
        self.warnings = (
            *check_facts(snapshot, wish, flat, self.facts),
            *demand_warnings(world, snapshot, wish),
        )
        self.designs = self._designs()

    def _designs(self) -> tuple[DomainDesign, ...]:
        return tuple(
            make_design(self.snapshot, replace(self.wish, name=name), self.facts, uuid, vgpus)
            for (name, uuid), vgpus in zip(self.vms, self.choices, strict=True)
        )

    def _choose(self, fresh: Snapshot) -> tuple[PromisedVgpu, ...]:
        """Choose on a look taken now. Where nothing changed since the first one, its choice stands."""
        if not unchanged(self.snapshot, fresh, {v.gpu for c in self.choices for v in c}):
            self.choices = choose_many(fresh, self.wish, self.vms)
            self.snapshot = fresh
            self.designs = self._designs()
        return _flat(self.choices)

    def _claims(self, _: tuple[PromisedVgpu, ...]) -> tuple[Claim, ...]:
        return tuple(c for d in self.designs for c in claims_of(self.world, d.name, d.promise))

    def planned(self, names: tuple[str, ...]) -> Outcome:
        """Return what would be done."""
        held = [HoldClaim(c) for c in self._claims(())] if self.takes else []
        jobs = self._jobs(self.snapshot, held)
        new = {d.name: _planned(d) for d in self.designs}
        data = _data(self.snapshot, names, frozenset(), new) | {"sources": sources(self.wish, self.snapshot.placement)}
        steps = lines(jobs)
        return Outcome(True, data, steps, self.warnings, _notes(jobs), dry_run=True)

    def claimed(self, wait_seconds: float) -> tuple[Job, ...]:
        """Claim the carriers of all of them, or of none, and plan the steps after that."""
        if not self.takes:
            return self._jobs(self.snapshot, [])
        looks = iter([self.snapshot])

        def look() -> Snapshot:
            return next(looks, None) or observe(self.world, looked_for(self.wish))

        fresh, _, held = claim_carriers(self.world, look, self._choose, self._claims, wait_seconds)
        try:
            return self._jobs(fresh, list(held))
        except BaseException:
            for step in reversed(held):
                step.undo(self.world)
            raise

    def _jobs(self, fresh: Snapshot, held: list[HoldClaim]) -> tuple[Job, ...]:
        jobs = []
        for design in self.designs:
            wish = replace(self.wish, name=design.name)
            plan = create_plan(fresh, wish, self.facts, design, start=self.start)
            jobs.append(Job(design.name, tuple(h for h in held if h.claim.vm_uuid == design.uuid), plan))
        return tuple(jobs)


def _flat(choices: Choices) -> tuple[PromisedVgpu, ...]:
    return tuple(vgpu for vgpus in choices for vgpu in vgpus)


def _notes(jobs: tuple[Job, ...]) -> tuple[str, ...]:
    """Return what people must know: of the first VM, the others are like it."""
    more = f"; the same holds for {len(jobs) - 1} more" if len(jobs) > 1 else ""
    return tuple(f"{note}{more}" for note in jobs[0].plan.notes)


def _elsewhere(world: World, wish: VmWish, crew: Crew, *, start: bool, wait_seconds: float) -> None:
    """Try again, one by one, what a driver refused for want of room: create_vm leaves its GPU out."""
    for name, error in list(crew.failed.items()):
        if crew.stopped is not None or error.left or not isinstance(error, NoCapacity) or "errno" not in error.facts:
            continue
        try:
            create_vm(
                world,
                replace(wish, name=name),
                start=start,
                dry_run=False,
                wait_seconds=wait_seconds,
                progress=crew.watch(),
            )
        except Interrupted as signal:
            crew.stopped, crew.failed[name] = signal, signal
        except VgpuctlError as again:
            crew.failed[name] = again
        else:
            del crew.failed[name]
            crew.made.append(name)


def _now(world: World, names: tuple[str, ...], crew: Crew, batch: _Batch) -> tuple[dict[str, object], tuple[str, ...]]:
    """Look again; what was made was read back, so a look that fails now is a warning, no failure."""
    made = frozenset(crew.made)
    try:
        seen = observe(world, Want(models=False))
    except VgpuctlError as error:
        rows = [_planned(d, present=batch.takes) | {"state": "unknown"} for d in batch.designs if d.name in made]
        warning = f"the host could not be looked at again: {error}; VMs that were there before are not listed"
        return {"vms": rows, "failed": []}, (warning,)
    return _data(seen, names, made), seen.warnings


def _planned(design: DomainDesign, *, present: bool = False) -> dict[str, object]:
    return {
        "name": design.name,
        "uuid": design.uuid,
        "state": "absent",
        "changed": True,
        "vgpus": [planned_vgpu(v, design.name) | {"present": present} for v in design.promise.vgpus],
    }


def _data(
    snapshot: Snapshot,
    names: tuple[str, ...],
    made: frozenset[str],
    new: Mapping[str, Mapping[str, object]] | None = None,
) -> dict[str, object]:
    """Return the VMs that are there, in the order of their names, and those that would be."""
    rows: list[Mapping[str, object]] = []
    known = {vm.name: vm for vm in snapshot.vms}
    for name in names:
        if name in known:
            rows.append({**vm_value(snapshot, known[name]), "changed": name in made})
        elif new is not None and name in new:
            rows.append(new[name])
    return {"vms": rows, "failed": []}


def _failure(crew: Crew, data: Mapping[str, object], names: tuple[str, ...]) -> VgpuctlError:
    """Return the one error for all that failed, with the reason of each."""
    failed = {name: crew.failed[name] for name in names if name in crew.failed}
    vms = data["vms"]
    there = len(vms) if isinstance(vms, list) else 0
    facts: dict[str, object] = {
        "vms": vms,
        "failed": [{"name": n, "code": e.code, "message": e.message, "hint": e.hint} for n, e in failed.items()],
        "details": [f"{n}: {e.message}" for n, e in failed.items()],
    }
    left = [f"{n}: {line}" for n, e in failed.items() for line in e.left]
    error: VgpuctlError
    if crew.stopped is not None:
        number = crew.stopped.signal_number
        hint = f"vgpuctl reconcile, then {AGAIN}" if left else AGAIN
        text = f"{crew.stopped.message}; {there} of {len(names)} VMs are there"
        error = Interrupted(text, signal_number=number, hint=hint, **facts)
    elif left:
        text = f"{len(failed)} of {len(names)} VMs could not be made, and not all of it could be taken back"
        error = PartlyApplied(text, hint=f"vgpuctl reconcile, then {AGAIN}", **facts)
    else:
        error = SomeFailed(f"{len(failed)} of {len(names)} VMs could not be made", hint=AGAIN, **facts)
    error.left = left
    error.undone = [f"{n}: {line}" for n, e in failed.items() for line in e.undone]
    error.changed = bool(crew.made)
    return error
