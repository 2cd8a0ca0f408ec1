# SPDX-License-Identifier: Apache-2.0
"""Observed GPUs in numbers: of which kind each is, in which state, and where on it each vGPU is counted.

`room` decides and explains; what is said here is the same, for thousands of questions. Where something is not known,
as a vGPU of no known size, a place that the driver keeps to itself or a maximum without NVML, there is no number:
the GPU, or that one profile of it, is left out and nobody takes it for free. So a profile is left out, too, of which
`room` counts otherwise than the kind does, as when a driver does not offer what its rules would allow.

All ways of dividing a GPU are here together: each is a few lines, and says how it differs from the others. What a kind
is made from is imported where it is needed, because create-vm on a host with one GPU needs none of it.

Size: over 400 lines, because how one way of dividing a GPU differs from another shows only where all stand together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from vgpuctl.capacity.closed import why_not_allowed, why_shut
from vgpuctl.capacity.gpu_instances import settled
from vgpuctl.capacity.left import MAX_TIME_SLICED, type_on
from vgpuctl.capacity.room import free_of_each
from vgpuctl.model.address import address_key
from vgpuctl.model.gpu import NVIDIA, WHOLE, Backend, Gpu, Vgpu, VgpuType
from vgpuctl.model.partition import Mig
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.placement.fleet import Fleet, Group
from vgpuctl.placement.kind import Kind, State
from vgpuctl.placement.one_size import OneSize
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.placement.instances import InGi
    from vgpuctl.placement.slots import Takes

PLAIN_VF = "VF"
"""Stands for the profile of a plain VF, which has none."""

_MOST_UNITS = 65535
_COUNT_BITS = 16


class Counted(Value):
    """A vGPU as the state of its GPU counts it: `place` is what `Kind.without` needs to take it away again."""

    vgpu: Vgpu
    profile: str
    place: int


class Known(Value):
    """One GPU in numbers. `counted` are its vGPUs, without those that cannot be taken away one by one."""

    kind: Kind
    state: State
    counted: tuple[Counted, ...]


class Numbers(Value):
    """GPUs in numbers: GPU number n of `fleet` is `gpus[n]`, with `counted[n]`; they are in the order of addresses.

    `left_out`: why a GPU is not among them, by its address.
    """

    fleet: Fleet
    gpus: tuple[Gpu, ...]
    counted: tuple[tuple[Counted, ...], ...]
    left_out: Mapping[str, str]


class _Same(Value):
    name: str
    framebuffer_mib: int
    sizes: tuple[tuple[str, int], ...]
    most: tuple[tuple[str, int], ...]
    one_type: bool

    def kind(self) -> Kind:
        return OneSize(self.name, self.framebuffer_mib, dict(self.sizes), dict(self.most), one_type=self.one_type)


class _Slotted(Value):
    name: str
    framebuffer_mib: int
    sizes: tuple[tuple[str, int], ...]
    takes: tuple[tuple[str, Takes], ...]
    slices: int
    pools: tuple[int, ...]

    def kind(self) -> Kind:
        from vgpuctl.placement.slots import Slots

        sizes, takes = dict(self.sizes), dict(self.takes)
        return Slots(self.name, self.framebuffer_mib, sizes, takes, slices=self.slices, pools=self.pools)

    def only(self, profiles: set[str]) -> _Slotted:
        """Return the same with these profiles alone."""
        sizes = tuple((p, mib) for p, mib in self.sizes if p in profiles)
        return replace(self, sizes=sizes, takes=tuple((p, t) for p, t in self.takes if p in profiles))


class _InInstances(Value):
    name: str
    framebuffer_mib: int
    sizes: tuple[tuple[str, int], ...]
    needs: tuple[tuple[str, InGi], ...]
    instances: tuple[int, ...]
    carriers: int

    def kind(self) -> Kind:
        from vgpuctl.placement.instances import Instances

        sizes, needs = dict(self.sizes), dict(self.needs)
        instances, carriers = self.instances, self.carriers
        return Instances(self.name, self.framebuffer_mib, sizes, needs, instances=instances, carriers=carriers)

    def only(self, profiles: set[str]) -> _InInstances:
        """Return the same with these profiles alone."""
        sizes = tuple((p, mib) for p, mib in self.sizes if p in profiles)
        return replace(self, sizes=sizes, needs=tuple((p, n) for p, n in self.needs if p in profiles))


class _Found(Value):
    """What a kind is made from, the state, and what is counted. Equal descriptions are one kind."""

    of: _Same | _Slotted | _InInstances
    state: State
    counted: tuple[Counted, ...] = ()


class _Kinds:
    """The kinds that were made, each once: what they have worked out is kept with them."""

    def __init__(self) -> None:
        self._made: dict[_Same | _Slotted | _InInstances, Kind] = {}

    def of(self, found: _Found) -> Kind:
        """Return the kind that is described so."""
        known = self._made.get(found.of)
        if known is None:
            known = self._made[found.of] = found.of.kind()
        return known

    def as_room_says(self, found: _Found, free: Mapping[str, int]) -> _Found:
        """Leave out the profiles that `room` counts otherwise."""
        if isinstance(found.of, _Same):
            return found  # made from what `room` says
        kind = self.of(found)
        same = {p for p in kind.sizes if p not in free or kind.left(found.state, p) == free[p]}
        return found if len(same) == len(kind.sizes) else replace(found, of=found.of.only(same))


def fleet_of(
    snapshot: Snapshot,
    gpus: Sequence[Gpu],
    vm: str | None = None,
    asked: Set[str] | None = None,
    *,
    largest: bool = False,
) -> Numbers:
    """Return GPUs in numbers, without those closed to a VM of this name or with a kernel write stuck on them.

    `asked`: the profiles of which the snapshot says how many can be made now; all when it is None. Others are counted
    by the driver's rules alone: good enough to weigh what is left for them, not to place one.
    `largest`: take each pool of which the driver only says how many fit of each type for as large as it can be.
    """
    left_out: dict[str, str] = {}
    mine: dict[str, list[Vgpu]] = {}
    for vgpu in snapshot.vgpus:
        mine.setdefault(vgpu.gpu, []).append(vgpu)
    made = _Kinds()
    numbers: dict[Kind, int] = {}
    known: list[tuple[Gpu, Group, tuple[Counted, ...]]] = []
    for gpu in sorted(gpus, key=lambda g: address_key(g.address)):
        mode = "sriov" if gpu.backend is Backend.SRIOV_VF else "vgpu"
        closed = why_shut(snapshot, gpu, mode, vm)
        found = _find(gpu, mine.get(gpu.address, ()), made, asked, largest=largest) if closed is None else None
        if found is None:
            left_out[gpu.address] = closed or "what fits on it is not known in numbers"
            continue
        number = numbers.setdefault(made.of(found), len(numbers))
        known.append((gpu, Group(number, found.state), found.counted))
    fleet = Fleet(list(numbers), [group for _, group, _ in known], [len(mine.get(g.address, ())) for g, _, _ in known])
    return Numbers(fleet, tuple(g for g, _, _ in known), tuple(c for _, _, c in known), left_out)


def known_of(gpu: Gpu, taken: Sequence[Vgpu]) -> Known | None:
    """Return one GPU in numbers, given every carrier taken on it; None when what fits is not known."""
    made = _Kinds()
    found = _find(gpu, taken, made)
    return Known(made.of(found), found.state, found.counted) if found is not None else None


def _find(
    gpu: Gpu, taken: Sequence[Vgpu], made: _Kinds, asked: Set[str] | None = None, *, largest: bool = False
) -> _Found | None:
    if any(v.carrier == gpu.address and v.backend is Backend.PASSTHROUGH for v in taken):
        return None
    if gpu.backend is Backend.SRIOV_VF:
        return _plain(gpu, taken)
    if gpu.backend is None or gpu.backend in WHOLE:
        return None
    known = [t for t in gpu.types if why_not_allowed(gpu, t) is None]
    numbers = free_of_each(gpu, taken, [t for t in known if asked is None or t.profile in asked])
    free = {profile: number for profile, number in numbers.items() if number is not None}
    types = [t for t in known if t.profile in free or t.profile not in numbers]
    found: _Found | None
    if gpu.vendor_id != NVIDIA and largest:
        return _largest_pool(gpu, taken, types) if gpu.backend is Backend.MDEV_PF else None
    if gpu.vendor_id != NVIDIA:
        found = _pool(gpu, taken, types, free) if gpu.backend is Backend.MDEV_PF else None
    elif gpu.mig is not None and gpu.mig.enabled:
        found = _instances(gpu, gpu.mig, taken, [t for t in types if t.gi_profile_id is not None])
    elif gpu.mixed_size:
        found = _mixed(gpu, taken, types)
    else:
        found = _same_size(gpu, taken, [t for t in types if t.gi_profile_id is None], free)
    return made.as_room_says(found, free) if found is not None else None


def _framebuffer(gpu: Gpu, sizes: Sequence[tuple[str, int]], most: Mapping[str, int]) -> int:
    """Return the GPU's framebuffer; without NVML the most that its profiles have together."""
    return gpu.framebuffer_mib or max((mib * most.get(p, 1) for p, mib in sizes), default=0)


