# SPDX-License-Identifier: Apache-2.0
"""A scheduler that is left to the next load of a driver: whether it was loaded with it, and the line for modprobe."""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.errors import HostCannot
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import (
    SchedulerSpec,
)
from vgpuctl.operations.plans.schedulers import can_set_scheduler, needs_scheduler_change
from vgpuctl.scheduler import mtgpu
from vgpuctl.scheduler.limits import (
    satisfies,
    scheduler_text,
)
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
    driver_generation,
    encode_dword,
    supports_weights,
)
from vgpuctl.value import Value

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
    if not uses_nvml(gpu):
        return ()
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
    if not uses_nvml(gpu):
        return not needs_scheduler_change(gpu, desired)
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
    others = [(gpu, spec) for gpu, spec in lacking if not uses_nvml(gpu)]
    if others:
        error = _module_error(snapshot, others, options)
        by_nvml = [(gpu, spec) for gpu, spec in lacking if uses_nvml(gpu)]
        if by_nvml:
            first = not_loaded_error(snapshot, by_nvml, options, configured)
            error.message, error.hint = f"{first.message}\n{error.message}", f"{first.hint}; {error.hint}"
            error.gpus = (*first.gpus, *error.gpus)
        return error
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


def _module_error(
    snapshot: Snapshot, lacking: Sequence[tuple[Gpu, SchedulerSpec]], options: DriverOptions
) -> SchedulerNotLoaded:
    """Return the error for GPUs whose driver has one scheduler for all of them, as parameters of its module."""
    gpu, desired = lacking[-1]
    place, line = mtgpu.line_with_spec(options.files, desired)
    is_written = satisfies(mtgpu.configured_state(options.files), desired)
    differing = [
        f"{g.address} has {scheduler_text(g.desired_scheduler)} in host.yaml, and the module has one for all its cards"
        for g in snapshot.gpus
        if g.driver == gpu.driver
        and g.address not in {lack.address for lack, _ in lacking}
        and g.desired_scheduler is not None
        and g.desired_scheduler != desired
    ]
    running = gpu.scheduler.state if gpu.scheduler is not None else None
    runs = "an unknown one" if running is None else running.policy or running.problem
    lines = [
        f"{g.address} does not run the scheduler {scheduler_text(spec)}: its driver was loaded with {runs}"
        for g, spec in lacking
    ]
    load = f"load the driver {gpu.driver} again or reboot"
    error = SchedulerNotLoaded(
        "\n".join([*lines, *differing]),
        hint=f"modprobe's files have it: {load}" if is_written else f"{place}, then {load}: {line}",
        check="scheduler",
        gpu=gpu.address,
        line=line,
    )
    error.gpus = tuple(g.address for g, _ in lacking)
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
