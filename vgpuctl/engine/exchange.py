# SPDX-License-Identifier: Apache-2.0
"""VMs that are off take each other's places: claim, record, remove all, make all, switch one over, then the others.

The claims on all new places are written in one hold of the lock while those on the former ones are still there, so
nobody else gets any of them. Until the first VM is switched over a failure takes all back. From then on the exchange
counts: what a failure or a crash leaves of it reconcile finishes by the records of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.engine.attach import take_all_claims
from vgpuctl.engine.change import build_move_update
from vgpuctl.engine.claim import claim_carriers, claims_of_record, release_unused_claims
from vgpuctl.engine.execute import execute_plan
from vgpuctl.engine.guards import refuse_busy_vm, require_writable
from vgpuctl.model.outcome import Progress
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim
from vgpuctl.observe import ReadScope, observe
from vgpuctl.plan.exchange import exchange_steps, following_steps, going, places_at_once
from vgpuctl.plan.rounds import Round
from vgpuctl.plan.vm_update import MoveTarget
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def exchange(host: Host, moves: Round, *, wait_seconds: float, progress: Progress) -> None:
    """Make the vGPUs of VMs that are off at each other's places, and switch the VMs over to them.

    Raises:
        InUse: a VM runs.
        Busy: a VM has no such vGPU any more.
        NoCapacity: a new place is not free any more.
        PartlyApplied: reconcile finishes it.
        VgpuctlError: why not; the VMs are as they were.
    """
    require_writable(host)
    want = ReadScope(types=True)
    snapshot = observe(host, want)
    jobs = [
        build_move_update(host, snapshot, m.vm.uuid, m.vgpu.carrier, MoveTarget(m.gpu, m.placement_id)) for m in moves
    ]
    looks = iter([snapshot])

    def look() -> Snapshot:
        return next(looks, None) or observe(host, want)

    def choose(seen: Snapshot) -> tuple[AssignedVgpu, ...]:
        return places_at_once(seen, [going(job) for job in jobs])

    def claims(new: Sequence[AssignedVgpu]) -> tuple[Claim, ...]:
        found: list[Claim] = []
        for job, vgpu in zip(jobs, new, strict=True):
            refuse_busy_vm(host, job.vm)
            found += claims_of_record(host, job.vm.name, replace(job.record, vgpus=(vgpu,)))
        return tuple(found)

    olds = claims([job.vgpu_changes.removed[0] for job in jobs])
    fresh, new, mine = claim_carriers(host, look, choose, claims, wait_seconds)
    for job in jobs:
        mine = take_all_claims(
            host, job.vm, replace(job.record, vgpus=job.vgpus_with_slot), mine, wait_seconds, leaving=True
        )
    try:
        plan = Plan(exchange_steps(fresh, jobs, new), vms_required_off=tuple(job.vm.uuid for job in jobs))
    except BaseException:
        release_unused_claims(host, mine)
        raise
    execute_plan(host, plan, progress, mine)
    execute_plan(host, Plan(following_steps(jobs, new, olds), undo_on_failure=False), progress)
