# SPDX-License-Identifier: Apache-2.0
"""Plan a GPU's vGPU scheduler: what stands against it, which way it is set, who must make room, and the steps."""

from __future__ import annotations

from vgpuctl.errors import HostCannot, Refused
from vgpuctl.model.gpu import Gpu, Mode
from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.plan.emptied import EmptiedWork, Reason, emptied
from vgpuctl.scheduler.limits import runs_on, satisfies, why_not
from vgpuctl.scheduler.registry import generation
from vgpuctl.steps.scheduler import SetInstanceSchedulers, SetScheduler, command, words

NVML, MODPROBE, AUTO = "nvml", "modprobe", "auto"
WAYS = (NVML, MODPROBE, AUTO)


def refuse_impossible(gpu: Gpu, wanted: SchedulerSpec, driver: str | None, hint: str | None = None) -> None:
    """Refuse what this GPU with this driver cannot have, before anything is touched. `hint`: what helps then.

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
    why = why_not(gpu, generation(driver, adaptive=adaptive), wanted)
    if why is not None:
        raise HostCannot(
            f"{gpu.address} cannot have the scheduler {words(wanted)}: {why}",
            hint=hint or f"vgpuctl show-gpu {gpu.address} shows what it can have",
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
    before = gpu.desired_scheduler
    left = (
        wanted.adaptive is None
        and wanted.policy is not Policy.BEST_EFFORT
        and before is not None
        and before.policy is wanted.policy
        and before.adaptive is not None
    )
    return left or not satisfies(runs_on(gpu), wanted)


def setting(gpu: Gpu, wanted: SchedulerSpec) -> Step:
    """Return the step that sets a scheduler through NVML: of the GPU, or with MIG of each of its instances."""
    if gpu.mig is not None and gpu.mig.enabled:
        return SetInstanceSchedulers(gpu.address, wanted, tuple(sorted(gpu.gi_schedulers.items())))
    return SetScheduler(gpu.address, wanted, gpu.scheduler.state if gpu.scheduler is not None else None)


def scheduler_work(gpu: Gpu, wanted: SchedulerSpec, snapshot: Snapshot, *, drain: bool) -> EmptiedWork:
    """Return what sets a GPU's scheduler through NVML; nothing when it runs already.

    Raises:
        InUse: vGPUs exist on it, and may not be removed meanwhile (`drain`), or are not vgpuctl's to remove.
    """
    if not differs(gpu, wanted):
        return EmptiedWork()
    typed = None if drain else f"{command(gpu.address, wanted)} --drain"
    because = "the driver changes the scheduler of a GPU without vGPUs only"
    why = Reason(because, typed, ", or use --via modprobe and reboot")
    return emptied(snapshot, gpu, (setting(gpu, wanted),), why)
