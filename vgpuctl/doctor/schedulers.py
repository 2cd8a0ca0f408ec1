# SPDX-License-Identifier: Apache-2.0
"""Schedulers that differ from host.yaml, and options of NVIDIA's driver that have no effect or another meaning."""

from __future__ import annotations

from collections.abc import Iterator

from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    not_applicable,
    ok,
    require_snapshot,
    shorten,
    unknown,
    warn,
)
from vgpuctl.doctor.nvidia import NO_NVIDIA_GPU, nvidia_gpus, read_modprobe_files
from vgpuctl.gpu_setup.set_scheduler import set_scheduler_command
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.scheduler import mtgpu
from vgpuctl.scheduler.limits import running_scheduler, satisfies, scheduler_text
from vgpuctl.scheduler.modprobe_files import (
    DIRECTORIES,
    DRIVER_PARAMS_PATH,
    ParameterSetting,
    find_configured_dword,
    find_loaded_dword,
    overridden_settings,
    parse_settings,
)
from vgpuctl.scheduler.registry_dword import (
    MODULE_VERSION,
    PROC_VERSION,
    REGISTRY_KEY,
    DriverGeneration,
    decode_dword,
    driver_generation,
    parse_driver_version,
    parse_scheduler_log,
    wrong_generation,
)


def _check_scheduler(context: CheckContext, snapshot: Snapshot) -> Finding:
    configured = [
        (gpu, gpu.desired_scheduler)
        for gpu in snapshot.gpus
        if gpu.desired_scheduler is not None and (uses_nvml(gpu) or gpu.scheduler is not None)
    ]
    if not configured:
        return not_applicable("host.yaml configures no scheduler for a GPU whose driver has one")
    states = [(gpu, spec, _runs_spec(context, snapshot, gpu, spec)) for gpu, spec in configured]
    differing = [(gpu, spec) for gpu, spec, is_running in states if is_running is False]
    if differing:
        return warn(
            *shorten([_describe_scheduler(context, gpu, spec) for gpu, spec in differing]),
            fix="; ".join(_suggest_fixes(snapshot, differing)),
        )
    unreported = [_describe_scheduler(context, gpu, spec) for gpu, spec, is_running in states if is_running is None]
    if unreported:
        return unknown(*shorten(unreported))
    return ok(*shorten([_describe_scheduler(context, gpu, spec) for gpu, spec in configured]))


def _suggest_fixes(snapshot: Snapshot, differing: list[tuple[Gpu, SchedulerSpec]]) -> Iterator[str]:
    """Yield what sets the schedulers: a GPU without vGPUs needs no drain, and NVML of some drivers sets none."""
    by_load = [(gpu, spec) for gpu, spec in differing if not _is_settable(gpu)]
    by_drain = [
        (gpu, spec)
        for gpu, spec in differing
        if _is_settable(gpu) and not _is_set_in_use(gpu) and any(v.present for v in snapshot.vgpus_on(gpu.address))
    ]
    if len(by_load) + len(by_drain) < len(differing):
        yield ("for the GPUs without vGPUs: " if by_load or by_drain else "") + "vgpuctl restore-host"
    if by_drain:
        yield f"{_set_command(by_drain[0])} --drain"
    if by_load:
        yield f"{_set_command(by_load[0])} shows the line for modprobe's files"


def _set_command(differing: tuple[Gpu, SchedulerSpec]) -> str:
    gpu, spec = differing
    return set_scheduler_command(gpu.address, spec)


def _is_settable(gpu: Gpu) -> bool:
    return gpu.scheduler is not None and gpu.scheduler.can_set


def _is_set_in_use(gpu: Gpu) -> bool:
    return gpu.scheduler is not None and gpu.scheduler.is_set_in_use


def _runs_spec(context: CheckContext, snapshot: Snapshot, gpu: Gpu, spec: SchedulerSpec) -> bool | None:
    """Return whether a GPU runs the configured scheduler; None if neither NVML, log nor driver parameters report it."""
    state = running_scheduler(gpu)
    if state is not None:
        return satisfies(state, spec)
    logged_policy = _logged_policy(context, gpu)
    if logged_policy is not None and logged_policy is not spec.policy:
        return False
    dword, generation = (
        find_loaded_dword(context.file(DRIVER_PARAMS_PATH).text or "", gpu.address),
        _generation(context, snapshot, gpu),
    )
    if dword is None or generation is None:
        return True if logged_policy is not None and spec == SchedulerSpec(logged_policy) else None
    try:
        return decode_dword(generation, dword) == spec
    except ValueError:
        return False


def _logged_policy(context: CheckContext, gpu: Gpu) -> SchedulerPolicy | None:
    """Return the policy in the kernel log; a later change through NVML is not logged, but then NVML reports it."""
    state = parse_scheduler_log(context.kernel_log or (), gpu.address)
    return state.policy if state is not None else None


def _describe_scheduler(context: CheckContext, gpu: Gpu, spec: SchedulerSpec) -> str:
    state = running_scheduler(gpu)
    dword = find_loaded_dword(context.file(DRIVER_PARAMS_PATH).text or "", gpu.address)
    logged_policy = _logged_policy(context, gpu)
    log_text = (
        "the running policy is not known"
        if logged_policy is None
        else f"{logged_policy} runs, according to the kernel log"
    )
    unknown_policy = "an unknown policy" if state is None or state.problem is None else f"unknown ({state.problem})"
    running_text = f"{state.policy or unknown_policy} runs" if state is not None else log_text
    loaded_text = f", the driver was loaded with {REGISTRY_KEY}=0x{dword:08X}" if dword is not None else ""
    return f"{gpu.address}: {scheduler_text(spec)} is configured, {running_text}{loaded_text}"


