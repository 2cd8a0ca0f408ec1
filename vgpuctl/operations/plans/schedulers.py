# SPDX-License-Identifier: Apache-2.0
"""A GPU's scheduler: what changes it, what is left to the driver's next start, and as a result what runs.

The result has the configured and the running scheduler, the limits, and each vGPU's guaranteed share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.errors import HostCannot, Refused
from vgpuctl.gpu_setup.set_scheduler import set_scheduler_command, set_scheduler_step
from vgpuctl.makers import maker_of, uses_nvml, vgpu_driver_hint
from vgpuctl.model.gpu import Gpu, GpuMode, Vgpu
from vgpuctl.model.results.gpus import (
    RangeResult,
    RunningSchedulerResult,
    SchedulerLimitsResult,
    SchedulerResult,
    ShareResult,
)
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerLimits, SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.operations.plans.evict import Eviction, EvictionReason, plan_eviction
from vgpuctl.scheduler import limits
from vgpuctl.scheduler.limits import explain_unsupported, running_scheduler, satisfies, scheduler_text
from vgpuctl.scheduler.modprobe_files import (
    ModprobeFile,
    ParameterSetting,
    find_configured_dword,
    find_loaded_dword,
    line_with_dword,
    parse_settings,
)
from vgpuctl.scheduler.registry_dword import (
    MODULE_VERSION,
    PROC_VERSION,
    REGISTRY_KEY,
    decode_dword,
    driver_generation,
    encode_dword,
    is_weighted,
    supports_weights,
)
from vgpuctl.value import Value

_RUNNING = (VmState.RUNNING, VmState.PAUSED)
_NS_PER_US, _NS_PER_MS = 1000, 1_000_000


class SchedulerDetails(Value):
    """What show-gpu adds: limits, the scheduler that the driver was loaded with, the next one, and the shares."""

    limits: SchedulerLimitsResult | None
    at_load: SchedulerSpec | None
    at_next_load: SchedulerSpec | None
    shares: tuple[ShareResult, ...]


def scheduler_summary(gpu: Gpu) -> SchedulerResult | None:
    """Return the configured and the running scheduler, None if there is neither."""
    running = running_scheduler(gpu)
    if running is None and gpu.desired_scheduler is None:
        return None
    return SchedulerResult(configured=gpu.desired_scheduler, running=_running_result(running))


def scheduler_details(
    snapshot: Snapshot, gpu: Gpu, driver: str | None, params: str | None, files: tuple[ModprobeFile, ...]
) -> SchedulerDetails:
    """Return the details for show-gpu. `params`: the loaded driver's parameters as text; `files`: modprobe's."""
    limits = gpu.scheduler.limits if gpu.scheduler is not None else None
    adaptive = limits.supports_adaptive if limits is not None else None
    word = find_loaded_dword(params or "", gpu.address)
    return SchedulerDetails(
        limits=_limits_result(limits),
        at_load=_word_spec(driver, adaptive, word),
        at_next_load=_word_spec(driver, adaptive, find_configured_dword(parse_settings(files), gpu.address)),
        shares=_shares(snapshot, gpu, is_weighted(driver, word)),
    )


def _shares(snapshot: Snapshot, gpu: Gpu, weights: bool | None) -> tuple[ShareResult, ...]:
    return tuple(
        ShareResult(
            carrier=vgpu.carrier,
            vm=vgpu.vm,
            name=vgpu.name,
            profile=vgpu.profile,
            guaranteed_percent=None if share.fraction is None else round(float(100 * share.fraction), 2),
            time_slice_us=_to_us(share.time_slice_ns),
            note=share.note,
        )
        for vgpu, share in time_shares(snapshot, gpu, weights)
    )


def time_shares(snapshot: Snapshot, gpu: Gpu, weights: bool | None) -> tuple[tuple[Vgpu, limits.TimeShare], ...]:
    """Return the GPU's vGPUs with the share of its time that each has; none where its scheduler is not known.

    `weights`: whether the driver weights vGPUs, None if unknown.
    """
    state = gpu.scheduler.state if gpu.scheduler is not None else None
    if state is None:
        return ()
    with_vfs = gpu.mode is GpuMode.SRIOV
    vgpus = [v for v in snapshot.vgpus_on(gpu.address) if v.profile is not None or with_vfs]
    maxima = {t.profile or "": t.max_per_gpu for t in gpu.types}
    if with_vfs:
        maxima[""] = gpu.vfs_enabled + 1  # the host's own function has its turn, too
    vms = snapshot.vms_by_uuid()
    running = {v.carrier for v in vgpus if is_running(vms, v)}
    return tuple(
        (
            vgpu,
            limits.compute_time_share(
                state,
                is_running=vgpu.carrier in running,
                running_count=len(running),
                max_vgpus=maxima.get(vgpu.profile or ""),
                is_weighted=weights if uses_nvml(gpu) else False,
                counts_host=with_vfs,
            ),
        )
        for vgpu in vgpus
    )


def is_running(vms: Mapping[str, Vm], vgpu: Vgpu) -> bool:
    """Return whether the guest that has a vGPU uses it now. `vms`: the host's, by uuid."""
    vm = vms.get(vgpu.vm_uuid or "")
    return vgpu.present and vm is not None and vm.state in _RUNNING


