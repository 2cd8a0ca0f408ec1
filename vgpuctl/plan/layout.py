# SPDX-License-Identifier: Apache-2.0
"""Decide how many VFs a mode means on a GPU, and whether those who use the GPU allow the change."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from vgpuctl.backends.whole import HARMLESS_DRIVERS
from vgpuctl.errors import HostCannot, InUse, InvalidInput
from vgpuctl.layout.sriov import FIXED_HINT
from vgpuctl.model.commands import to_stop
from vgpuctl.model.gpu import Backend, Gpu, Owner, Vgpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.plan.transient import refuse_transient
from vgpuctl.steps.domain import OFF

_VGPU = (Backend.MDEV_PF, Backend.MDEV_VF, Backend.VENDOR_VF)
FITTING: dict[str, tuple[Backend, ...]] = {
    "vgpu": _VGPU,
    "sriov": (Backend.SRIOV_VF,),
    "passthrough": (Backend.PASSTHROUGH,),
    "unmanaged": (),
}
"""Mode -> what may be on a GPU of that mode."""


def wanted_vfs(gpu: Gpu, mode: str, vfs: int | None) -> int:
    """Return how many VFs a GPU has in a mode. `vfs`: what was asked for, None for the mode's own number.

    Raises:
        InvalidInput: this number cannot be meant.
        HostCannot: the GPU or its driver has no such mode, or another number cannot be set.
    """
    if vfs is not None and (mode not in ("vgpu", "sriov") or not 1 <= vfs <= gpu.vfs_total):
        ways = f"1 to {gpu.vfs_total}" if mode in ("vgpu", "sriov") and gpu.vfs_total else "no --vfs"
        raise InvalidInput(f"{vfs} VFs cannot be meant for {gpu.address} in mode {mode}: {ways}", gpu=gpu.address)
    if mode == "unmanaged":
        return gpu.vfs_enabled
    number = 0 if mode == "passthrough" else _vgpu(gpu, vfs) if mode == "vgpu" else _plain(gpu, vfs)
    if number != gpu.vfs_enabled:
        _require_switch(gpu, number)
    return number


def _vgpu(gpu: Gpu, vfs: int | None) -> int:
    if gpu.backend in _VGPU:
        number = gpu.vfs_enabled
    elif gpu.nvidia_driver and gpu.backend is None:
        number = gpu.vfs_total
    else:
        raise _no_mode(
            gpu, "vgpu", "install the maker's vGPU host driver; vgpuctl list-gpus shows what each GPU offers"
        )
    if vfs not in (None, number):
        raise InvalidInput(
            f"{gpu.address} has {number} VFs for vGPUs, or none: its driver's command turns all of them on",
            hint=f"leave --vfs out, or say --vfs {number}",
            gpu=gpu.address,
        )
    return number


def _plain(gpu: Gpu, vfs: int | None) -> int:
    if gpu.nvidia_driver:
        raise _no_mode(gpu, "sriov", f"NVIDIA's VFs carry vGPUs only: vgpuctl set-mode {gpu.address} vgpu")
    if not gpu.vfs_total or gpu.backend in _VGPU:
        raise _no_mode(gpu, "sriov", "are SR-IOV and ARI on in the firmware? lspci -vvs " + gpu.address)
    return vfs or gpu.vfs_enabled or gpu.vfs_total


def _no_mode(gpu: Gpu, mode: str, hint: str) -> HostCannot:
    seen = (
        f"driver {gpu.driver or 'none'}, {gpu.vfs_enabled} of {gpu.vfs_total} VFs on, backend {gpu.backend or 'none'}"
    )
    return HostCannot(
        f"{gpu.address} ({gpu.model}) has no mode {mode} here: {seen}", hint=hint, check="mode", gpu=gpu.address
    )


def _require_switch(gpu: Gpu, number: int) -> None:
    """Refuse a number that the driver does not let be set, or a GPU that no driver can switch now."""
    facts = {"gpu": gpu.address, "vfs": number, "vfs_enabled": gpu.vfs_enabled}
    if gpu.driver == "gim":
        raise HostCannot(
            f"the driver gim of {gpu.address} sets the number of VFs itself: {gpu.vfs_enabled} are on, not {number}",
            hint=FIXED_HINT,
            check="vfs-fixed",
            **facts,
        )
    if gpu.driver in HARMLESS_DRIVERS:
        raise HostCannot(
            f"{gpu.address} has the driver {gpu.driver or 'none'}, which cannot turn VFs on or off",
            hint=f"stop what uses it, then give it back to its own driver: echo {gpu.address} > "
            "/sys/bus/pci/drivers_probe",
            check="driver",
            **facts,
        )


def refuse_misfits(snapshot: Snapshot, gpu: Gpu, mode: str) -> None:
    """Refuse a mode in which something that is on the GPU has no place.

    Raises:
        InUse: naming the VMs, or the command that was killed while it set the GPU up.
    """
    taken = snapshot.taken_on(gpu.address)
    for vgpu in taken:
        if vgpu.command is not None and vgpu.owner is Owner.LEAKED:
            raise InUse(
                f"{gpu.address} is {vgpu.reason}",
                hint=f"vgpuctl reconcile gives it free; then run this, or that again: {vgpu.command}",
                gpu=gpu.address,
                command=vgpu.command,
            )
    misfits = [v for v in taken if v.backend not in FITTING[mode] and not (mode == "unmanaged" and _not_ours(v))]
    if misfits:
        raise _in_use(gpu, misfits, f"and mode {mode} has no place for that")


def users_to_drain(snapshot: Snapshot, gpu: Gpu, number: int) -> tuple[Vm, ...]:
    """Return the running VMs that must be off while the GPU's VFs change to this number, sorted by name.

    While libvirt is not asked nobody knows which VMs run: then none is named here, and who holds a VF keeps the step
    that takes it away from doing so.

    Raises:
        InUse: something on the GPU would lose its carrier for good, or is not vgpuctl's to drain; or a VM crashed.
        Refused: a VM runs without a definition.
    """
    taken = snapshot.taken_on(gpu.address)
    if number == gpu.vfs_enabled or not gpu.vfs_enabled:
        return ()
    _refuse_host_use(gpu)
    staying = {f.address for f in gpu.functions[:number]}
    kept = [v for v in taken if v.name is not None and v.present]
    if kept:
        raise _in_use(gpu, kept, "which host.yaml keeps; vgpuctl delete-vgpu takes it away")
    gone = [v for v in taken if v.function not in staying and not _on_any_vf(v)]
    if gone:
        raise _in_use(gpu, gone, f"whose VF is not there any more with {number} VFs; delete those VMs first")
    strange = [v for v in taken if v.name is None and (_not_ours(v) or snapshot.vm(v.vm_uuid or "") is None)]
    if strange:
        raise _in_use(gpu, strange, "which vgpuctl did not make and cannot drain")
    off = OFF if snapshot.hypervisor.available else (*OFF, VmState.UNKNOWN)
    vms = {vm.uuid: vm for v in taken if (vm := snapshot.vm(v.vm_uuid or "")) is not None and vm.state not in off}
    refuse_crashed(gpu, vms.values())
    refuse_transient(vms.values())
    return tuple(sorted(vms.values(), key=lambda vm: vm.name))


def refuse_crashed(gpu: Gpu, vms: Iterable[Vm]) -> None:
    """Refuse to drain VMs that crashed: their QEMU holds its devices and is kept for a look, and no guest shuts down.

    Raises:
        InUse: naming the VMs.
    """
    crashed = sorted((vm for vm in vms if vm.state is VmState.CRASHED), key=lambda vm: vm.name)
    if crashed:
        names, first = [vm.name for vm in crashed], crashed[0]
        raise InUse(
            f"{', '.join(names)} crashed, and QEMU still holds the vGPU on {gpu.address}: on_crash preserves it",
            hint=f"virsh dump {shlex.quote(first.name)} FILE keeps what it did; then: {to_stop(first, force=True)}",
            gpu=gpu.address,
            vms=names,
        )


def refuse_running(gpu: Gpu, vms: Iterable[Vm]) -> None:
    """Refuse to take VFs from running VMs.

    Raises:
        InUse: naming the VMs.
    """
    names = [vm.name for vm in vms]
    if names:
        raise InUse(
            f"{gpu.address} is in use by {', '.join(names)}: their VFs go while the number changes",
            hint="--drain shuts them down, changes the GPU and starts them again",
            gpu=gpu.address,
            vms=names,
        )


def _on_any_vf(vgpu: Vgpu) -> bool:
    """Say whether a vGPU of host.yaml that is not made yet can be made on whichever VF there is: an mdev can."""
    return vgpu.name is not None and vgpu.function == vgpu.gpu


def _not_ours(vgpu: Vgpu) -> bool:
    return vgpu.owner is not Owner.OURS


def _refuse_host_use(gpu: Gpu) -> None:
    """Refuse to take VFs from the host itself: those of other devices than GPUs may be its network or storage."""
    held = [f"{f.address} ({f.driver})" for f in gpu.functions if f.driver not in HARMLESS_DRIVERS]
    if held and not gpu.display_class:
        raise InUse(
            f"the host uses VFs of {gpu.address}: {', '.join(held)}",
            hint="unbind them from their drivers first, if nothing there needs them",
            gpu=gpu.address,
        )


def _in_use(gpu: Gpu, vgpus: list[Vgpu], why: str) -> InUse:
    names = sorted({v.holder for v in vgpus})
    carriers = sorted(v.carrier for v in vgpus)
    return InUse(
        f"{gpu.address} is in use by {', '.join(names)} ({', '.join(carriers)}), {why}",
        hint="vgpuctl reconcile" if any(v.owner is Owner.LEAKED for v in vgpus) else f"vgpuctl show-gpu {gpu.address}",
        gpu=gpu.address,
        vms=names,
        carriers=carriers,
    )
