# SPDX-License-Identifier: Apache-2.0
"""Create the vGPUs without a VM that a new host.yaml lists: all of them and then the file, or nothing.

It takes their claims first, under the host lock, then creates the devices, then writes host.yaml. What a crash leaves
before host.yaml names the vGPUs is leaked, and `reconcile` removes it. An mdev that somebody else created is claimed
only after host.yaml names it, so that `reconcile` does not remove it after a crash.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import Busy, Refused, VgpuctlError
from vgpuctl.model.gpu import GpuMode
from vgpuctl.model.outcome import Context
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Claim, HostVgpu
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.claims import refuse_claimed_name
from vgpuctl.observe.host_file import named_vgpus
from vgpuctl.operations.claim import claims_of_record, with_type_id
from vgpuctl.operations.desired_state import DesiredState
from vgpuctl.operations.gpu_mode import ModeRequest
from vgpuctl.operations.guards import refuse_gpus_in_setup, refuse_stuck_gpus, require_system_libvirt
from vgpuctl.operations.host_plan import GpuPlan, raise_refusals
from vgpuctl.operations.plans.host_vgpu_plan import HostVgpuPlan, plan_host_vgpus
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

VGPU_SCOPE = ReadScope(types=True, models=False)


def plan_vgpus(
    host: Host, snapshot: Snapshot, desired: DesiredState, planned: tuple[GpuPlan, ...]
) -> tuple[tuple[HostVgpuPlan, ...], tuple[str, ...]]:
    """Return the entries whose devices are missing, each with its steps or an error, and notes on what is unknown.

    `snapshot` needs no types: they are read only if something is missing.
    """
    missing = find_missing_vgpus(snapshot, desired)
    if not missing:
        return (), ()
    pending_gpus = frozenset(plan.gpu.address for plan in planned if _changes_capacity(plan) or plan.error is not None)
    snapshot_with_types = observe(host, VGPU_SCOPE)
    vgpu_plans = tuple(
        _with_refusal(host, snapshot_with_types, desired, planned, plan)
        for plan in plan_host_vgpus(snapshot_with_types, missing, pending_gpus)
    )
    waiting_gpus = sorted({plan.entry.gpu for plan in vgpu_plans if plan.is_deferred and plan.error is None})
    notes = [
        f"whether it fits on {gpu} is checked when that is set up: vGPU "
        + ", ".join(plan.entry.name for plan in vgpu_plans if plan.is_deferred and plan.entry.gpu == gpu)
        for gpu in waiting_gpus
    ]
    return vgpu_plans, tuple(notes)


def find_missing_vgpus(snapshot: Snapshot, desired: DesiredState) -> tuple[HostVgpu, ...]:
    """Return the desired entries that the current host.yaml lacks or that have no device."""
    existing = {v.name for v in snapshot.vgpus if v.present and v.name is not None}
    return tuple(
        entry
        for entry in named_vgpus(desired.spec.vgpus)
        if entry.name not in desired.current.vgpus or entry.name not in existing
    )


def _changes_capacity(gpu_plan: GpuPlan) -> bool:
    """Return whether a GPU's transactions change what fits on it; setting only the scheduler does not."""
    return any(isinstance(request, ModeRequest) and planned.gpu_steps for request, planned in gpu_plan.planned_requests)


def _with_refusal(
    host: Host, snapshot: Snapshot, desired: DesiredState, planned: tuple[GpuPlan, ...], vgpu_plan: HostVgpuPlan
) -> HostVgpuPlan:
    try:
        if vgpu_plan.error is None:
            _refuse_other_mode(planned, desired.source, vgpu_plan.entry)
            _check_entry(host, snapshot, desired, vgpu_plan)
    except VgpuctlError as refusal:
        return replace(vgpu_plan, error=refusal)
    return vgpu_plan


