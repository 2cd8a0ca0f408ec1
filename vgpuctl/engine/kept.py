# SPDX-License-Identifier: Apache-2.0
"""Make the vGPUs without a VM that an asked-for host.yaml keeps: all of them, and then the file, or nothing.

Their claims come first, under the host lock, then the devices, then host.yaml. What a crash leaves before host.yaml
names them is leaked, and `reconcile` removes it. An mdev that somebody else made is claimed only when host.yaml names
it: a crash must not have it removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.claim import claims_of, give_back, reclaim
from vgpuctl.engine.guards import refuse_being_set_up, refuse_stuck, require_system
from vgpuctl.engine.host_plan import Planned, refuse_all
from vgpuctl.engine.host_wish import Asked
from vgpuctl.engine.layout import Job
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.observe.host_file import named_vgpus
from vgpuctl.engine.run import carry_out
from vgpuctl.engine.vgpus import refuse_claimed
from vgpuctl.errors import Busy, Refused, VgpuctlError
from vgpuctl.model.gpu import Mode
from vgpuctl.model.outcome import Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import Claim, NamedVgpu
from vgpuctl.plan.claims import typed
from vgpuctl.plan.kept import Kept, keep
from vgpuctl.steps.claims import HoldClaim
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

LOOK = Want(types=True, models=False)


def plan_vgpus(
    world: World, snapshot: Snapshot, asked: Asked, planned: tuple[Planned, ...]
) -> tuple[tuple[Kept, ...], tuple[str, ...]]:
    """Return the entries whose devices are missing, each with its steps or why not, and what is not known yet.

    `snapshot` needs no types: they are read only when something is missing.
    """
    missing = missing_vgpus(snapshot, asked)
    if not missing:
        return (), ()
    later = frozenset(one.gpu.address for one in planned if _changes_room(one) or one.refusal is not None)
    seen = observe(world, LOOK)
    kept = tuple(_with_refusal(world, seen, asked, planned, one) for one in keep(seen, missing, later))
    waiting = sorted({one.entry.gpu for one in kept if one.later and one.refusal is None})
    notes = [
        f"what fits on {gpu} is known when it is set up; checked then: vGPU "
        + ", ".join(one.entry.name for one in kept if one.later and one.entry.gpu == gpu)
        for gpu in waiting
    ]
    return kept, tuple(notes)


def missing_vgpus(snapshot: Snapshot, asked: Asked) -> tuple[NamedVgpu, ...]:
    """Return the entries that host.yaml does not have, and those of it that have no device."""
    there = {v.name for v in snapshot.vgpus if v.present and v.name is not None}
    return tuple(n for n in named_vgpus(asked.spec.vgpus) if n.name not in asked.now.vgpus or n.name not in there)


def _changes_room(one: Planned) -> bool:
    """Say whether a GPU's tasks change what fits on it: a scheduler alone does not."""
    return any(isinstance(job, Job) and work.devices for job, work in one.tasks)


def _with_refusal(world: World, seen: Snapshot, asked: Asked, planned: tuple[Planned, ...], one: Kept) -> Kept:
    try:
        if one.refusal is None:
            _refuse_other_mode(planned, asked.source, one.entry)
            _check(world, seen, asked, one)
    except VgpuctlError as refusal:
        return replace(one, refusal=refusal)
    return one


def _refuse_other_mode(planned: tuple[Planned, ...], source: str, entry: NamedVgpu) -> None:
    mode = next((one.said.mode for one in planned if one.gpu.address == entry.gpu), None)
    if mode in (Mode.SRIOV, Mode.PASSTHROUGH):
        raise Refused(
            f"{source} keeps vGPU {entry.name} on {entry.gpu} and asks for mode {mode} of it, in which it has none",
            hint=f"say mode: vgpu of {entry.gpu}, or leave vGPU {entry.name} out",
            vgpu=entry.name,
            gpu=entry.gpu,
        )


def _check(world: World, seen: Snapshot, asked: Asked, one: Kept) -> None:
    if one.entry.name not in asked.now.vgpus:
        refuse_claimed(world, one.vm.uuid, one.entry.name)
    refuse_stuck(seen, [one.entry.gpu])
    refuse_being_set_up(seen, [one.entry.gpu])


def make_vgpus(world: World, asked: Asked, wait_seconds: float, progress: Progress) -> None:
    """Claim, make and read back what is missing, and have host.yaml say what is asked for; undone when a step fails.

    Raises:
        VgpuctlError: why not; no vGPU was made, and host.yaml is as it was.
    """
    seen, kept = _now(world, asked)
    for one in kept:
        _check(world, seen, asked, one)
    wanted = _claims(world, kept)
    held = reclaim(world, wanted, wait_seconds, seen=seen)
    try:
        seen, kept = _now(world, asked)
        if _claims(world, kept) != wanted:
            raise Busy("another command took what was free for these vGPUs", hint="run the command again")
        made = tuple(step for one in kept for step in one.steps)
        over = tuple(HoldClaim(typed(claim, seen)) for one in kept if one.there for claim in _claim(world, one))
    except BaseException:
        give_back(world, held)
        raise
    carry_out(world, Plan((*made, *asked.record, *over)), progress, held)


def _now(world: World, asked: Asked) -> tuple[Snapshot, tuple[Kept, ...]]:
    """Look and plan what is missing; raises why it cannot be."""
    seen = observe(world, LOOK)
    require_system(seen)
    kept = keep(seen, missing_vgpus(seen, asked), frozenset())
    refuse_all([], [one.refusal for one in kept if one.refusal is not None], so="none was made")
    return seen, kept


def _claim(world: World, one: Kept) -> tuple[Claim, ...]:
    return claims_of(world, one.vm.name, one.promise)


def _claims(world: World, kept: tuple[Kept, ...]) -> tuple[Claim, ...]:
    return tuple(claim for one in kept if not one.there for claim in _claim(world, one))


def lost_again(snapshot: Snapshot, kept: tuple[Kept, ...]) -> list[str]:
    """Return a sentence for each vGPU that was made, read back, and is not there now."""
    there = {v.carrier for v in snapshot.vgpus if v.present}
    return [f"vGPU {one.entry.name} has no device on {one.entry.gpu}" for one in kept if one.entry.carrier not in there]