def _sizes(types: Sequence[VgpuType]) -> tuple[tuple[str, int], ...]:
    return tuple((t.profile, t.framebuffer_mib) for t in types if t.framebuffer_mib is not None)


def _plain(gpu: Gpu, taken: Sequence[Vgpu]) -> _Found:
    """Return a GPU with plain VFs: each takes what it takes, and there are so many."""
    from vgpuctl.placement.slots import Takes

    sound = [f for f in gpu.functions if not f.problem]
    number = max(len(sound), len(taken))
    sizes = ((PLAIN_VF, (gpu.framebuffer_mib or 0) // max(1, number)),)
    of = _Slotted(gpu.model, gpu.framebuffer_mib or 0, sizes, ((PLAIN_VF, Takes((), 0, ((0, 1),))),), 0, (number,))
    return _Found(of, len(taken), tuple(Counted(v, PLAIN_VF, 1) for v in taken))


def _same_size(gpu: Gpu, taken: Sequence[Vgpu], types: Sequence[VgpuType], free: Mapping[str, int]) -> _Found | None:
    """Return a GPU whose vGPUs have one size, or with an old driver are of one type.

    How many of a type it takes is what is on it and what is left; of one that is locked out what its rules say.
    """
    locks = {v.profile if gpu.one_type else v.framebuffer_mib for v in taken}
    if None in locks or len(locks) > 1 or len({v.framebuffer_mib for v in taken}) > 1:
        return None
    lock = next(iter(locks), 0)
    sound = sum(1 for f in gpu.functions if not f.problem)
    carriers = MAX_TIME_SLICED if gpu.backend is Backend.MDEV_PF else min(MAX_TIME_SLICED, sound)
    most = {}
    for kind in types:
        own = kind.profile if gpu.one_type else kind.framebuffer_mib
        if lock in (0, own) and kind.profile in free:
            most[kind.profile] = len(taken) + free[kind.profile]
        elif kind.max_per_gpu is not None:
            most[kind.profile] = min(carriers, kind.max_per_gpu)
    sizes = tuple((p, mib) for p, mib in _sizes(types) if p in most)
    framebuffer = _framebuffer(gpu, sizes, most)
    of = _Same(gpu.model, framebuffer, sizes, tuple((p, most[p]) for p, _ in sizes), gpu.one_type)
    counted = tuple(Counted(v, v.profile, 0) for v in taken if v.profile is not None)
    return _Found(of, (lock, len(taken)), counted)


def _carriers(gpu: Gpu, taken: Sequence[Vgpu]) -> int:
    """Return how many vGPUs the functions of a GPU carry: those on it, and one on each that is free and in order."""
    busy = {v.function for v in taken}
    return len(taken) + sum(1 for f in gpu.functions if f.address not in busy and not f.problem)


def _mixed(gpu: Gpu, taken: Sequence[Vgpu], types: Sequence[VgpuType]) -> _Found | None:
    """Return a GPU with mixed sizes, every vGPU on which is at a place that is known."""
    from vgpuctl.placement.slots import Takes

    placed = [t for t in types if t.placement_size and t.placement_ids and t.framebuffer_mib is not None]
    ends = [i + (t.placement_size or 0) for t in gpu.types for i in t.placement_ids or ()]
    slices = max(ends, default=0)
    one = ((0, 1),)
    takes = tuple((t.profile, Takes(tuple(sorted(t.placement_ids or ())), t.placement_size or 0, one)) for t in placed)
    pools = (min(MAX_TIME_SLICED, _carriers(gpu, taken)),)
    sizes = _sizes(placed)
    of = _Slotted(f"{gpu.model}, mixed sizes", _framebuffer(gpu, sizes, {}), sizes, takes, slices, pools)
    covered, counted = 0, []
    for vgpu in taken:
        on = type_on(gpu, vgpu)
        size = on.placement_size if on is not None else None
        starts = {n for n in (vgpu.placement_id, vgpu.due_placement_id) if n is not None}
        if on is None or not size or not starts or max(starts) + size > slices:
            return None
        mask = 0
        for start in starts:
            mask |= ((1 << size) - 1) << start
        if covered & mask:
            return None  # one of them is about to be somewhere else
        counted.append(Counted(vgpu, on.profile, mask + (1 << slices)))
        covered |= mask
    return _Found(of, covered + (len(taken) << slices), tuple(counted))


def _instances(gpu: Gpu, mig: Mig, taken: Sequence[Vgpu], types: Sequence[VgpuType]) -> _Found | None:
    """Return a GPU with MIG and the GPU instances that it has."""
    from vgpuctl.placement.slots import Takes

    taken = settled(gpu, mig, taken)
    on = [type_on(gpu, v) for v in taken]
    kinds = [k for k in on if k is not None]
    if len(kinds) < len(on):
        return None  # it may be in any instance
    counts: dict[int, int] = {}
    for instance in mig.instances:
        counts[instance.profile_id] = counts.get(instance.profile_id, 0) + 1
    name = ", ".join(f"{n} × {_gi_name(mig, p)}" for p, n in sorted(counts.items())) or "no instances"
    types = [t for t in types if t.gi_profile_id in counts and t.framebuffer_mib is not None]
    sizes = _sizes(types)
    framebuffer = _framebuffer(gpu, sizes, {t.profile: t.max_per_gpu or 1 for t in types})
    carriers = _carriers(gpu, taken)
    if all((t.max_per_gi or 1) == 1 for t in (*types, *kinds)):
        ids = sorted(counts)
        pool = {profile: number for number, profile in enumerate(ids, 1)}
        takes = {t.profile: Takes((), 0, ((0, 1), (pool[t.gi_profile_id or 0], 1))) for t in types}
        pools = (carriers, *(counts[i] for i in ids))
        of = _Slotted(f"{gpu.model}, MIG: {name}", framebuffer, sizes, tuple(takes.items()), 0, pools)
        counted = []
        for vgpu, kind in zip(taken, kinds, strict=True):
            inside = pool.get(-1 if kind.gi_profile_id is None else kind.gi_profile_id)
            counted.append(Counted(vgpu, kind.profile, 1 + (1 << (inside * _COUNT_BITS) if inside else 0)))
        return _Found(of, sum(c.place for c in counted), tuple(counted))
    return _shared_instances(gpu, mig, name, taken, kinds, types, framebuffer, carriers)


def _shared_instances(
    gpu: Gpu,
    mig: Mig,
    name: str,
    taken: Sequence[Vgpu],
    kinds: Sequence[VgpuType],
    types: Sequence[VgpuType],
    framebuffer: int,
    carriers: int,
) -> _Found | None:
    """Return a GPU whose instances take several vGPUs each; all of them must be known to be where they are."""
    from vgpuctl.placement.instances import InGi

    order = sorted(mig.instances, key=lambda i: (i.profile_id, i.gi_id))
    numbers = {instance.gi_id: number for number, instance in enumerate(order)}
    inside = [(0, 0)] * len(order)
    counted = []
    for vgpu, kind in zip(taken, kinds, strict=True):
        number = numbers.get(-1 if vgpu.gi_id is None else vgpu.gi_id)
        size = kind.framebuffer_mib
        if number is None or size is None or inside[number][0] not in (0, size):
            return None
        inside[number] = (size, inside[number][1] + 1)
        counted.append(Counted(vgpu, kind.profile, number))
    needs = tuple((t.profile, InGi(t.gi_profile_id or 0, t.max_per_gi or 1)) for t in types)
    ids = tuple(i.profile_id for i in order)
    of = _InInstances(f"{gpu.model}, MIG: {name}", framebuffer, _sizes(types), needs, ids, carriers)
    return _Found(of, (len(taken), tuple(inside)), tuple(counted))


def _gi_name(mig: Mig, profile_id: int) -> str:
    known = mig.profile(profile_id)
    return known.name if known is not None else f"profile {profile_id}"


def _pool(gpu: Gpu, taken: Sequence[Vgpu], types: Sequence[VgpuType], free: Mapping[str, int]) -> _Found | None:
    """Return an mdev parent whose types draw from one pool: in the driver's units, or in parts of what is left.

    Without units a type takes the largest part that its own number allows, as `room` has it; and what is on the
    parent cannot be taken away in numbers.
    """
    told = [t for t in types if t.units and t.profile in free]
    units = {t.profile: t.units or 0 for t in told}
    own = [type_on(gpu, v) for v in taken]
    if told and len(told) == len(types) and all(k is not None and k.profile in units for k in own):
        there = [(v, k.profile, units[k.profile]) for v, k in zip(taken, own, strict=True) if k is not None]
        used = sum(n for _, _, n in there)
        total = used + max(free[t.profile] * units[t.profile] for t in told)
    else:
        types = [t for t in types if t.profile in free]
        numbers = [free[t.profile] for t in types if free[t.profile]]
        there, used, total = [], 0, math.lcm(*numbers)
        units = {t.profile: total // free[t.profile] if free[t.profile] else total + 1 for t in types}
    return _in_pool(gpu, types, units, used, total, [Counted(v, p, n) for v, p, n in there])


def _largest_pool(gpu: Gpu, taken: Sequence[Vgpu], types: Sequence[VgpuType]) -> _Found | None:
    """Return the same for the largest pool that the driver's numbers allow: one more of any type is too many.

    What does not fit into this one does not fit.
    """
    offered = {t.profile: (gpu.functions[0].available or {}).get(t.type_id, 0) for t in types}
    units = {t.profile: t.units or 0 for t in types}
    if all(units.values()):
        whole = min(((offered[p] + 1) * n for p, n in units.items()), default=0)
    else:
        whole = math.lcm(*(n + 1 for n in offered.values()))
        units = {p: whole // (n + 1) for p, n in offered.items()}
    used = sum(units.get(v.profile or "", 0) for v in taken if not v.present)
    return _in_pool(gpu, types, units, used, whole - 1, ())


def _in_pool(
    gpu: Gpu,
    types: Sequence[VgpuType],
    units: Mapping[str, int],
    used: int,
    total: int,
    counted: Sequence[Counted],
) -> _Found | None:
    from vgpuctl.placement.slots import Takes

    if total > _MOST_UNITS or not types:
        return None
    sizes = tuple((t.profile, t.framebuffer_mib or 0) for t in types)
    takes = tuple((t.profile, Takes((), 0, ((0, units[t.profile]),))) for t in types)
    framebuffer = _framebuffer(gpu, sizes, {t.profile: total // units[t.profile] for t in types})
    of = _Slotted(gpu.model, framebuffer, sizes, takes, 0, (total,))
    return _Found(of, used, tuple(counted))
