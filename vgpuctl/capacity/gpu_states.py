# SPDX-License-Identifier: Apache-2.0
"""Observed GPUs as numbers: the kind and the state of each GPU, and where its state counts each vGPU.

`room` decides and explains; this module gives the same answers, fast enough for thousands of questions. Where something
is unknown (a vGPU of unknown size, a place that the driver does not report, a maximum without NVML) there is no number:
the GPU, or that one profile of it, is excluded and never counts as free. A profile that `room` counts differently from
the kind is excluded too, for example when a driver does not offer what its rules would allow.

All ways to divide a GPU are together here: each is a few lines, and says how it differs from the others. The modules of
the kinds are imported where they are needed, because create-vm on a host with one GPU needs none of them.

Size: over 400 lines, because the differences between the ways to divide a GPU are visible only side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from vgpuctl.capacity.gpu_instances import assign_instances
from vgpuctl.capacity.remaining import MAX_TIME_SLICED, find_type
from vgpuctl.capacity.restrictions import why_profile_forbidden, why_unschedulable
from vgpuctl.capacity.room import count_free_by_profile
from vgpuctl.model.address import address_sort_key
from vgpuctl.model.gpu import NVIDIA_VENDOR_ID, WHOLE_DEVICE_BACKENDS, Backend, Gpu, Vgpu, VgpuType
from vgpuctl.model.mig import MigState
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.equal_size import EqualSizeKind
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.gpu_kind import GpuKind, State
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.placement.shared_instances import InstanceNeed
    from vgpuctl.placement.slice_kind import Footprint

PLAIN_VF = "VF"
"""Used as the profile of a plain VF, which has none."""

_MAX_UNITS = 65535
_COUNT_BITS = 16


class AllocatedSlot(Value):
    """A vGPU as the state of its GPU counts it. `place`: what `GpuKind.remove` needs to remove it."""

    vgpu: Vgpu
    profile: str
    place: int


class GpuState(Value):
    """One GPU as numbers. `allocated`: its vGPUs, without those that cannot be removed one by one."""

    kind: GpuKind
    state: State
    allocated: tuple[AllocatedSlot, ...]


class FleetState(Value):
    """GPUs as numbers: GPU number n of `fleet` is `gpus[n]`, with `allocated[n]`; they are in the order of addresses.

    `excluded_gpus`: by address, why a GPU is not among them.
    """

    fleet: Fleet
    gpus: tuple[Gpu, ...]
    allocated: tuple[tuple[AllocatedSlot, ...], ...]
    excluded_gpus: Mapping[str, str]


class _EqualSizeSpec(Value):
    name: str
    framebuffer_mib: int
    sizes: tuple[tuple[str, int], ...]
    max_vgpus: tuple[tuple[str, int], ...]
    one_type: bool

    def make_kind(self) -> GpuKind:
        return EqualSizeKind(
            self.name, self.framebuffer_mib, dict(self.sizes), dict(self.max_vgpus), one_type=self.one_type
        )


class _SliceSpec(Value):
    name: str
    framebuffer_mib: int
    sizes: tuple[tuple[str, int], ...]
    footprints: tuple[tuple[str, Footprint], ...]
    slices: int
    pools: tuple[int, ...]

    def make_kind(self) -> GpuKind:
        from vgpuctl.placement.slice_kind import SliceKind

        sizes, footprints = dict(self.sizes), dict(self.footprints)
        return SliceKind(self.name, self.framebuffer_mib, sizes, footprints, slices=self.slices, pools=self.pools)

    def keep_profiles(self, profiles: set[str]) -> _SliceSpec:
        """Return a copy that has only these profiles."""
        sizes = tuple((p, mib) for p, mib in self.sizes if p in profiles)
        return replace(self, sizes=sizes, footprints=tuple((p, t) for p, t in self.footprints if p in profiles))


class _SharedInstanceSpec(Value):
    name: str
    framebuffer_mib: int
    sizes: tuple[tuple[str, int], ...]
    needs: tuple[tuple[str, InstanceNeed], ...]
    instances: tuple[int, ...]
    carriers: int

    def make_kind(self) -> GpuKind:
        from vgpuctl.placement.shared_instances import SharedInstanceKind

        sizes, needs = dict(self.sizes), dict(self.needs)
        instances, carriers = self.instances, self.carriers
        return SharedInstanceKind(self.name, self.framebuffer_mib, sizes, needs, instances=instances, carriers=carriers)

    def keep_profiles(self, profiles: set[str]) -> _SharedInstanceSpec:
        """Return a copy that has only these profiles."""
        sizes = tuple((p, mib) for p, mib in self.sizes if p in profiles)
        return replace(self, sizes=sizes, needs=tuple((p, n) for p, n in self.needs if p in profiles))


class _GpuDescription(Value):
    """The specification of a GPU's kind, its state and its counted vGPUs. Equal specifications give one kind."""

    spec: _EqualSizeSpec | _SliceSpec | _SharedInstanceSpec
    state: State
    allocated: tuple[AllocatedSlot, ...] = ()


