# SPDX-License-Identifier: Apache-2.0
"""Change what the driver changes only on a GPU without vGPUs: VMs to stop, devices to remove and recreate.

The claims on the vGPUs stay in the meantime, so nobody takes their slots; `gpu_transaction` holds them.
"""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.errors import Busy, InUse
from vgpuctl.gpu_setup.set_scheduler import RemoveTemporarily
from vgpuctl.model.gpu import Gpu, Ownership, Vgpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, RecordState, Vm
from vgpuctl.observe.definition import refuse_shared_vgpus
from vgpuctl.operations.plans.layout import refuse_unresponsive_vms
from vgpuctl.operations.plans.remove import refuse_transient_vms
from vgpuctl.operations.plans.vgpus import assigned_from_entry
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.ports.step import Step
from vgpuctl.value import Value, replace


class EvictionReason(Value):
    """Why a GPU has to be empty. `cause` completes a sentence that begins with what is on the GPU.

    `drain_hint`: what to type to allow it; None when VMs may be stopped and their vGPUs removed.
    """

    cause: str
    drain_hint: str | None = None


class Eviction(Value):
    """A change that needs an empty GPU: the running VMs to stop, and the steps while they are off."""

    vms_to_stop: tuple[Vm, ...] = ()
    steps: tuple[Step, ...] = ()


def plan_eviction(
    snapshot: Snapshot, gpu: Gpu, steps: tuple[Step, ...], reason: EvictionReason, mixed_size: bool | None = None
) -> Eviction:
    """Return the steps with every device of the GPU removed before them and created again after them.

    `mixed_size`: whether the GPU has mixed sizes after the steps; None if they do not change that.

    Raises:
        InUse: it has vGPUs that may not be removed, or that vgpuctl does not manage; or a VM crashed.
        Refused: a VM runs without a definition.
        Busy: creation or removal of a VM on it is unfinished.
    """
    suspended = _suspended_vgpus(snapshot, gpu, reason)
    if suspended and reason.drain_hint is not None:
        holders = sorted({device.holder for device in suspended})
        raise InUse(
            f"{gpu.address} has {count_text(len(suspended), 'vGPU')} of {', '.join(holders)}, and {reason.cause}",
            hint=f"{reason.drain_hint} shuts the VMs down, removes their vGPUs temporarily, and starts the VMs again",
            gpu=gpu.address,
            vms=holders,
        )
    vms_to_stop = {
        device.vm.uuid: device.vm
        for device in suspended
        if device.vm is not None and device.vm.state not in STOPPED_STATES
    }
    refuse_unresponsive_vms(gpu, vms_to_stop.values())
    refuse_transient_vms(vms_to_stop.values())
    restored = suspended if mixed_size is None else _with_new_placements(snapshot, suspended, mixed_size=mixed_size)
    restore_steps = [step for device in restored for step in device.restore_steps()]
    suspend_steps = [
        RemoveTemporarily(remove, recreate)
        for device in reversed(suspended)
        for remove, recreate in zip(
            backend_for(device.vgpu.backend).remove_steps(device.vgpu), device.restore_steps(), strict=True
        )
    ]
    return Eviction(
        vms_to_stop=tuple(sorted(vms_to_stop.values(), key=lambda vm: vm.name)),
        steps=(*suspend_steps, *steps, *restore_steps),
    )


class _SuspendedVgpu(Value):
    """A device that is removed temporarily: its holder in words, the VM to stop for it, and the vGPU."""

    holder: str
    vm: Vm | None
    vgpu: AssignedVgpu
    type_id: str | None

    def restore_steps(self) -> tuple[Step, ...]:
        """Return the steps that create it again."""
        return backend_for(self.vgpu.backend).create_steps(self.vgpu, self.type_id)


def _with_new_placements(
    snapshot: Snapshot, suspended: list[_SuspendedVgpu], *, mixed_size: bool
) -> list[_SuspendedVgpu]:
    """Return the vGPUs to restore in another mode: with mixed sizes, those with a recorded placement first.

    A device at another placement than its record says would count at both. The driver reports the placements of a type
    only with mixed sizes on. So vGPUs without a recorded placement get what the driver chooses of the rest.
    """
    restored = []
    for device in suspended:
        placement_id = _recorded_placement(snapshot, device) if mixed_size else None
        restored.append(replace(device, vgpu=replace(device.vgpu, placement_id=placement_id)))
    return sorted(restored, key=lambda device: device.vgpu.placement_id is None)


def _recorded_placement(snapshot: Snapshot, suspended: _SuspendedVgpu) -> int | None:
    """Return the recorded placement: from the VM's record, or from the claim where the record has none."""
    record = suspended.vm.record if suspended.vm is not None else None
    assignments = record.vgpus if record is not None and record.always_reserves else snapshot.claims
    return next(
        (assignment.placement_id for assignment in assignments if assignment.carrier == suspended.vgpu.carrier), None
    )


def _suspended_vgpus(snapshot: Snapshot, gpu: Gpu, reason: EvictionReason) -> list[_SuspendedVgpu]:
    """Return each device on the GPU, sorted by holder and index.

    Raises:
        InUse: one is not managed by vgpuctl, or is in a running VM that vgpuctl would not restart with it, as a clone.
        Busy: creation or removal of its VM is unfinished.
    """
    suspended = [
        _suspended_vgpu(snapshot, gpu, vgpu, reason) for vgpu in snapshot.vgpus_on(gpu.address) if vgpu.present
    ]
    return sorted(suspended, key=lambda device: (device.holder, device.vgpu.index))


def _suspended_vgpu(snapshot: Snapshot, gpu: Gpu, vgpu: Vgpu, reason: EvictionReason) -> _SuspendedVgpu:
    vm = snapshot.vm(vgpu.vm_uuid or "")
    entry = next((e for e in snapshot.host_vgpus if e.name == vgpu.name and e.carrier == vgpu.carrier), None)
    if entry is not None and vgpu.reason is None and (vm is None or vm.state in STOPPED_STATES):
        return _SuspendedVgpu(vgpu.holder_text, None, assigned_from_entry(entry, vgpu), vgpu.type_id)
    assignments = None if vm is None or vm.record is None else vm.record.vgpus
    assigned = next((a for a in assignments or () if a.carrier == vgpu.carrier), None)
    if vm is not None and vm.record is not None and vm.record.state is not RecordState.READY:
        raise Busy(
            f"{vm.name} on {gpu.address} is unfinished: its record says {vm.record.state}",
            hint="vgpuctl reconcile-host, if no vgpuctl process works on it any more",
            vm=vm.name,
        )
    if vgpu.owner is Ownership.MANAGED and vm is not None and assigned is not None:
        refuse_shared_vgpus(snapshot.vms, vm, (vgpu.carrier,))
        restored = replace(assigned, gpu=vgpu.gpu, function=vgpu.function, placement_id=vgpu.placement_id)
        return _SuspendedVgpu(vm.name, vm, restored, vgpu.type_id)
    if entry is not None:
        hint = f"shut down {vm.name if vm else 'the VM'} first"
    elif vgpu.owner is Ownership.LEAKED:
        hint = "vgpuctl reconcile-host"
    else:
        hint = "remove it with the program that created it"
    raise InUse(
        f"{gpu.address} has a vGPU of {vgpu.holder_text} ({vgpu.carrier}), which vgpuctl does not "
        f"remove; {reason.cause}",
        hint=hint,
        gpu=gpu.address,
        carrier=vgpu.carrier,
    )
