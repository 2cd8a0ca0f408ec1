# SPDX-License-Identifier: Apache-2.0
"""The vGPUs without a VM that host.yaml lists: where each missing one can be created, and creating those of a new file.

All of them and then the file, or nothing: first their claims, under the host lock, then the devices, then host.yaml.
What a crash leaves before host.yaml names the vGPUs is leaked, and `reconcile` removes it. An mdev that somebody else
created is claimed only after host.yaml names it, so that `reconcile` does not remove it after a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.backends import backend_for
from vgpuctl.errors import Busy, HostCannot, InUse, NoCapacity, Refused, VgpuctlError
from vgpuctl.gpu.mixed_size import choose_placement_id
from vgpuctl.gpu.room import compute_room
from vgpuctl.model.gpu import Gpu, GpuMode, Ownership, Vgpu
from vgpuctl.model.outcome import Context
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, HostVgpu, Vm, VmRecord
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.claims import refuse_claimed_name
from vgpuctl.observe.host_file import named_vgpus
from vgpuctl.operations.claim import claims_of_record, with_type_id
from vgpuctl.operations.desired_state import DesiredState
from vgpuctl.operations.gpu_mode import ModeRequest
from vgpuctl.operations.guards import refuse_gpus_in_setup, refuse_stuck_gpus, require_system_libvirt
from vgpuctl.operations.host_plan import GpuPlan, raise_refusals
from vgpuctl.operations.plans.choose import as_taken_vgpu
from vgpuctl.operations.plans.devices import check_devices, missing_device_steps
from vgpuctl.operations.plans.vgpus import assigned_from_entry, placeholder_owner, refuse_assigned_carrier
from vgpuctl.operations.steps.claims import TakeClaim
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


VGPU_SCOPE = ReadScope(types=True, models=False)


class HostVgpuPlan(Value):
    """An entry without a device: its owner as claims need it, and the steps that create it, or the error.

    `is_deferred`: its GPU must be set up first; only then is it known what fits there. `takes_over_device`: somebody
    else created its mdev, exactly as the entry says. vgpuctl takes it over unchanged.
    """

    entry: HostVgpu
    vm: Vm
    record: VmRecord
    steps: tuple[Step, ...] = ()
    is_deferred: bool = False
    takes_over_device: bool = False
    error: VgpuctlError | None = None

    @property
    def line(self) -> str:
        """The action as a line for people."""
        what = f"vGPU {self.entry.name} ({self.entry.profile} on GPU {self.entry.gpu})"
        return f"take over the mdev {self.entry.carrier} as {what}" if self.takes_over_device else f"create {what}"


def plan_host_vgpus(
    snapshot: Snapshot, entries: Sequence[HostVgpu], deferred_gpus: frozenset[str]
) -> tuple[HostVgpuPlan, ...]:
    """Return each entry with its steps, as if the entries before it already existed; an error stops no other.

    `snapshot` has the types of their GPUs. `deferred_gpus`: the GPUs of which it is not yet known what fits.
    """
    names = frozenset(e.name for e in entries)
    owners = frozenset(placeholder_owner(snapshot.machine_id, e.name, assigned_from_entry(e))[0].uuid for e in entries)
    absent = [v for v in snapshot.vgpus if not v.present and (v.name in names or v.vm_uuid in owners)]
    planned_snapshot = replace(snapshot, vgpus=tuple(v for v in snapshot.vgpus if v not in absent))
    plans: list[HostVgpuPlan] = []
    for entry in entries:
        plan = _plan_host_vgpu(planned_snapshot, entry, deferred_gpus)
        plans.append(plan)
        if plan.error is None and not plan.takes_over_device:
            taken = as_taken_vgpu(plan.record.vgpus[0], plan.vm.name, plan.vm.uuid)
            others = tuple(v for v in planned_snapshot.vgpus if v.carrier != entry.carrier)
            planned_snapshot = replace(planned_snapshot, vgpus=(*others, replace(taken, vm=None, name=entry.name)))
    return tuple(plans)


def _plan_host_vgpu(snapshot: Snapshot, entry: HostVgpu, deferred_gpus: frozenset[str]) -> HostVgpuPlan:
    vm, record = placeholder_owner(snapshot.machine_id, entry.name, assigned_from_entry(entry))
    plan = HostVgpuPlan(entry, vm, record)
    try:
        device = next((v for v in snapshot.vgpus if v.carrier == entry.carrier), None)
        if device is not None:
            _refuse_taken(entry, device, vm.uuid)
        refuse_assigned_carrier(snapshot.vms, entry)
        if entry.gpu in deferred_gpus:
            return replace(plan, is_deferred=True)
        if device is not None and device.present and device.owner is Ownership.UNMANAGED:
            vm, record = placeholder_owner(snapshot.machine_id, entry.name, assigned_from_entry(entry, device))
            return HostVgpuPlan(entry, vm, record, takes_over_device=True)
        problem = gpu_problem(snapshot, assigned_from_entry(entry))
        if problem is not None:
            raise HostCannot(
                f"vGPU {entry.name}: {problem}",
                hint=f"vgpuctl show-gpu {entry.gpu}; see gpus: in host.yaml for its setup",
                check="gpu-ready",
                gpu=entry.gpu,
                vgpu=entry.name,
            )
        vm, record = placeholder_owner(snapshot.machine_id, entry.name, assign_free_slot(snapshot, entry))
        _refuse_full(snapshot, entry)
        check_devices(snapshot, record)
        return HostVgpuPlan(entry, vm, record, missing_device_steps(snapshot, vm, record))
    except VgpuctlError as error:
        return replace(plan, error=error)


def _refuse_taken(entry: HostVgpu, device: Vgpu, owner: str) -> None:
    """Refuse a carrier that belongs to somebody else; a VM that only refers to it will be its user.

    An unmanaged mdev with the same UUID, GPU and profile is the intended one: mdevctl, or somebody by hand, made it.
    """
    if device.vm_uuid == owner or device.name == entry.name:
        return
    is_unmanaged = device.owner is Ownership.UNMANAGED
    is_same_mdev = ":" not in entry.carrier and (device.gpu, device.profile) == (entry.gpu, entry.profile)
    if is_unmanaged and (is_same_mdev or not device.present):
        return
    description = f"{device.profile or 'an unknown type'} on {device.gpu}"
    raise InUse(
        f"{entry.carrier} of vGPU {entry.name} is taken by {device.holder_text}: {description}",
        hint=f"give vGPU {entry.name} another carrier; vgpuctl show-gpu {device.gpu}",
        vgpu=entry.name,
        carrier=entry.carrier,
        gpu=device.gpu,
    )


def _refuse_full(snapshot: Snapshot, entry: HostVgpu) -> None:
    """Refuse an entry without room next to existing and assigned vGPUs, as for a new vGPU.

    An entry that is already in host.yaml has priority over vGPUs that wait to be created again.
    """
    gpu = snapshot.gpu(entry.gpu)
    vgpu_type = next((t for t in gpu.types if t.profile == entry.profile), None) if gpu is not None else None
    if gpu is None or vgpu_type is None:
        return
    is_existing_entry = any(n == entry for n in snapshot.host_vgpus)
    others = [
        v
        for v in snapshot.vgpus_on(entry.gpu)
        if v.carrier != entry.carrier and not (is_existing_entry and v.needs_device)
    ]
    room = compute_room(gpu, others, vgpu_type)
    if not room.has_room:
        raise NoCapacity(
            f"no room for vGPU {entry.name} ({entry.profile}) on {entry.gpu}: {'; '.join(room.reasons)}",
            hint=f"vgpuctl explain {entry.profile}",
            gpu=entry.gpu,
            vgpu=entry.name,
        )


def assign_free_slot(snapshot: Snapshot, entry: HostVgpu) -> AssignedVgpu:
    """Return an entry as it can be created now: with its size, its placement, and for an mdev a free VF.

    Raises:
        NoCapacity: no VF has room for it.
    """
    vgpu = assigned_from_entry(entry)
    gpu = snapshot.gpu(vgpu.gpu)
    vgpu_type = next((t for t in gpu.types if t.profile == vgpu.profile), None) if gpu is not None else None
    if gpu is None or vgpu_type is None:
        return vgpu
    vgpu = replace(vgpu, framebuffer_mib=vgpu_type.framebuffer_mib)
    others = tuple(v for v in snapshot.vgpus_on(gpu.address) if v.carrier != vgpu.carrier)
    if not any(v.carrier == vgpu.carrier and v.present for v in snapshot.vgpus):
        vgpu = replace(vgpu, placement_id=choose_placement_id(gpu, others, vgpu_type))
    backend = backend_for(gpu.backend)
    if not (backend.carrier_has_uuid and backend.on_vfs):
        return vgpu
    current_functions = [f.address for f in gpu.functions if any(m.uuid == vgpu.carrier for m in f.mdevs)]
    room = compute_room(gpu, others, vgpu_type)
    functions = current_functions or room.functions
    if not functions:
        raise NoCapacity(
            f"no room for {vgpu.profile} on {gpu.address}: {'; '.join(room.reasons)}",
            hint=f"vgpuctl explain {vgpu.profile}",
            gpu=gpu.address,
        )
    return replace(vgpu, backend=backend.name, function=functions[0])


def gpu_problem(snapshot: Snapshot, vgpu: AssignedVgpu) -> str | None:
    """Say what the GPU of a vGPU still lacks; None if the vGPU can now be created, or refused."""
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is None:
        return f"the GPU {vgpu.gpu} does not exist"
    if not backend_for(gpu.backend).accepts(backend_for(vgpu.backend)):
        vfs = f", {gpu.vfs_enabled} of {gpu.vfs_total} VFs" if gpu.vfs_total else ""
        return f"the GPU {gpu.address} offers no vGPUs yet (driver {gpu.driver or 'none'}{vfs})"
    if gpu.backend is vgpu.backend and vgpu.function != gpu.address:
        problem = _function_problem(gpu, vgpu.function)
        if problem is not None:
            return problem
    if not gpu.types and not any(v.present for v in snapshot.vgpus_on(gpu.address)):
        return f"the driver of {gpu.address} lists no vGPU types"
    return None


def _function_problem(gpu: Gpu, address: str) -> str | None:
    function = gpu.find_function(address)
    if function is None:
        return f"the VF {address} does not exist"
    return f"{address}: {function.problem}" if function.problem is not None else None


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
