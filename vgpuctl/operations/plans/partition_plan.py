# SPDX-License-Identifier: Apache-2.0
"""Plan MIG and mixed sizes of a GPU: what prevents them, what changes, and the only order that works.

The order: remove vGPUs; VFs off; MIG mode; VFs on, which removes GPU instances and mixed sizes; GPU instances, the
larger first, or mixed sizes; the scheduler; vGPUs. While MIG mode and VFs stay as they are, instances are created and
destroyed while VMs run in others.

Size: one plan in one order; its parts are read together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vgpuctl.errors import HostCannot, InUse, InvalidInput, VgpuctlError
from vgpuctl.gpu.mixed_size import pack_vgpus
from vgpuctl.gpu_setup import vf_steps
from vgpuctl.gpu_setup.instance_plan import InstancePlan, PlannedInstance, find_gi_profiles, plan_instances
from vgpuctl.gpu_setup.partition_steps import CreateGpuInstance, DestroyGpuInstance, SetMig, SetMixedSize
from vgpuctl.gpu_setup.set_scheduler import SetInstanceSchedulers, set_scheduler_step
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import GiProfile, Gpu, GpuMode, MigSpec, MigState, Vgpu, VgpuType
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.operations.plans.evict import Eviction, EvictionReason, plan_eviction
from vgpuctl.operations.plans.layout import make_way_hint
from vgpuctl.operations.plans.schedulers import needs_scheduler_change
from vgpuctl.ports.step import Step
from vgpuctl.scheduler.limits import spec_from_state
from vgpuctl.value import Value, replace

NVML_ARCH_AMPERE = 7
"""NVML's number of the architecture on which a change of MIG mode may need a GPU reset."""


class PartitionRequest(Value):
    """The requested partitioning of a GPU; None keeps it. `mig` names the instances, also for a request by vGPUs."""

    mig: MigSpec | None = None
    mixed_size: bool | None = None


class PartitionChange(Value):
    """What changes. `mig_mode`: MIG goes on or off, None for no change; `recreates_vfs`: the VFs are new afterwards."""

    mig_mode: bool | None = None
    mig_enabled: bool = False
    """Whether MIG is on afterwards."""
    recreates_vfs: bool = False
    instances: InstancePlan = InstancePlan()
    mixed_size: bool | None = None
    needs_empty_gpu: bool = False
    """Whether the GPU must have no vGPU during the change."""


def build_partition_request(
    gpu: Gpu, mode: str | None, mig: MigSpec | None, mixed_size: bool | None
) -> PartitionRequest:
    """Return the partitioning to request in a mode: only vgpu can have MIG and mixed sizes, passthrough has neither.

    `mode` None: they go off, on a GPU whose VFs are off and stay off.
    """
    if mode in (None, GpuMode.VGPU):
        return PartitionRequest(mig, mixed_size)
    if mode == GpuMode.PASSTHROUGH and gpu.mig is not None and gpu.mig.enabled:
        return PartitionRequest(MigSpec())
    return PartitionRequest()


def refuse_missing_mode(address: str, mode: str | None, mig: MigSpec | None, mixed_size: bool | None) -> None:
    """Refuse MIG or mixed sizes for a GPU without a configured mode.

    Raises:
        InvalidInput: they require the mode vgpu.
    """
    key = "mig" if mig is not None else "mixed_size" if mixed_size is not None else None
    if mode is None and key is not None:
        raise InvalidInput(
            f"{address} has {key} but no mode, which it requires",
            hint="add mode: vgpu in any entry of gpus: for this GPU",
            gpu=address,
        )


