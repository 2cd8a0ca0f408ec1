# SPDX-License-Identifier: Apache-2.0
"""How many vGPUs fit on a small GPU, by trying everything: a statement of the rules that shares nothing with vgpuctl.

A *layout* is one way in which everything on a GPU can be: which vGPU covers what, and which functions are free. Where
the place, the type or a limit is unknown, a GPU has several layouts, and each is tried. `one_more` has the rules:

- NVIDIA without MIG (kernel_vgpu_mgr.c): one framebuffer size at a time, one type with a driver before 550, no more
  than the type's maximum, which counts all vGPUs on the GPU, and no more than 32.
- Mixed sizes: a vGPU starts at a placement id of its type, covers its placement size from there, and two never overlap.
  No more than 32.
- MIG: a vGPU runs in a GPU instance of its type's profile, where one framebuffer size at a time fits, and no more than
  the maximum for an instance, which counts all vGPUs in it.
- An mdev parent of another maker (drivers/vfio/mdev/mdev_sysfs.c): its types take units of one pool.
- A VF carries one vGPU, of a type that the driver lists there. A PF has as many more as its driver says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations, product
from typing import NamedTuple

from vgpuctl.model.gpu import NVIDIA_VENDOR_ID, Backend, Gpu, Vgpu, VgpuType

ANYTHING = "?"
"""The profile of a vGPU whose type is unknown and none of the GPU's."""
MOST = 32
MOST_POOL_UNITS = 12
"""With this many units and fewer, every case of numbers up to 3 appears where the driver tells no units."""


class Placed(NamedTuple):
    """A vGPU in a layout. `mib` None: its size is none of the GPU's. `covers`: its slices, or its GPU instance."""

    profile: str
    mib: int | None
    covers: tuple[int, ...] = ()


class Layout(NamedTuple):
    """`free`: the lists of what the driver offers on the functions that are free, one for each.

    `uncounted`: vGPUs that the driver of a PF has not counted. `left`: units of the pool, and `units` what each profile
    takes. `limits`: by profile the maximum that nothing reports. `most`: so many vGPUs are on the GPU at most, so that
    each recorded one can still be created as the last.
    """

    placed: tuple[Placed, ...] = ()
    free: tuple[tuple[str, ...], ...] = ()
    uncounted: int = 0
    left: int = 0
    units: tuple[tuple[str, int], ...] = ()
    limits: tuple[tuple[str, int], ...] = ()
    most: int = MOST


