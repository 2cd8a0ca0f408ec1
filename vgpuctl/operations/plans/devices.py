# SPDX-License-Identifier: Apache-2.0
"""A VM's missing devices: the steps that create them again where its record says, or why that is impossible.

start-vm, the restore after a boot and libvirt's hook all use this module.
"""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.errors import InUse
from vgpuctl.gpu.division import find_type
from vgpuctl.gpu.mixed_size import is_placement_free
from vgpuctl.model import hint_commands
from vgpuctl.model.gpu import Gpu, Ownership, Vgpu
from vgpuctl.model.names import parse_profile_name
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import OFF_OR_UNKNOWN_STATES, AssignedVgpu, Vm, VmRecord
from vgpuctl.observe.definition import refuse_lost_gpu
from vgpuctl.operations.plans.choose import make_steps
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.ports.step import Step
from vgpuctl.value import replace


def uses_force_console(record: VmRecord) -> bool:
    """Say whether the VM was created with --force-console; False if its request fields cannot be read."""
    return bool(record.request_fields.get("force_console", False))


def check_devices(snapshot: Snapshot, record: VmRecord) -> None:
    """Repeat the checks of creation: the host may have rebooted since, or taken the device.

    Raises:
        HostCannot, Refused, InUse: as the backend's check says.
    """
    for assigned in record.vgpus:
        gpu = snapshot.gpu(assigned.gpu)
        if gpu is None:
            continue
        refuse_lost_gpu(gpu)
        function = gpu.find_function(assigned.function)
        if function is None and assigned.function == gpu.address:  # its functions are its VFs, if any are on
            function = gpu.whole_function
        if function is None:
            continue
        backend_for(assigned.backend).check(snapshot, gpu, function, force_console=uses_force_console(record))


def missing_device_steps(snapshot: Snapshot, vm: Vm, record: VmRecord) -> tuple[Step, ...]:
    """Return the steps that create each missing device; the snapshot must hold the types of the record's GPUs.

    Raises:
        InUse: somebody took the function or changed the device; the message names who.
        NoCapacity: the driver has no room for it now.
        HostCannot: the GPU is gone, or the function.
    """
    steps: list[Step] = []
    for assigned in record.vgpus:
        if any(v.carrier == assigned.carrier and v.present for v in snapshot.vgpus):
            existing = next(v for v in snapshot.vgpus if v.carrier == assigned.carrier)
            _refuse_changed_type(snapshot, vm, assigned, existing)
            steps += _move_steps(snapshot, vm, assigned, existing)
            continue
        other_vgpus = [v for v in snapshot.vgpus if v.function == assigned.function and v.vm_uuid != vm.uuid]
        blocking = [
            v
            for v in other_vgpus
            if (v.owner is not Ownership.MANAGED or v.present) and assigned.function != assigned.gpu
        ]
        if blocking:
            raise InUse(
                f"{assigned.function} is used by {blocking[0].vm or blocking[0].carrier}, but {vm.name} needs it",
                hint=_release_command(snapshot, blocking[0]),
                function=assigned.function,
                vm=blocking[0].vm,
            )
        steps += make_steps(snapshot, assigned)
    return tuple(steps)


def _release_command(snapshot: Snapshot, vgpu: Vgpu) -> str:
    """Return the command that releases the function of another VM, or shows who has it."""
    user = snapshot.vm(vgpu.vm_uuid or "")
    if user is None or user.state in OFF_OR_UNKNOWN_STATES:
        return f"vgpuctl show-gpu {vgpu.gpu}"
    return hint_commands.stop_command(user)


def _move_steps(snapshot: Snapshot, vm: Vm, assigned: AssignedVgpu, device: Vgpu) -> tuple[Step, ...]:
    """Return the step that moves a device to its target placement, while no VM runs with it.

    If something occupies the target, the device stays. libvirt's hook and the restore after a boot do not know whether
    the VM runs.
    """
    gpu, target_placement = snapshot.gpu(device.gpu), device.target_placement_id
    vgpu_type = find_type(gpu, device) if gpu is not None else None
    if gpu is None or vgpu_type is None or target_placement is None or vm.state not in STOPPED_STATES:
        return ()
    others = [v for v in snapshot.vgpus_on(gpu.address) if v.carrier != device.carrier]
    moved = replace(assigned, placement_id=target_placement)
    return (
        backend_for(assigned.backend).move_steps(moved)
        if is_placement_free(gpu, others, vgpu_type, target_placement)
        else ()
    )