def unverifiable_off_reason(snapshot: Snapshot, gpu: Gpu, request: PartitionRequest) -> str | None:
    """Say that nobody can verify what is requested to be off; None if it can be seen, or more is requested.

    A boot turns neither on: mixed sizes are off afterwards, and MIG is as the driver saved it.
    """
    requested_off = [
        name for name, off in (("MIG", request.mig == MigSpec()), ("mixed sizes", request.mixed_size is False)) if off
    ]
    on = (request.mig is not None and request.mig.is_requested) or request.mixed_size
    if on or not requested_off or not _is_partition_unknown(snapshot, gpu):
        return None
    what = f"{' and '.join(requested_off)} of {gpu.address} should be off"
    return f"{what}, but NVML does not report the current state: {snapshot.nvml.reason}"


def _is_partition_unknown(snapshot: Snapshot, gpu: Gpu) -> bool:
    """Say whether MIG and mixed sizes of a GPU may be on but cannot be read."""
    return uses_nvml(gpu) and gpu.mig is None and gpu.mixed_size is None and not snapshot.nvml.available


def apply_request(gpu: Gpu, request: PartitionRequest) -> Gpu:
    """Return the GPU with the requested MIG and mixed sizes, for checks that depend on them."""
    mig = gpu.mig
    if mig is not None and request.mig is not None:
        mig = replace(mig, enabled=request.mig.is_requested, pending_enabled=request.mig.is_requested)
    return replace(gpu, mig=mig, mixed_size=gpu.mixed_size if request.mixed_size is None else request.mixed_size)


def compute_partition_change(
    snapshot: Snapshot, gpu: Gpu, vf_count: int, request: PartitionRequest, types: tuple[VgpuType, ...]
) -> PartitionChange:
    """Return what changes on a GPU that will have `vf_count` VFs. `types`: all that its driver knows.

    Raises:
        HostCannot: it has no MIG or mixed sizes, or not together with the rest of the request.
        InvalidInput, NoCapacity: it has no such instance, or they do not fit on it together.
        InUse: a VM keeps a vGPU that would have no slot.
    """
    _refuse_unsupported(snapshot, gpu, request)
    mig = gpu.mig
    if mig is None:
        recreates_vfs = vf_count != gpu.vfs_enabled
        return _with_mixed_size(snapshot, gpu, PartitionChange(recreates_vfs=recreates_vfs), request, types)
    mig_enabled = mig.enabled if request.mig is None else request.mig.is_requested
    mig_mode = (
        mig_enabled
        if request.mig is not None and (mig.enabled is not mig_enabled or mig.pending_enabled is not mig_enabled)
        else None
    )
    recreates_vfs = vf_count != gpu.vfs_enabled or (mig_mode is not None and gpu.vfs_enabled > 0)
    requested_profiles = (
        find_gi_profiles(mig, request.mig.instances, gpu.address) if request.mig is not None and mig_enabled else None
    )
    _refuse_partition_conflicts(snapshot, gpu, mig_mode, requested_profiles, types)
    instances = InstancePlan()
    occupied = _occupied_instances(snapshot, gpu, mig, types)
    if requested_profiles is not None:
        current_mig = replace(mig, instances=()) if recreates_vfs or mig_mode is not None else mig
        instances = plan_instances(current_mig, requested_profiles, occupied, gpu.address)
    elif mig_enabled and recreates_vfs and vf_count:
        instances = InstancePlan(create=_existing_instances(mig))  # new VFs remove them: keep MIG as it is
    elif mig_mode is False and not gpu.vfs_enabled:
        instances = InstancePlan(destroy=mig.instances)  # if VFs are on, turning them off removes the instances
    needs_empty_gpu = any(i.gi_id in occupied for i in instances.destroy)
    change = PartitionChange(mig_mode, mig_enabled, recreates_vfs, instances, None, needs_empty_gpu)
    return _with_mixed_size(snapshot, gpu, change, request, types)


def _with_mixed_size(
    snapshot: Snapshot, gpu: Gpu, change: PartitionChange, request: PartitionRequest, types: tuple[VgpuType, ...]
) -> PartitionChange:
    """Add the change of mixed sizes: new VFs have none, and the driver changes them only on an empty GPU."""
    if request.mixed_size is None or request.mixed_size is (False if change.recreates_vfs else bool(gpu.mixed_size)):
        return change
    _refuse_mixed_size(snapshot, gpu, types, mixed=request.mixed_size)
    return replace(
        change, mixed_size=request.mixed_size, needs_empty_gpu=change.needs_empty_gpu or not change.recreates_vfs
    )


