# SPDX-License-Identifier: Apache-2.0
"""How many vGPUs a GPU with MIG takes: only vGPUs backed by a GPU instance (GI), each in a GI of its profile.

A GI takes one vGPU. On GPUs that also time-slice a GI (GB20x) it takes up to `max_per_gi`, all of one framebuffer size.
The driver takes the lowest GI that has room (kvgpumgrGetSwizzId in kernel_vgpu_mgr.c), even an empty one where another
GI has room next to vGPUs of the same size. So where a VF has `gpu_instance_id`, vgpuctl chooses the GI: first those
with vGPUs of the same size, the fullest first, then an empty one. The number of GIs left then does not depend on the
order in which vGPUs are created, and recorded vGPUs count exactly. The exception is a vGPU that libvirt's hook creates:
without NVML the driver chooses its GI. The rules of GPUs without MIG (one size, at most 32 vGPUs) do not apply.

`SharedInstanceKind` has the numbers of GPUs whose GIs take several vGPUs each. Where a GI takes one vGPU, `SliceKind`
with a pool for each GI profile gives the same results and is faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vgpuctl.gpu.division import (
    AllocatedSlot,
    DivisionOnVfs,
    GpuNumbers,
    Remaining,
    find_type,
    framebuffer_of,
    name_holders,
    sizes_of,
)
from vgpuctl.gpu.equal_size import add_one_size_rows
from vgpuctl.gpu.gpu_kind import AlikeKind, Columns, Placement, State
from vgpuctl.gpu.slice_kind import COUNT_BITS, MAX_UNITS, Footprint, SliceKind
from vgpuctl.model.gpu import Gpu, GpuInstance, MigState, Vgpu, VgpuType
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.solver import Program


class _Occupants(Value):
    """What is in a GPU's instances. `known`: vGPUs with their types, in known instances where that matters.

    `unassigned`: the types of vGPUs that may be in any instance of their profile, None for an unknown type. `closed`:
    the instances with a vGPU of an unknown type, or of two sizes while one of them leaves.
    """

    known: tuple[tuple[Vgpu, VgpuType], ...]
    unassigned: tuple[VgpuType | None, ...]
    closed: frozenset[int]


class GpuInstances(DivisionOnVfs):
    """A GPU with MIG on and the GPU instances that exist."""

    rule = "each vGPU runs in a GPU instance of its profile (MIG)"

    def __init__(self, gpu: Gpu, taken: Sequence[Vgpu]) -> None:
        super().__init__(gpu, taken)
        self._mig = gpu.mig or MigState(enabled=False, pending_enabled=False)
        self._has_shared = any((t.max_per_gi or 1) > 1 for t in gpu.types)
        self._assigned = assign_instances(gpu, self._mig, taken)

    def remaining(self, vgpu_type: VgpuType, *, is_confirmed: bool) -> Remaining:
        """See `DivisionOnVfs.remaining`.

        A vGPU whose instance is neither known nor chosen, such as every mdev, counts as if it were in the instance
        where it costs most. Where an instance takes only one vGPU of its type, that is exact: the vGPU has one instance
        to itself.
        """
        if vgpu_type.gi_profile_id is None or (self._has_shared and vgpu_type.framebuffer_mib is None):
            return Remaining(None)
        instances = [i for i in self._mig.instances if i.profile_id == vgpu_type.gi_profile_id]
        if not instances:
            return Remaining(0, self._no_instance_reason(vgpu_type))
        occupants = self._read_occupants(instances)
        usable = [i for i in instances if i.gi_id not in occupants.closed]
        numbers = self._describe((vgpu_type,), occupants.known, usable, MAX_UNITS)
        max_per_instance = vgpu_type.max_per_gi or 1
        free = numbers.kind.count_remaining(numbers.state, vgpu_type.profile) - sum(
            1 if other is not None and other.framebuffer_mib == vgpu_type.framebuffer_mib else max_per_instance
            for other in occupants.unassigned
        )
        is_lower_bound = bool(occupants.closed) or any(
            other is None or (other.max_per_gi or 1) > 1 for other in occupants.unassigned
        )
        if free > 0:
            return Remaining(free, is_lower_bound=is_lower_bound)
        name = _gi_profile_name(self._mig, vgpu_type.gi_profile_id)
        per_instance = f", {max_per_instance} of one size in each" if max_per_instance > 1 else ""
        holders = [v for v in self._assigned if self._may_be_in(v, vgpu_type.gi_profile_id)]
        reason = f"all {len(instances)} GPU instances {name} are in use{per_instance}: {name_holders(holders)}"
        return Remaining(0, reason, is_lower_bound=is_lower_bound)

    def describe(self, types: Sequence[VgpuType]) -> GpuNumbers | None:
        """See `DivisionOnVfs.describe`."""
        occupants = self._read_occupants(self._mig.instances)
        if occupants.closed or occupants.unassigned:
            return None
        sized = [t for t in types if t.framebuffer_mib is not None]
        return self._describe(sized, occupants.known, self._mig.instances, self.carriers)

    def _may_be_in(self, vgpu: Vgpu, gi_profile_id: int) -> bool:
        """Return whether a vGPU may be in an instance of a profile."""
        vgpu_type = find_type(self.gpu, vgpu)
        return vgpu_type is None or vgpu_type.gi_profile_id == gi_profile_id

    def _read_occupants(self, instances: Sequence[GpuInstance]) -> _Occupants:
        """Return what is in these instances."""
        profile_ids = {i.profile_id for i in instances}
        gi_ids = {i.gi_id for i in instances}
        all_ids = {i.gi_id for i in self._mig.instances}
        known: list[tuple[Vgpu, VgpuType]] = []
        unassigned: list[VgpuType | None] = []
        sizes: dict[int, set[int | None]] = {}
        for vgpu in self._assigned:
            vgpu_type = find_type(self.gpu, vgpu)
            if vgpu_type is None:
                if vgpu.gi_id in gi_ids:
                    sizes.setdefault(vgpu.gi_id, set()).update({None, 0})
                elif vgpu.gi_id not in all_ids:
                    unassigned.append(None)
            elif vgpu_type.gi_profile_id in profile_ids:
                if vgpu.gi_id in gi_ids:
                    sizes.setdefault(vgpu.gi_id, set()).add(vgpu_type.framebuffer_mib)
                if not self._has_shared or vgpu.gi_id in gi_ids:
                    known.append((vgpu, vgpu_type))
                else:
                    unassigned.append(vgpu_type)
        closed = frozenset(gi_id for gi_id, inside in sizes.items() if len(inside) > 1)
        return _Occupants(tuple((vgpu, t) for vgpu, t in known if vgpu.gi_id not in closed), tuple(unassigned), closed)

    def _describe(
        self,
        types: Sequence[VgpuType],
        known: Sequence[tuple[Vgpu, VgpuType]],
        instances: Sequence[GpuInstance],
        carriers: int,
    ) -> GpuNumbers:
        """Return the GPU as numbers with these vGPUs in these instances, on so many VFs."""
        counts = Counter(instance.profile_id for instance in instances)
        named = ", ".join(f"{n} × {_gi_profile_name(self._mig, p)}" for p, n in sorted(counts.items()))
        name = f"{self.gpu.model}, MIG: {named or 'no instances'}"
        types = [t for t in types if t.gi_profile_id in counts]
        sizes = sizes_of(types)
        framebuffer = framebuffer_of(self.gpu, [(t.framebuffer_mib or 0) * (t.max_per_gpu or 1) for t in types])
        if self._has_shared:
            return self._describe_shared(name, framebuffer, types, known, instances, carriers)
        pool = {profile_id: number for number, profile_id in enumerate(sorted(counts), 1)}
        footprints = {t.profile: Footprint((), 0, ((0, 1), (pool[t.gi_profile_id or 0], 1))) for t in types}
        pools = (carriers, *(counts[profile_id] for profile_id in sorted(counts)))
        allocated = []
        for vgpu, vgpu_type in known:
            number = pool.get(-1 if vgpu_type.gi_profile_id is None else vgpu_type.gi_profile_id)
            place = 1 + (1 << (number * COUNT_BITS) if number else 0)
            allocated.append(AllocatedSlot(vgpu, vgpu_type.profile, place))
        kind = SliceKind(name, framebuffer, sizes, footprints, pools=pools)
        return GpuNumbers(kind, sum(slot.place for slot in allocated), tuple(allocated))

    def _describe_shared(
        self,
        name: str,
        framebuffer: int,
        types: Sequence[VgpuType],
        known: Sequence[tuple[Vgpu, VgpuType]],
        instances: Sequence[GpuInstance],
        carriers: int,
    ) -> GpuNumbers:
        """Return the same where an instance takes several vGPUs; the instance of each of these is known."""
        order = sorted(instances, key=lambda i: (i.profile_id, i.gi_id))
        numbers = {instance.gi_id: index for index, instance in enumerate(order)}
        states = [(0, 0)] * len(order)
        allocated = []
        for vgpu, vgpu_type in known:
            index = numbers[vgpu.gi_id if vgpu.gi_id is not None else -1]
            states[index] = (vgpu_type.framebuffer_mib or 0, states[index][1] + 1)
            allocated.append(AllocatedSlot(vgpu, vgpu_type.profile, index))
        needs = {t.profile: InstanceNeed(t.gi_profile_id or 0, t.max_per_gi or 1) for t in types}
        profile_ids = tuple(i.profile_id for i in order)
        kind = SharedInstanceKind(name, framebuffer, sizes_of(types), needs, instances=profile_ids, carriers=carriers)
        return GpuNumbers(kind, (len(known), tuple(states)), tuple(allocated))

    def _no_instance_reason(self, vgpu_type: VgpuType) -> str:
        counts = Counter(instance.profile_id for instance in self._mig.instances)
        existing = ", ".join(f"{n} {_gi_profile_name(self._mig, profile)}" for profile, n in counts.items()) or "none"
        return (
            f"{vgpu_type.profile} needs a GPU instance {_gi_profile_name(self._mig, vgpu_type.gi_profile_id)}, and its "
            f"instances are: {existing}; vgpuctl set-mig {self.gpu.address} --for PROFILE:N changes them"
        )


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


def _gi_profile_name(mig: MigState, profile_id: int | None) -> str:
    profile = mig.find_profile(profile_id) if profile_id is not None else None
    return profile.name if profile is not None else f"of profile {profile_id}"


class InstanceNeed(NamedTuple):
    """What a profile needs: an instance of this GI profile, which takes `max_vgpus` of it."""

    gi_profile_id: int
    max_vgpus: int


class SharedInstanceKind(AlikeKind):
    """A kind whose state is (all vGPUs, (size in MiB, vGPUs) of each instance). A place is an instance's number."""

    def __init__(
        self,
        name: str,
        framebuffer_mib: int,
        sizes: Mapping[str, int],
        needs: Mapping[str, InstanceNeed],
        *,
        instances: Sequence[int],
        carriers: int,
    ) -> None:
        """`instances`: the GI profile of each; `carriers`: the VFs of the GPU."""
        super().__init__(name, framebuffer_mib, tuple(sizes.items()), tuple(needs.items()), tuple(instances), carriers)
        self.name = name
        self.framebuffer_mib = framebuffer_mib
        self.sizes = dict(sizes)
        self.empty: State = (0, tuple((0, 0) for _ in instances))
        self.needs = dict(needs)
        self.instances = tuple(instances)
        self.carriers = carriers

    def footprint(self, profile: str) -> Hashable:
        """See `GpuKind.footprint`."""
        return (self.needs[profile], self.sizes[profile]) if profile in self.needs else None

    def placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """See `GpuKind.placements`. Of equivalent instances only the first counts."""
        _, instance_states = state
        distinct: dict[tuple[int, int, int], Placement] = {}
        for placement in self.all_placements(state, profile):
            distinct.setdefault((self.instances[placement.place], *instance_states[placement.place]), placement)
        return tuple(distinct.values())

    def all_placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """See `GpuKind.all_placements`."""
        return tuple(
            Placement(place, self._add_to_instance(state, profile, place))
            for place in self._open_instances(state, profile)
        )

    def add(self, state: State, profile: str, place: int) -> State | None:
        """See `GpuKind.add`."""
        return self._add_to_instance(state, profile, place) if place in self._open_instances(state, profile) else None

    def _add_to_instance(self, state: State, profile: str, place: int) -> State:
        vgpu_count, instance_states = state
        new_state = (self.sizes[profile], instance_states[place][1] + 1)
        return (vgpu_count + 1, (*instance_states[:place], new_state, *instance_states[place + 1 :]))

    def _open_instances(self, state: State, profile: str) -> list[int]:
        vgpu_count, instance_states = state
        need = self.needs.get(profile)
        if need is None or vgpu_count >= self.carriers:
            return []
        return [
            n
            for n, gi_profile_id in enumerate(self.instances)
            if gi_profile_id == need.gi_profile_id and self._count_free_in_instance(instance_states[n], profile)
        ]

    def _count_free_in_instance(self, instance_state: tuple[int, int], profile: str) -> int:
        """Return how many more of a profile fit into an instance of its GI profile."""
        size, vgpu_count = instance_state
        return max(0, self.needs[profile].max_vgpus - vgpu_count) if size in (0, self.sizes[profile]) else 0

    def remove(self, state: State, profile: str, place: int) -> State:
        """See `GpuKind.remove`."""
        vgpu_count, instance_states = state
        size, count = instance_states[place]
        new_state = (size, count - 1) if count > 1 else (0, 0)
        return (vgpu_count - 1, (*instance_states[:place], new_state, *instance_states[place + 1 :]))

    def count_remaining(self, state: State, profile: str) -> int:
        """See `GpuKind.count_remaining`."""
        vgpu_count, instance_states = state
        free = sum(
            self._count_free_in_instance(instance_states[place], profile)
            for place in self._open_instances(state, profile)
        )
        return int(min(free, self.carriers - vgpu_count)) if free else 0

    def sizes_in_use(self, state: State) -> frozenset[int]:
        """See `GpuKind.sizes_in_use`."""
        return frozenset(size for size, count in state[1] if count)

    def fits(self, state: State, requested: Mapping[str, int]) -> bool:
        """See `GpuKind.fits`. Each size uses the instances that already have it, and needs some of the free ones."""
        vgpu_count, instance_states = state
        counts_by_profile = {p: n for p, n in requested.items() if n}
        if not counts_by_profile:
            return True
        if (
            not all(p in self.needs for p in counts_by_profile)
            or sum(counts_by_profile.values()) > self.carriers - vgpu_count
        ):
            return False
        sizes: dict[tuple[int, int], Counter[int]] = {}
        for profile, count in counts_by_profile.items():
            need = self.needs[profile]
            sizes.setdefault((need.gi_profile_id, self.sizes[profile]), Counter())[need.max_vgpus] += count
        free = Counter(gi for gi, (size, _) in zip(self.instances, instance_states, strict=True) if not size)
        for (gi, size), counts in sizes.items():
            current = [
                n
                for gi_profile_id, (own_size, n) in zip(self.instances, instance_states, strict=True)
                if (gi_profile_id, own_size) == (gi, size)
            ]
            free[gi] -= _count_extra_instances(counts, current)
        return all(free_count >= 0 for free_count in free.values())

    def add_rows(self, program: Program, state: State, columns: Columns, number: int) -> None:
        """See `GpuKind.add_rows`: each instance is of one size, and each vGPU has a carrier of its own."""
        vgpu_count, instance_states = state
        max_vgpus = {profile: need.max_vgpus for profile, need in self.needs.items()}
        for place, (size, count) in enumerate(instance_states):
            here = {key: same for key, same in columns.items() if key[1] == place}
            if here:
                add_one_size_rows(program, size, count, self.sizes, max_vgpus, here, number)
        every: dict[int, float] = {column: 1 for same in columns.values() for column in same}
        program.add_row(every, upper=number * max(0, self.carriers - vgpu_count))


def _count_extra_instances(counts: Mapping[int, int], current: Sequence[int]) -> int:
    """Return how many more instances these vGPUs of one size need. `counts`: by the maximum of vGPUs in their instance.

    `current`: the number of vGPUs in each instance of that size. vGPUs with a lower maximum are placed first: together
    with those of still lower maxima, each instance takes as many as the maximum allows beyond its current vGPUs.
    """
    extra = waiting = 0
    for max_vgpus, count in sorted(counts.items()):
        waiting += count
        without_room = waiting - sum(max(0, max_vgpus - vgpu_count) for vgpu_count in current)
        extra = max(extra, -(-without_room // max_vgpus))
    return extra
