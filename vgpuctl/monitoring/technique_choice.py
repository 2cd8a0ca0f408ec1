# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a host can do which technique, what the others lack, and the commands that set it up.

It says what a GPU can be set up for, and what has to go first; whether a vGPU fits now is for `create-vm`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

from vgpuctl.backends import backend_for
from vgpuctl.config.arguments import RENDERING_MODE
from vgpuctl.makers import disable_vfs_hint, maker_of, sets_vfs_at_load, uses_nvml, vfs_are_for_vgpus
from vgpuctl.model.gpu import Gpu, GpuMode, VgpuType
from vgpuctl.model.names import parse_profile_name
from vgpuctl.model.numbers import count_text
from vgpuctl.model.results.techniques import (
    IsolationResult,
    TechniqueGpuResult,
    TechniqueResult,
    WorkloadAdviceResult,
)
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.monitoring.techniques import (
    BEST_EFFORT,
    EQUAL_SHARE,
    FITS,
    FIXED_SHARE,
    MIG_BACKED,
    MIG_SHARED,
    OTHER_MAKER,
    PLAIN_VFS,
    TECHNIQUES,
    WHOLE_GPU,
    WORKLOADS,
    Need,
    Technique,
    Workload,
)
from vgpuctl.placement.vm_placement import list_rooms

_OF_POLICY = {
    SchedulerPolicy.BEST_EFFORT: BEST_EFFORT,
    SchedulerPolicy.EQUAL_SHARE: EQUAL_SHARE,
    SchedulerPolicy.FIXED_SHARE: FIXED_SHARE,
}
_OF_MODE = {GpuMode.MIG_VGPU: MIG_BACKED, GpuMode.SRIOV: PLAIN_VFS, GpuMode.PASSTHROUGH: WHOLE_GPU}


def advise(snapshot: Snapshot, name: str) -> WorkloadAdviceResult:
    """Return the techniques for a workload, best first, with the GPUs of a snapshot that was read with types."""
    workload = WORKLOADS[name]
    gpus = [gpu for gpu in snapshot.gpus if gpu.is_display_class]
    ranked = [(TECHNIQUES[row.technique], row) for row in FITS[name]]
    return WorkloadAdviceResult(
        workload=name,
        title=workload.title,
        framebuffer_mib=workload.memory_mib,
        techniques=tuple(
            TechniqueResult(
                rank=rank,
                technique=technique.name,
                title=technique.title,
                fit=row.fit,
                reason=row.reason,
                isolation=technique.isolation,
                limits=technique.limits,
                sources=technique.sources,
                gpus=tuple(_on_gpu(snapshot, technique, workload, gpu) for gpu in gpus),
            )
            for rank, (technique, row) in enumerate(ranked, 1)
        ),
    )


def find_technique(gpu: Gpu) -> Technique | None:
    """Return how a GPU is shared now, or would be in its mode; None if it is for nothing, or its scheduler is unknown.

    Mixed sizes isolate as their scheduler does. MIG counts as shared where its instances may carry several
    vGPUs.
    """
    name = _OF_MODE.get(gpu.mode)
    if name == MIG_BACKED and any((t.max_per_gi or 1) > 1 for t in gpu.types if t.gi_profile_id in _instances(gpu)):
        name = MIG_SHARED
    if gpu.mode is GpuMode.VGPU:
        state = gpu.scheduler.state if gpu.scheduler is not None else None
        name = _OF_POLICY[state.policy] if state is not None and state.policy is not None else None
        name = name if maker_of(gpu).has_nvml else OTHER_MAKER
    return TECHNIQUES[name] if name is not None else None


def _instances(gpu: Gpu) -> frozenset[int]:
    """Return the profiles of a GPU's instances."""
    return frozenset(instance.profile_id for instance in gpu.mig.instances) if gpu.mig is not None else frozenset()


def find_isolation(gpu: Gpu) -> IsolationResult | None:
    """Return what is kept apart on a GPU as it is set up; None if that is unknown or it is set up for nothing."""
    technique = find_technique(gpu)
    return technique.isolation if technique is not None else None


def _on_gpu(snapshot: Snapshot, technique: Technique, workload: Workload, gpu: Gpu) -> TechniqueGpuResult:
    lacks = tuple(text for need in technique.needs if (text := _LACKS[need](gpu, technique)))
    lacks = lacks or _lacks_profiles(gpu, technique, workload)
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    if not lacks:
        set_up, profile, create = _commands(snapshot, technique, workload, gpu)
        commands, notes = (*set_up, create), _notes(snapshot, gpu, None if set_up else profile, changes=bool(set_up))
    return TechniqueGpuResult(gpu.address, gpu.model, lacks, notes, commands)