class _KindCache:
    """One kind for each specification; each kind keeps the results that it has computed."""

    def __init__(self) -> None:
        self._kinds: dict[_EqualSizeSpec | _SliceSpec | _SharedInstanceSpec, GpuKind] = {}

    def kind_of(self, description: _GpuDescription) -> GpuKind:
        """Return the kind for this description."""
        kind = self._kinds.get(description.spec)
        if kind is None:
            kind = self._kinds[description.spec] = description.spec.make_kind()
        return kind

    def drop_differing_profiles(self, description: _GpuDescription, free: Mapping[str, int]) -> _GpuDescription:
        """Drop the profiles that `room` counts differently."""
        if isinstance(description.spec, _EqualSizeSpec):
            return description  # built from the numbers of `room`
        kind = self.kind_of(description)
        agreeing = {p for p in kind.sizes if p not in free or kind.count_remaining(description.state, p) == free[p]}
        return (
            description
            if len(agreeing) == len(kind.sizes)
            else replace(description, spec=description.spec.keep_profiles(agreeing))
        )


def build_fleet_state(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    vm: str | None = None,
    exact_profiles: Set[str] | None = None,
    *,
    assume_largest_pool: bool = False,
) -> FleetState:
    """Return GPUs as numbers, without those closed to a VM of this name or with a stuck kernel write.

    `exact_profiles`: profiles for which the snapshot says how many can be created now; all when it is None. The others
    are counted only by the driver's rules: good enough to weigh the remaining room, not to place a vGPU.
    `assume_largest_pool`: where the driver only reports how many of each type fit, assume the largest possible pool.
    """
    excluded: dict[str, str] = {}
    vgpus_by_gpu: dict[str, list[Vgpu]] = {}
    for vgpu in snapshot.vgpus:
        vgpus_by_gpu.setdefault(vgpu.gpu, []).append(vgpu)
    cache = _KindCache()
    kind_numbers: dict[GpuKind, int] = {}
    counted: list[tuple[Gpu, GpuGroup, tuple[AllocatedSlot, ...]]] = []
    for gpu in sorted(gpus, key=lambda g: address_sort_key(g.address)):
        mode = "sriov" if gpu.backend is Backend.SRIOV_VF else "vgpu"
        blocked = why_unschedulable(snapshot, gpu, mode, vm)
        description = (
            _describe_gpu(
                gpu, vgpus_by_gpu.get(gpu.address, ()), cache, exact_profiles, assume_largest_pool=assume_largest_pool
            )
            if blocked is None
            else None
        )
        if description is None:
            excluded[gpu.address] = blocked or "what fits on it is not known in numbers"
            continue
        kind_number = kind_numbers.setdefault(cache.kind_of(description), len(kind_numbers))
        counted.append((gpu, GpuGroup(kind_number, description.state), description.allocated))
    fleet = Fleet(
        list(kind_numbers),
        [group for _, group, _ in counted],
        [len(vgpus_by_gpu.get(g.address, ())) for g, _, _ in counted],
    )
    return FleetState(fleet, tuple(g for g, _, _ in counted), tuple(c for _, _, c in counted), excluded)


def build_gpu_state(gpu: Gpu, taken: Sequence[Vgpu]) -> GpuState | None:
    """Return one GPU as numbers, given every carrier taken on it; None when it is unknown what fits."""
    cache = _KindCache()
    description = _describe_gpu(gpu, taken, cache)
    return (
        GpuState(cache.kind_of(description), description.state, description.allocated)
        if description is not None
        else None
    )


