# SPDX-License-Identifier: Apache-2.0
"""The vGPUs of a host.yaml that are missing: where each can be created, or why it cannot be."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.backends import backend_for
from vgpuctl.errors import HostCannot, InUse, NoCapacity, VgpuctlError
from vgpuctl.gpu.mixed_size import choose_placement_id
from vgpuctl.gpu.room import compute_room
from vgpuctl.model.gpu import Gpu, Ownership, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, HostVgpu, Vm, VmRecord
from vgpuctl.operations.plans.choose import as_taken_vgpu
from vgpuctl.operations.plans.devices import check_devices, missing_device_steps
from vgpuctl.operations.plans.vgpus import assigned_from_entry, placeholder_owner, refuse_assigned_carrier
from vgpuctl.ports.step import Step
from vgpuctl.value import Value, replace


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
