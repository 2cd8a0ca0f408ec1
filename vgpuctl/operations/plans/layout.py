# SPDX-License-Identifier: Apache-2.0
"""Decide how many VFs a GPU has in a mode, and whether its users allow the change."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from vgpuctl.backends import backend_for
from vgpuctl.backends.pci_function import HARMLESS_DRIVERS, refuse_drawing_gpu
from vgpuctl.errors import HostCannot, InUse, InvalidInput
from vgpuctl.makers import (
    disable_vfs_hint,
    maker_of,
    sets_vfs_at_load,
    vfs_are_for_vgpus,
    vgpu_driver_hint,
    vgpus_take_vfs,
)
from vgpuctl.model.gpu import Gpu, Ownership, Vgpu
from vgpuctl.model.hint_commands import detach_command, off_command, stop_command
from vgpuctl.model.numbers import count_text, format_size
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import UNRESPONSIVE_STATES, Vm, VmState
from vgpuctl.observe.definition import refuse_shared_vgpus, removal_command
from vgpuctl.operations.plans.remove import refuse_transient_vms
from vgpuctl.operations.steps.domain import STOPPED_STATES


def target_vf_count(gpu: Gpu, mode: str, vfs: int | None) -> int:
    """Return how many VFs a GPU has in a mode. `vfs`: the requested number, None for the mode's default.

    Raises:
        InvalidInput: this number is impossible.
        HostCannot: the GPU or its driver has no such mode, or cannot set another number.
    """
    maximum = min(gpu.vfs_total, maker_of(gpu).max_plain_vfs)
    if vfs is not None and (mode not in ("vgpu", "sriov") or not 1 <= vfs <= maximum):
        valid = f"1 to {maximum}" if mode in ("vgpu", "sriov") and maximum else "no --vfs"
        raise InvalidInput(f"--vfs {vfs} is not valid for {gpu.address} in mode {mode}: {valid}", gpu=gpu.address)
    if mode == "unmanaged":
        return gpu.vfs_enabled
    vf_count = 0 if mode == "passthrough" else _vgpu_vf_count(gpu, vfs) if mode == "vgpu" else _plain_vf_count(gpu, vfs)
    if vf_count != gpu.vfs_enabled:
        _require_vf_switch(gpu, vf_count)
    return vf_count


def chooses_vf_count(gpu: Gpu, mode: str) -> bool:
    """Return whether an administrator chooses the number of VFs that a GPU has in a mode."""
    return mode == "sriov" or (mode == "vgpu" and vgpus_take_vfs(gpu))


def _vgpu_vf_count(gpu: Gpu, vfs: int | None) -> int:
    if vgpus_take_vfs(gpu):
        return vfs or gpu.vfs_enabled or min(gpu.vfs_total, maker_of(gpu).max_plain_vfs)
    if backend_for(gpu.backend).creates_devices:
        vf_count = gpu.vfs_enabled
    elif vfs_are_for_vgpus(gpu) and gpu.backend is None:
        vf_count = gpu.vfs_total
    else:
        raise _no_mode_error(gpu, "vgpu", vgpu_driver_hint(gpu))
    if vfs not in (None, vf_count):
        raise InvalidInput(
            f"{gpu.address} has {vf_count} VFs for vGPUs, or none: its driver turns on all of them",
            hint=f"omit --vfs, or use --vfs {vf_count}",
            gpu=gpu.address,
        )
    return vf_count


def _plain_vf_count(gpu: Gpu, vfs: int | None) -> int:
    if vfs_are_for_vgpus(gpu) or vgpus_take_vfs(gpu):
        hint = f"{maker_of(gpu).name}'s VFs support only vGPUs: vgpuctl set-mode {gpu.address} vgpu"
        raise _no_mode_error(gpu, "sriov", hint)
    if not gpu.vfs_total or backend_for(gpu.backend).creates_devices:
        raise _no_mode_error(gpu, "sriov", "turn on SR-IOV and ARI in the firmware; lspci -vvs " + gpu.address)
    return vfs or gpu.vfs_enabled or min(gpu.vfs_total, maker_of(gpu).max_plain_vfs)


def _no_mode_error(gpu: Gpu, mode: str, hint: str) -> HostCannot:
    observed = (
        f"driver {gpu.driver or 'none'}, {gpu.vfs_enabled} of {gpu.vfs_total} VFs on, backend {gpu.backend or 'none'}"
    )
    return HostCannot(
        f"{gpu.address} ({gpu.model}) has no mode {mode} here: {observed}", hint=hint, check="mode", gpu=gpu.address
    )


def _require_vf_switch(gpu: Gpu, vf_count: int) -> None:
    """Refuse a number that the driver does not accept, or a GPU whose VFs no driver can switch now."""
    facts = {"gpu": gpu.address, "vfs": vf_count, "vfs_enabled": gpu.vfs_enabled}
    if sets_vfs_at_load(gpu) and not vf_count:
        raise HostCannot(
            f"the driver {gpu.driver} of {gpu.address} turns on 1 VF at least, so no VM can have the GPU itself",
            hint=disable_vfs_hint(gpu),
            check="vfs-fixed",
            **facts,
        )
    if gpu.driver in HARMLESS_DRIVERS:
        bind = f"bind it to its own driver: echo {gpu.address} > /sys/bus/pci/drivers_probe"
        if gpu.driver is None and maker_of(gpu).sets_vfs_at_load:
            bind = f"load its driver: modprobe {maker_of(gpu).vgpu_driver}"
        raise HostCannot(
            f"{gpu.address} has the driver {gpu.driver or 'none'}, which cannot turn VFs on or off",
            hint=f"stop what uses it, then {bind}",
            check="driver",
            **facts,
        )


def refuse_mode_conflicts(snapshot: Snapshot, gpu: Gpu, mode: str) -> None:
    """Refuse a mode that a vGPU on the GPU does not support.

    Raises:
        InUse: naming the VMs, or the command that was killed during setup of the GPU.
    """
    if mode == "passthrough":
        refuse_drawing_gpu(snapshot, gpu)
    taken = snapshot.vgpus_on(gpu.address)
    for vgpu in taken:
        if vgpu.command is not None and vgpu.owner is Ownership.LEAKED:
            raise InUse(
                f"{gpu.address} is {vgpu.reason}",
                hint=f"vgpuctl reconcile-host frees it; then run this command, or again: {vgpu.command}",
                gpu=gpu.address,
                command=vgpu.command,
            )
    misfits = [
        v for v in taken if backend_for(v.backend).mode != mode and not (mode == "unmanaged" and _is_not_managed(v))
    ]
    if misfits:
        raise _in_use_error(snapshot, gpu, misfits, f"and mode {mode} cannot hold it")


def refuse_vf_memory(gpu: Gpu, mode: str | None, vf_count: int, memory_mib: int | None) -> None:
    """Refuse GPU memory for each VF that the GPU cannot give.

    Raises:
        InvalidInput: it is not for this mode, or more than the card has.
        HostCannot: its driver divides the memory by itself.
    """
    if memory_mib is None:
        return
    if mode != "sriov":
        raise InvalidInput(
            f"--vf-memory is for mode sriov, not {mode}: only plain VFs have it",
            hint=f"vgpuctl set-mode {gpu.address} sriov --vf-memory {format_size(memory_mib)}",
            gpu=gpu.address,
        )
    if not gpu.has_vf_memory:
        in_file = gpu.desired_vf_memory_mib == memory_mib
        remove = f"remove vf_memory; in host.yaml: vgpuctl apply --set 'gpus[{gpu.address}].vf_memory=null'"
        raise HostCannot(
            f"the driver {gpu.driver or 'none'} of {gpu.address} ({gpu.model}) does not let the memory of VFs be set: "
            "it gives each VF an equal part",
            hint=f"{remove if in_file else 'omit --vf-memory'}; "
            "Intel's xe has it from Linux 7.0 on, for cards with memory of their own",
            check="vf-memory",
            gpu=gpu.address,
        )
    if gpu.framebuffer_mib is not None and vf_count * memory_mib > gpu.framebuffer_mib:
        raise InvalidInput(
            f"{count_text(vf_count, 'VF')} with {format_size(memory_mib)} are {format_size(vf_count * memory_mib)}, "
            f"and {gpu.address} has {format_size(gpu.framebuffer_mib)}",
            hint=f"at most {gpu.framebuffer_mib // max(vf_count, 1)}MiB for each; the host keeps a part, too",
            gpu=gpu.address,
        )


def vms_to_drain(snapshot: Snapshot, gpu: Gpu, vf_count: int, *, recreates_vfs: bool = False) -> tuple[Vm, ...]:
    """Return the running VMs that must stop while the GPU changes to this number of VFs, sorted by name.

    `recreates_vfs`: its VFs are new afterwards, also with the number that it has now.
    While libvirt is unavailable, nobody knows which VMs run, so this returns none. The step that removes VFs then fails
    if a process still holds one.

    Raises:
        InUse: a vGPU would lose its carrier for good, or vgpuctl may not drain it; or a VM crashed.
        Refused: a VM runs without a definition.
    """
    taken = snapshot.vgpus_on(gpu.address)
    if (vf_count == gpu.vfs_enabled and not recreates_vfs) or not gpu.vfs_enabled:
        return ()
    _refuse_host_use(gpu)
    remaining_functions = {f.address for f in gpu.functions[:vf_count]}
    present = [v for v in taken if v.present and v.function == gpu.address]
    if present and vgpus_take_vfs(gpu):
        raise _in_use_error(snapshot, gpu, present, "and its driver changes the number of VFs only without a vNPU")
    host_vgpus = [v for v in taken if v.name is not None and v.present]
    if host_vgpus:
        raise _in_use_error(snapshot, gpu, host_vgpus, "which host.yaml has")
    removed = [v for v in taken if v.function not in remaining_functions and not _needs_no_vf(v)]
    if removed:
        raise _in_use_error(snapshot, gpu, removed, f"whose VF does not exist with {count_text(vf_count, 'VF')}")
    unmanaged = [v for v in taken if v.name is None and (_is_not_managed(v) or snapshot.vm(v.vm_uuid or "") is None)]
    if unmanaged:
        raise _in_use_error(snapshot, gpu, unmanaged, "which vgpuctl did not create and cannot drain")
    stopped_states = STOPPED_STATES if snapshot.hypervisor.available else (*STOPPED_STATES, VmState.UNKNOWN)
    vms = {
        vm.uuid: vm
        for v in taken
        if (vm := snapshot.vm(v.vm_uuid or "")) is not None and vm.state not in stopped_states
    }
    for vgpu in taken:
        owner = snapshot.vm(vgpu.vm_uuid or "")
        if owner is not None:
            refuse_shared_vgpus(snapshot.vms, owner, (vgpu.carrier,))
    refuse_unresponsive_vms(gpu, vms.values())
    refuse_transient_vms(vms.values())
    return tuple(sorted(vms.values(), key=lambda vm: vm.name))


def refuse_unresponsive_vms(gpu: Gpu, vms: Iterable[Vm]) -> None:
    """Refuse to drain VMs whose guests cannot shut down: crashed ones, paused ones, and those that sleep.

    QEMU keeps the devices of a crashed VM for inspection.

    Raises:
        InUse: naming the VMs.
    """
    unresponsive = sorted((vm for vm in vms if vm.state in UNRESPONSIVE_STATES), key=lambda vm: vm.name)
    crashed = [vm for vm in unresponsive if vm.state is VmState.CRASHED]
    for vm in () if crashed else unresponsive:
        raise InUse(
            f"{vm.name} has a vGPU on {gpu.address} and is {vm.state}: its guest cannot shut down",
            hint=off_command(vm),
            gpu=gpu.address,
            vms=[vm.name for vm in unresponsive],
        )
    if crashed:
        names, first = [vm.name for vm in crashed], crashed[0]
        raise InUse(
            f"{', '.join(names)} crashed, and QEMU still holds the vGPU on {gpu.address}: on_crash preserves it",
            hint=f"virsh dump {shlex.quote(first.name)} FILE saves its memory; then {stop_command(first, force=True)}",
            gpu=gpu.address,
            vms=names,
        )


def refuse_running_vms(gpu: Gpu, vms: Iterable[Vm], why: str = "changing the number of VFs removes theirs") -> None:
    """Refuse to remove VFs of running VMs.

    Raises:
        InUse: naming the VMs.
    """
    names = [vm.name for vm in vms]
    if names:
        raise InUse(
            f"{gpu.address} is in use by {', '.join(names)}: {why}",
            hint="use --drain: it shuts them down, changes the GPU and starts them again",
            gpu=gpu.address,
            vms=names,
        )


def _needs_no_vf(vgpu: Vgpu) -> bool:
    """Say whether a vGPU is on no VF now: a whole GPU, or an mdev of host.yaml, which can be created on any VF."""
    return vgpu.function == vgpu.gpu


def _is_not_managed(vgpu: Vgpu) -> bool:
    return vgpu.owner is not Ownership.MANAGED


def _refuse_host_use(gpu: Gpu) -> None:
    """Refuse to remove VFs that the host uses: on devices other than GPUs, they may be its network or storage."""
    held = [f"{f.address} ({f.driver})" for f in gpu.functions if f.driver not in HARMLESS_DRIVERS]
    if held and not gpu.is_display_class:
        raise InUse(
            f"the host uses VFs of {gpu.address}: {', '.join(held)}",
            hint="unbind them from their drivers first, if the host does not need them",
            gpu=gpu.address,
        )


def make_way_hint(snapshot: Snapshot, gpu: Gpu, vgpus: Iterable[Vgpu]) -> str:
    """Return the commands that take vGPUs off a GPU and keep their VMs."""
    hints: list[str] = []
    for vgpu in vgpus:
        vm = snapshot.vm(vgpu.vm_uuid or "")
        if vgpu.owner is Ownership.LEAKED:
            return "vgpuctl reconcile-host"
        if vgpu.name is not None:
            hints.append(f"vgpuctl delete-vgpu {shlex.quote(vgpu.name)} removes it")
        elif vm is not None and vm.record is not None:
            hints.append(f"{detach_command(vm, vgpu.carrier)} takes it from the VM")
            if vgpu.profile is not None:
                hints.insert(0, f"vgpuctl move-vms --from {gpu.address} moves VMs to other GPUs")
        elif vm is not None:
            hints.append(removal_command(vm, vgpu.carrier))
    return "; or ".join(tuple(dict.fromkeys(hints))[:2]) or f"vgpuctl show-gpu {gpu.address}"


def _in_use_error(snapshot: Snapshot, gpu: Gpu, vgpus: list[Vgpu], why: str) -> InUse:
    names = sorted({v.holder_text for v in vgpus})
    carriers = sorted(v.carrier for v in vgpus)
    return InUse(
        f"{gpu.address} is in use by {', '.join(names)} ({', '.join(carriers)}), {why}",
        hint=make_way_hint(snapshot, gpu, vgpus),
        gpu=gpu.address,
        vms=names,
        carriers=carriers,
    )