def _running_result(state: SchedulerState | None) -> RunningSchedulerResult | None:
    if state is None:
        return None
    time_slice_us = _to_us(state.time_slice_ns)
    return RunningSchedulerResult(
        policy=state.policy,
        adaptive=state.adaptive,
        time_slice_us=time_slice_us,
        averaging_factor=state.averaging_factor,
        source=state.source,
        preempt_timeout_us=state.preempt_timeout_us,
        problem=state.problem,
    )


def _limits_result(limits: SchedulerLimits | None) -> SchedulerLimitsResult | None:
    if limits is None:
        return None
    min_slice, max_slice = limits.time_slice_ns
    return SchedulerLimitsResult(
        policies=tuple(sorted(limits.policies)),
        adaptive=limits.supports_adaptive,
        time_slice_ms=RangeResult(min_slice / _NS_PER_MS, max_slice / _NS_PER_MS),
        frequency_hz=_range_result(limits.frequency_hz),
        averaging_factor=_range_result(limits.averaging_factor),
        preempt_timeout_us=_range_result(limits.preempt_timeout_us),
    )


def _range_result(accepted: tuple[int, int] | None) -> RangeResult | None:
    return None if accepted is None else RangeResult(*accepted)


def _word_spec(driver: str | None, adaptive: bool | None, word: int | None) -> SchedulerSpec | None:
    """Return the scheduler that a DWORD selects; None if the driver does not understand it."""
    generation = driver_generation(driver, adaptive=adaptive)
    if generation is None or word is None:
        return None
    try:
        return decode_dword(generation, word)
    except ValueError:
        return None


