# SPDX-License-Identifier: Apache-2.0
"""Compare host.yaml with the host's current state, or with the host.yaml that is to take its place.

Key by key for each GPU, and its other sections.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from vgpuctl.config.agent_spec import flat_agent
from vgpuctl.config.gpu_spec import dump_scheduler
from vgpuctl.config.host_spec import (
    GPU_SPEC_KEYS,
    GpuSpec,
    HostSpec,
    VgpuSpec,
    dump_value,
    entry_matches,
    format_one_line,
    merge_gpu_entries,
    vf_memory_mib,
)
from vgpuctl.errors import HostCannot, InvalidInput, Refused
from vgpuctl.gpu_setup.instance_plan import choose_gi_profiles, find_gi_profiles, has_exactly, instance_names
from vgpuctl.gpu_setup.vf_memory import has_vf_memory
from vgpuctl.model.gpu import Gpu, GpuMode, MigSpec, MigState
from vgpuctl.model.numbers import format_size
from vgpuctl.model.results.gpus import PartitionResult
from vgpuctl.model.results.host import DifferenceResult, HostGpuResult, RemovedResult
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.operations.plans.layout import chooses_vf_count, target_vf_count
from vgpuctl.operations.plans.schedulers import can_set_scheduler, has_scheduler, needs_scheduler_change
from vgpuctl.scheduler.limits import running_scheduler, satisfies, spec_from_state
from vgpuctl.value import Value, as_dict, replace

_MODE_KEYS = ("compute_partition", "memory_partition")
_DEVICE_KEYS = ("mode", "vfs", "vf_memory", "mig", "mixed_size", "scheduler", *_MODE_KEYS)
_MODES = (GpuMode.VGPU, GpuMode.SRIOV, GpuMode.PASSTHROUGH)


def current_gpu_spec(gpu: Gpu) -> GpuSpec:
    """Return the host.yaml entry that would change nothing on a GPU.

    A configured value that the GPU already has is written as in host.yaml; else the observed value. Settings that no
    GPU shows, such as who may be placed on it, come from host.yaml.
    """
    observed_mode = gpu.settable_mode
    mode = next((m for m in (gpu.desired_mode, observed_mode) if m is not None and _is_mode_applied(gpu, m)), None)
    return GpuSpec(
        mode=None if mode is None else str(mode),
        vfs=gpu.vfs_enabled if mode is not None and chooses_vf_count(gpu, mode) else None,
        vf_memory=_current_vf_memory(gpu) if mode is GpuMode.SRIOV else None,
        cordoned=gpu.cordoned or None,
        scheduler=_current_scheduler(gpu),
        profiles=gpu.allowed_profiles,
        reserved_for=gpu.reserved_for or None,
        mig=_current_mig(gpu) if mode is GpuMode.VGPU else None,
        mixed_size=gpu.mixed_size or None if mode is GpuMode.VGPU else None,
        compute_partition=gpu.compute_partition if mode is GpuMode.SRIOV else None,
        memory_partition=gpu.memory_partition if mode is GpuMode.SRIOV else None,
        reason=gpu.reason,
    )


def _current_vf_memory(gpu: Gpu) -> str | None:
    """Return the configured memory of each VF if they have it; what the driver divided by itself is no setting."""
    memory_mib = gpu.desired_vf_memory_mib
    return format_size(memory_mib) if memory_mib is not None and has_vf_memory(gpu, memory_mib) else None


def _is_mode_applied(gpu: Gpu, mode: GpuMode) -> bool:
    """Say whether a GPU already has the VFs of a mode; `unmanaged` counts only if configured."""
    if mode not in _MODES:
        return mode is GpuMode.UNMANAGED and gpu.desired_mode is mode
    if mode is GpuMode.PASSTHROUGH and gpu.mig is not None and gpu.mig.enabled:
        return False
    try:
        return target_vf_count(gpu, mode, None) == gpu.vfs_enabled
    except (HostCannot, InvalidInput):
        return False


def _current_scheduler(gpu: Gpu) -> SchedulerSpec | None:
    """Return the running scheduler; the configured one if that runs, or if the running one is unknown.

    With MIG a scheduler can be set only if GPU instances have schedulers.
    """
    if gpu.mig is not None and gpu.mig.enabled and not gpu.gi_schedulers:
        return None
    state = running_scheduler(gpu)
    configured = gpu.desired_scheduler
    if configured is not None and (state is None or satisfies(state, configured)):
        return configured
    running = spec_from_state(state) if state is not None else None
    return (
        None
        if running is None or running.policy is SchedulerPolicy.BEST_EFFORT or needs_scheduler_change(gpu, running)
        else running
    )


def _current_mig(gpu: Gpu) -> MigSpec | None:
    """Return the instances of a GPU with MIG; the configured form (by vGPUs, say) if that is applied."""
    configured, mig = gpu.desired_mig, gpu.mig
    if mig is None:
        return None
    if configured is not None and _is_partitioned_as(gpu, mig, configured):
        return configured
    return MigSpec(instance_names(mig)) if mig.enabled and mig.instances else None


def _is_partitioned_as(gpu: Gpu, mig: MigState, desired: MigSpec) -> bool:
    """Say whether a GPU has this partitioning; vGPUs whose instances are unknown count as missing."""
    if not desired.is_requested or not mig.enabled:
        return desired.is_requested is mig.enabled
    try:
        profile_names = desired.instances or choose_gi_profiles(mig, desired.vgpus, gpu.types, gpu.address)
        return has_exactly(mig, find_gi_profiles(mig, profile_names, gpu.address))
    except InvalidInput:
        return False


def diff_gpu(gpu: Gpu, configured: GpuSpec) -> tuple[DifferenceResult, ...]:
    """Return what differs from a GPU's configuration; a key that is unset now and before is no difference."""
    current = current_gpu_spec(gpu)
    differences = [
        *_diff_mode(gpu, configured, current),
        *_diff_partition(gpu, configured, current),
        *_diff_scheduler(gpu, configured, current),
        *(
            DifferenceResult(key, desired, getattr(gpu, key))
            for key in _MODE_KEYS
            if (desired := getattr(configured, key)) is not None and desired != getattr(gpu, key)
        ),
    ]
    for key in ("cordoned", "profiles", "reserved_for", "reason"):
        desired, observed = (dump_value(getattr(spec, key)) or None for spec in (configured, current))
        if desired != observed:
            differences.append(DifferenceResult(key, desired, observed))
    return tuple(differences)