def vf_recreation_steps(
    gpu: Gpu,
    vf_count: int,
    change: PartitionChange,
    scheduler: SchedulerSpec | None,
    *,
    autoprobe: bool,
    kernel: str,
    vf_memory_mib: int | None = None,
) -> tuple[Step, ...]:
    """Return the steps that turn VFs off and on, set MIG mode in between, and restore settings of new VFs."""
    steps: list[Step] = []
    if change.mig_mode is None:
        restore_steps = restore_partition_steps(gpu)
        steps += vf_steps(gpu, vf_count, autoprobe=autoprobe, memory_mib=vf_memory_mib, restore_steps=restore_steps)
    else:
        mig_was_enabled = gpu.mig is not None and gpu.mig.enabled
        steps += vf_steps(gpu, 0, autoprobe=autoprobe, restore_steps=restore_partition_steps(gpu))
        steps += _destroy_steps(gpu, change.instances)
        steps.append(SetMig(gpu.address, change.mig_mode, mig_was_enabled, may_reset=is_reset_allowed(gpu, kernel)))
        steps += vf_steps(replace(gpu, vfs_enabled=0), vf_count, autoprobe=autoprobe)
    steps += _create_steps(gpu, change.instances.create)
    if change.mixed_size:
        steps.append(SetMixedSize(gpu.address, enable=True))
    if scheduler is not None and change.mig_enabled and change.instances.create:
        steps.append(SetInstanceSchedulers(gpu.address, scheduler))
    elif steps and scheduler is not None and not change.mig_enabled:
        without_state = None if gpu.scheduler is None else replace(gpu.scheduler, state=None)
        steps.append(set_scheduler_step(replace(gpu, mig=None, scheduler=without_state), scheduler))  # new VFs reset it
    return tuple(steps)


def plan_in_place_change(
    snapshot: Snapshot, gpu: Gpu, change: PartitionChange, scheduler: SchedulerSpec | None, *, drain: bool
) -> Eviction:
    """Return the change of a GPU whose VFs stay: while its VMs run if possible, else with all of them off.

    `scheduler`: set with the rest if no vGPU is on the GPU anyway.

    Raises:
        InUse: vGPUs must be removed temporarily, and may not (`drain`), or vgpuctl does not manage them.
    """
    instance_steps = [*_destroy_steps(gpu, change.instances), *_create_steps(gpu, change.instances.create)]
    mixed_size_steps: list[Step] = [] if change.mixed_size is None else [SetMixedSize(gpu.address, change.mixed_size)]
    running = gpu.scheduler.state if gpu.scheduler is not None else None
    if (
        change.mig_enabled
        and change.instances.create
        and scheduler is not None
        and (change.needs_empty_gpu or not needs_scheduler_change(gpu, scheduler))
    ):
        # existing instances already run it, or are empty during the change
        instance_steps.append(set_scheduler_step(gpu, scheduler))
    elif change.needs_empty_gpu and scheduler is not None and needs_scheduler_change(gpu, scheduler):
        scheduler_step = set_scheduler_step(gpu, scheduler)
        # mixed sizes do not allow fixed_share
        mixed_size_steps = (
            [scheduler_step, *mixed_size_steps] if change.mixed_size else [*mixed_size_steps, scheduler_step]
        )
    elif change.mixed_size and running is not None and running.policy is SchedulerPolicy.FIXED_SHARE:
        raise HostCannot(
            f"{gpu.address} has the scheduler fixed_share, but mixed sizes allow only best_effort and equal_share",
            hint=f"vgpuctl set-scheduler {gpu.address} --policy best_effort",
            check="scheduler",
            gpu=gpu.address,
        )
    steps = (*instance_steps, *mixed_size_steps)
    if not change.needs_empty_gpu:
        return Eviction(steps=steps)
    mixed_size_cause = "the driver changes mixed sizes only on a GPU without vGPUs"
    instances_cause = "GPU instances that they may use are destroyed"
    cause = instances_cause if change.mixed_size is None else mixed_size_cause
    return plan_eviction(snapshot, gpu, steps, EvictionReason(cause, None if drain else "--drain"), change.mixed_size)