def _refuse_other_mode(planned: tuple[GpuPlan, ...], source: str, entry: HostVgpu) -> None:
    mode = next((gpu_plan.spec.mode for gpu_plan in planned if gpu_plan.gpu.address == entry.gpu), None)
    if mode in (GpuMode.SRIOV, GpuMode.PASSTHROUGH):
        raise Refused(
            f"{source} has vGPU {entry.name} on {entry.gpu}, but sets mode {mode} there, which has no vGPUs",
            hint=f"set mode: vgpu for {entry.gpu}, or remove vGPU {entry.name}",
            vgpu=entry.name,
            gpu=entry.gpu,
        )


def _check_entry(host: Host, snapshot: Snapshot, desired: DesiredState, vgpu_plan: HostVgpuPlan) -> None:
    if vgpu_plan.entry.name not in desired.current.vgpus:
        refuse_claimed_name(host, vgpu_plan.vm.uuid)
    refuse_stuck_gpus(snapshot, [vgpu_plan.entry.gpu])
    refuse_gpus_in_setup(snapshot, [vgpu_plan.entry.gpu])


def make_vgpus(host: Host, context: Context, desired: DesiredState) -> tuple[str, ...]:
    """Claim, create and read back what is missing, then write the desired host.yaml; a failed step undoes all.

    Returns what was done, one line each.

    Raises:
        VgpuctlError: the reason; no vGPU was created, and host.yaml is unchanged.
    """
    snapshot, vgpu_plans = _plan_again(host, desired)
    for vgpu_plan in vgpu_plans:
        _check_entry(host, snapshot, desired, vgpu_plan)
    missing_claims = _missing_claims(host, vgpu_plans)
    with Transaction(host, context) as tx:
        tx.take_over(missing_claims, snapshot=snapshot)
        snapshot, vgpu_plans = _plan_again(host, desired)
        if _missing_claims(host, vgpu_plans) != missing_claims:
            raise Busy("another command took the place of these vGPUs", hint="run the command again")
        creation_steps = tuple(step for vgpu_plan in vgpu_plans for step in vgpu_plan.steps)
        takeover_steps = tuple(
            TakeClaim(with_type_id(claim, snapshot))
            for vgpu_plan in vgpu_plans
            if vgpu_plan.takes_over_device
            for claim in _entry_claims(host, vgpu_plan)
        )
        tx.carry_out(Plan((*creation_steps, *desired.file_steps, *takeover_steps)))
    return (*(vgpu_plan.line for vgpu_plan in vgpu_plans), *(step.describe() for step in desired.file_steps))


def _plan_again(host: Host, desired: DesiredState) -> tuple[Snapshot, tuple[HostVgpuPlan, ...]]:
    """Observe the host and plan what is missing; raises an error if it cannot be created."""
    snapshot = observe(host, VGPU_SCOPE)
    require_system_libvirt(snapshot)
    vgpu_plans = plan_host_vgpus(snapshot, find_missing_vgpus(snapshot, desired), frozenset())
    raise_refusals(
        [], [vgpu_plan.error for vgpu_plan in vgpu_plans if vgpu_plan.error is not None], consequence="none was created"
    )
    return snapshot, vgpu_plans


def _entry_claims(host: Host, vgpu_plan: HostVgpuPlan) -> tuple[Claim, ...]:
    return claims_of_record(host, vgpu_plan.vm.name, vgpu_plan.record)


def _missing_claims(host: Host, vgpu_plans: tuple[HostVgpuPlan, ...]) -> tuple[Claim, ...]:
    return tuple(
        claim for vgpu_plan in vgpu_plans if not vgpu_plan.takes_over_device for claim in _entry_claims(host, vgpu_plan)
    )


def find_lost_vgpus(snapshot: Snapshot, planned: tuple[HostVgpuPlan, ...]) -> list[str]:
    """Return a sentence for each vGPU that was created and read back, but has no device now."""
    existing = {v.carrier for v in snapshot.vgpus if v.present}
    return [
        f"vGPU {vgpu_plan.entry.name} has no device on {vgpu_plan.entry.gpu}"
        for vgpu_plan in planned
        if vgpu_plan.entry.carrier not in existing
    ]
