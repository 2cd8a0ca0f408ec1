# SPDX-License-Identifier: Apache-2.0
"""Plan a GPU's vGPU scheduler: what stands against it, which way it is set, who must make room, and the steps."""

from __future__ import annotations

from vgpuctl.backends import of
from vgpuctl.errors import Busy, HostCannot, InUse, Refused
from vgpuctl.model.gpu import Gpu, Mode, Owner, Vgpu
from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import PromisedVgpu, PromiseState, Vm, VmState
from vgpuctl.scheduler.limits import satisfies, why_not
from vgpuctl.scheduler.registry import generation
from vgpuctl.steps.scheduler import LendDevice, SetScheduler, words
from vgpuctl.value import Value

NVML, MODPROBE, AUTO = "nvml", "modprobe", "auto"
WAYS = (NVML, MODPROBE, AUTO)
_NVIDIA = "10de"
_OFF = (VmState.STOPPED, VmState.CRASHED)


class SchedulerWork(Value):
    """What setting a scheduler through NVML takes: the running VMs to stop, and the steps while they are off."""

    stops: tuple[Vm, ...] = ()
    steps: tuple[Step, ...] = ()


def refuse_impossible(gpu: Gpu, wanted: SchedulerSpec, driver: str | None) -> None:
    """Refuse what this GPU with this driver cannot have, before anything is touched.

    Raises:
        Refused: host.yaml leaves the GPU unmanaged.
        HostCannot: with the numbers that it takes, where a number is the reason.
    """
    if gpu.desired is Mode.UNMANAGED:
        raise Refused(
            f"host.yaml leaves {gpu.address} unmanaged: vgpuctl sets nothing on it",
            hint=f"vgpuctl set-mode {gpu.address} vgpu",
            gpu=gpu.address,
        )
    if gpu.vendor_id != _NVIDIA or gpu.driver != "nvidia":
        raise HostCannot(
            f"{gpu.address} ({gpu.model}) has the driver {gpu.driver or 'none'}; only NVIDIA's schedules vGPUs",
            hint=f"vgpuctl set-mode {gpu.address} vgpu, if it is an NVIDIA GPU",
            check="driver",
            gpu=gpu.address,
        )
    adaptive = gpu.scheduler.limits.adaptive if gpu.scheduler is not None and gpu.scheduler.limits else None
    why = why_not(gpu.scheduler, generation(driver, adaptive=adaptive), wanted)
    if why is not None:
        raise HostCannot(
            f"{gpu.address} cannot have the scheduler {words(wanted)}: {why}",
            hint=f"vgpuctl show-gpu {gpu.address} shows what it can have",
            check="scheduler",
            gpu=gpu.address,
            driver=driver,
        )


def way_of(snapshot: Snapshot, gpu: Gpu, via: str) -> str:
    """Return the way in which a scheduler is set: NVML where it can, modprobe's file where it cannot.

    Raises:
        HostCannot: NVML was asked for, and cannot.
    """
    able = gpu.scheduler is not None and bool(gpu.scheduler.interfaces)
    if via == NVML and not able:
        reason = snapshot.nvml.reason or "its library has no call for it, or the driver carries no vGPUs"
        raise HostCannot(
            f"NVML cannot set the scheduler of {gpu.address}: {reason}",
            hint="--via modprobe writes a file that counts when the driver is loaded next",
            check="nvml",
            gpu=gpu.address,
        )
    return MODPROBE if via == MODPROBE or not able else NVML


def differs(gpu: Gpu, wanted: SchedulerSpec) -> bool:
    """Say whether something has to be set for a GPU to run as wanted.

    What host.yaml asked for before and this does not, a slice say, has to be set back to the driver's own.
    """
    running = gpu.scheduler.state if gpu.scheduler is not None else None
    before = gpu.desired_scheduler
    left = (
        wanted.adaptive is None
        and wanted.policy is not Policy.BEST_EFFORT
        and before is not None
        and before.policy is wanted.policy
        and before.adaptive is not None
    )
    return left or not satisfies(running, wanted)


def scheduler_work(gpu: Gpu, wanted: SchedulerSpec, snapshot: Snapshot, *, drain: bool) -> SchedulerWork:
    """Return what sets a GPU's scheduler through NVML; nothing when it runs already.

    Raises:
        InUse: vGPUs exist on it, and may not be removed meanwhile (`drain`), or are not vgpuctl's to remove.
    """
    if not differs(gpu, wanted):
        return SchedulerWork()
    lent = _lent(snapshot, gpu)
    if lent and not drain:
        names = sorted({vm.name for vm, _, _ in lent})
        raise InUse(
            f"{gpu.address} has {len(lent)} vGPU(s) of {', '.join(names)}, and the driver changes the scheduler of a"
            " GPU without vGPUs only",
            hint="--drain shuts VMs down, removes their vGPUs for a moment, and starts them again",
            gpu=gpu.address,
            vms=names,
        )
    stops = {vm.uuid: vm for vm, _, _ in lent if vm.state not in _OFF}
    made = [step for _, promised, type_id in lent for step in of(promised.backend).make(promised, type_id)]
    lend = [
        LendDevice(remove, again)
        for _, promised, type_id in reversed(lent)
        for remove, again in zip(
            of(promised.backend).remove(promised), of(promised.backend).make(promised, type_id), strict=True
        )
    ]
    before = gpu.scheduler.state if gpu.scheduler is not None else None
    return SchedulerWork(
        stops=tuple(sorted(stops.values(), key=lambda vm: vm.name)),
        steps=(*lend, SetScheduler(gpu.address, wanted, before), *made),
    )


def _lent(snapshot: Snapshot, gpu: Gpu) -> list[tuple[Vm, PromisedVgpu, str | None]]:
    """Return each device on the GPU with its VM, its promise and its type's id, sorted by VM and index.

    Raises:
        InUse: one is not vgpuctl's, or no VM is known that would get it back.
        Busy: its VM is half made or half removed.
    """
    present = [v for v in snapshot.taken_on(gpu.address) if v.present]
    lent = []
    for vgpu in present:
        vm = snapshot.vm(vgpu.vm_uuid or "")
        promised = _promised(vm, vgpu)
        if vgpu.owner is not Owner.OURS or vm is None or promised is None:
            raise InUse(
                f"{gpu.address} has a vGPU of {vgpu.vm or f'{vgpu.owner} {vgpu.carrier}'} ({vgpu.carrier}), which"
                " vgpuctl does not remove; the driver changes the scheduler of a GPU without vGPUs only",
                hint="vgpuctl reconcile"
                if vgpu.owner is Owner.LEAKED
                else "remove it with what made it, or use --via modprobe and reboot",
                gpu=gpu.address,
                carrier=vgpu.carrier,
            )
        if vm.promise is not None and vm.promise.state is not PromiseState.READY:
            raise Busy(
                f"{vm.name} on {gpu.address} is half-way: its record says {vm.promise.state}",
                hint="if no vgpuctl works on it any more: vgpuctl reconcile",
                vm=vm.name,
            )
        lent.append((vm, promised, vgpu.type_id))
    return sorted(lent, key=lambda one: (one[0].name, one[1].index))


def _promised(vm: Vm | None, vgpu: Vgpu) -> PromisedVgpu | None:
    if vm is None or vm.promise is None:
        return None
    return next((p for p in vm.promise.vgpus if p.carrier == vgpu.carrier), None)