def _diff_mode(gpu: Gpu, configured: GpuSpec, current: GpuSpec) -> list[DifferenceResult]:
    if configured.mode is None:
        dropped = gpu.desired_mode is not None and current.mode == gpu.desired_mode
        return [DifferenceResult("mode", None, current.mode)] if dropped else []
    differences = (
        []
        if configured.mode == current.mode
        else [DifferenceResult("mode", configured.mode, current.mode or str(gpu.mode))]
    )
    if configured.vfs is not None and configured.vfs != gpu.vfs_enabled:
        differences.append(DifferenceResult("vfs", configured.vfs, gpu.vfs_enabled))
    memory_mib = vf_memory_mib(configured)
    if configured.mode == GpuMode.SRIOV and not has_vf_memory(gpu, memory_mib):
        known = {f.framebuffer_mib for f in gpu.functions if f.framebuffer_mib is not None}
        sizes = sorted(known) if gpu.vfs_enabled else []
        current_sizes = ", ".join(map(format_size, sizes)) or None
        differences.append(DifferenceResult("vf_memory", configured.vf_memory, current_sizes))
    return differences


def _diff_partition(gpu: Gpu, configured: GpuSpec, current: GpuSpec) -> list[DifferenceResult]:
    """Return the differences of MIG and mixed sizes; both need the mode vgpu, and passthrough has no MIG."""
    if configured.mode not in (None, GpuMode.VGPU, GpuMode.PASSTHROUGH):
        return []
    differences = []
    desired_mig = MigSpec() if configured.mode == GpuMode.PASSTHROUGH and gpu.mig is not None else configured.mig
    observed_mig = MigSpec(instance_names(gpu.mig)) if gpu.mig is not None and gpu.mig.enabled else MigSpec()
    if desired_mig is not None and not (
        _is_partitioned_as(gpu, gpu.mig, desired_mig) if gpu.mig is not None else not desired_mig.is_requested
    ):
        differences.append(DifferenceResult("mig", dump_value(desired_mig), dump_value(observed_mig)))
    elif desired_mig is None and gpu.desired_mig is not None and current.mig == gpu.desired_mig:
        differences.append(DifferenceResult("mig", None, dump_value(current.mig)))
    if configured.mode == GpuMode.PASSTHROUGH:
        return differences
    if (configured.mixed_size is not None and configured.mixed_size is not bool(gpu.mixed_size)) or (
        configured.mixed_size is None and gpu.desired_mixed_size and gpu.mixed_size
    ):
        differences.append(DifferenceResult("mixed_size", configured.mixed_size, bool(gpu.mixed_size)))
    return differences