def _check_registry_lines(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not nvidia_gpus(snapshot):
        return not_applicable(NO_NVIDIA_GPU)
    settings, problems = _read_settings(context)
    overridden = [
        f"{setting.path}:{setting.line} sets {setting.name}, but has no effect"
        for setting in overridden_settings(settings)
    ]
    if overridden:
        last = {setting.name: setting for setting in settings}
        effective = [f"{setting.path}:{setting.line} takes effect for {setting.name}" for setting in last.values()]
        return fail(
            *shorten(overridden),
            *effective,
            fix="the kernel keeps the last value of a parameter: write all keys in one line, joined by ';'",
        )
    if problems:
        return unknown(*problems)
    return ok(f"registry words: {count_text(len(settings), 'line')}, each parameter once")


def _check_registry_word(context: CheckContext, snapshot: Snapshot) -> Finding:
    gpus = nvidia_gpus(snapshot)
    if not gpus:
        return not_applicable(NO_NVIDIA_GPU)
    settings, problems = _read_settings(context)
    dwords = [
        (gpu, where, dword)
        for gpu in gpus
        for where, dword in _registry_words(context, settings, gpu)
        if dword is not None
    ]
    if not dwords:
        return unknown(*problems) if problems else ok(f"no {REGISTRY_KEY} is set for any GPU")
    generations = {gpu.address: _generation(context, snapshot, gpu) for gpu, _, _ in dwords}
    if None in generations.values():
        return unknown(f"the driver's version is not known (NVML, {MODULE_VERSION}, {PROC_VERSION})")
    decodable = [
        (f"{gpu.address}, {where}", generation, dword)
        for gpu, where, dword in dwords
        if (generation := generations[gpu.address])
    ]
    wrong_dwords = [
        f"{label}: {why}"
        for label, generation, dword in decodable
        if (why := _explain_word(generation, dword)) is not None
    ]
    if wrong_dwords:
        first = next(gpu for gpu, _, _ in dwords if wrong_dwords[0].startswith(gpu.address))
        command = set_scheduler_command(
            first.address, first.desired_scheduler or SchedulerSpec(SchedulerPolicy.BEST_EFFORT)
        )
        by_nvml = f"remove {REGISTRY_KEY} from modprobe's files: {command} sets the scheduler through NVML"
        by_load = f"{command} shows the line for this driver version"
        return warn(*shorten(wrong_dwords), fix=by_nvml if _is_settable(first) else by_load)
    return ok(
        *shorten(
            [f"{label}: {scheduler_text(decode_dword(generation, dword))}" for label, generation, dword in decodable]
        )
    )


def _explain_word(generation: DriverGeneration, dword: int) -> str | None:
    try:
        decode_dword(generation, dword)
    except ValueError as error:
        return str(error)
    return wrong_generation(generation, dword)


def _registry_words(
    context: CheckContext, settings: tuple[ParameterSetting, ...], gpu: Gpu
) -> Iterator[tuple[str, int | None]]:
    yield "loaded", find_loaded_dword(context.file(DRIVER_PARAMS_PATH).text or "", gpu.address)
    yield "at the next load", find_configured_dword(settings, gpu.address)


def _generation(context: CheckContext, snapshot: Snapshot, gpu: Gpu) -> DriverGeneration | None:
    limits = gpu.scheduler.limits if gpu.scheduler is not None else None
    file_version = parse_driver_version(context.file(MODULE_VERSION).text, context.file(PROC_VERSION).text)
    version = snapshot.nvml.driver_version or file_version
    return driver_generation(version, adaptive=limits.supports_adaptive if limits is not None else None)


def _read_settings(context: CheckContext) -> tuple[tuple[ParameterSetting, ...], list[str]]:
    """Return the registry dwords that modprobe's files set, and why some of the files cannot be read."""
    files, problems = read_modprobe_files(context)
    return parse_settings(files), problems


_MODPROBE_PATHS = PathsToRead(files=(DRIVER_PARAMS_PATH, MODULE_VERSION, PROC_VERSION), configs=DIRECTORIES)


CHECKS = (
    Check(
        id="scheduler",
        title="the schedulers of vGPUs and VFs, compared with host.yaml",
        looks_at=f"NVML, the kernel's log, `{DRIVER_PARAMS_PATH}`, xe's `sriov_admin/`, "
        f"`{mtgpu.PARAMETERS_PATH}`, `/etc/vgpuctl/host.yaml`",
        run=require_snapshot(_check_scheduler),
        paths=PathsToRead(files=(DRIVER_PARAMS_PATH, MODULE_VERSION, PROC_VERSION)),
        explains=("scheduler",),
        needs_logs=True,
    ),
    Check(
        id="registry-lines",
        title="options of nvidia.ko that a second line overrides",
        looks_at=f"`NVreg_RegistryDwords` in `{'/*.conf`, `'.join(DIRECTORIES)}/*.conf`",
        run=require_snapshot(_check_registry_lines),
        paths=_MODPROBE_PATHS,
        explains=("scheduler",),
    ),
    Check(
        id="registry-word",
        title=f"what {REGISTRY_KEY} means to this driver version",
        looks_at=f"`{DRIVER_PARAMS_PATH}`, `{MODULE_VERSION}`, `{PROC_VERSION}`, "
        f"`{'/*.conf`, `'.join(DIRECTORIES)}/*.conf`",
        run=require_snapshot(_check_registry_word),
        paths=_MODPROBE_PATHS,
        explains=("scheduler",),
    ),
)