def _lacks_profiles(gpu: Gpu, technique: Technique, workload: Workload) -> tuple[str, ...]:
    """Return why none of a GPU's profiles is for a workload; a GPU whose VFs are off shows none yet."""
    types = _types_for(gpu, technique)
    if not gpu.types or types is None or any(_series(t) in (None, *workload.series) for t in types):
        return ()
    return (f"none of its profiles is of series {' or '.join(workload.series)}",)


def _types_for(gpu: Gpu, technique: Technique) -> list[VgpuType] | None:
    """Return the types that a technique can use; None if it gives VMs something else than vGPUs."""
    given = {Need.PLAIN_VFS, Need.WHOLE_GPU, Need.RENDER_NODE}
    if given.intersection(technique.needs) or _lacks_vgpus(gpu, technique):
        return None
    if Need.MIG not in technique.needs:
        return [t for t in gpu.types if t.gi_profile_id is None]
    shared = Need.SHARED_GPU_INSTANCE in technique.needs
    return [t for t in gpu.types if t.gi_profile_id is not None and ((t.max_per_gi or 1) > 1) is shared]


def _notes(snapshot: Snapshot, gpu: Gpu, profile: VgpuType | None, *, changes: bool) -> tuple[str, ...]:
    """Return what prevents the commands from working as they are. `profile`: of the vGPU, on the GPU as it is now."""
    notes: list[str] = []
    vgpus = snapshot.vgpus_on(gpu.address)
    if vgpus and changes:
        names = ", ".join(dict.fromkeys(vgpu.holder_text for vgpu in vgpus))
        notes.append(f"{count_text(len(vgpus), 'vGPU')} on it must go first: {names}")
    if profile is not None and list_rooms(snapshot, (gpu,), {gpu.address: profile})[0][1].free == 0:
        notes.append(f"no room for {profile.profile} now: vgpuctl explain {shlex.quote(profile.profile)}")
    if gpu.cordoned:
        notes.append(f"it is cordoned: vgpuctl uncordon {gpu.address}")
    if gpu.reserved_for:
        notes.append(f"host.yaml reserves it for VMs named {' or '.join(gpu.reserved_for)}")
    return (*notes, *(f"the host's console may be on it: {reason}" for reason in gpu.console_reasons))


def _lacks_vgpus(gpu: Gpu, technique: Technique) -> str:
    has_driver = backend_for(gpu.backend).creates_devices or (bool(gpu.vfs_total) and vfs_are_for_vgpus(gpu))
    return "" if has_driver else f"its driver makes no vGPUs ({gpu.driver or 'none'})"


def _lacks_scheduler(gpu: Gpu, technique: Technique) -> str:
    if not uses_nvml(gpu):
        return "its driver has no scheduler that NVML can set"
    limits = gpu.scheduler.limits if gpu.scheduler is not None else None
    if limits is None or technique.policy is None:
        return "NVML does not report its schedulers"
    return "" if technique.policy in limits.policies else f"its driver has no {technique.policy}"


def _lacks_other_maker(gpu: Gpu, technique: Technique) -> str:
    return "NVIDIA's vGPUs have techniques of their own" if maker_of(gpu).has_nvml else ""


def _lacks_mixed_size(gpu: Gpu, technique: Technique) -> str:
    return "" if gpu.mixed_size is not None else "it has no mixed sizes, or NVML does not report them"


def _lacks_mig(gpu: Gpu, technique: Technique) -> str:
    return "" if gpu.mig is not None else "it has no MIG, or NVML does not report it"


def _lacks_shared_instance(gpu: Gpu, technique: Technique) -> str:
    shared = any((vgpu_type.max_per_gi or 1) > 1 for vgpu_type in gpu.types)
    return "" if shared else "no profile of it is known to share a GPU instance"


def _lacks_plain_vfs(gpu: Gpu, technique: Technique) -> str:
    return "it has no plain VFs" if not gpu.vfs_total or vfs_are_for_vgpus(gpu) else ""


def _lacks_way_out(gpu: Gpu, technique: Technique) -> str:
    """Return why a VM cannot be given the whole GPU."""
    if gpu.iommu_group is None:
        return "it has no IOMMU group"
    keeps_vfs = sets_vfs_at_load(gpu) and gpu.vfs_enabled
    return f"its VFs stay on: {disable_vfs_hint(gpu)}" if keeps_vfs else ""


def _lacks_nvidia_guest(gpu: Gpu, technique: Technique) -> str:
    return "" if maker_of(gpu).has_nvml else "only for NVIDIA's GPUs"


def _lacks_render_node(gpu: Gpu, technique: Technique) -> str:
    return "" if gpu.render_node is not None else f"its driver ({gpu.driver or 'none'}) has no render node"


