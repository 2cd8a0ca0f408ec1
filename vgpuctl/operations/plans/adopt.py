# SPDX-License-Identifier: Apache-2.0
"""Plan the adoption of a VM that another program made: which of its devices vgpuctl can manage, and why not.

Everything that the record says of them is what the host shows now. The VM's definition stays as it is: the record names
each device by its carrier, the mdev's UUID or the function's address, by which libvirt finds it, too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from vgpuctl.backends import backend_for
from vgpuctl.domain.record import TEXT_KIND
from vgpuctl.errors import Busy, HostCannot, InUse, Refused
from vgpuctl.model import hint_commands
from vgpuctl.model.gpu import Backend, GpuMode, Ownership, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Claim, HostdevRef, Vm, VmRecord
from vgpuctl.observe.definition import removal_command
from vgpuctl.operations.plans.change import record_with_vgpus, with_gpu_fields, with_request_fields
from vgpuctl.operations.plans.remove import assigned_from_observed
from vgpuctl.operations.plans.whole_gpus import describe_record, whole_functions
from vgpuctl.operations.steps.attach import ReleaseReplacedClaim, WriteRecord
from vgpuctl.ports.step import Step
from vgpuctl.value import replace

NO_DEVICE_CHECK, NOT_ADOPTED_CHECK = "adopt-device", "adopted"
"""The `check` facts of a VM that has nothing to adopt, and of one that would have to be adopted, or must not be."""


def new_hostdevs(vm: Vm, record: VmRecord) -> tuple[HostdevRef, ...]:
    """Return the devices of a VM that its record does not have, each once."""
    recorded = {v.carrier for v in record.vgpus}
    return tuple({h.carrier: h for h in vm.hostdevs if h.carrier not in recorded}.values())


def find_absent_mdevs(snapshot: Snapshot, hostdevs: Sequence[HostdevRef]) -> tuple[str, ...]:
    """Return the UUIDs of mdevs that do not exist now."""
    present = {v.carrier for v in snapshot.vgpus if v.present}
    return tuple(h.carrier for h in hostdevs if h.kind == "mdev" and h.carrier not in present)


def find_other_functions(snapshot: Snapshot, hostdevs: Sequence[HostdevRef]) -> tuple[str, ...]:
    """Return the PCI functions that are none of a GPU of this host: network cards and the like, or VFs that are off."""
    known = {v.carrier for v in snapshot.vgpus} | {m.address for g in snapshot.gpus for m in g.group_members}
    return tuple(h.carrier for h in hostdevs if ":" in h.carrier and h.carrier not in known)


def choose_adopted(snapshot: Snapshot, vm: Vm, record: VmRecord) -> tuple[AssignedVgpu, ...]:
    """Return the vGPUs, VFs and whole GPUs of a VM that its record does not have; none if it has all of them.

    `record`: an empty one for a VM without a record.

    Raises:
        Busy: vgpuctl has a claim for the VM, which has no record.
        InUse: another VM, host.yaml or a command has the device.
        HostCannot: the profile of a vGPU is not known.
        Refused: host.yaml excludes the GPU, or vgpuctl cannot manage the device.
    """
    by_carrier = {v.carrier: v for v in snapshot.vgpus}
    hostdevs = new_hostdevs(vm, record)
    devices = [(h, v) for h in hostdevs if (v := by_carrier.get(h.carrier)) is not None and v.backend is not None]
    for hostdev, vgpu in devices:
        _refuse_device(snapshot, vm, hostdev, vgpu)
    chosen = [assigned_from_observed(vgpu) for _, vgpu in devices]
    chosen += [a for _, vgpu in devices for a in _companions(snapshot, vgpu, hostdevs)]
    used = {v.index for v in record.vgpus}
    free = (index for index in range(len(used) + len(chosen)) if index not in used)
    numbered = tuple(replace(v, index=index, adopted=True) for index, v in zip(free, chosen, strict=False))
    _refuse_mixture(vm, (*record.vgpus, *numbered))
    return numbered


def _companions(snapshot: Snapshot, vgpu: Vgpu, hostdevs: Sequence[HostdevRef]) -> list[AssignedVgpu]:
    """Return the other functions of a whole GPU's slot that the VM has, such as its audio."""
    gpu = snapshot.gpu(vgpu.gpu)
    if gpu is None or not backend_for(vgpu.backend).takes_whole_gpu:
        return []
    same_slot = [m.address for m in gpu.group_members if m.same_slot]
    carriers = [h.carrier for h in hostdevs if h.carrier in same_slot]
    return [AssignedVgpu(0, Backend.PASSTHROUGH, gpu.address, c, c, None) for c in carriers]