def restore_partition_steps(gpu: Gpu) -> tuple[Step, ...]:
    """Return the steps that restore a GPU's partitioning after its VFs were recreated, when a change failed."""
    steps: list[Step] = []
    if gpu.mig is not None and gpu.mig.enabled:
        steps += _create_steps(gpu, _existing_instances(gpu.mig))
    if gpu.mixed_size:
        steps.append(SetMixedSize(gpu.address, enable=True))
    state = gpu.scheduler.state if gpu.scheduler is not None and gpu.scheduler.can_set else None
    spec = spec_from_state(state) if state is not None else None
    if (
        spec is not None
        and spec.policy is not SchedulerPolicy.BEST_EFFORT
        and not (gpu.mig is not None and gpu.mig.enabled)
    ):
        steps.append(set_scheduler_step(replace(gpu, mig=None), spec))
    return tuple(steps)


def is_reset_allowed(gpu: Gpu, kernel: str) -> bool:
    """Say whether vgpuctl may reset a GPU whose MIG mode needs that: Ampere, on kernels before 7.

    From Linux 7 on the bus reset wedges hosts with vendor-specific VFIO; later GPUs change MIG mode at once.
    """
    architecture = gpu.scheduler.architecture if gpu.scheduler is not None else None
    major = kernel.partition(".")[0]
    return architecture == NVML_ARCH_AMPERE and major.isdigit() and int(major) < 7


def _destroy_steps(gpu: Gpu, instances: InstancePlan) -> list[Step]:
    profiles = (
        (gpu.mig.find_profile(instance.profile_id) if gpu.mig is not None else None, instance)
        for instance in instances.destroy
    )
    unknown_name = "unknown"
    return [
        DestroyGpuInstance(
            gpu.address,
            profile or GiProfile(instance.profile_id, unknown_name, 0, 0, 0, (instance.placement,)),
            instance.placement,
        )
        for profile, instance in profiles
    ]


def _existing_instances(mig: MigState) -> tuple[PlannedInstance, ...]:
    """Return the GPU's instances as a plan that recreates them at their placements, the larger first."""
    existing = ((mig.find_profile(i.profile_id), i.placement) for i in mig.instances)
    planned = [PlannedInstance(profile, span) for profile, span in existing if profile is not None]
    return tuple(sorted(planned, key=lambda instance: (-instance.span.size, instance.span.start)))


def _create_steps(gpu: Gpu, instances: Iterable[PlannedInstance]) -> list[Step]:
    return [CreateGpuInstance(gpu.address, instance.profile, instance.span) for instance in instances]


