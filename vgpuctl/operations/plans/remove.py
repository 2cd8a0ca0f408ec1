# SPDX-License-Identifier: Apache-2.0
"""Plan the removal of a VM: the creation in reverse. reconcile uses the same steps after a crash.

A transient VM, one that was undefined while it runs, is refused: nothing of it remains when it stops.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from vgpuctl.backends import backend_for
from vgpuctl.domain.record import FINISH_EXCHANGE
from vgpuctl.errors import Refused, Unmanaged
from vgpuctl.model.gpu import Vgpu
from vgpuctl.model.hint_commands import remove_transient_command
from vgpuctl.model.numbers import count_text
from vgpuctl.model.port_values import DomainLeftovers
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, DiskRole, ManagedDisk, RecordState, Vm, VmRecord, VmState
from vgpuctl.operations.plans.chains import find_moved_disk
from vgpuctl.operations.plans.reserve import without_slot
from vgpuctl.operations.steps.claims import RefuseConcurrentCommand, ReleaseClaim
from vgpuctl.operations.steps.domain import MakePersistent, SetRecordState, StopDomain, UndefineDomain
from vgpuctl.operations.steps.guest_driver import drop_disc_steps
from vgpuctl.operations.steps.volume_bin import removal_of
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import replace


def refuse_transient_vms(vms: Iterable[Vm]) -> None:
    """Refuse to stop VMs that could not be started again.

    Raises:
        Refused: naming the VMs.
    """
    transient = sorted((vm for vm in vms if not vm.persistent), key=lambda vm: vm.name)
    if transient:
        names, first = [vm.name for vm in transient], shlex.quote(transient[0].name)
        raise Refused(
            f"{', '.join(names)}: running without a definition (virsh undefine), so it is lost when it stops",
            hint=f"virsh dumpxml --inactive --security-info {first} > FILE, then virsh define FILE, keeps it; "
            f"{remove_transient_command(transient[0])} removes it",
            vms=names,
        )


def own_record(vm: Vm, action: str) -> VmRecord:
    """Return a VM's record, or refuse to change a VM that vgpuctl does not manage.

    Raises:
        Unmanaged: vgpuctl did not create it, or its record was copied, is lost or is unreadable. vgpuctl does not
            delete a VM that only has vGPUs from it.
    """
    if vm.record is not None and (vm.record.created_vm or action != "delete"):
        return vm.record
    if vm.record is not None and vm.record.adopted_vgpus():
        name = shlex.quote(vm.name)
        raise Unmanaged(
            f"{vm.name} was not created by vgpuctl, which only adopted it",
            hint=f"vgpuctl adopt {name} --release lets it go; then {virsh_command(vm, action)}",
            check="adopted",
            vm=vm.name,
        )
    if vm.record is not None:
        raise Unmanaged(
            f"{vm.name} was not created by vgpuctl, which only attached {count_text(len(vm.record.vgpus), 'vGPU')}",
            hint=f"vgpuctl detach-vgpu {vm.name} removes them; then use virsh",
            vm=vm.name,
        )
    if vm.copied_record is not None:
        raise Unmanaged(
            f"{vm.name} is a copy: its record is that of another VM or host ({vm.copied_record.vm_uuid})",
            hint=f"vgpuctl does not {action} copies; {virsh_command(vm, action)} does",
            vm=vm.name,
        )
    if vm.has_unfinished_exchange:
        raise Unmanaged(
            f"{vm.name} is in an exchange of places that version 0.1 left unfinished: this vgpuctl does not finish it",
            hint=FINISH_EXCHANGE,
            vm=vm.name,
        )
    if vm.has_unreadable_record:
        raise Unmanaged(
            f"{vm.name} has a record that this vgpuctl cannot read: a newer one may have written it",
            hint=f"upgrade vgpuctl; virsh dumpxml {vm.name} shows the record, in <metadata>",
            vm=vm.name,
        )
    raise Unmanaged(
        f"{vm.name} was not created by vgpuctl, which does not {action} it",
        hint=f"{virsh_command(vm, action)}; if vgpuctl created it and its record was lost: vgpuctl reconcile-host",
        vm=vm.name,
    )


def virsh_command(vm: Vm, action: str) -> str:
    """Return the virsh command for an action that vgpuctl refuses on a VM."""
    if action == "move":
        return f"virsh migrate --live --persistent --undefinesource {shlex.quote(vm.name)} qemu+ssh://HOST/system"
    subcommands = {
        "start": "start",
        "stop": "shutdown",
        "reboot": "reboot",
        "delete": "undefine",
        "save": "managedsave",
    }
    return f"virsh {subcommands.get(action, 'edit')} {shlex.quote(vm.name)}"


def unproven_carriers(snapshot: Snapshot, vm: Vm, record: VmRecord) -> frozenset[str]:
    """Return the assigned carriers whose device may be somebody else's: vgpuctl leaves those devices alone.

    An mdev's UUID proves its owner. A VF does not: without a claim from this boot its type may have been set by
    somebody else, after the reboot that removed vgpuctl's vGPU. A slot that a VM does not always reserve, and does not
    have now, may be anybody's.
    """
    claimed = {c.carrier for c in snapshot.claims if c.vm_uuid == vm.uuid}
    unproven = {v.carrier for v in without_slot(snapshot, vm, record)}
    for assigned in record.vgpus:
        gpu = None if assigned.carrier in claimed else snapshot.gpu(assigned.gpu)
        if gpu is not None and backend_for(assigned.backend).is_unproven(gpu, assigned):
            unproven.add(assigned.carrier)
    return frozenset(unproven)


def disks_to_delete(record: VmRecord, *, keep_disks: bool) -> tuple[ManagedDisk, ...]:
    """Return the volumes to delete with a VM: always its seeds and leftovers of a refresh, which hold nobody's work."""
    kept = (DiskRole.DISK, DiskRole.PREPARED) if keep_disks else ()
    return tuple(d for d in record.disks if d.role not in kept)


