# SPDX-License-Identifier: Apache-2.0
"""Plan a GPU's vGPU scheduler: what prevents it, whether NVML can set it, which VMs to stop, and the steps."""

from __future__ import annotations

from vgpuctl.errors import HostCannot, Refused
from vgpuctl.gpu_setup.set_scheduler import SetInstanceSchedulers, SetScheduler, set_scheduler_command
from vgpuctl.makers import maker_of, uses_nvml, vgpu_driver_hint
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.operations.plans.evict import Eviction, EvictionReason, plan_eviction
from vgpuctl.ports.step import Step
from vgpuctl.scheduler.limits import explain_unsupported, running_scheduler, satisfies, scheduler_text
from vgpuctl.scheduler.registry_dword import driver_generation


def refuse_unsupported_scheduler(gpu: Gpu, desired: SchedulerSpec, driver: str | None, hint: str | None = None) -> None:
    """Refuse what this GPU with this driver does not support, before any change. `hint`: what helps then.

    Raises:
        Refused: host.yaml leaves the GPU unmanaged.
        HostCannot: with the accepted numbers, where a number is the reason.
    """
    if gpu.desired_mode is GpuMode.UNMANAGED:
        raise Refused(
            f"host.yaml leaves {gpu.address} unmanaged: vgpuctl changes nothing on it",
            hint=f"vgpuctl set-mode {gpu.address} vgpu",
            gpu=gpu.address,
        )
    if not uses_nvml(gpu):
        raise HostCannot(
            f"{gpu.address} ({gpu.model}) has the driver {gpu.driver or 'none'}; only NVIDIA's driver schedules vGPUs",
            hint=vgpu_driver_hint(gpu) if maker_of(gpu).has_nvml else "only NVIDIA GPUs have it",
            check="scheduler",
            gpu=gpu.address,
        )
    adaptive = gpu.scheduler.limits.supports_adaptive if gpu.scheduler is not None and gpu.scheduler.limits else None
    reason = explain_unsupported(gpu, driver_generation(driver, adaptive=adaptive), desired)
    if reason is not None:
        raise HostCannot(
            f"{gpu.address} cannot have the scheduler {scheduler_text(desired)}: {reason}",
            hint=hint or f"vgpuctl show-gpu {gpu.address} shows what it supports",
            check="scheduler",
            gpu=gpu.address,
            driver=driver,
        )


def can_set_scheduler(gpu: Gpu) -> bool:
    """Say whether NVML has a call that sets this GPU's scheduler."""
    return gpu.scheduler is not None and bool(gpu.scheduler.setter_versions)


def needs_scheduler_change(gpu: Gpu, desired: SchedulerSpec) -> bool:
    """Say whether anything must be set for a GPU to run the desired scheduler.

    A value that host.yaml configured before and this request does not, such as a time slice, must go back to the
    driver's default.
    """
    previous = gpu.desired_scheduler
    must_reset = (
        desired.adaptive is None
        and desired.policy is not SchedulerPolicy.BEST_EFFORT
        and previous is not None
        and previous.policy is desired.policy
        and previous.adaptive is not None
    )
    return must_reset or not satisfies(running_scheduler(gpu), desired)


def set_scheduler_step(gpu: Gpu, desired: SchedulerSpec) -> Step:
    """Return the step that sets a scheduler through NVML: of the GPU, or with MIG of each GPU instance."""
    if gpu.mig is not None and gpu.mig.enabled:
        return SetInstanceSchedulers(gpu.address, desired, tuple(sorted(gpu.gi_schedulers.items())))
    return SetScheduler(gpu.address, desired, gpu.scheduler.state if gpu.scheduler is not None else None)


def plan_scheduler_change(gpu: Gpu, desired: SchedulerSpec, snapshot: Snapshot, *, drain: bool) -> Eviction:
    """Return the change of a GPU's scheduler through NVML; empty when it already runs.

    Raises:
        InUse: it has vGPUs that may not be removed temporarily (`drain`), or that vgpuctl does not manage.
    """
    if not needs_scheduler_change(gpu, desired):
        return Eviction()
    drain_hint = None if drain else f"{set_scheduler_command(gpu.address, desired)} --drain"
    cause = "the driver changes the scheduler only on a GPU without vGPUs"
    reason = EvictionReason(cause, drain_hint)
    return plan_eviction(snapshot, gpu, (set_scheduler_step(gpu, desired),), reason)
