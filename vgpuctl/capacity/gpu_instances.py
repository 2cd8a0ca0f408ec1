# SPDX-License-Identifier: Apache-2.0
"""Which vGPUs a GPU with MIG takes: those backed by a GPU instance (GI) alone, each in one of its profile.

A GI takes one vGPU; on GPUs that share the time of a GI too (GB20x) up to `max_per_gi`, all of one framebuffer size.
The driver takes the lowest GI that has room (kvgpumgrGetSwizzId in kernel_vgpu_mgr.c), also an empty one where another
has room beside vGPUs of the same size. So where a VF has `gpu_instance_id` vgpuctl chooses: those of its size first,
the fullest of them, then an empty one. How many GIs are left then does not depend on the order in which vGPUs are made,
and what is promised counts exactly, unless libvirt's hook makes it: without NVML that leaves the choice to the driver.
The rules of GPUs without MIG, one size and at most 32, do not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.capacity.left import Left, type_on, who
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.model.partition import Mig
from vgpuctl.value import Value, replace


def why_wrong_mode(gpu: Gpu, wanted: VgpuType) -> str | None:
    """Say why a type cannot be made while MIG is as it is, and what changes that; None when nothing speaks against it.

    Where the driver does not tell which types are backed by a GI, its lists alone decide.
    """
    if gpu.mig is None or all(t.gi_profile_id is None for t in gpu.types):
        return None
    if gpu.mig.enabled and wanted.gi_profile_id is None:
        return (
            f"MIG is on, and {wanted.profile} is not for a GPU instance but for a GPU without MIG: "
            f"vgpuctl set-mig {gpu.address} --off"
        )
    if not gpu.mig.enabled and wanted.gi_profile_id is not None:
        return (
            f"MIG is off, and {wanted.profile} needs a GPU instance: "
            f"vgpuctl set-mig {gpu.address} --for {wanted.profile}:1"
        )
    return None


def left(gpu: Gpu, mig: Mig, taken: Sequence[Vgpu], wanted: VgpuType) -> Left:
    """Return how many more of a type the GPU's instances take.

    A vGPU whose instance is neither known nor chosen, as every mdev's, counts as if it had the one where it costs most.
    Where an instance takes one of its type that is exact: it has one to itself, whichever.
    """
    if wanted.gi_profile_id is None:
        return Left(None)
    instances = tuple(i.gi_id for i in mig.instances if i.profile_id == wanted.gi_profile_id)
    if not instances:
        return Left(0, _none_there(gpu, mig, wanted))
    most = wanted.max_per_gi or 1
    seen = _seen(gpu, settled(gpu, mig, taken), wanted, instances)
    free = sum(_room_beside(seen.inside[number], wanted) for number in instances)
    free -= sum(1 if kind.framebuffer_mib == wanted.framebuffer_mib else most for kind in seen.somewhere)
    least = any(kind.gi_profile_id is None or (kind.max_per_gi or 1) > 1 for kind in seen.somewhere)
    if free > 0:
        return Left(free, least=least)
    name = _name(mig, wanted.gi_profile_id)
    per = f", {most} of one size in each" if most > 1 else ""
    why = f"all {len(instances)} GPU instances {name} are in use{per}: {who(seen.holders)}"
    return Left(0, why, least=least)


def choice(gpu: Gpu, mig: Mig, taken: Sequence[Vgpu], wanted: VgpuType) -> tuple[int, ...]:
    """Return the instances for one more of a type that is made now, the best first; none where it does not matter.

    `taken`: what is there. What is only promised chooses when it is made.
    """
    if not gpu.chooses_instances or (wanted.max_per_gi or 1) == 1:
        return ()
    return _best(mig, _inside(gpu, mig, [v for v in taken if v.present]), wanted)


def settled(gpu: Gpu, mig: Mig, taken: Sequence[Vgpu]) -> tuple[Vgpu, ...]:
    """Return what is on a GPU with the instances that are going to be chosen for what is not made yet."""
    if not gpu.chooses_instances or any(v.present and v.gi_id is None for v in taken):
        return tuple(taken)
    inside = _inside(gpu, mig, taken)
    found = []
    for vgpu in taken:
        kind = type_on(gpu, vgpu) if vgpu.gi_id is None else None
        best = _best(mig, inside, kind) if kind is not None else ()
        if kind is None or not best:
            found.append(vgpu)
            continue
        inside[best[0]].append(kind)
        found.append(replace(vgpu, gi_id=best[0]))
    return tuple(found)


def _inside(gpu: Gpu, mig: Mig, taken: Sequence[Vgpu]) -> dict[int, list[VgpuType]]:
    """Return the types in each instance, as far as they are known."""
    inside: dict[int, list[VgpuType]] = {i.gi_id: [] for i in mig.instances}
    for vgpu in taken:
        if vgpu.gi_id in inside:
            inside[vgpu.gi_id].append(type_on(gpu, vgpu) or VgpuType("", "", ""))
    return inside


def _best(mig: Mig, inside: Mapping[int, Sequence[VgpuType]], wanted: VgpuType) -> tuple[int, ...]:
    """Return the instances that take one more of a type: the fullest first, of equal ones the lowest."""
    own = [i.gi_id for i in mig.instances if i.profile_id == wanted.gi_profile_id]
    roomy = [n for n in own if _room_beside(inside[n], wanted)]
    return tuple(sorted(roomy, key=lambda n: (-len(inside[n]), n)))


def _room_beside(there: Sequence[VgpuType], wanted: VgpuType) -> int:
    same = all(kind.framebuffer_mib == wanted.framebuffer_mib for kind in there)
    return max(0, (wanted.max_per_gi or 1) - len(there)) if same else 0


class _Seen(Value):
    """The vGPUs in instances of one profile: their types by instance, those somewhere, and all of them."""

    inside: dict[int, list[VgpuType]]
    somewhere: list[VgpuType]
    holders: list[Vgpu]


def _seen(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType, instances: Sequence[int]) -> _Seen:
    """Sort what is taken by its instance; what is of an unknown type may be in any."""
    seen = _Seen({number: [] for number in instances}, [], [])
    for vgpu in taken:
        kind = type_on(gpu, vgpu)
        if kind is not None and kind.gi_profile_id != wanted.gi_profile_id:
            continue
        known = kind or VgpuType("", "", "")
        seen.inside.get(-1 if vgpu.gi_id is None else vgpu.gi_id, seen.somewhere).append(known)
        seen.holders.append(vgpu)
    return seen


def _none_there(gpu: Gpu, mig: Mig, wanted: VgpuType) -> str:
    counts: dict[int, int] = {}
    for instance in mig.instances:
        counts[instance.profile_id] = counts.get(instance.profile_id, 0) + 1
    there = ", ".join(f"{n} {_name(mig, profile)}" for profile, n in counts.items()) or "none"
    return (
        f"{wanted.profile} needs a GPU instance {_name(mig, wanted.gi_profile_id)}, and its instances are: {there}; "
        f"vgpuctl set-mig {gpu.address} --for PROFILE:N divides it anew"
    )


def _name(mig: Mig, profile_id: int | None) -> str:
    known = mig.profile(profile_id) if profile_id is not None else None
    return known.name if known is not None else f"of profile {profile_id}"