def count_range(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> tuple[int, int]:
    """Return how many more of a type fit certainly, and at most."""
    certain, possible = fitting(gpu, taken, [(vgpu_type.profile, 99)])
    return max(certain)[0], max(possible)[0]


def fitting(gpu: Gpu, taken: Sequence[Vgpu], wanted: Sequence[tuple[str, int]]) -> tuple[set[tuple[int, ...]], ...]:
    """Return which parts of what is wanted fit on the GPU together: certainly, and in some layout."""
    by_layout = _fitting_by_layout(gpu, taken, wanted)
    return set.intersection(*by_layout), set.union(*by_layout)


def driver_chooses_instances(gpu: Gpu, taken: Sequence[Vgpu]) -> bool:
    """Return whether there are GPU instances for several vGPUs, and vgpuctl does not choose among them."""
    several = gpu.mig is not None and gpu.mig.enabled and any((t.max_per_gi or 1) > 1 for t in gpu.types)
    return several and (not gpu.accepts_gpu_instances or any(v.gi_id is None for v in taken if v.present))


def most_on_host(by_gpu: Sequence[set[tuple[int, ...]]], wanted: Sequence[tuple[str, int]]) -> set[tuple[int, ...]]:
    """Return which parts of what is wanted fit on GPUs together, given what fits on each."""
    together = {tuple(0 for _ in wanted)}
    for here in by_gpu:
        together = {
            tuple(min(a + b, most) for a, b, (_, most) in zip(one, other, wanted, strict=True))
            for one in together
            for other in here
        }
    return together


def _fitting_by_layout(
    gpu: Gpu, taken: Sequence[Vgpu], wanted: Sequence[tuple[str, int]]
) -> list[set[tuple[int, ...]]]:
    """Return for each possible layout which parts of what is wanted fit, one vGPU after another."""
    results = []
    for layout in list_layouts(gpu, taken):
        start = (layout, tuple(0 for _ in wanted))
        seen, todo = {start}, [start]
        while todo:
            now, counts = todo.pop()
            for n, (profile, most) in enumerate(wanted):
                for after in one_more(gpu, now, profile) if counts[n] < most else ():
                    state = (after, (*counts[:n], counts[n] + 1, *counts[n + 1 :]))
                    if state not in seen:
                        seen.add(state)
                        todo.append(state)
        results.append({counts for _, counts in seen})
    return results


def one_more(gpu: Gpu, layout: Layout, profile: str) -> Iterator[Layout]:
    """Yield every layout after one more vGPU of the profile, with every place and carrier that it may have."""
    vgpu_type = type_of(gpu, profile)
    if vgpu_type is None:
        return
    for offers in set(layout.free):
        if vgpu_type.type_id not in offers:
            continue
        free = list(layout.free)
        if gpu.backend is not Backend.MDEV_PF:
            free.remove(offers)
        elif gpu.vendor_id == NVIDIA_VENDOR_ID and layout.uncounted >= _offered(gpu, vgpu_type):
            continue
        for after in put(gpu, layout, profile):
            yield after._replace(free=tuple(free))


def put(gpu: Gpu, layout: Layout, profile: str) -> Iterator[Layout]:
    """Yield every layout after one more vGPU of the profile, on a carrier that it has already."""
    vgpu_type = type_of(gpu, profile)
    assert vgpu_type is not None
    left = layout.left - dict(layout.units).get(profile, 0)
    for covers in places(gpu, layout, vgpu_type):
        placed = sorted((*layout.placed, Placed(profile, vgpu_type.framebuffer_mib, covers)), key=str)
        yield layout._replace(placed=tuple(placed), uncounted=layout.uncounted + 1, left=left)


def places(gpu: Gpu, layout: Layout, vgpu_type: VgpuType) -> list[tuple[int, ...]]:
    """Return what one more vGPU of a type can cover: slices, or an instance; one empty entry where nothing matters."""
    if gpu.vendor_id != NVIDIA_VENDOR_ID:
        return [()] if dict(layout.units).get(vgpu_type.profile, 0) <= layout.left else []
    mig_on = gpu.mig is not None and gpu.mig.enabled
    if mig_on != (vgpu_type.gi_profile_id is not None):
        return []
    if mig_on:
        return [(gi,) for gi in _instances(gpu, vgpu_type) if _instance_takes(layout, gi, vgpu_type)]
    if len(layout.placed) >= MOST:
        return []
    if gpu.mixed_size:
        covered = {n for p in layout.placed for n in p.covers}
        spans = [tuple(range(n, n + (vgpu_type.placement_size or 0))) for n in vgpu_type.placement_ids or ()]
        return [span for span in spans if not covered & set(span)]
    limit = vgpu_type.max_per_gpu
    limit = dict(layout.limits).get(vgpu_type.profile, MOST) if limit is None else limit
    if len(layout.placed) >= min(limit, layout.most):
        return []
    if gpu.has_single_type:
        return [()] if all(p.profile == vgpu_type.profile for p in layout.placed) else []
    return [()] if all(p.mib == vgpu_type.framebuffer_mib for p in layout.placed) else []


def list_layouts(gpu: Gpu, taken: Sequence[Vgpu]) -> list[Layout]:
    """Return every layout that is possible once each recorded vGPU is created."""
    if any(v.carrier == gpu.address and v.backend is Backend.PASSTHROUGH for v in taken):
        return [Layout()]
    busy = {v.function for v in taken} if gpu.backend is not Backend.MDEV_PF else set()
    free = tuple(
        tuple(sorted(i for i, n in (f.available_instances or {}).items() if n))
        for f in gpu.functions
        if f.address not in busy and not f.problem
    )
    present, recorded = [v for v in taken if v.present], [v for v in taken if not v.present]
    types = [type_of(gpu, v.profile) for v in recorded]
    most = min((t.max_per_gpu for t in types if t is not None and t.max_per_gpu is not None), default=MOST)
    layouts = {
        with_recorded._replace(free=free, most=most)
        for layout in _with_devices(gpu, taken)
        for with_recorded in _with_recorded(gpu, layout, present, recorded)
    }
    return sorted(layouts, key=str)


def _with_devices(gpu: Gpu, taken: Sequence[Vgpu]) -> list[Layout]:
    """Return every layout that is possible with the vGPUs that are created."""
    present = [v for v in taken if v.present]
    return [
        _with_targets(gpu, layout, present)._replace(uncounted=0)
        for start in _starts(gpu)
        for layout in _with(gpu, {start}, present, created=True)
        if _as_the_driver_says(gpu, layout, present)
    ]


def type_of(gpu: Gpu, profile: str | None) -> VgpuType | None:
    return next((t for t in gpu.types if t.profile == profile), None)


def _offered(gpu: Gpu, vgpu_type: VgpuType) -> int:
    return (gpu.functions[0].available_instances or {}).get(vgpu_type.type_id, 0)


def _instances(gpu: Gpu, vgpu_type: VgpuType) -> list[int]:
    assert gpu.mig is not None
    return [
        i.gi_id for i in sorted(gpu.mig.instances, key=lambda i: i.gi_id) if i.profile_id == vgpu_type.gi_profile_id
    ]


def _inside(layout: Layout, gi_id: int) -> list[Placed]:
    return [p for p in layout.placed if p.covers == (gi_id,)]


def _instance_takes(layout: Layout, gi_id: int, vgpu_type: VgpuType) -> bool:
    inside = _inside(layout, gi_id)
    return len(inside) < (vgpu_type.max_per_gi or 1) and all(p.mib == vgpu_type.framebuffer_mib for p in inside)


def _starts(gpu: Gpu) -> Iterator[Layout]:
    """Yield the empty layouts, with each pool and each maximum that what the driver reports allows."""
    if gpu.vendor_id == NVIDIA_VENDOR_ID:
        untold = [t.profile for t in gpu.types if t.max_per_gpu is None and gpu.backend is not Backend.MDEV_PF]
        for limits in product(range(len(gpu.functions) + 1), repeat=len(untold)):
            yield Layout(limits=tuple(zip(untold, limits, strict=True)))
        return
    known = all(t.pool_units for t in gpu.types)
    for left in range(99 if known else MOST_POOL_UNITS + 1):
        ways = [[t.pool_units] if known else range(1, left + 2) for t in gpu.types]
        for units in product(*([u for u in way if u] for way in ways)):
            if all(left // u == _offered(gpu, t) for u, t in zip(units, gpu.types, strict=True)):
                yield Layout(left=left, units=tuple(zip((t.profile for t in gpu.types), units, strict=True)))


def _with(gpu: Gpu, layouts: set[Layout], vgpus: Sequence[Vgpu], *, created: bool) -> set[Layout]:
    """Return the layouts with these vGPUs in them too, each wherever it may be. `created`: the driver counted them."""
    for vgpu in vgpus:
        layouts = {after for layout in layouts for after in _with_one(gpu, layout, vgpu, created=created)}
    return layouts


def _with_one(gpu: Gpu, layout: Layout, vgpu: Vgpu, *, created: bool) -> Iterator[Layout]:
    vgpu_type = next((t for t in gpu.types if t.type_id == vgpu.type_id), None) or type_of(gpu, vgpu.profile)
    units = 0 if created else dict(layout.units).get(vgpu_type.profile if vgpu_type else ANYTHING, layout.left)
    for placed in set(_where(gpu, layout, vgpu, vgpu_type)):
        yield layout._replace(
            placed=tuple(sorted((*layout.placed, placed), key=str)),
            uncounted=layout.uncounted + 1,
            left=layout.left - units,
        )


def _where(gpu: Gpu, layout: Layout, vgpu: Vgpu, vgpu_type: VgpuType | None) -> Iterator[Placed]:
    """Yield everything that one existing or recorded vGPU may be."""
    if gpu.mig is not None and gpu.mig.enabled:
        yield from _where_in_instances(gpu, layout, vgpu, vgpu_type)
    elif gpu.mixed_size:
        yield from _where_in_slices(gpu, layout, vgpu, vgpu_type)
    elif vgpu_type is not None:
        yield Placed(vgpu_type.profile, vgpu_type.framebuffer_mib)
    elif vgpu.framebuffer_mib is not None:
        yield Placed(vgpu.profile or ANYTHING, vgpu.framebuffer_mib)
    else:
        yield Placed(ANYTHING, None)
        yield from (Placed(t.profile, t.framebuffer_mib) for t in gpu.types)


def _where_in_slices(gpu: Gpu, layout: Layout, vgpu: Vgpu, vgpu_type: VgpuType | None) -> Iterator[Placed]:
    covered = {n for p in layout.placed for n in p.covers}
    if vgpu_type is None:
        every = range(max(i + (t.placement_size or 0) for t in gpu.types for i in t.placement_ids or ()) + 1)
        for span in (tuple(range(start, end)) for start, end in combinations(every, 2)):
            if not covered & set(span) and vgpu.placement_id in (None, span[0]):
                yield Placed(ANYTHING, None, span)
        return
    for start in (vgpu_type.placement_ids or ()) if vgpu.placement_id is None else (vgpu.placement_id,):
        span = tuple(range(start, start + (vgpu_type.placement_size or 0)))
        if not covered & set(span):
            yield Placed(vgpu_type.profile, vgpu_type.framebuffer_mib, span)


def _with_targets(gpu: Gpu, layout: Layout, vgpus: Sequence[Vgpu]) -> Layout:
    """Return the layout in which vGPUs that are about to move cover also the place to which they move."""
    for vgpu in vgpus:
        vgpu_type, start = type_of(gpu, vgpu.profile), vgpu.target_placement_id
        if vgpu_type is not None and start is not None and start in (vgpu_type.placement_ids or ()):
            before = next(p for p in layout.placed if p.covers and p.covers[0] == vgpu.placement_id)
            more = tuple(range(start, start + (vgpu_type.placement_size or 0)))
            rest = [p for p in layout.placed if p is not before]
            layout = layout._replace(placed=(*rest, before._replace(covers=(*before.covers, *more))))
    return layout


def _where_in_instances(gpu: Gpu, layout: Layout, vgpu: Vgpu, vgpu_type: VgpuType | None) -> Iterator[Placed]:
    assert gpu.mig is not None
    for instance in gpu.mig.instances:
        if vgpu.gi_id not in (None, instance.gi_id):
            continue
        inside = _inside(layout, instance.gi_id)
        if vgpu_type is None and not inside:
            yield Placed(ANYTHING, None, (instance.gi_id,))
        for possible in [vgpu_type] if vgpu_type is not None else gpu.types:
            placed = Placed(possible.profile, possible.framebuffer_mib, (instance.gi_id,))
            if possible.gi_profile_id == instance.profile_id and _created_in_some_order(gpu, [*inside, placed]):
                yield placed


def _created_in_some_order(gpu: Gpu, inside: Sequence[Placed]) -> bool:
    types = [type_of(gpu, p.profile) for p in inside]
    if len({p.mib for p in inside}) > 1 or None in types:
        return False
    lowest_first = sorted((t.max_per_gi or 1) for t in types if t is not None)
    return all(number < most for number, most in enumerate(lowest_first))


def _as_the_driver_says(gpu: Gpu, layout: Layout, present: Sequence[Vgpu]) -> bool:
    """Return whether each type that the driver offers on a free function now fits beside the present vGPUs."""
    busy = {v.function for v in present} if gpu.backend is not Backend.MDEV_PF else set()
    offered = {
        i
        for f in gpu.functions
        if f.address not in busy and not f.problem
        for i, number in (f.available_instances or {}).items()
        if number
    }
    unlimited = gpu.mig is not None or gpu.mixed_size or gpu.vendor_id != NVIDIA_VENDOR_ID
    return all(
        places(gpu, layout, t) or (not unlimited and t.max_per_gpu is not None and len(layout.placed) >= t.max_per_gpu)
        for t in gpu.types
        if t.type_id in offered
    )


def _with_recorded(gpu: Gpu, layout: Layout, present: Sequence[Vgpu], recorded: Sequence[Vgpu]) -> set[Layout]:
    """Return the layouts with the recorded vGPUs.

    Where vgpuctl chooses the GPU instance, and knows that of every device, each has the fullest that takes it, of
    equal ones the lowest; in whatever order they are created.
    """
    if not gpu.accepts_gpu_instances or any(v.gi_id is None for v in present):
        return _with(gpu, {layout}, recorded, created=False)
    layouts: set[Layout] = set()
    for order in permutations(recorded):
        now: list[Layout] = [layout]
        for vgpu in order:
            now = [after for before in now for after in _in_the_fullest(gpu, before, vgpu)]
        layouts.update(now)
    return layouts


def _in_the_fullest(gpu: Gpu, layout: Layout, vgpu: Vgpu) -> list[Layout]:
    """Return the layout with a vGPU in the fullest instance that takes it, of equal ones the lowest; none: no room."""
    options = list(put(gpu, layout, str(vgpu.profile)))
    by_instance = [(gi, a) for a in options for gi in _all_instances(gpu) if _inside(a, gi) != _inside(layout, gi)]
    return [after for _, after in sorted(by_instance, key=lambda o: (-len(_inside(layout, o[0])), o[0]))][:1]


def _all_instances(gpu: Gpu) -> list[int]:
    return sorted(i.gi_id for i in gpu.mig.instances) if gpu.mig is not None else []