def partition_result(gpu: Gpu) -> PartitionResult | None:
    """Return a GPU's partitioning; None for a GPU with neither MIG nor mixed sizes."""
    if gpu.mig is None and gpu.mixed_size is None:
        return None
    instances = instance_names(gpu.mig) if gpu.mig is not None and gpu.mig.enabled else ()
    return PartitionResult(None if gpu.mig is None else gpu.mig.enabled, instances, gpu.mixed_size)


def describe_unapplied_settings(gpu: Gpu, configured: GpuSpec) -> list[str]:
    """Return a sentence for each device setting that is not applied: a later step or the driver reset it."""
    return [
        f"{gpu.address}: {row.key} is {_format_value(row.is_)}, not {_format_value(row.wanted)}"
        for row in diff_gpu(gpu, configured)
        if row.key in _DEVICE_KEYS and row.wanted is not None and (can_set_scheduler(gpu) or row.key != "scheduler")
    ]


def _format_value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _diff_scheduler(gpu: Gpu, configured: GpuSpec, current: GpuSpec) -> list[DifferenceResult]:
    desired = configured.scheduler
    if not has_scheduler(gpu, configured.mode):
        return []
    if desired == current.scheduler or (desired is None and gpu.desired_scheduler is None):
        return []
    if desired is not None and running_scheduler(gpu) is not None and not needs_scheduler_change(gpu, desired):
        return []
    return [DifferenceResult("scheduler", dump_value(desired), dump_value(current.scheduler))]


def diff_settings(desired: HostSpec, current: HostSpec) -> tuple[DifferenceResult, ...]:
    """Return the differences in the other sections of host.yaml: `defaults.memory`, `vgpus.NAME` and so on."""
    differences = []
    for section in _SECTIONS:
        new, old = (as_dict(getattr(spec, section)) for spec in (desired, current))
        differences += [DifferenceResult(f"{section}.{key}", new[key], old[key]) for key in new if new[key] != old[key]]
    agents = (flat_agent(desired.agent), flat_agent(current.agent))
    for key in dict.fromkeys((*agents[0], *agents[1])):
        if agents[0].get(key) != agents[1].get(key):
            differences.append(DifferenceResult(f"agent.{key}", agents[0].get(key), agents[1].get(key)))
    for name in sorted({*desired.vgpus, *current.vgpus}):
        entries = (desired.vgpus.get(name), current.vgpus.get(name))
        if entries[0] != entries[1]:
            differences.append(DifferenceResult(f"vgpus.{name}", _vgpu_value(entries[0]), _vgpu_value(entries[1])))
    return tuple(differences)


def missing_device(name: str, entry: VgpuSpec) -> DifferenceResult:
    """Return the difference for a vGPU in host.yaml whose device is missing."""
    return DifferenceResult(f"vgpus.{name}", _vgpu_value(entry), None)


def _vgpu_value(entry: VgpuSpec | None) -> Mapping[str, object] | None:
    return None if entry is None else {key: value for key, value in as_dict(entry).items() if value}


def refuse_lost_vgpus(desired: HostSpec, current: HostSpec, source: str) -> None:
    """Refuse a host.yaml that drops or changes a vGPU without a VM: nothing would manage its device.

    Raises:
        Refused: naming them.
    """
    lost = sorted(name for name, entry in current.vgpus.items() if desired.vgpus.get(name) != entry)
    if lost:
        raise Refused(
            f"{source} lacks or changes the vGPU {', '.join(lost)} of host.yaml",
            hint=f"vgpuctl delete-vgpu {lost[0]} removes it; vgpuctl export prints the current entries",
            vgpus=lost,
        )


def merged_gpu_spec(gpu: Gpu, configured: GpuSpec) -> GpuSpec:
    """Return a GPU's state once its configuration is applied: configured values, else the current ones."""
    current = current_gpu_spec(gpu)
    values: dict[str, object] = {
        "mode": configured.mode or current.mode,
        "vfs": configured.vfs if configured.mode else current.vfs,
    }
    if configured.mode == current.mode and configured.vfs is None:
        values["vfs"] = current.vfs
    if values["mode"] == GpuMode.VGPU:
        values["mig"] = current.mig if configured.mig is None else configured.mig
        values["mixed_size"] = (current.mixed_size if configured.mixed_size is None else configured.mixed_size) or None
    if values["mode"] == GpuMode.SRIOV and values["vfs"] == current.vfs:
        values |= {key: getattr(configured, key) or getattr(current, key) for key in _MODE_KEYS}
    keeps_scheduler = values["mode"] == GpuMode.UNMANAGED or has_scheduler(gpu, configured.mode or current.mode)
    scheduler = configured.scheduler or (current.scheduler if keeps_scheduler else None)
    return replace(configured, **values, cordoned=configured.cordoned or None, scheduler=scheduler)


