# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU scheduler: whether the configured one runs, and whether the driver's options have the right effect."""

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
    unknown,
    warn,
)
from vgpuctl.doctor.gpus import shorten
from vgpuctl.gpu_setup.set_scheduler import set_scheduler_command
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.scheduler.driver_texts import MODULE_VERSION, PROC_VERSION, parse_driver_version, parse_scheduler_log
from vgpuctl.scheduler.limits import running_scheduler, satisfies, scheduler_text
from vgpuctl.scheduler.modprobe_files import (
    DIRECTORIES,
    DRIVER_PARAMS_PATH,
    ModprobeFile,
    ParameterSetting,
    find_configured_dword,
    find_loaded_dword,
    overridden_settings,
    parse_settings,
)
from vgpuctl.scheduler.registry_dword import (
    REGISTRY_KEY,
    DriverGeneration,
    decode_dword,
    driver_generation,
    wrong_generation,
)

_NO_GPU = "no GPU here has NVIDIA's driver"


def _check_scheduler(context: CheckContext, snapshot: Snapshot) -> Finding:
    configured = [(gpu, gpu.desired_scheduler) for gpu in _nvidia_gpus(snapshot) if gpu.desired_scheduler is not None]
    if not configured:
        return not_applicable("host.yaml configures no scheduler for a GPU with NVIDIA's driver")
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
        if _is_settable(gpu) and any(v.present for v in snapshot.vgpus_on(gpu.address))
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
    return gpu.scheduler is not None and bool(gpu.scheduler.setter_versions)


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
    running_text = f"{state.policy or 'an unknown policy'} runs" if state is not None else log_text
    loaded_text = f", the driver was loaded with {REGISTRY_KEY}=0x{dword:08X}" if dword is not None else ""
    return f"{gpu.address}: {scheduler_text(spec)} is configured, {running_text}{loaded_text}"


def _check_registry_lines(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not _nvidia_gpus(snapshot):
        return not_applicable(_NO_GPU)
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
    gpus = _nvidia_gpus(snapshot)
    if not gpus:
        return not_applicable(_NO_GPU)
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


def _nvidia_gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    return tuple(gpu for gpu in snapshot.gpus if uses_nvml(gpu))


def _generation(context: CheckContext, snapshot: Snapshot, gpu: Gpu) -> DriverGeneration | None:
    limits = gpu.scheduler.limits if gpu.scheduler is not None else None
    file_version = parse_driver_version(context.file(MODULE_VERSION).text, context.file(PROC_VERSION).text)
    version = snapshot.nvml.driver_version or file_version
    return driver_generation(version, adaptive=limits.supports_adaptive if limits is not None else None)


def _read_settings(context: CheckContext) -> tuple[tuple[ParameterSetting, ...], list[str]]:
    """Return the registry dwords that modprobe's files set, and why some of the files cannot be read."""
    files, problems = read_modprobe_files(context)
    return parse_settings(files), problems


def read_modprobe_files(context: CheckContext) -> tuple[tuple[ModprobeFile, ...], list[str]]:
    """Return modprobe's files, for equal names the one in the first directory, and why some cannot be read.

    The check has to declare the directories as `configs`.
    """
    files: dict[str, ModprobeFile] = {}
    problems: list[str] = []
    for folder in DIRECTORIES:
        listing = context.folder(folder)
        problems += [listing.problem] if listing.problem else []
        for name in listing.names or ():
            if not name.endswith(".conf") or name in files:
                continue
            content = context.file(f"{folder}/{name}")
            problems += [content.problem] if content.problem else []
            files[name] = ModprobeFile(f"{folder}/{name}", content.text or "")
    return tuple(files.values()), problems


_MODPROBE_PATHS = PathsToRead(files=(DRIVER_PARAMS_PATH, MODULE_VERSION, PROC_VERSION), configs=DIRECTORIES)

CHECKS = (
    Check(
        id="scheduler",
        title="the vGPU schedulers, compared with host.yaml",
        looks_at=f"NVML, the kernel's log, `{DRIVER_PARAMS_PATH}`, `/etc/vgpuctl/host.yaml`",
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
