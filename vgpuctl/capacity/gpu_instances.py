# SPDX-License-Identifier: Apache-2.0
"""How many vGPUs a GPU with MIG takes: only vGPUs backed by a GPU instance (GI), each in a GI of its profile.

A GI takes one vGPU. On GPUs that also time-slice a GI (GB20x) it takes up to `max_per_gi`, all of one framebuffer size.
The driver takes the lowest GI that has room (kvgpumgrGetSwizzId in kernel_vgpu_mgr.c), even an empty one where another
GI has room next to vGPUs of the same size. So where a VF has `gpu_instance_id`, vgpuctl chooses the GI: first those
with vGPUs of the same size, the fullest first, then an empty one. The number of GIs left then does not depend on the
order in which vGPUs are created, and recorded vGPUs count exactly. The exception is a vGPU that libvirt's hook creates:
without NVML the driver chooses its GI. The rules of GPUs without MIG (one size, at most 32 vGPUs) do not apply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.capacity.remaining import Remaining, find_type, name_holders
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.model.mig import MigState
from vgpuctl.value import Value, replace


def why_wrong_mig_mode(gpu: Gpu, vgpu_type: VgpuType) -> str | None:
    """Return why a type cannot be created in the current MIG mode, and the command that changes that; None when it can.

    Where the driver does not report which types are backed by a GI, only its lists decide.
    """
    if gpu.mig is None or all(t.gi_profile_id is None for t in gpu.types):
        return None
    if gpu.mig.enabled and vgpu_type.gi_profile_id is None:
        return (
            f"MIG is on, and {vgpu_type.profile} is not for a GPU instance but for a GPU without MIG: "
            f"vgpuctl set-mig {gpu.address} --off"
        )
    if not gpu.mig.enabled and vgpu_type.gi_profile_id is not None:
        return (
            f"MIG is off, and {vgpu_type.profile} needs a GPU instance: "
            f"vgpuctl set-mig {gpu.address} --for {vgpu_type.profile}:1"
        )
    return None


def compute_remaining(gpu: Gpu, mig: MigState, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> Remaining:
    """Return how many more vGPUs of a type fit in the GPU's instances.

    A vGPU whose instance is neither known nor chosen, such as every mdev, counts as if it were in the instance where it
    costs most. Where an instance takes only one vGPU of its type, that is exact: the vGPU has one instance to itself.
    """
    if vgpu_type.gi_profile_id is None:
        return Remaining(None)
    instances = tuple(i.gi_id for i in mig.instances if i.profile_id == vgpu_type.gi_profile_id)
    if not instances:
        return Remaining(0, _no_instance_message(gpu, mig, vgpu_type))
    max_per_instance = vgpu_type.max_per_gi or 1
    use = _group_by_instance(gpu, assign_instances(gpu, mig, taken), vgpu_type, instances)
    free = sum(_count_free_in_instance(use.by_instance[gi_id], vgpu_type) for gi_id in instances)
    free -= sum(
        1 if unassigned_type.framebuffer_mib == vgpu_type.framebuffer_mib else max_per_instance
        for unassigned_type in use.unassigned
    )
    is_lower_bound = any(
        unassigned_type.gi_profile_id is None or (unassigned_type.max_per_gi or 1) > 1
        for unassigned_type in use.unassigned
    )
    if free > 0:
        return Remaining(free, is_lower_bound=is_lower_bound)
    name = _gi_profile_name(mig, vgpu_type.gi_profile_id)
    per_instance = f", {max_per_instance} of one size in each" if max_per_instance > 1 else ""
    reason = f"all {len(instances)} GPU instances {name} are in use{per_instance}: {name_holders(use.holders)}"
    return Remaining(0, reason, is_lower_bound=is_lower_bound)


def rank_instances(gpu: Gpu, mig: MigState, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> tuple[int, ...]:
    """Return the instances for one more vGPU created now, the best first; none where the choice does not matter.

    `taken`: the vGPUs on the GPU. Those that are only recorded choose their instance when they are created.
    """
    if not gpu.accepts_gpu_instances or (vgpu_type.max_per_gi or 1) == 1:
        return ()
    return _rank_for_type(mig, _types_by_instance(gpu, mig, [v for v in taken if v.present]), vgpu_type)


def assign_instances(gpu: Gpu, mig: MigState, taken: Sequence[Vgpu]) -> tuple[Vgpu, ...]:
    """Return the GPU's vGPUs, each one not created yet with the instance that will be chosen for it."""
    if not gpu.accepts_gpu_instances or any(v.present and v.gi_id is None for v in taken):
        return tuple(taken)
    types_by_instance = _types_by_instance(gpu, mig, taken)
    assigned = []
    for vgpu in taken:
        vgpu_type = find_type(gpu, vgpu) if vgpu.gi_id is None else None
        best = _rank_for_type(mig, types_by_instance, vgpu_type) if vgpu_type is not None else ()
        if vgpu_type is None or not best:
            assigned.append(vgpu)
            continue
        types_by_instance[best[0]].append(vgpu_type)
        assigned.append(replace(vgpu, gi_id=best[0]))
    return tuple(assigned)