def _describe_gpu(
    gpu: Gpu,
    taken: Sequence[Vgpu],
    kind_cache: _KindCache,
    exact_profiles: Set[str] | None = None,
    *,
    assume_largest_pool: bool = False,
) -> _GpuDescription | None:
    if any(v.carrier == gpu.address and v.backend is Backend.PASSTHROUGH for v in taken):
        return None
    if gpu.backend is Backend.SRIOV_VF:
        return _describe_plain_vfs(gpu, taken)
    if gpu.backend is None or gpu.backend in WHOLE_DEVICE_BACKENDS:
        return None
    allowed = [t for t in gpu.types if why_profile_forbidden(gpu, t) is None]
    free_by_profile = count_free_by_profile(
        gpu, taken, [t for t in allowed if exact_profiles is None or t.profile in exact_profiles]
    )
    free = {profile: count for profile, count in free_by_profile.items() if count is not None}
    types = [t for t in allowed if t.profile in free or t.profile not in free_by_profile]
    description: _GpuDescription | None
    if gpu.vendor_id != NVIDIA_VENDOR_ID and assume_largest_pool:
        return _describe_largest_pool(gpu, taken, types) if gpu.backend is Backend.MDEV_PF else None
    if gpu.vendor_id != NVIDIA_VENDOR_ID:
        description = _describe_mdev_pool(gpu, taken, types, free) if gpu.backend is Backend.MDEV_PF else None
    elif gpu.mig is not None and gpu.mig.enabled:
        description = _describe_mig(gpu, gpu.mig, taken, [t for t in types if t.gi_profile_id is not None])
    elif gpu.mixed_size:
        description = _describe_mixed_size(gpu, taken, types)
    else:
        description = _describe_equal_size(gpu, taken, [t for t in types if t.gi_profile_id is None], free)
    return kind_cache.drop_differing_profiles(description, free) if description is not None else None


def _framebuffer(gpu: Gpu, sizes: Sequence[tuple[str, int]], max_vgpus: Mapping[str, int]) -> int:
    """Return the GPU's framebuffer; without NVML the most that its profiles have together."""
    return gpu.framebuffer_mib or max((mib * max_vgpus.get(p, 1) for p, mib in sizes), default=0)


def _sizes(types: Sequence[VgpuType]) -> tuple[tuple[str, int], ...]:
    return tuple((t.profile, t.framebuffer_mib) for t in types if t.framebuffer_mib is not None)


