# SPDX-License-Identifier: Apache-2.0
"""Set how a driver divides a GPU's time among its vGPUs, through NVML, or among its plain VFs.

NVML sets it only on a GPU without vGPUs: with `drain`, VMs are shut down, and their devices are removed and created
again. Intel's xe takes it while VMs run. The new setting is written to host.yaml once it is in effect, and
`operations.gpu_mode` restores it after a boot. Where the loaded driver cannot set it, host.yaml is written, and an
error shows what sets it when the driver is loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.config.gpu_spec import dump_scheduler
from vgpuctl.errors import VgpuctlError
from vgpuctl.gpu_setup.set_scheduler import volatile_note
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.results.gpus import ChangedGpuResult, GpuResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.nvml_facts import driver_version, loaded_parameters, read_modprobe
from vgpuctl.operations.desired_state import host_file_steps
from vgpuctl.operations.gpu_transaction import (
    GpuTransaction,
    StopConfirmation,
    TransactionPlan,
    find_vms_to_start,
    run_transaction,
)
from vgpuctl.operations.guards import refuse_stuck_gpus, require_system_libvirt, require_writable, select_one_gpu
from vgpuctl.operations.plans.host_diff import current_gpu_spec, gpu_settings
from vgpuctl.operations.plans.results import gpu_result
from vgpuctl.operations.plans.schedulers import (
    DriverOptions,
    can_set_scheduler,
    find_not_loaded,
    is_loaded,
    needs_scheduler_change,
    next_load_notes,
    not_loaded_error,
    plan_scheduler_change,
    refuse_unsupported_scheduler,
)
from vgpuctl.ports.step import Step
from vgpuctl.value import Value, extend, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

SCHEDULER_SCOPE = ReadScope(types=True, every_function=True)


class SchedulerRequest(Value):
    """The scheduler requested for a GPU.

    `update_host_file`: write it to host.yaml afterwards. `final_steps`: further steps at the end.
    """

    gpu_address: str
    scheduler: SchedulerSpec
    drain: bool = False
    update_host_file: bool = True
    final_steps: tuple[Step, ...] = ()


def set_scheduler(host: Host, context: Context, request: SchedulerRequest) -> Outcome[ChangedGpuResult]:
    """Set a GPU's scheduler and write that to host.yaml. `confirm` is asked before running VMs are shut down.

    Raises:
        NeedsConfirmation: the answer is no; nothing was changed.
        InUse: vGPUs are on the GPU and may not be removed for the change.
        HostCannot: the GPU or its driver has no such scheduler.
        SchedulerNotLoaded: host.yaml was written, and the driver has to be loaded with the scheduler.
        VgpuctlError: a step failed; completed steps were undone.
    """
    require_writable(host, context)

    def read_host() -> Snapshot:
        snapshot = observe(host, SCHEDULER_SCOPE)
        require_system_libvirt(snapshot)
        return snapshot

    snapshot = read_host()
    gpu = select_one_gpu(snapshot, request.gpu_address)
    plan = plan_scheduler(host, snapshot, request)
    options = read_driver_options(host, snapshot)
    not_loaded = find_not_loaded(snapshot, ((gpu, request.scheduler),), options)
    notes = (volatile_note(gpu), *next_load_notes(gpu, request.scheduler, options)) if can_set_scheduler(gpu) else ()
    lines = plan.lines
    if not context.dry_run and lines:
        stops = StopConfirmation(context.confirm)
        stops.ask(plan)
        lines = run_transaction(host, context, scheduler_transaction(host, request, read_host), plan, stops)
        result, warnings = _report_after(host, gpu, snapshot, request)
    else:
        result, warnings = gpu_result(snapshot, gpu), snapshot.warnings
    if not_loaded is not None and context.dry_run:
        notes = (*notes, not_loaded.message, str(not_loaded.hint))
    elif not_loaded is not None:
        not_loaded.left += lines
        raise not_loaded
    spec = current_gpu_spec(gpu)
    after = gpu_settings(replace(spec, scheduler=request.scheduler))
    data = extend(ChangedGpuResult, result, before=gpu_settings(spec), after=after)
    return Outcome(bool(lines), data, lines, warnings, notes, dry_run=context.dry_run)


def _report_after(
    host: Host, gpu: Gpu, before: Snapshot, request: SchedulerRequest
) -> tuple[GpuResult, tuple[str, ...]]:
    """Read the host again. Everything is done and was read back: if that fails now, it is only a warning."""
    try:
        snapshot = observe(host, SCHEDULER_SCOPE)
        return gpu_result(snapshot, select_one_gpu(snapshot, gpu.address)), snapshot.warnings
    except VgpuctlError as error:
        warning = f"the change is done, but the host could not be checked again: {error}"
        expected_gpu = replace(gpu, desired_scheduler=request.scheduler, scheduler=None)
        return gpu_result(before, expected_gpu), (warning,)


def scheduler_transaction(
    host: Host, request: SchedulerRequest, observe_gpus: Callable[[], Snapshot]
) -> GpuTransaction:
    """Return the transaction that sets the scheduler while the whole GPU is claimed."""

    def check(snapshot: Snapshot) -> None:
        gpu = select_one_gpu(snapshot, request.gpu_address)
        plan_scheduler_change(gpu, request.scheduler, snapshot, drain=request.drain)

    return GpuTransaction(
        request.gpu_address,
        observe_gpus,
        check,
        lambda snapshot: plan_scheduler(host, snapshot, request),
    )


def plan_scheduler(host: Host, snapshot: Snapshot, request: SchedulerRequest) -> TransactionPlan:
    """Return the steps that set the scheduler, planned from a snapshot.

    Raises:
        VgpuctlError: as `set_scheduler`.
    """
    gpu = select_one_gpu(snapshot, request.gpu_address)
    refuse_stuck_gpus(snapshot, [gpu.address])
    driver = driver_version(host, snapshot)
    refuse_unsupported_scheduler(gpu, request.scheduler, driver)
    file_steps = (
        host_file_steps(host, gpu, {"scheduler": dump_scheduler(request.scheduler)}) if request.update_host_file else ()
    )
    file_steps = (*file_steps, *request.final_steps)
    if not can_set_scheduler(gpu):
        return TransactionPlan(gpu, (), (), file_steps)
    eviction = plan_scheduler_change(gpu, request.scheduler, snapshot, drain=request.drain)
    return TransactionPlan(
        gpu,
        eviction.vms_to_stop,
        eviction.steps,
        file_steps,
        find_vms_to_start(host, snapshot, gpu, eviction.vms_to_stop),
    )


def restore_request(
    host: Host, address: str, scheduler: SchedulerSpec, observe_gpus: Callable[[], Snapshot]
) -> SchedulerRequest | None:
    """Return the request to set a GPU's scheduler again after a boot; None if it already runs as host.yaml says.

    Raises:
        HostCannot: it runs another scheduler, and NVML cannot set it.
    """
    snapshot = observe_gpus()
    gpu = select_one_gpu(snapshot, address)
    driver = driver_version(host, snapshot)
    refuse_unsupported_scheduler(gpu, scheduler, driver)
    if can_set_scheduler(gpu):
        return (
            SchedulerRequest(address, scheduler, update_host_file=False)
            if needs_scheduler_change(gpu, scheduler)
            else None
        )
    if is_loaded(gpu, scheduler, DriverOptions(driver, loaded_parameters(host))):
        return None
    raise not_loaded_error(snapshot, ((gpu, scheduler),), read_driver_options(host, snapshot))


def read_driver_options(host: Host, snapshot: Snapshot) -> DriverOptions:
    """Read what the driver was loaded with, and modprobe's files.

    Raises:
        Failed: one of them exists and cannot be read.
    """
    return DriverOptions(driver_version(host, snapshot), loaded_parameters(host), read_modprobe(host))