def vm_removal_plan(
    vm: Vm,
    record: VmRecord,
    leftovers: DomainLeftovers,
    *,
    keep_disks: bool,
    keep_devices: frozenset[str] = frozenset(),
    summary: str = "",
) -> Plan:
    """Return the steps that remove a VM; reconcile finishes them after a crash.

    `keep_devices`: carriers whose device stays because vgpuctl does not provably own it. `summary`: what the first step
    is shown as, instead of the record's state.
    """
    removal_record = replace(record, disks=disks_to_delete(record, keep_disks=keep_disks))
    steps: list[Step] = [] if vm.persistent else [MakePersistent(vm.name, vm.uuid)]
    if vm.state is not VmState.STOPPED:
        steps.append(StopDomain(vm.name, vm.uuid, force=True, deadline_seconds=0))
    steps.append(
        SetRecordState(
            vm.name, vm.uuid, replace(removal_record, state=RecordState.REMOVING), previous=vm.record, summary=summary
        )
    )
    if not record.always_reserves:
        steps.append(RefuseConcurrentCommand(vm.name, vm.uuid))
    for vgpu in reversed(removal_record.vgpus):
        if vgpu.carrier not in keep_devices:
            steps += backend_for(vgpu.backend).remove_steps(vgpu)
    steps += [removal_of(d) for d in reversed(removal_record.disks)]
    steps.append(UndefineDomain(vm.name, vm.uuid, describe_leftovers(leftovers)))
    steps += [ReleaseClaim(v.carrier, vm.uuid) for v in reversed(removal_record.vgpus)]
    steps += drop_disc_steps(vm)
    kept = tuple(d for d in record.disks if d not in removal_record.disks)
    notes = tuple(f"disk {d.path} is kept{_base_text(d, kept)}" for d in kept)
    moved = [current for d in record.data_disks() if keep_disks and (current := find_moved_disk(vm, d)) is not None]
    notes += tuple(f"disk {path} is kept: vgpuctl did not make it" for path in {str(d.source): None for d in moved})
    notes += tuple(
        f"the vGPU on {c} does not belong to {vm.name}: another program created it; it stays"
        for c in sorted(keep_devices)
    )
    return Plan(steps=tuple(steps), notes=notes, undo_on_failure=False, vms_required_off=(vm.uuid,))


def _base_text(disk: ManagedDisk, kept: tuple[ManagedDisk, ...]) -> str:
    """Say that a disk is useless without another one that is kept."""
    return f", a clone of {disk.base}" if disk.base in {d.path for d in kept} else ""


def describe_leftovers(leftovers: DomainLeftovers) -> tuple[str, ...]:
    """Return, in words, what undefine removes together with the VM."""
    descriptions = []
    if leftovers.nvram:
        descriptions.append(f"NVRAM {leftovers.nvram}")
    if leftovers.tpm:
        descriptions.append("its TPM state")
    if leftovers.managed_save:
        descriptions.append("its managed save")
    if leftovers.snapshots:
        descriptions.append(f"snapshots {', '.join(leftovers.snapshots)}")
    if leftovers.checkpoints:
        descriptions.append(f"checkpoints {', '.join(leftovers.checkpoints)}")
    return tuple(descriptions)


def release_steps(vm: Vm, vgpus: tuple[AssignedVgpu, ...]) -> tuple[Step, ...]:
    """Return the steps that release the vGPUs of a stopped VM, which then remain only in its record."""
    steps: list[Step] = []
    for vgpu in reversed(vgpus):
        steps += backend_for(vgpu.backend).remove_steps(vgpu)
    return (*steps, *(ReleaseClaim(v.carrier, vm.uuid) for v in reversed(vgpus)))


def leaked_removal_plan(vgpu: Vgpu) -> Plan:
    """Return the steps that remove a leaked device and its claim."""
    steps: list[Step] = []
    if vgpu.backend is not None:
        steps += backend_for(vgpu.backend).remove_steps(assigned_from_observed(vgpu))
    steps.append(ReleaseClaim(vgpu.carrier, vgpu.vm_uuid or ""))
    return Plan(steps=tuple(steps), undo_on_failure=False)


def assigned_from_observed(vgpu: Vgpu, index: int = 0) -> AssignedVgpu:
    """Return an observed vGPU as an assigned one, the form that steps need."""
    if vgpu.backend is None:
        raise ValueError(f"{vgpu.carrier} has no backend")
    return AssignedVgpu(
        index=index,
        backend=vgpu.backend,
        gpu=vgpu.gpu,
        function=vgpu.function,
        carrier=vgpu.carrier,
        profile=vgpu.profile,
        framebuffer_mib=vgpu.framebuffer_mib,
        placement_id=vgpu.placement_id,
    )
