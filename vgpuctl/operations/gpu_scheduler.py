# SPDX-License-Identifier: Apache-2.0
"""Set how NVIDIA's driver divides a GPU's time among its vGPUs: now, through NVML, or for the driver's next load.

NVML sets it only on a GPU without vGPUs: with `drain`, VMs are shut down, and their devices are removed and created
again. The new setting is written to host.yaml once it is in effect, and `operations.gpu_mode` restores it after a boot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.config.scheduler_spec import dump_scheduler
from vgpuctl.errors import HostCannot, VgpuctlError
from vgpuctl.gpu_setup.set_scheduler import set_scheduler_command
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import Confirm, Outcome, Progress, confirm_everything
from vgpuctl.model.results.gpus import ChangedSchedulerResult, GpuResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerSpec
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.modprobe import driver_version, list_etc, loaded_parameters, read_modprobe
from vgpuctl.operations.cordon import host_file_steps
from vgpuctl.operations.gpu_transaction import (
    GpuTransaction,
    StopConfirmation,
    TransactionPlan,
    find_vms_to_start,
    run_transaction,
)
from vgpuctl.operations.guards import refuse_stuck_gpus, require_system_libvirt, require_writable, select_one_gpu
from vgpuctl.operations.plans.gpu_results import gpu_result
from vgpuctl.operations.plans.host_diff import current_gpu_spec, gpu_settings
from vgpuctl.operations.plans.scheduler_modprobe import modprobe_notes, modprobe_steps, next_load_notes, scheduler_word
from vgpuctl.operations.plans.scheduler_plan import (
    AUTO,
    MODPROBE,
    NVML,
    choose_method,
    needs_scheduler_change,
    plan_scheduler_change,
    refuse_unsupported_scheduler,
)
from vgpuctl.ports.step import Step
from vgpuctl.scheduler.limits import scheduler_text
from vgpuctl.scheduler.modprobe_files import find_loaded_dword
from vgpuctl.value import Value, extend, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

SCHEDULER_SCOPE = ReadScope(types=True, every_function=True)
RELOAD_NOTE = (
    "settings made with NVML are lost when the driver is loaded again:"
    " vgpuctl restore-host sets them again after a boot"
)


class SchedulerRequest(Value):
    """The scheduler requested for a GPU. `via`: nvml, modprobe, or auto.

    `update_host_file`: write it to host.yaml afterwards. `final_steps`: further steps at the end.
    """

    gpu_address: str
    scheduler: SchedulerSpec
    via: str = AUTO
    drain: bool = False
    update_host_file: bool = True
    wait_seconds: float = 60.0
    final_steps: tuple[Step, ...] = ()


def set_scheduler(
    host: Host,
    request: SchedulerRequest,
    *,
    dry_run: bool,
    progress: Progress,
    confirm: Confirm = confirm_everything,
) -> Outcome[ChangedSchedulerResult]:
    """Set a GPU's scheduler and write that to host.yaml. `confirm` is asked before running VMs are shut down.

    Raises:
        NeedsConfirmation: the answer is no; nothing was changed.
        InUse: vGPUs are on the GPU and may not be removed for the change.
        HostCannot: the GPU or its driver has no such scheduler, or NVML cannot set it.
        Refused: modprobe's files set the parameter in a place where it cannot be changed safely.
        VgpuctlError: a step failed; completed steps were undone.
    """
    if not dry_run:
        require_writable(host)

    def read_host() -> Snapshot:
        snapshot = observe(host, SCHEDULER_SCOPE)
        require_system_libvirt(snapshot)
        return snapshot

    snapshot = read_host()
    gpu = select_one_gpu(snapshot, request.gpu_address)
    method = choose_method(snapshot, gpu, request.via)
    plan = plan_scheduler(host, snapshot, request)
    notes = _notes(host, snapshot, gpu, request, method)
    lines = plan.lines
    if not dry_run and lines:
        stops = StopConfirmation(confirm)
        stops.ask(plan)
        lines = run_transaction(host, scheduler_transaction(host, request, read_host), plan, progress, stops)
        result, warnings = _report_after(host, gpu, snapshot, request)
    else:
        result, warnings = gpu_result(snapshot, gpu), snapshot.warnings
    spec = current_gpu_spec(gpu)
    data = extend(
        ChangedSchedulerResult,
        result,
        before=gpu_settings(spec),
        after=gpu_settings(replace(spec, scheduler=request.scheduler)),
        via=method,
        takes_effect="now" if method == NVML else "when-loaded",
    )
    return Outcome(bool(lines), data, lines, warnings, notes, dry_run=dry_run)


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
        request.wait_seconds,
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
    if choose_method(snapshot, gpu, request.via) == MODPROBE:
        parameter_steps = modprobe_steps(gpu, request.scheduler, read_modprobe(host), driver)
        return TransactionPlan(gpu, (), (), (*parameter_steps, *file_steps))
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
    if choose_method(snapshot, gpu, AUTO) == NVML:
        return (
            SchedulerRequest(address, scheduler, NVML, update_host_file=False)
            if needs_scheduler_change(gpu, scheduler)
            else None
        )
    word = find_loaded_dword(loaded_parameters(host) or "", address)
    if word == scheduler_word(gpu, scheduler, driver, word) or not needs_scheduler_change(gpu, scheduler):
        return None
    raise HostCannot(
        f"{address} does not run the scheduler {scheduler_text(scheduler)}: NVML cannot set it, and its "
        "driver was loaded with"
        f" {'no setting for it' if word is None else f'0x{word:08X}'}",
        hint=f"{set_scheduler_command(address, scheduler)} --via modprobe writes the file; then load the "
        "driver again, or reboot",
        check="scheduler",
        gpu=address,
    )


def _notes(host: Host, snapshot: Snapshot, gpu: Gpu, request: SchedulerRequest, method: str) -> tuple[str, ...]:
    files = read_modprobe(host)
    if method == MODPROBE:
        return modprobe_notes(gpu, files, list_etc(host))
    return (RELOAD_NOTE, *next_load_notes(gpu, request.scheduler, files, driver_version(host, snapshot)))