def _describe_plain_vfs(gpu: Gpu, taken: Sequence[Vgpu]) -> _GpuDescription:
    """Describe a GPU with plain VFs: they all count alike, and their number is the only limit."""
    from vgpuctl.placement.slice_kind import Footprint

    usable = [f for f in gpu.functions if not f.problem]
    count = max(len(usable), len(taken))
    sizes = ((PLAIN_VF, (gpu.framebuffer_mib or 0) // max(1, count)),)
    spec = _SliceSpec(
        gpu.model, gpu.framebuffer_mib or 0, sizes, ((PLAIN_VF, Footprint((), 0, ((0, 1),))),), 0, (count,)
    )
    return _GpuDescription(spec, len(taken), tuple(AllocatedSlot(v, PLAIN_VF, 1) for v in taken))


def _describe_equal_size(
    gpu: Gpu, taken: Sequence[Vgpu], types: Sequence[VgpuType], free: Mapping[str, int]
) -> _GpuDescription | None:
    """Describe a GPU whose vGPUs all have one size, or with an old driver are of one type.

    It takes as many of a type as are on it and still fit. A type that the lock excludes counts by its rules.
    """
    locks = {v.profile if gpu.has_single_type else v.framebuffer_mib for v in taken}
    if None in locks or len(locks) > 1 or len({v.framebuffer_mib for v in taken}) > 1:
        return None
    lock = next(iter(locks), 0)
    usable = sum(1 for f in gpu.functions if not f.problem)
    carriers = MAX_TIME_SLICED if gpu.backend is Backend.MDEV_PF else min(MAX_TIME_SLICED, usable)
    max_vgpus = {}
    for vgpu_type in types:
        type_lock = vgpu_type.profile if gpu.has_single_type else vgpu_type.framebuffer_mib
        if lock in (0, type_lock) and vgpu_type.profile in free:
            max_vgpus[vgpu_type.profile] = len(taken) + free[vgpu_type.profile]
        elif vgpu_type.max_per_gpu is not None:
            max_vgpus[vgpu_type.profile] = min(carriers, vgpu_type.max_per_gpu)
    sizes = tuple((p, mib) for p, mib in _sizes(types) if p in max_vgpus)
    framebuffer = _framebuffer(gpu, sizes, max_vgpus)
    spec = _EqualSizeSpec(
        gpu.model, framebuffer, sizes, tuple((p, max_vgpus[p]) for p, _ in sizes), gpu.has_single_type
    )
    allocated = tuple(AllocatedSlot(v, v.profile, 0) for v in taken if v.profile is not None)
    return _GpuDescription(spec, (lock, len(taken)), allocated)


def _count_carriers(gpu: Gpu, taken: Sequence[Vgpu]) -> int:
    """Return how many vGPUs the functions of a GPU carry: existing ones, and one on each free, working function."""
    busy = {v.function for v in taken}
    return len(taken) + sum(1 for f in gpu.functions if f.address not in busy and not f.problem)


def _describe_mixed_size(gpu: Gpu, taken: Sequence[Vgpu], types: Sequence[VgpuType]) -> _GpuDescription | None:
    """Describe a mixed-size GPU on which the place of every vGPU is known."""
    from vgpuctl.placement.slice_kind import Footprint

    placed = [t for t in types if t.placement_size and t.placement_ids and t.framebuffer_mib is not None]
    ends = [i + (t.placement_size or 0) for t in gpu.types for i in t.placement_ids or ()]
    slices = max(ends, default=0)
    one_carrier = ((0, 1),)
    footprints = tuple(
        (t.profile, Footprint(tuple(sorted(t.placement_ids or ())), t.placement_size or 0, one_carrier)) for t in placed
    )
    pools = (min(MAX_TIME_SLICED, _count_carriers(gpu, taken)),)
    sizes = _sizes(placed)
    spec = _SliceSpec(f"{gpu.model}, mixed sizes", _framebuffer(gpu, sizes, {}), sizes, footprints, slices, pools)
    covered, allocated = 0, []
    for vgpu in taken:
        vgpu_type = find_type(gpu, vgpu)
        size = vgpu_type.placement_size if vgpu_type is not None else None
        starts = {n for n in (vgpu.placement_id, vgpu.target_placement_id) if n is not None}
        if vgpu_type is None or not size or not starts or max(starts) + size > slices:
            return None
        mask = 0
        for start in starts:
            mask |= ((1 << size) - 1) << start
        if covered & mask:
            return None  # one of them is about to move
        allocated.append(AllocatedSlot(vgpu, vgpu_type.profile, mask + (1 << slices)))
        covered |= mask
    return _GpuDescription(spec, covered + (len(taken) << slices), tuple(allocated))


def _describe_mig(gpu: Gpu, mig: MigState, taken: Sequence[Vgpu], types: Sequence[VgpuType]) -> _GpuDescription | None:
    """Describe a GPU with MIG and its existing GPU instances."""
    from vgpuctl.placement.slice_kind import Footprint

    taken = assign_instances(gpu, mig, taken)
    types_or_none = [find_type(gpu, v) for v in taken]
    taken_types = [k for k in types_or_none if k is not None]
    if len(taken_types) < len(types_or_none):
        return None  # it may be in any instance
    counts: dict[int, int] = {}
    for instance in mig.instances:
        counts[instance.profile_id] = counts.get(instance.profile_id, 0) + 1
    name = ", ".join(f"{n} × {_gi_profile_name(mig, p)}" for p, n in sorted(counts.items())) or "no instances"
    types = [t for t in types if t.gi_profile_id in counts and t.framebuffer_mib is not None]
    sizes = _sizes(types)
    framebuffer = _framebuffer(gpu, sizes, {t.profile: t.max_per_gpu or 1 for t in types})
    carriers = _count_carriers(gpu, taken)
    if all((t.max_per_gi or 1) == 1 for t in (*types, *taken_types)):
        ids = sorted(counts)
        pool = {profile: index for index, profile in enumerate(ids, 1)}
        footprints = {t.profile: Footprint((), 0, ((0, 1), (pool[t.gi_profile_id or 0], 1))) for t in types}
        pools = (carriers, *(counts[i] for i in ids))
        spec = _SliceSpec(f"{gpu.model}, MIG: {name}", framebuffer, sizes, tuple(footprints.items()), 0, pools)
        allocated = []
        for vgpu, taken_type in zip(taken, taken_types, strict=True):
            pool_number = pool.get(-1 if taken_type.gi_profile_id is None else taken_type.gi_profile_id)
            allocated.append(
                AllocatedSlot(vgpu, taken_type.profile, 1 + (1 << (pool_number * _COUNT_BITS) if pool_number else 0))
            )
        return _GpuDescription(spec, sum(c.place for c in allocated), tuple(allocated))
    return _describe_shared_instances(gpu, mig, name, taken, taken_types, types, framebuffer, carriers)


def _describe_shared_instances(
    gpu: Gpu,
    mig: MigState,
    name: str,
    taken: Sequence[Vgpu],
    taken_types: Sequence[VgpuType],
    types: Sequence[VgpuType],
    framebuffer: int,
    carriers: int,
) -> _GpuDescription | None:
    """Describe a GPU whose instances take several vGPUs each; the instance of every vGPU must be known."""
    from vgpuctl.placement.shared_instances import InstanceNeed

    order = sorted(mig.instances, key=lambda i: (i.profile_id, i.gi_id))
    numbers = {instance.gi_id: index for index, instance in enumerate(order)}
    instance_states = [(0, 0)] * len(order)
    allocated = []
    for vgpu, taken_type in zip(taken, taken_types, strict=True):
        index = numbers.get(-1 if vgpu.gi_id is None else vgpu.gi_id)
        size = taken_type.framebuffer_mib
        if index is None or size is None or instance_states[index][0] not in (0, size):
            return None
        instance_states[index] = (size, instance_states[index][1] + 1)
        allocated.append(AllocatedSlot(vgpu, taken_type.profile, index))
    needs = tuple((t.profile, InstanceNeed(t.gi_profile_id or 0, t.max_per_gi or 1)) for t in types)
    ids = tuple(i.profile_id for i in order)
    spec = _SharedInstanceSpec(f"{gpu.model}, MIG: {name}", framebuffer, _sizes(types), needs, ids, carriers)
    return _GpuDescription(spec, (len(taken), tuple(instance_states)), tuple(allocated))


def _gi_profile_name(mig: MigState, profile_id: int) -> str:
    profile = mig.find_profile(profile_id)
    return profile.name if profile is not None else f"profile {profile_id}"


def _describe_mdev_pool(
    gpu: Gpu, taken: Sequence[Vgpu], types: Sequence[VgpuType], free: Mapping[str, int]
) -> _GpuDescription | None:
    """Describe an mdev parent whose types share one pool: in the driver's units, or in parts of what is left.

    Without units a type takes the largest part that its own number allows, as in `room`; existing vGPUs on the parent
    cannot be removed in numbers then.
    """
    measured = [t for t in types if t.pool_units and t.profile in free]
    units = {t.profile: t.pool_units or 0 for t in measured}
    taken_types = [find_type(gpu, v) for v in taken]
    if (
        measured
        and len(measured) == len(types)
        and all(vgpu_type is not None and vgpu_type.profile in units for vgpu_type in taken_types)
    ):
        slots = [
            (v, vgpu_type.profile, units[vgpu_type.profile])
            for v, vgpu_type in zip(taken, taken_types, strict=True)
            if vgpu_type is not None
        ]
        used = sum(n for _, _, n in slots)
        total = used + max(free[t.profile] * units[t.profile] for t in measured)
    else:
        types = [t for t in types if t.profile in free]
        counts = [free[t.profile] for t in types if free[t.profile]]
        slots, used, total = [], 0, math.lcm(*counts)
        units = {t.profile: total // free[t.profile] if free[t.profile] else total + 1 for t in types}
    return _describe_pool(gpu, types, units, used, total, [AllocatedSlot(v, p, n) for v, p, n in slots])


def _describe_largest_pool(gpu: Gpu, taken: Sequence[Vgpu], types: Sequence[VgpuType]) -> _GpuDescription | None:
    """Describe the same for the largest pool that the driver's numbers allow: one more of any type would be too many.

    What does not fit into this pool does not fit at all.
    """
    offered = {t.profile: (gpu.functions[0].available_instances or {}).get(t.type_id, 0) for t in types}
    units = {t.profile: t.pool_units or 0 for t in types}
    if all(units.values()):
        whole = min(((offered[p] + 1) * n for p, n in units.items()), default=0)
    else:
        whole = math.lcm(*(n + 1 for n in offered.values()))
        units = {p: whole // (n + 1) for p, n in offered.items()}
    used = sum(units.get(v.profile or "", 0) for v in taken if not v.present)
    return _describe_pool(gpu, types, units, used, whole - 1, ())


def _describe_pool(
    gpu: Gpu,
    types: Sequence[VgpuType],
    units: Mapping[str, int],
    used: int,
    total: int,
    allocated: Sequence[AllocatedSlot],
) -> _GpuDescription | None:
    from vgpuctl.placement.slice_kind import Footprint

    if total > _MAX_UNITS or not types:
        return None
    sizes = tuple((t.profile, t.framebuffer_mib or 0) for t in types)
    footprints = tuple((t.profile, Footprint((), 0, ((0, units[t.profile]),))) for t in types)
    framebuffer = _framebuffer(gpu, sizes, {t.profile: total // units[t.profile] for t in types})
    spec = _SliceSpec(gpu.model, framebuffer, sizes, footprints, 0, (total,))
    return _GpuDescription(spec, used, tuple(allocated))