_LACKS: Mapping[Need, Callable[[Gpu, Technique], str]] = {
    Need.VGPU: _lacks_vgpus,
    Need.OTHER_MAKER: _lacks_other_maker,
    Need.SCHEDULER: _lacks_scheduler,
    Need.MIXED_SIZE: _lacks_mixed_size,
    Need.MIG: _lacks_mig,
    Need.SHARED_GPU_INSTANCE: _lacks_shared_instance,
    Need.PLAIN_VFS: _lacks_plain_vfs,
    Need.WHOLE_GPU: _lacks_way_out,
    Need.NVIDIA_GUEST: _lacks_nvidia_guest,
    Need.RENDER_NODE: _lacks_render_node,
}
"""For each need, the function that says what a GPU lacks; "" for nothing."""


def _commands(
    snapshot: Snapshot, technique: Technique, workload: Workload, gpu: Gpu
) -> tuple[tuple[str, ...], VgpuType | None, str]:
    """Return the commands that set a GPU up, the type of the vGPU if it is known, and the command that creates a VM."""
    if Need.RENDER_NODE in technique.needs:
        return (), None, _create(snapshot, workload, gpu, f"--mode {RENDERING_MODE}")
    types = _types_for(gpu, technique)
    if types is None:
        mode = GpuMode.SRIOV if Need.PLAIN_VFS in technique.needs else GpuMode.PASSTHROUGH
        return _mode_command(gpu, mode), None, _create(snapshot, workload, gpu, f"--mode {mode}")
    set_up = _mode_command(gpu, GpuMode.VGPU)
    if Need.MIG in technique.needs:
        profile = _choose_type([t for t in types if t.gi_profile_id in _instances(gpu)], workload, gpu)
        if profile is None:
            profile = _choose_type(types, workload, gpu)
            set_up += () if profile is None else (_divide_command(gpu, profile),)
    else:
        profile = _choose_type(types, workload, gpu)
        set_up += _sharing_commands(technique, gpu)
    if profile is None:
        return set_up, None, f"vgpuctl list-profiles --gpu {gpu.address}"
    return set_up, profile, _create(snapshot, workload, gpu, f"--profile {shlex.quote(profile.profile)}")


def _divide_command(gpu: Gpu, profile: VgpuType) -> str:
    return f"vgpuctl set-mig {gpu.address} --for {shlex.quote(profile.profile)}:{profile.max_per_gpu or 1}"


def _sharing_commands(technique: Technique, gpu: Gpu) -> tuple[str, ...]:
    """Return the commands that change MIG, mixed sizes and scheduler of a GPU to those of a time-sliced technique."""
    commands = [f"vgpuctl set-mig {gpu.address} --off"] if gpu.mig is not None and gpu.mig.enabled else []
    mixed = Need.MIXED_SIZE in technique.needs
    state = gpu.scheduler.state if gpu.scheduler is not None else None
    policy = technique.policy
    if mixed and state is not None and state.policy is SchedulerPolicy.FIXED_SHARE:
        policy = SchedulerPolicy.EQUAL_SHARE
    if gpu.mixed_size and policy is SchedulerPolicy.FIXED_SHARE:
        commands.append(f"vgpuctl set-mixed-size {gpu.address} off")
    if policy is not None and (state is None or state.policy is not policy):
        commands.append(f"vgpuctl set-scheduler {gpu.address} --policy {policy}")
    if mixed and not gpu.mixed_size:
        commands.append(f"vgpuctl set-mixed-size {gpu.address} on")
    return tuple(commands)


def _mode_command(gpu: Gpu, mode: GpuMode) -> tuple[str, ...]:
    is_set = gpu.settable_mode is mode and gpu.desired_mode in (None, mode)
    return () if is_set else (f"vgpuctl set-mode {gpu.address} {mode}",)


def _choose_type(types: list[VgpuType], workload: Workload, gpu: Gpu) -> VgpuType | None:
    """Return the smallest type with the workload's memory, else the largest, of the preferred series; None of none."""
    allowed = [t for t in types if gpu.allowed_profiles is None or t.profile in gpu.allowed_profiles]
    allowed = [t for t in allowed if t.framebuffer_mib is not None]
    by_series = [[t for t in allowed if _series(t) == letter] for letter in workload.series]
    candidates = next((of_series for of_series in by_series if of_series), allowed)
    enough = [t for t in candidates if (t.framebuffer_mib or 0) >= workload.memory_mib]
    if enough:
        return min(enough, key=lambda t: (t.framebuffer_mib or 0, -(t.max_per_gpu or 0), t.profile))
    return max(candidates, key=lambda t: (t.framebuffer_mib or 0, t.profile), default=None)


def _series(vgpu_type: VgpuType) -> str | None:
    """Return NVIDIA's letter of a type; None for another maker's."""
    name = parse_profile_name(vgpu_type.profile)
    return name.series if name is not None else None


def _create(snapshot: Snapshot, workload: Workload, gpu: Gpu, options: str) -> str:
    names = (f"{workload.name}-{number}" for number in range(1, len(snapshot.vms) + 2))
    name = next(name for name in names if snapshot.vm(name) is None)
    return f"vgpuctl create-vm {name} {options} --gpu {gpu.address}"