def _refuse_device(snapshot: Snapshot, vm: Vm, hostdev: HostdevRef, vgpu: Vgpu) -> None:
    """Refuse a device that vgpuctl cannot manage for this VM."""
    gpu = snapshot.gpu(vgpu.gpu)
    if vgpu.name is not None:
        raise InUse(
            f"{vgpu.carrier} of {vm.name} is the vGPU {vgpu.name} of host.yaml, which vgpuctl makes again at each boot",
            hint="vgpuctl list-vgpus shows it; a vGPU belongs to host.yaml or to a VM",
            carrier=vgpu.carrier,
        )
    refuse_lost_record(vm, (vgpu,))
    if vgpu.owner is not Ownership.UNMANAGED:
        raise InUse(
            f"{vgpu.carrier} of {vm.name} is claimed for {vgpu.holder_text}",
            hint=f"vgpuctl show-gpu {vgpu.gpu} shows who has it; {removal_command(vm, vgpu.carrier)}",
            vm=vgpu.vm,
            carrier=vgpu.carrier,
        )
    refuse_other_users(snapshot, vm, vgpu)
    if hostdev.kind == TEXT_KIND:
        raise Refused(
            f"{vm.name} names {vgpu.carrier} only in a text of its definition, such as <qemu:commandline>, so libvirt"
            " does not know it",
            hint=f"virsh edit {shlex.quote(vm.name)}: a <hostdev> in its place can be adopted",
            vm=vm.name,
            carrier=vgpu.carrier,
        )
    if gpu is not None and gpu.desired_mode is GpuMode.UNMANAGED:
        raise Refused(
            f"host.yaml excludes GPU {gpu.address}, which has {vgpu.carrier} of {vm.name}, from vgpuctl"
            " (mode: unmanaged)",
            hint=f"vgpuctl set-mode {gpu.address} {_mode_of(vgpu)} changes that",
            vm=vm.name,
            gpu=gpu.address,
        )
    _refuse_unknown_type(vm, vgpu)


def _mode_of(vgpu: Vgpu) -> str:
    return str(backend_for(vgpu.backend).mode)


def refuse_lost_record(vm: Vm, vgpus: Iterable[Vgpu]) -> None:
    """Refuse a VM without a record for which one of these devices is claimed, or of which its UUID says that it is.

    Raises:
        Busy: reconcile writes the record again, or releases the claim of a command that was killed.
    """
    lost = next((v for v in vgpus if v.owner is not Ownership.UNMANAGED and v.vm_uuid == vm.uuid and not v.name), None)
    if lost is not None:
        raise Busy(
            f"{lost.carrier} belongs to {vm.name}, which has no record of it: it lost its record, or a command was"
            " killed",
            hint="vgpuctl reconcile-host, then run the command again",
            vm=vm.name,
            carrier=lost.carrier,
        )


def is_another_device(snapshot: Snapshot, planned: AssignedVgpu, vgpu: Vgpu) -> bool:
    """Return whether a device is no longer what was planned: it is gone, elsewhere, or of another type."""
    gpu = snapshot.gpu(vgpu.gpu)
    vgpu_type = gpu.find_type(vgpu.type_id) if gpu is not None and vgpu.type_id is not None else None
    is_other_type = vgpu_type is not None and vgpu_type.profile != planned.profile
    return (vgpu.gpu, vgpu.function, vgpu.present) != (planned.gpu, planned.function, True) or is_other_type


