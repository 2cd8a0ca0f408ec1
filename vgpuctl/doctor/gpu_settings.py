# SPDX-License-Identifier: Apache-2.0
"""How GPUs are set up: MIG, mixed sizes, NVIDIA's scheduler. What waits for a reset, or differs from host.yaml.

Sources: NVML's nvmlDeviceGetMigMode (current and pending); NVIDIA's AI Enterprise administration guide, "MIG-backed
vGPUs". With vendor-specific VFIO, a bus reset hangs hosts with Linux 7 and newer.
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    not_applicable,
    ok,
    on_or_off,
    parse_version,
    require_snapshot,
    shorten,
    unknown,
    warn,
)
from vgpuctl.doctor.nvidia import NO_NVIDIA_GPU, nvidia_gpus, read_modprobe_files
from vgpuctl.doctor.virtualization import KERNEL_RELEASE
from vgpuctl.gpu_setup.set_scheduler import set_scheduler_command
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import MODES_WITHOUT_VFS, Gpu, GpuInstance, GpuMode, MigState
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
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

_NO_MIG = "no GPU here has MIG, or NVML does not report it"


def _check_mig_mode(context: CheckContext, snapshot: Snapshot) -> Finding:
    mig_gpus = _mig_gpus(snapshot)
    if not mig_gpus:
        return not_applicable(_NO_MIG)
    waiting = [(gpu, mig) for gpu, mig in mig_gpus if mig.enabled is not mig.pending_enabled]
    if not waiting:
        return ok(*shorten([f"{gpu.address}: MIG is {on_or_off(mig.enabled)}" for gpu, mig in mig_gpus]))
    lines = [
        f"{gpu.address} ({gpu.model}): MIG is {on_or_off(mig.enabled)}, and "
        f"{on_or_off(mig.pending_enabled)} after its next reset"
        for gpu, mig in waiting
    ]
    release = (context.file(KERNEL_RELEASE).text or "").strip()
    hang_since = (backend_for(g.backend).gpu_reset_hangs_since for g in snapshot.gpus)
    if any(since is not None and parse_version(release) >= since for since in hang_since):
        return warn(
            *shorten(lines),
            f"{KERNEL_RELEASE}: {release}; with vendor-specific VFIO a reset hangs this host until it is powered off",
            fix="reboot the host; never nvidia-smi --gpu-reset here",
        )
    return warn(
        *shorten(lines),
        fix="reboot the host, or stop the programs that have the driver open (vgpuctl doctor driver-holders) and run "
        "set-mig again; no nvidia-smi --gpu-reset while VFs are on",
    )


def _check_mig_instances(context: CheckContext, snapshot: Snapshot) -> Finding:
    mig_gpus = [
        (gpu, mig) for gpu, mig in _mig_gpus(snapshot) if mig.enabled and gpu.desired_mode not in MODES_WITHOUT_VFS
    ]
    if not mig_gpus:
        return not_applicable("no GPU for vGPUs has MIG on")
    empty = [(gpu, mig) for gpu, mig in mig_gpus if not mig.instances]
    if empty:
        return fail(
            *shorten([f"{gpu.address} ({gpu.model}): MIG is on, but it has no GPU instance" for gpu, _ in empty]),
            "no vGPU can be created on it",
            fix=_suggest_instances(*empty[0]),
        )
    unusable = [
        (gpu, f"{gpu.address}: GPU instance {instance.gi_id} ({_profile_name(mig, instance)}) has no vGPU type")
        for gpu, mig in mig_gpus
        for instance in mig.instances
        if not _has_type(context, gpu, instance)
    ]
    if unusable:
        first = unusable[0][0]
        profile = context.instance_types[first.address][0].profile
        return warn(
            *shorten([line for _, line in unusable]),
            fix=f"create those that vGPUs need, for instance: vgpuctl set-mig {first.address} --for {quote(profile)}",
        )
    return ok(*shorten([f"{gpu.address}: {len(mig.instances)} GPU instances" for gpu, mig in mig_gpus]))


def _suggest_instances(gpu: Gpu, mig: MigState) -> str:
    """Return the commands that make a GPU with MIG on and without instances usable."""
    off = f"turn MIG off: vgpuctl set-mig {gpu.address} --off"
    if gpu.desired_mig is not None:
        return f"create those of host.yaml: vgpuctl restore-host; {off}"
    example = f"vgpuctl set-mig {gpu.address} {mig.profiles[0].name}; " if mig.profiles else ""
    return f"{f'create GPU instances, for instance: {example}' if example else ''}{off}"


def _has_type(context: CheckContext, gpu: Gpu, instance: GpuInstance) -> bool:
    """Return whether a vGPU can be in an instance; assumed where no type reports its instance."""
    profile_ids = {t.gi_profile_id for t in context.instance_types.get(gpu.address, ())} - {None}
    return not profile_ids or instance.profile_id in profile_ids


def _profile_name(mig: MigState, instance: GpuInstance) -> str:
    profile = mig.find_profile(instance.profile_id)
    return profile.name if profile is not None else f"profile {instance.profile_id}"


def _check_partition(context: CheckContext, snapshot: Snapshot) -> Finding:
    if snapshot.host_file_problem is not None:
        return unknown(snapshot.host_file_problem)
    configured = [g for g in snapshot.gpus if _has_desired_partition(g)]
    if not configured:
        return not_applicable("host.yaml configures neither MIG nor mixed sizes")
    unreported = [g.address for g in configured if uses_nvml(g) and g.mig is None and g.mixed_size is None]
    if unreported and not snapshot.nvml.available:
        return unknown(f"NVML does not report how these are partitioned: {', '.join(unreported)}")
    lines = [line for g in configured for line in context.partition_drift.get(g.address, ())]
    if lines:
        return warn(
            *shorten(lines),
            "turning VFs off and on, or reloading the driver, removes GPU instances and mixed sizes",
            # apply refuses a host.yaml that names a GPU which is gone: the check host-file says that
            fix="vgpuctl restore-host" + ("" if context.absent_gpus else "; if VMs run on it: vgpuctl apply --drain"),
        )
    return ok(f"partitioned as in host.yaml: {count_text(len(configured), 'GPU')}")


def _has_desired_partition(gpu: Gpu) -> bool:
    if gpu.desired_mode not in (None, GpuMode.VGPU):
        return False
    return gpu.desired_mig is not None or gpu.desired_mixed_size is not None


def _mig_gpus(snapshot: Snapshot) -> list[tuple[Gpu, MigState]]:
    return [(gpu, gpu.mig) for gpu in nvidia_gpus(snapshot) if gpu.mig is not None]


def _check_scheduler(context: CheckContext, snapshot: Snapshot) -> Finding:
    configured = [(gpu, gpu.desired_scheduler) for gpu in nvidia_gpus(snapshot) if gpu.desired_scheduler is not None]
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
    return gpu.scheduler is not None and gpu.scheduler.can_set


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
        id="mig-mode",
        title="changes of MIG that wait for a reset",
        looks_at=f"NVML, `{KERNEL_RELEASE}`",
        run=require_snapshot(_check_mig_mode),
        paths=PathsToRead(files=(KERNEL_RELEASE,)),
        explains=("busy", "partition", "no-capacity"),
    ),
    Check(
        id="mig-instances",
        title="the GPU instances of GPUs with MIG on",
        looks_at="NVML",
        run=require_snapshot(_check_mig_instances),
        explains=("no-capacity", "partition"),
        needs_partitions=True,
    ),
    Check(
        id="partition",
        title="MIG and mixed sizes, compared with host.yaml",
        looks_at="NVML, `mig:` and `mixed_size:` of `/etc/vgpuctl/host.yaml`",
        run=require_snapshot(_check_partition),
        explains=("partition", "no-capacity"),
        needs_partitions=True,
    ),
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
