# SPDX-License-Identifier: Apache-2.0
"""VMs that are off take each other's places: claim, record, remove all, make all, switch one over, then the others.

The claims on all new places are written in one hold of the lock while those on the former ones are still there, so
nobody else gets any of them. Until the first VM is switched over a failure takes all back. From then on the exchange
counts: what a failure or a crash leaves of it reconcile finishes by the records of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.engine.attach import own_all
from vgpuctl.engine.change import moving
from vgpuctl.engine.claim import claim_carriers, claims_of, give_back_unused
from vgpuctl.engine.guards import refuse_worked_on, require_writable
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.run import carry_out
from vgpuctl.model.outcome import Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Plan
from vgpuctl.model.vm import Claim, PromisedVgpu
from vgpuctl.plan.exchange import exchange_steps, following_steps, going, places_at_once
from vgpuctl.plan.in_place import Goal
from vgpuctl.plan.rounds import Round
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def exchange(world: World, moves: Round, *, wait_seconds: float, progress: Progress) -> None:
    """Make the vGPUs of VMs that are off at each other's places, and switch the VMs over to them.

    Raises:
        InUse: a VM runs.
        Busy: a VM has no such vGPU any more.
        NoCapacity: a new place is not free any more.
        PartlyApplied: reconcile finishes it.
        VgpuctlError: why not; the VMs are as they were.
    """
    require_writable(world)
    want = Want(types=True)
    snapshot = observe(world, want)
    jobs = [moving(world, snapshot, m.vm.uuid, m.vgpu.carrier, Goal(m.gpu, m.placement_id)) for m in moves]
    looks = iter([snapshot])

    def look() -> Snapshot:
        return next(looks, None) or observe(world, want)

    def choose(seen: Snapshot) -> tuple[PromisedVgpu, ...]:
        return places_at_once(seen, [going(job) for job in jobs])

    def claims(new: Sequence[PromisedVgpu]) -> tuple[Claim, ...]:
        found: list[Claim] = []
        for job, vgpu in zip(jobs, new, strict=True):
            refuse_worked_on(world, job.vm)
            found += claims_of(world, job.vm.name, replace(job.promise, vgpus=(vgpu,)))
        return tuple(found)

    olds = claims([job.swap.go[0] for job in jobs])
    fresh, new, mine = claim_carriers(world, look, choose, claims, wait_seconds)
    for job in jobs:
        mine = own_all(world, job.vm, replace(job.promise, vgpus=job.has), mine, wait_seconds, leaving=True)
    try:
        plan = Plan(exchange_steps(fresh, jobs, new), off=tuple(job.vm.uuid for job in jobs))
    except BaseException:
        give_back_unused(world, mine)
        raise
    carry_out(world, plan, progress, mine)
    carry_out(world, Plan(following_steps(jobs, new, olds), undo_on_failure=False), progress)