def _to_us(time_slice_ns: int | None) -> float | None:
    return None if time_slice_ns is None else time_slice_ns / _NS_PER_US


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
    if gpu.scheduler is None and not uses_nvml(gpu):
        raise HostCannot(
            f"{gpu.address} ({gpu.model}) has the driver {gpu.driver or 'none'}, whose scheduler vgpuctl cannot set",
            hint=maker_of(gpu).scheduler_hint or vgpu_driver_hint(gpu),
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
    """Say whether this GPU's scheduler can be set while its driver is loaded."""
    return gpu.scheduler is not None and gpu.scheduler.can_set


def has_scheduler(gpu: Gpu, mode: str | None) -> bool:
    """Say whether a scheduler applies to a GPU in a mode: to vGPUs, or to plain VFs whose driver has one."""
    return mode in (None, GpuMode.VGPU) or (mode == GpuMode.SRIOV and can_set_scheduler(gpu))


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


def plan_scheduler_change(gpu: Gpu, desired: SchedulerSpec, snapshot: Snapshot, *, drain: bool) -> Eviction:
    """Return the change of a GPU's scheduler; empty when it already runs.

    Raises:
        InUse: it has vGPUs that may not be removed temporarily (`drain`), or that vgpuctl does not manage.
    """
    if not needs_scheduler_change(gpu, desired):
        return Eviction()
    step = set_scheduler_step(gpu, desired)
    if gpu.scheduler is not None and gpu.scheduler.is_set_in_use:
        return Eviction(steps=(step,))
    drain_hint = None if drain else f"{set_scheduler_command(gpu.address, desired)} --drain"
    cause = "the driver changes the scheduler only on a GPU without vGPUs"
    reason = EvictionReason(cause, drain_hint)
    return plan_eviction(snapshot, gpu, (step,), reason)


_LOAD = "load the driver nvidia again or reboot"


class SchedulerNotLoaded(HostCannot):
    """NVML cannot set the scheduler of `gpus`, and the driver was loaded with another; `hint` has the line for it."""

    gpus: tuple[str, ...] = ()


class DriverOptions(Value):
    """The loaded driver's version and parameters (None: unknown), and modprobe's files, which its next load reads."""

    version: str | None
    parameters: str | None
    files: tuple[ModprobeFile, ...] = ()


def scheduler_word(gpu: Gpu, desired: SchedulerSpec, driver: str | None, current_word: int | None) -> int:
    """Return the registry DWORD that selects a scheduler for this GPU's driver. `current_word`: the one it has now.

    Raises:
        HostCannot: the driver's version is unknown, or it has no such scheduler.
    """
    adaptive = gpu.scheduler.limits.supports_adaptive if gpu.scheduler is not None and gpu.scheduler.limits else None
    generation = driver_generation(driver, adaptive=adaptive)
    facts = {"gpu": gpu.address, "check": "scheduler", "driver": driver}
    if generation is None:
        raise HostCannot(
            f"the version of the driver of {gpu.address} is not known, and the word {REGISTRY_KEY} differs "
            "between versions",
            hint=f"cat {MODULE_VERSION} {PROC_VERSION}",
            **facts,
        )
    try:
        return encode_dword(generation, desired, previous=(current_word or 0) if supports_weights(driver) else 0)
    except ValueError as error:
        raise HostCannot(
            f"{gpu.address} cannot have the scheduler {scheduler_text(desired)}: {error}",
            hint=f"vgpuctl show-gpu {gpu.address} shows its driver",
            **facts,
        ) from error


def next_load_notes(gpu: Gpu, desired: SchedulerSpec, options: DriverOptions) -> tuple[str, ...]:
    """Return notes for the user when NVML sets a scheduler and modprobe's files set another one."""
    word = find_configured_dword(parse_settings(options.files), gpu.address)
    if word is None or driver_generation(options.version) is None:
        return ()
    if word == scheduler_word(gpu, desired, options.version, word):
        return ()
    return (
        f"modprobe's files set {REGISTRY_KEY}=0x{word:08X}, which applies from the driver's next load "
        "until restore-host runs",
    )


def is_loaded(gpu: Gpu, desired: SchedulerSpec, options: DriverOptions) -> bool:
    """Say whether the driver was loaded with a scheduler, or the GPU runs it; modprobe's files do not count.

    Raises:
        HostCannot: as `scheduler_word`.
    """
    word = find_loaded_dword(options.parameters or "", gpu.address)
    return word == scheduler_word(gpu, desired, options.version, word) or not needs_scheduler_change(gpu, desired)


def find_not_loaded(
    snapshot: Snapshot, wanted: Sequence[tuple[Gpu, SchedulerSpec]], options: DriverOptions
) -> SchedulerNotLoaded | None:
    """Return the error for those GPUs whose scheduler NVML cannot set and whose driver was loaded with another one.

    Raises:
        HostCannot: as `scheduler_word`.
    """
    lacking = [(gpu, spec) for gpu, spec in wanted if not can_set_scheduler(gpu) and not is_loaded(gpu, spec, options)]
    return not_loaded_error(snapshot, lacking, options, wanted) if lacking else None


def not_loaded_error(
    snapshot: Snapshot,
    lacking: Sequence[tuple[Gpu, SchedulerSpec]],
    options: DriverOptions,
    configured: Sequence[tuple[Gpu, SchedulerSpec]] = (),
) -> SchedulerNotLoaded:
    """Return the error for GPUs that need another load of the driver, with the line for modprobe's files.

    There is one line for all GPUs: it also has what `configured` and host.yaml say of the others.
    """
    specs = {gpu.address: (gpu, gpu.desired_scheduler) for gpu in snapshot.gpus if _is_for_vgpus(gpu)}
    specs |= {gpu.address: (gpu, spec) for gpu, spec in (*configured, *lacking)}
    settings = parse_settings(options.files)
    words = {}
    for gpu, desired in specs.values():
        word = None if desired is None else _next_word(gpu, desired, options, settings)
        if word is not None:
            words[gpu.address] = word
    reason = "" if snapshot.nvml.reason is None else f" ({snapshot.nvml.reason})"
    place, line = line_with_dword(options.files, words)
    is_written = all(find_configured_dword(settings, address) == word for address, word in words.items())
    error = SchedulerNotLoaded(
        "\n".join(_describe(gpu, spec, options, reason) for gpu, spec in lacking),
        hint=f"modprobe's files have it: {_LOAD}" if is_written else f"{place}, then {_LOAD}: {line}",
        check="nvml",
        gpu=lacking[0][0].address,
        line=line,
    )
    error.gpus = tuple(gpu.address for gpu, _ in lacking)
    return error


def _is_for_vgpus(gpu: Gpu) -> bool:
    return uses_nvml(gpu) and gpu.desired_mode in (None, GpuMode.VGPU)


def _next_word(
    gpu: Gpu, desired: SchedulerSpec, options: DriverOptions, settings: tuple[ParameterSetting, ...]
) -> int | None:
    """Return the DWORD that the driver needs at its next load; None if NVML sets the scheduler, or nothing can."""
    if can_set_scheduler(gpu):
        return None
    try:
        return scheduler_word(gpu, desired, options.version, find_configured_dword(settings, gpu.address))
    except HostCannot:
        return None


def _describe(gpu: Gpu, desired: SchedulerSpec, options: DriverOptions, reason: str) -> str:
    word = find_loaded_dword(options.parameters or "", gpu.address)
    loaded = "no setting for it" if word is None else f"{REGISTRY_KEY}=0x{word:08X}"
    return (
        f"{gpu.address} does not run the scheduler {scheduler_text(desired)}: NVML cannot set it{reason}, and its "
        f"driver was loaded with {loaded}"
    )