def refuse_other_users(snapshot: Snapshot, vm: Vm, vgpu: Vgpu) -> None:
    """Refuse a device that another VM's definition names, and a whole GPU or VF below which others have something."""
    other = next((o for o in snapshot.vms if o.uuid != vm.uuid and o.refers_to(vgpu.carrier)), None)
    if other is not None:
        raise InUse(
            f"{vgpu.carrier} of {vm.name} is also in the definition of VM {other.name}, which is {other.state}",
            hint=removal_command(other, vgpu.carrier),
            vm=other.name,
            carrier=vgpu.carrier,
        )
    own = {h.carrier for h in vm.hostdevs}
    below = [
        v
        for v in snapshot.vgpus_on(vgpu.gpu)
        if v.carrier not in own and (v.function == vgpu.carrier or backend_for(vgpu.backend).takes_whole_gpu)
    ]
    if below and not backend_for(vgpu.backend).carrier_has_uuid:
        raise InUse(
            f"{vgpu.carrier} of {vm.name} is the function below {below[0].carrier}, which {below[0].holder_text} has",
            hint=f"vgpuctl show-gpu {vgpu.gpu} shows everything on it",
            vm=below[0].vm,
            carrier=vgpu.carrier,
        )


def _refuse_unknown_type(vm: Vm, vgpu: Vgpu) -> None:
    """Refuse a vGPU that could not be made again."""
    if not backend_for(vgpu.backend).creates_devices:
        return
    name = shlex.quote(vm.name)
    if not vgpu.present:
        raise HostCannot(
            f"the VF {vgpu.carrier} of {vm.name} has no vGPU type now, so its profile is not known",
            hint=f"set its type as before (echo TYPE > /sys/bus/pci/devices/{vgpu.carrier}/nvidia/current_vgpu_type), "
            f"then vgpuctl adopt {name}",
            check="adopt-missing",
            vm=vm.name,
            carrier=vgpu.carrier,
        )
    if vgpu.profile is None:
        raise HostCannot(
            f"{vgpu.carrier} of {vm.name} has the vGPU type {vgpu.type_id}, and neither NVML nor the driver of"
            f" {vgpu.gpu} tells its name now",
            hint=f"vgpuctl doctor nvml; then vgpuctl adopt {name}",
            check="adopt-type",
            vm=vm.name,
            carrier=vgpu.carrier,
        )


def _refuse_mixture(vm: Vm, vgpus: Sequence[AssignedVgpu]) -> None:
    """Refuse a VM with devices of several kinds: what vgpuctl makes again at a start is of one."""
    modes = sorted({str(backend_for(v.backend).mode) for v in vgpus})
    if len(modes) > 1:
        raise Refused(
            f"{vm.name} has devices of the modes {' and '.join(modes)}: a VM of vgpuctl has either vGPUs, or plain VFs,"
            " or whole GPUs",
            hint=f"virsh edit {shlex.quote(vm.name)}: remove those of one kind",
            vm=vm.name,
            carriers=[v.carrier for v in vgpus],
        )


def missing_mdev_error(vm: Vm, uuid: str, *, is_defined: bool) -> HostCannot:
    """Return the error for an mdev that does not exist, so that its GPU and its type are unknown.

    `is_defined`: mdevctl has a definition of it.
    """
    again = f"vgpuctl adopt {shlex.quote(vm.name)}"
    make = f"mdevctl start --uuid {uuid}" if is_defined else "make it as before, with this UUID"
    return HostCannot(
        f"the mdev {uuid} of {vm.name}, which is {vm.state}, does not exist now, so its GPU and profile are not known",
        hint=f"{make}; then {again}",
        check="adopt-missing",
        vm=vm.name,
        carrier=uuid,
    )


