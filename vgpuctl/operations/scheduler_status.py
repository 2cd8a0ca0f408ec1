# SPDX-License-Identifier: Apache-2.0
"""Read what is known about a GPU's scheduler, for show-gpu; independent of the code that sets a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import Failed
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import GpuScheduler
from vgpuctl.observe.modprobe import driver_version, loaded_parameters, read_modprobe
from vgpuctl.operations.plans.scheduler_report import SchedulerDetails, scheduler_details
from vgpuctl.scheduler.driver_texts import LOG_MARKER, parse_scheduler_log
from vgpuctl.scheduler.modprobe_files import ModprobeFile
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def with_logged_scheduler(host: Host, gpu: Gpu) -> Gpu:
    """Return a GPU with its scheduler from the kernel log if NVML does not report one."""
    is_known = gpu.scheduler is not None and gpu.scheduler.state is not None
    if is_known or not uses_nvml(gpu) or host.system_log is None:
        return gpu
    state = parse_scheduler_log(host.system_log.kernel_lines(LOG_MARKER) or (), gpu.address)
    return gpu if state is None else replace(gpu, scheduler=replace(gpu.scheduler or GpuScheduler(), state=state))


def read_scheduler_status(host: Host, snapshot: Snapshot, gpu: Gpu) -> tuple[SchedulerDetails, tuple[str, ...]]:
    """Return everything known about a GPU's scheduler and warnings for what could not be read."""
    if not uses_nvml(gpu):
        return scheduler_details(snapshot, gpu, None, None, ()), ()
    warnings: list[str] = []
    driver: str | None = None
    params: str | None = None
    files: tuple[ModprobeFile, ...] = ()
    try:
        driver, params = driver_version(host, snapshot), loaded_parameters(host)
        files = read_modprobe(host)
    except Failed as error:
        warnings.append(error.message)
    return scheduler_details(snapshot, gpu, driver, params, files), tuple(warnings)
