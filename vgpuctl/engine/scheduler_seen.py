# SPDX-License-Identifier: Apache-2.0
"""What is known of a GPU's scheduler, for show-gpu: it needs nothing of what sets one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.engine.observe.modprobe import driver_version, loaded_parameters, read_modprobe
from vgpuctl.errors import Failed
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.scheduler import GpuScheduler
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.plan.scheduler_report import scheduler_details
from vgpuctl.scheduler.kernel_log import WORDS, logged
from vgpuctl.scheduler.modprobe import ModprobeFile
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


def with_logged(world: World, gpu: Gpu) -> Gpu:
    """Return a GPU with what the kernel log says of its scheduler, where NVML says nothing."""
    told = gpu.scheduler is not None and gpu.scheduler.state is not None
    if told or gpu.driver != "nvidia" or world.kernel_log is None:
        return gpu
    state = logged(world.kernel_log.lines(WORDS) or (), gpu.address)
    return gpu if state is None else replace(gpu, scheduler=replace(gpu.scheduler or GpuScheduler(), state=state))


def scheduler_seen(world: World, snapshot: Snapshot, gpu: Gpu) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return everything that is known of a GPU's scheduler, as JSON values, and why some of it is not."""
    if gpu.driver != "nvidia":
        return scheduler_details(snapshot, gpu, None, None, ()), ()
    warnings: list[str] = []
    driver: str | None = None
    params: str | None = None
    files: tuple[ModprobeFile, ...] = ()
    try:
        driver, params = driver_version(world, snapshot), loaded_parameters(world)
        files = read_modprobe(world)
    except Failed as error:
        warnings.append(error.message)
    return scheduler_details(snapshot, gpu, driver, params, files), tuple(warnings)
