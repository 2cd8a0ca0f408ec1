# SPDX-License-Identifier: Apache-2.0
"""GPUs as results."""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.gpu.room import divide
from vgpuctl.model.gpu import MODES_WITHOUT_VFS, Gpu, VgpuType
from vgpuctl.model.results.gpus import (
    FunctionResult,
    GpuDetailsResult,
    GpuInstanceResult,
    GpuResult,
    MigResult,
    TypeResult,
    VfsResult,
)
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.operations.plans.schedulers import SchedulerDetails, scheduler_summary
from vgpuctl.operations.plans.vgpu_results import vgpu_results
from vgpuctl.placement.vm_placement import list_rooms, sum_free, sum_guaranteed
from vgpuctl.value import extend


def gpu_result(snapshot: Snapshot, gpu: Gpu) -> GpuResult:
    """Return one GPU's result for list-gpus."""
    taken = snapshot.vgpus_on(gpu.address)
    problems = [
        *filter(None, (gpu.lost_text,)),
        *gpu.problems,
        *(f"{f.address}: {f.problem}" for f in gpu.functions if f.problem),
    ]
    problems += [
        f"process {s.process.pid} waits in the kernel writing {s.path}"
        for s in snapshot.stuck_writes
        if s.gpu == gpu.address
    ]
    vf_addresses = {f.address for f in gpu.functions} if gpu.vfs_enabled else set()
    return GpuResult(
        address=gpu.address,
        model=gpu.model,
        backend=gpu.backend,
        mode=gpu.mode,
        driver=gpu.driver,
        framebuffer_mib=gpu.framebuffer_mib,
        numa_node=gpu.numa_node,
        iommu_group=gpu.iommu_group,
        pcie_switch=gpu.pcie_switch,
        vfs=VfsResult(gpu.vfs_total, gpu.vfs_enabled, used=len({v.function for v in taken} & vf_addresses)),
        vgpus=vgpu_results(taken),
        problems=tuple(problems),
        desired_mode=gpu.desired_mode,
        cordoned=gpu.cordoned,
        allowed_profiles=gpu.allowed_profiles,
        reserved_for=gpu.reserved_for,
        mixed_size=gpu.mixed_size,
        scheduler=scheduler_summary(gpu),
    )


def gpu_warnings(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """Return what people must know about these GPUs."""
    return tuple(
        f"{g.address} ({g.model}): its VFs are off, 0 of {g.vfs_total} enabled; it offers profiles only when they "
        "are on"
        for g in gpus
        if g.backend is None and g.vfs_total and not g.vfs_enabled and g.desired_mode not in MODES_WITHOUT_VFS
    )


def gpu_details(snapshot: Snapshot, gpu: Gpu, scheduler: SchedulerDetails) -> GpuDetailsResult:
    """Return one GPU's result for show-gpu: with its types, functions, group and scheduler."""
    functions = (FunctionResult(f.address, f.driver, f.iommu_group, f.problem) for f in gpu.functions)
    return extend(
        GpuDetailsResult,
        gpu_result(snapshot, gpu),
        console=gpu.console_reasons,
        group_members=gpu.group_members,
        functions=tuple(functions),
        types=tuple(_type_result(snapshot, gpu, known) for known in gpu.types),
        mig=_mig_result(gpu),
        scheduler_limits=scheduler.limits,
        scheduler_at_load=scheduler.at_load,
        scheduler_next=scheduler.at_next_load,
        shares=scheduler.shares,
    )


def _type_result(snapshot: Snapshot, gpu: Gpu, known: VgpuType) -> TypeResult:
    rooms = list_rooms(snapshot, (gpu,), {gpu.address: known})
    return TypeResult(
        profile=known.profile,
        name=known.name,
        type_id=known.type_id,
        framebuffer_mib=known.framebuffer_mib,
        max_per_gpu=divide(gpu, ()).max_when_empty(known),
        free=sum_free(rooms),
        free_at_least=sum_guaranteed(rooms),
        gpu_instance_profile=None if known.gi_profile_id is None else _gi_profile_name(gpu, known.gi_profile_id),
    )


def _gi_profile_name(gpu: Gpu, profile_id: int) -> str:
    """Return the name of a GPU instance profile, or its number where the GPU does not name it."""
    profile = gpu.mig.find_profile(profile_id) if gpu.mig is not None else None
    return profile.name if profile is not None else str(profile_id)


def _mig_result(gpu: Gpu) -> MigResult | None:
    if gpu.mig is None:
        return None
    instances = (
        GpuInstanceResult(i.gi_id, _gi_profile_name(gpu, i.profile_id), i.placement.start, i.placement.size)
        for i in gpu.mig.instances
    )
    return MigResult(gpu.mig.enabled, gpu.mig.pending_enabled, tuple(instances))