def _refuse_unsupported(snapshot: Snapshot, gpu: Gpu, request: PartitionRequest) -> None:
    """Refuse what the GPU or the rest of the request does not allow; looks up only what is requested."""
    # a setting that cannot be read may be on, so the request is not dropped
    if _is_partition_unknown(snapshot, gpu) and request != PartitionRequest():
        raise _unavailable_error(snapshot, gpu, "MIG" if request.mig is not None else "mixed sizes", "vgpuctl doctor")
    if not ((request.mig is not None and request.mig.is_requested) or request.mixed_size):
        return
    facts = {"gpu": gpu.address}
    what = "MIG" if request.mig is not None and request.mig.is_requested else "mixed sizes"
    if request.mig is not None and request.mig.is_requested and request.mixed_size:
        raise InvalidInput(
            f"{gpu.address} cannot have MIG and mixed sizes at the same time{_per_instance_note(gpu)}",
            hint="keep only one of mig: and mixed_size: in the entries of gpus:; vgpuctl set-mig"
            f" {gpu.address} --off or vgpuctl set-mixed-size {gpu.address} off removes one",
            **facts,
        )
    if not uses_nvml(gpu):
        raise _host_cannot_error(
            f"{gpu.address} ({gpu.model}) has the driver {gpu.driver or 'none'}; only NVIDIA's supports {what}",
            f"vgpuctl set-mode {gpu.address} vgpu, if it is an NVIDIA GPU",
            "driver",
            facts,
        )
    if request.mig is not None and request.mig.is_requested and gpu.mig is None:
        raise _unavailable_error(snapshot, gpu, "MIG", "A100, A30, H100, H200, B200 and RTX PRO 6000 support it")
    if not request.mixed_size:
        return
    if gpu.mig is not None and gpu.mig.enabled and request.mig is None:
        raise _host_cannot_error(
            f"{gpu.address} has MIG on, which excludes mixed sizes{_per_instance_note(gpu)}",
            f"vgpuctl set-mig {gpu.address} --off",
            "mixed-size",
            facts,
        )
    is_reported = gpu.mig is None or not gpu.mig.enabled  # with MIG on, NVML does not report mixed-size support
    if gpu.mixed_size is None and gpu.vfs_enabled and is_reported:
        raise _unavailable_error(
            snapshot, gpu, "mixed sizes", "GPUs with virtual functions support them with driver 550 or newer"
        )
    if not gpu.vfs_total:
        raise _unavailable_error(snapshot, gpu, "mixed sizes", "they require a GPU with virtual functions")


def _per_instance_note(gpu: Gpu) -> str:
    """Describe the driver's alternative on GPUs with several vGPUs in each instance (GB20x), "" for others.

    The driver mixes sizes inside an instance, set for each instance (nvmlGpuInstanceSetVgpuHeterogeneousMode). vgpuctl
    counts and places one size in each instance.
    """
    if all((vgpu_type.max_per_gi or 1) == 1 for vgpu_type in gpu.types):
        return ""
    return ": its driver mixes sizes inside a GPU instance with a setting that vgpuctl does not change"


def _unavailable_error(snapshot: Snapshot, gpu: Gpu, what: str, hint: str) -> VgpuctlError:
    """Return the error for what NVML does not report of a GPU. Without NVML it may still appear, as after a boot."""
    if not snapshot.nvml.available and snapshot.nvml.reason is not None:
        reason = f"NVML, which sets it, does not answer: {snapshot.nvml.reason}"
        return _host_cannot_error(
            f"{what} of {gpu.address}: {reason}", "vgpuctl doctor", "driver", {"gpu": gpu.address}
        )
    return _host_cannot_error(
        f"{gpu.address} ({gpu.model}) does not support {what} here", hint, "partition", {"gpu": gpu.address}
    )


def _host_cannot_error(message: str, hint: str, check: str, facts: dict[str, str]) -> HostCannot:
    return HostCannot(message, hint=hint, check=check, **facts)


def _type_of(vgpu: Vgpu, types: tuple[VgpuType, ...]) -> VgpuType | None:
    return next((t for t in types if vgpu.profile == t.profile), None)


def _occupied_instances(snapshot: Snapshot, gpu: Gpu, mig: MigState, types: tuple[VgpuType, ...]) -> frozenset[int]:
    """Return the instances that a vGPU may be in: the one its VF names, else every one of its profile."""
    occupied: set[int] = set()
    for vgpu in snapshot.vgpus_on(gpu.address):
        function = gpu.find_function(vgpu.function)
        vgpu_type = _type_of(vgpu, types)
        if not vgpu.present:
            continue
        if function is not None and function.gi_id is not None:
            occupied.add(function.gi_id)
        else:
            occupied |= {
                instance.gi_id
                for instance in mig.instances
                if vgpu_type is None or instance.profile_id == vgpu_type.gi_profile_id
            }
    return frozenset(occupied)


