# SPDX-License-Identifier: Apache-2.0
"""Plan a GPU's vGPU scheduler: what stands against it, which way it is set, who must make room, and the steps."""

from __future__ import annotations

from vgpuctl.backends import of
from vgpuctl.errors import Busy, HostCannot, InUse, Refused
from vgpuctl.model.gpu import Gpu, Mode, Owner, Vgpu
from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import Promise, PromisedVgpu, PromiseState, Vm
from vgpuctl.plan.layout import refuse_crashed
from vgpuctl.plan.vgpus import promised
from vgpuctl.scheduler.limits import satisfies, why_not
from vgpuctl.scheduler.registry import generation
from vgpuctl.steps.domain import OFF
from vgpuctl.steps.scheduler import LendDevice, SetScheduler, command, words
from vgpuctl.value import Value, replace

NVML, MODPROBE, AUTO = "nvml", "modprobe", "auto"
WAYS = (NVML, MODPROBE, AUTO)


class SchedulerWork(Value):
    """What setting a scheduler through NVML takes: the running VMs to stop, and the steps while they are off.

    `keeps`: by VM, those of its places that would be given back when it is stopped, for it has them only while it runs.
    """

    stops: tuple[Vm, ...] = ()
    steps: tuple[Step, ...] = ()
    keeps: tuple[tuple[str, Promise], ...] = ()


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
    if not gpu.nvidia_driver:
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
        names = sorted({one.holder for one in lent})
        raise InUse(
            f"{gpu.address} has {len(lent)} vGPU(s) of {', '.join(names)}, and the driver changes the scheduler of a"
            " GPU without vGPUs only",
            hint=f"{command(gpu.address, wanted)} --drain shuts VMs down, removes their vGPUs for a moment, and starts"
            " them again",
            gpu=gpu.address,
            vms=names,
        )
    stops = {one.vm.uuid: one.vm for one in lent if one.vm is not None and one.vm.state not in OFF}
    refuse_crashed(gpu, stops.values())
    made = [step for one in lent for step in one.make()]
    lend = [
        LendDevice(remove, again)
        for one in reversed(lent)
        for remove, again in zip(of(one.vgpu.backend).remove(one.vgpu), one.make(), strict=True)
    ]
    before = gpu.scheduler.state if gpu.scheduler is not None else None
    return SchedulerWork(
        stops=tuple(sorted(stops.values(), key=lambda vm: vm.name)),
        steps=(*lend, SetScheduler(gpu.address, wanted, before), *made),
        keeps=tuple((one.holder, one.kept) for one in lent if one.kept is not None),
    )


class _Lent(Value):
    """A device that is removed for a moment: whose it is in words, the VM that is stopped for it, and what it is."""

    holder: str
    vm: Vm | None
    vgpu: PromisedVgpu
    type_id: str | None

    @property
    def kept(self) -> Promise | None:
        """Return what its VM is promised of it, where libvirt's hook would give it back when the VM is stopped."""
        promise = self.vm.promise if self.vm is not None else None
        return replace(promise, vgpus=(self.vgpu,)) if promise is not None and promise.lends else None

    def make(self) -> tuple[Step, ...]:
        """Return the steps that make it again."""
        return of(self.vgpu.backend).make(self.vgpu, self.type_id)


def _lent(snapshot: Snapshot, gpu: Gpu) -> list[_Lent]:
    """Return each device on the GPU, sorted by whose it is and index.

    Raises:
        InUse: one is not vgpuctl's, or is in a running VM that vgpuctl would not start again with it.
        Busy: its VM is half made or half removed.
    """
    lent = [_lendable(snapshot, gpu, vgpu) for vgpu in snapshot.taken_on(gpu.address) if vgpu.present]
    return sorted(lent, key=lambda one: (one.holder, one.vgpu.index))


def _lendable(snapshot: Snapshot, gpu: Gpu, vgpu: Vgpu) -> _Lent:
    vm = snapshot.vm(vgpu.vm_uuid or "")
    named = next((n for n in snapshot.named if n.name == vgpu.name and n.carrier == vgpu.carrier), None)
    if named is not None and vgpu.reason is None and (vm is None or vm.state in OFF):
        return _Lent(vgpu.holder, None, promised(named, vgpu), vgpu.type_id)
    kept = None if vm is None or vm.promise is None else vm.promise.vgpus
    mine = next((p for p in kept or () if p.carrier == vgpu.carrier), None)
    if vm is not None and vm.promise is not None and vm.promise.state is not PromiseState.READY:
        raise Busy(
            f"{vm.name} on {gpu.address} is half-way: its record says {vm.promise.state}",
            hint="if no vgpuctl works on it any more: vgpuctl reconcile",
            vm=vm.name,
        )
    if vgpu.owner is Owner.OURS and vm is not None and mine is not None:
        return _Lent(vm.name, vm, replace(mine, gpu=vgpu.gpu, function=vgpu.function), vgpu.type_id)
    if named is not None:
        hint = f"shut {vm.name if vm else 'the VM'} down first, or use --via modprobe and reboot"
    elif vgpu.owner is Owner.LEAKED:
        hint = "vgpuctl reconcile"
    else:
        hint = "remove it with what made it, or use --via modprobe and reboot"
    raise InUse(
        f"{gpu.address} has a vGPU of {vgpu.holder} ({vgpu.carrier}), which vgpuctl does not remove;"
        " the driver changes the scheduler of a GPU without vGPUs only",
        hint=hint,
        gpu=gpu.address,
        carrier=vgpu.carrier,
    )