def missing_function_error(vm: Vm, function: str) -> HostCannot:
    """Return the error for a PCI function that does not exist, perhaps a VF that is off."""
    return HostCannot(
        f"{function} of {vm.name}, which is {vm.state}, does not exist now; it may be a VF that is off",
        hint=f"vgpuctl list-gpus --all shows the GPUs with their VFs; then vgpuctl adopt {shlex.quote(vm.name)}",
        check="adopt-missing",
        vm=vm.name,
        carrier=function,
    )


def autostart_error(vm: Vm, uuid: str) -> Refused:
    """Return the error for an mdev that mdevctl makes at each boot of the host."""
    return Refused(
        f"mdevctl makes the mdev {uuid} of {vm.name} when the host boots, and from now on vgpuctl would, too",
        hint=f"mdevctl undefine --uuid {uuid}",
        vm=vm.name,
        carrier=uuid,
    )


def no_device_error(vm: Vm) -> Refused:
    """Return the error for a VM that has nothing to adopt."""
    return Refused(
        f"{vm.name} has no vGPU, VF of a GPU or whole GPU to adopt",
        hint=f"vgpuctl attach-vgpu {shlex.quote(vm.name)} --profile PROFILE gives it a vGPU; vgpuctl list-profiles",
        check=NO_DEVICE_CHECK,
        vm=vm.name,
    )


def live_only_error(vm: Vm, carrier: str) -> Refused:
    """Return the error for a device that only the running domain has: the VM would start without it."""
    return Refused(
        f"{carrier} is only in the running VM {vm.name}, not in its definition, so it is gone when the VM stops",
        hint=f"virsh edit {shlex.quote(vm.name)}: add its <hostdev>, which virsh dumpxml shows",
        vm=vm.name,
        carrier=carrier,
    )


def adopted_record(record: VmRecord, vgpus: Sequence[AssignedVgpu], params: Mapping[str, str]) -> VmRecord:
    """Return the record of a VM with these adopted vGPUs. `params`: plugin parameters, by carrier."""
    new = [replace(v, params=params.get(v.carrier, "")) for v in vgpus]
    changed = with_gpu_fields(record_with_vgpus(record, (*record.vgpus, *new)))
    has_vfs = any(v.profile is None for v in vgpus) and not whole_functions(changed)
    return with_request_fields(changed, mode=str(GpuMode.SRIOV)) if has_vfs else changed


def write_step(vm: Vm, record: VmRecord) -> WriteRecord:
    """Return the step that writes the record of an adopted VM."""
    summary = describe_record(vm, record) if whole_functions(record) else ""
    return WriteRecord(vm.name, vm.uuid, record, vm.record, summary)


def require_released(vm: Vm, record: VmRecord) -> None:
    """Refuse to let go of a VM that vgpuctl created, or to which it attached a vGPU.

    Raises:
        Refused: with the command that removes them.
    """
    name = shlex.quote(vm.name)
    if record.created_vm:
        raise Refused(
            f"vgpuctl created {vm.name}: only a VM that was adopted can be let go",
            hint=f"vgpuctl delete-vm {name}, or with --keep-disks",
            check=NOT_ADOPTED_CHECK,
            vm=vm.name,
        )
    attached = next((v for v in record.vgpus if not v.adopted), None)
    if attached is not None:
        raise Refused(
            f"vgpuctl attached {attached.profile or attached.carrier} to {vm.name}: without a record it has no owner",
            hint=hint_commands.detach_command(vm, attached.carrier),
            check=NOT_ADOPTED_CHECK,
            vm=vm.name,
            carrier=attached.carrier,
        )


def release_record_steps(vm: Vm, record: VmRecord, claims: Sequence[Claim]) -> tuple[Step, ...]:
    """Return the steps that let an adopted VM go: its record, then its claims; devices and definition stay."""
    write = WriteRecord(vm.name, vm.uuid, None, record, f"forget {vm.name}: its devices and its definition stay")
    return (write, *(ReleaseReplacedClaim(claim) for claim in claims))