def _refuse_partition_conflicts(
    snapshot: Snapshot,
    gpu: Gpu,
    mig_mode: bool | None,
    requested: tuple[GiProfile, ...] | None,
    types: tuple[VgpuType, ...],
) -> None:
    """Refuse a partition in which an assigned or existing vGPU has no slot.

    Raises:
        InUse: naming the VMs and their profiles.
    """
    taken = [v for v in snapshot.vgpus_on(gpu.address) if v.profile is not None or v.present]
    if mig_mode is not None:
        mig_backed = [
            (v, (vgpu_type := _type_of(v, types)) is not None and vgpu_type.gi_profile_id is not None) for v in taken
        ]
        conflicting = [v for v, is_mig_backed in mig_backed if v.present or is_mig_backed is not mig_mode]
        if conflicting:
            why = (
                f"and with MIG {'on' if mig_mode else 'off'} it has no "
                f"{'time-sliced' if mig_mode else 'MIG-backed'} vGPUs"
            )
            raise _assigned_error(snapshot, gpu, conflicting, why)
    if requested is None:
        return
    available = Counter(p.profile_id for p in requested)
    for profile_id, needed in _instances_needed(taken, types).items():
        if needed > available[profile_id]:
            affected = [v for v in taken if (t := _type_of(v, types)) is not None and t.gi_profile_id == profile_id]
            profile = gpu.mig.find_profile(profile_id) if gpu.mig is not None else None
            name = profile.name if profile is not None else str(profile_id)
            why = f"which needs {needed} of the GPU instance {name}, but there would be {available[profile_id]}"
            raise _assigned_error(snapshot, gpu, affected, why)


def _instances_needed(taken: list[Vgpu], types: tuple[VgpuType, ...]) -> Counter[int]:
    """Return how many instances of each profile the vGPUs need; a shared instance has one vGPU size (GB20x)."""
    vgpu_types = [vgpu_type for v in taken if (vgpu_type := _type_of(v, types)) is not None]
    vgpu_counts = Counter(
        (t.gi_profile_id, t.framebuffer_mib, t.max_per_gi or 1) for t in vgpu_types if t.gi_profile_id is not None
    )
    needed: Counter[int] = Counter()
    for (profile_id, _, max_per_instance), count in vgpu_counts.items():
        if profile_id is not None:
            needed[profile_id] += -(-count // max_per_instance)
    return needed


def _refuse_mixed_size(snapshot: Snapshot, gpu: Gpu, types: tuple[VgpuType, ...], *, mixed: bool) -> None:
    """Refuse to change mixed sizes if not all assigned vGPUs would have a slot afterwards.

    Raises:
        InUse: naming the VMs and their profiles.
    """
    taken = [v for v in snapshot.vgpus_on(gpu.address) if v.profile is not None]
    vgpu_types = [vgpu_type for v in taken if (vgpu_type := _type_of(v, types)) is not None]
    if not mixed and len({t.framebuffer_mib for t in vgpu_types}) > 1:
        raise _assigned_error(snapshot, gpu, taken, "which have several sizes")
    # vGPUs with unreported placements are tried, and undone on failure
    placed = [t for t in vgpu_types if t.placement_ids is not None]
    if mixed and placed and pack_vgpus(replace(gpu, types=types), (), placed) is None:
        raise _assigned_error(snapshot, gpu, taken, "and fewer fit with mixed sizes: not all would have a place")


def _assigned_error(snapshot: Snapshot, gpu: Gpu, vgpus: list[Vgpu], why: str) -> InUse:
    names = sorted({v.holder_text for v in vgpus})
    profiles = sorted({v.profile for v in vgpus if v.profile is not None})
    return InUse(
        f"{gpu.address} has {', '.join(profiles) or 'vGPUs'} of {', '.join(names)}, {why}",
        hint=make_way_hint(snapshot, gpu, vgpus),
        gpu=gpu.address,
        vms=names,
        profiles=profiles,
    )