def gpu_settings(spec: GpuSpec) -> HostGpuResult:
    """Return a GPU's configuration as a result; None for an unset key."""
    return HostGpuResult(
        mode=spec.mode,
        vfs=spec.vfs or None,
        cordoned=spec.cordoned,
        scheduler=None if spec.scheduler is None else dump_scheduler(spec.scheduler),
        profiles=spec.profiles or None,
        reserved_for=spec.reserved_for or None,
        mig=None if spec.mig is None else dict(spec.mig.vgpus) or spec.mig.instances or "off",
        mixed_size=spec.mixed_size,
        compute_partition=spec.compute_partition,
        memory_partition=spec.memory_partition,
        reason=spec.reason,
        vf_memory=spec.vf_memory,
    )


_SECTIONS = ("defaults", "placement", "boot")


def describe_removed(removed: RemovedResult) -> str:
    """Return one line for people."""
    keys = ", ".join(f"{key} {format_one_line(value)}" for key, value in removed.keys.items())
    return f"{removed.entry}: {keys or 'empty'}"


def find_removed_entries(desired: HostSpec, current: HostSpec, gpus: tuple[Gpu, ...]) -> tuple[RemovedResult, ...]:
    """Return what `current` has and `desired` lacks, section by section. `gpus`: those of the host."""
    removed = [
        RemovedResult(f"gpus.{name}", _removed_gpu_keys(name, entry, desired, current, gpus))
        for name, entry in current.gpus.items()
    ]
    for name, vgpu in current.vgpus.items():
        removed.append(
            RemovedResult(f"vgpus.{name}", _removed_keys(_vgpu_values(vgpu), _vgpu_values(desired.vgpus.get(name))))
        )
    for section in _SECTIONS:
        removed.append(
            RemovedResult(
                section,
                _removed_keys(_section_values(getattr(current, section)), _section_values(getattr(desired, section))),
            )
        )
    removed.append(RemovedResult("agent", _removed_keys(flat_agent(current.agent), flat_agent(desired.agent))))
    return tuple(removed_entry for removed_entry in removed if removed_entry.keys)


def _removed_gpu_keys(
    name: str, entry: GpuSpec, desired: HostSpec, current: HostSpec, gpus: tuple[Gpu, ...]
) -> dict[str, object]:
    matching = [gpu for gpu in gpus if entry_matches(name, gpu)]
    spec_pairs = [(merge_gpu_entries(current.gpus, gpu), merge_gpu_entries(desired.gpus, gpu)) for gpu in matching]
    unchanged_keys = {
        key
        for key in GPU_SPEC_KEYS
        if spec_pairs
        and all(_key_value(old_spec, key) == _key_value(new_spec, key) for old_spec, new_spec in spec_pairs)
    }
    removed = _removed_keys(_gpu_values(entry), _gpu_values(desired.gpus.get(name)))
    return {key: value for key, value in removed.items() if key not in unchanged_keys}


def _gpu_values(entry: GpuSpec | None) -> dict[str, object]:
    return {key: dump_value(value) for key in GPU_SPEC_KEYS if (value := getattr(entry, key, None)) is not None}


def _key_value(spec: GpuSpec, key: str) -> object:
    return dump_value(getattr(spec, key)) or None


def _vgpu_values(entry: VgpuSpec | None) -> dict[str, object]:
    return {} if entry is None else {key: value for key, value in as_dict(entry).items() if value}


def _section_values(section: Value) -> dict[str, object]:
    default_values = as_dict(type(section)())
    return {key: value for key, value in as_dict(section).items() if value != default_values[key]}


def _removed_keys(old: Mapping[str, object], new: Mapping[str, object]) -> dict[str, object]:
    """Return the keys that the new mapping lacks, with their values, and what remaining values lose."""
    removed = {key: _removed_part(value, new[key]) if key in new else value for key, value in old.items()}
    return {key: value for key, value in removed.items() if value is not None}


def _removed_part(old: object, new: object) -> object:
    """Return the keys of a mapping, or the elements of a list, that the new one lacks; None if there are none."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _removed_keys(old, new) or None
    if isinstance(old, list) and isinstance(new, list):
        return list((Counter(old) - Counter(new)).elements()) or None
    return None