def _refuse_changed_type(snapshot: Snapshot, vm: Vm, assigned: AssignedVgpu, device: Vgpu) -> None:
    """Refuse a device of another type than the record assigns.

    Only NVML names a type that has no room for one more. Where NVML is not queried, the id in the claim decides.
    """
    gpu = snapshot.gpu(assigned.gpu)
    if assigned.profile is None or device.type_id is None or gpu is None:
        return
    device_type = gpu.find_type(device.type_id)
    claimed_type_id = next(
        (c.type_id for c in snapshot.claims if (c.carrier, c.vm_uuid) == (device.carrier, vm.uuid)), None
    )
    if device_type is None and claimed_type_id in (None, device.type_id):
        return
    if device_type is None or device_type.profile != assigned.profile:
        type_text = device_type.profile if device_type is not None else f"the type {device.type_id}"
        raise InUse(
            f"{assigned.carrier} has {type_text}, not {assigned.profile} as {vm.name} needs",
            hint=f"vgpuctl show-gpu {assigned.gpu}; it was changed by hand",
            carrier=assigned.carrier,
        )


def why_displaced(
    snapshot: Snapshot, absent: frozenset[str], vgpu: AssignedVgpu, *, any_function: bool = False
) -> str | None:
    """Return why a vGPU can never be at its recorded slot again; None if it is there, or may still come.

    `absent`: the GPUs of records whose address is on no bus. `any_function`: any function of its GPU will do.
    """
    if vgpu.gpu in absent:
        return f"the GPU {vgpu.gpu} is no longer on this host"
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is None or not backend_for(vgpu.backend).creates_devices:
        return None
    if not (gpu.is_display_class or gpu.vfs_total or backend_for(gpu.backend).creates_devices):
        return f"the device {gpu.address} is not a GPU (PCI ID {gpu.vendor_id}:{gpu.device_id})"
    if gpu.backend is None:
        return None
    if any(v.carrier == vgpu.carrier and v.present for v in snapshot.vgpus):
        return None
    backend = backend_for(gpu.backend)
    if not backend.creates_devices:
        return None  # plain VFs, or vfio-pci: the vGPU driver may come, and host.yaml may ask for it
    if not backend.accepts(backend_for(vgpu.backend)):
        return f"the driver of {gpu.address} now creates vGPUs as {backend.name}, and {vgpu.carrier} was {vgpu.backend}"
    if _is_other_type(snapshot, gpu, vgpu):
        return f"{gpu.address} no longer offers {vgpu.profile}"
    if not any_function and gpu.find_function(vgpu.function) is None and _has_all_functions(gpu):
        return f"{vgpu.function} no longer exists: {gpu.address} has {count_text(gpu.vfs_enabled, 'VF')}, all on"
    return None


def _has_all_functions(gpu: Gpu) -> bool:
    """Return whether no further function can appear: VFs appear one by one while a program turns them on."""
    return not backend_for(gpu.backend).on_vfs or (gpu.vfs_enabled == gpu.vfs_total and not gpu.problems)


def _is_other_type(snapshot: Snapshot, gpu: Gpu, vgpu: AssignedVgpu) -> bool:
    """Return whether the GPU will not offer the vGPU's profile: it is of another model, or it is empty and does not.

    A GPU in use may list only what still fits on it, and one with MIG only what its GPU instances have.
    """
    if vgpu.profile is None or not gpu.types or any(t.profile == vgpu.profile for t in gpu.types):
        return False
    name = parse_profile_name(vgpu.profile)
    boards = {parsed.board for t in gpu.types if (parsed := parse_profile_name(t.profile)) is not None}
    if name is not None and boards and name.board not in boards:
        return True
    is_partitioned = (gpu.mig is not None and gpu.mig.enabled) or (name is not None and name.mig_slices > 0)
    return not is_partitioned and not any(v.present for v in snapshot.vgpus_on(gpu.address))


def without_displaced(
    snapshot: Snapshot, vm: Vm, record: VmRecord, displaced: frozenset[str]
) -> tuple[Snapshot, Vm, VmRecord]:
    """Return the host, the VM and its record as if the VM had given up these carriers and waited for other slots."""
    if not displaced:
        return snapshot, vm, record
    vgpus = tuple(replace(v, waits_for_place=v.waits_for_place or v.carrier in displaced) for v in record.vgpus)
    record = replace(record, vgpus=vgpus)
    vm = replace(vm, record=record)
    remaining = tuple(v for v in snapshot.vgpus if v.vm_uuid != vm.uuid or v.carrier not in displaced)
    vms = tuple(vm if other.uuid == vm.uuid else other for other in snapshot.vms)
    return replace(snapshot, vgpus=remaining, vms=vms), vm, record