def _types_by_instance(gpu: Gpu, mig: MigState, taken: Sequence[Vgpu]) -> dict[int, list[VgpuType]]:
    """Return the types in each instance, as far as they are known."""
    types_by_instance: dict[int, list[VgpuType]] = {i.gi_id: [] for i in mig.instances}
    for vgpu in taken:
        if vgpu.gi_id in types_by_instance:
            types_by_instance[vgpu.gi_id].append(find_type(gpu, vgpu) or VgpuType("", "", ""))
    return types_by_instance


def _rank_for_type(
    mig: MigState, types_by_instance: Mapping[int, Sequence[VgpuType]], vgpu_type: VgpuType
) -> tuple[int, ...]:
    """Return the instances that take one more vGPU of a type: the fullest first, of equal ones the lowest."""
    candidates = [i.gi_id for i in mig.instances if i.profile_id == vgpu_type.gi_profile_id]
    with_room = [n for n in candidates if _count_free_in_instance(types_by_instance[n], vgpu_type)]
    return tuple(sorted(with_room, key=lambda n: (-len(types_by_instance[n]), n)))


def _count_free_in_instance(current: Sequence[VgpuType], requested_type: VgpuType) -> int:
    same_size = all(vgpu_type.framebuffer_mib == requested_type.framebuffer_mib for vgpu_type in current)
    return max(0, (requested_type.max_per_gi or 1) - len(current)) if same_size else 0


class _InstanceUse(Value):
    """The vGPUs in instances of one profile.

    `by_instance`: types by instance. `unassigned`: types of vGPUs in an unknown instance. `holders`: all of the vGPUs.
    """

    by_instance: dict[int, list[VgpuType]]
    unassigned: list[VgpuType]
    holders: list[Vgpu]


def _group_by_instance(
    gpu: Gpu, taken: Sequence[Vgpu], requested_type: VgpuType, instances: Sequence[int]
) -> _InstanceUse:
    """Group the taken vGPUs by instance; one of an unknown type may be in any instance."""
    use = _InstanceUse({number: [] for number in instances}, [], [])
    for vgpu in taken:
        vgpu_type = find_type(gpu, vgpu)
        if vgpu_type is not None and vgpu_type.gi_profile_id != requested_type.gi_profile_id:
            continue
        type_or_unknown = vgpu_type or VgpuType("", "", "")
        use.by_instance.get(-1 if vgpu.gi_id is None else vgpu.gi_id, use.unassigned).append(type_or_unknown)
        use.holders.append(vgpu)
    return use


def _no_instance_message(gpu: Gpu, mig: MigState, vgpu_type: VgpuType) -> str:
    counts: dict[int, int] = {}
    for instance in mig.instances:
        counts[instance.profile_id] = counts.get(instance.profile_id, 0) + 1
    existing = ", ".join(f"{n} {_gi_profile_name(mig, profile)}" for profile, n in counts.items()) or "none"
    return (
        f"{vgpu_type.profile} needs a GPU instance {_gi_profile_name(mig, vgpu_type.gi_profile_id)}, and its "
        f"instances are: {existing}; vgpuctl set-mig {gpu.address} --for PROFILE:N divides it anew"
    )


def _gi_profile_name(mig: MigState, profile_id: int | None) -> str:
    profile = mig.find_profile(profile_id) if profile_id is not None else None
    return profile.name if profile is not None else f"of profile {profile_id}"
