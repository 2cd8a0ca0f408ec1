# SPDX-License-Identifier: Apache-2.0
"""Where vGPUs of several sizes go on one GPU: which placement ids are free, how many fit, and which one costs least.

On a mixed-size (heterogeneous) GPU a vGPU starts at one of its type's placement ids and covers its placement size from
there; two vGPUs may not overlap. The driver reports both (nvmlDeviceGetVgpuTypeSupportedPlacements, heterogeneous
mode). Without them nothing is known; the rules that NVIDIA publishes are not applied instead. On some GPUs the ids of
small types leave gaps that nothing fits into, so fewer fit than of one size alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from vgpuctl.capacity.remaining import MAX_TIME_SLICED, Remaining, find_type, name_holders
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.model.mig import PlacementSpan
from vgpuctl.value import Value


class _Occupancy(Value):
    """What is on a GPU: the spans that are taken or reserved, and the types of vGPUs whose place is unknown."""

    spans: tuple[PlacementSpan, ...]
    unplaced: tuple[VgpuType | None, ...]


def compute_remaining(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> Remaining:
    """Return how many more of a type fit: the most of its free placements that do not overlap each other.

    A vGPU at an unknown place (a driver may have no file that reports it) counts as if it were where it costs most, so
    the number is never too high. It is exact where every place costs the same.
    """
    if not _has_known_placements(vgpu_type):
        return Remaining(None)
    occupancy = _read_occupancy(gpu, taken)
    free = _count_guaranteed(occupancy, vgpu_type)
    is_lower_bound = bool(occupancy.unplaced) and free < _count_best_case(occupancy, vgpu_type)
    if free:
        return Remaining(free, is_lower_bound=is_lower_bound)
    blocking = [v for v in taken if _blocks(gpu, v, vgpu_type)]
    reason = f"it has mixed sizes, and none of its {len(_all_spans(vgpu_type))} places for {vgpu_type.profile} is free"
    reason += f": {len(blocking)} in the way, held by {name_holders(blocking)}" if blocking else ""
    return Remaining(0, reason, is_lower_bound=is_lower_bound)


def max_when_empty(vgpu_type: VgpuType) -> int | None:
    """Return how many of a type fit on an empty mixed-size GPU; None when the driver does not report it."""
    return _count_disjoint(_all_spans(vgpu_type)) if _has_known_placements(vgpu_type) else None


def pack_vgpus(gpu: Gpu, taken: Sequence[Vgpu], vgpu_types: Sequence[VgpuType]) -> tuple[int, ...] | None:
    """Return a placement id for each of these vGPUs, in their order, so that all fit; None when they do not.

    Larger vGPUs choose first. Each takes the id that costs the fewest placements of larger types, then the fewest of
    other types, then the lowest id; but only an id that leaves room for the rest. If an existing vGPU is at an unknown
    place, each new one must fit wherever that is.
    """
    if len(taken) + len(vgpu_types) > MAX_TIME_SLICED:
        return None
    occupancy = _read_occupancy(gpu, taken)
    spans = occupancy.spans
    chosen: dict[int, int] = {}
    order = sorted(range(len(vgpu_types)), key=lambda n: (-(vgpu_types[n].placement_size or 0), n))
    for position, index in enumerate(order):
        remaining_types = [vgpu_types[n] for n in order[position + 1 :]]
        place = next(
            (p for p in _cheapest_first(gpu, spans, vgpu_types[index]) if _all_fit((*spans, p), remaining_types)), None
        )
        if place is None:
            return None
        chosen[index] = place.start
        spans = (*spans, place)
    placed = [PlacementSpan(chosen[n], vgpu_type.placement_size or 0) for n, vgpu_type in enumerate(vgpu_types)]
    # for a single vGPU, `compute_remaining` and the driver have answered
    if occupancy.unplaced and len(vgpu_types) > 1:
        for n, vgpu_type in enumerate(vgpu_types):
            others = (*occupancy.spans, *placed[:n], *placed[n + 1 :])
            if _count_guaranteed(_Occupancy(others, occupancy.unplaced), vgpu_type) == 0:
                return None
    return tuple(chosen[n] for n in range(len(vgpu_types)))


def choose_placement_id(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> int | None:
    """Return the placement id for one more vGPU; None where the driver chooses, or none is free."""
    ids = pack_vgpus(gpu, taken, (vgpu_type,)) if gpu.accepts_placements else None
    return ids[0] if ids is not None else None


def is_placement_free(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType, placement_id: int) -> bool:
    """Return whether a vGPU of a type can be at a placement, as far as the places of the others are known."""
    return any(p.start == placement_id for p in _free_spans(vgpu_type, _read_occupancy(gpu, taken).spans))


def _has_known_placements(vgpu_type: VgpuType) -> bool:
    """Return whether the driver reports where a type can be.

    A type with no possible place has no ids and needs no size.
    """
    return vgpu_type.placement_ids == () or (vgpu_type.placement_ids is not None and bool(vgpu_type.placement_size))


def _read_occupancy(gpu: Gpu, taken: Sequence[Vgpu]) -> _Occupancy:
    spans: list[PlacementSpan] = []
    unplaced: list[VgpuType | None] = []
    for vgpu in taken:
        vgpu_type = find_type(gpu, vgpu)
        size = vgpu_type.placement_size if vgpu_type is not None else None
        ids = vgpu_type.placement_ids if vgpu_type is not None else None
        # vgpuctl never moves it to a place that its type does not have
        target = vgpu.target_placement_id if ids is None or vgpu.target_placement_id in ids else None
        starts = {n for n in (vgpu.placement_id, target) if n is not None}
        if starts and size:
            spans += [PlacementSpan(start, size) for start in sorted(starts)]
        else:
            unplaced.append(vgpu_type)
    return _Occupancy(tuple(spans), tuple(unplaced))


def _all_spans(vgpu_type: VgpuType) -> tuple[PlacementSpan, ...]:
    return tuple(PlacementSpan(start, vgpu_type.placement_size or 0) for start in sorted(vgpu_type.placement_ids or ()))


def _free_spans(vgpu_type: VgpuType, spans: Sequence[PlacementSpan]) -> tuple[PlacementSpan, ...]:
    return tuple(p for p in _all_spans(vgpu_type) if not any(p.overlaps(s) for s in spans))


def _count_disjoint(places: Iterable[PlacementSpan]) -> int:
    """Return how many of these places, all of one size and sorted, can be taken at once: always the next that fits."""
    count = end = 0
    for place in places:
        if count == 0 or place.start >= end:
            count, end = count + 1, place.start + place.size
    return count


def _count_guaranteed(occupancy: _Occupancy, vgpu_type: VgpuType) -> int:
    """Return how many fit next to the existing vGPUs, wherever those at unknown places are.

    One vGPU at an unknown place blocks at most as many of a largest set of places as one of its own places overlaps.
    """
    free = _free_spans(vgpu_type, occupancy.spans)
    exact_counts = _counts_for_unplaced(occupancy, vgpu_type)
    if exact_counts is not None:
        return min(exact_counts)
    return max(
        0,
        _count_disjoint(free)
        - sum(_max_blocked_spans(unplaced_type, occupancy.spans, free) for unplaced_type in occupancy.unplaced),
    )


def _count_best_case(occupancy: _Occupancy, vgpu_type: VgpuType) -> int:
    """Return how many fit at most: if each vGPU at an unknown place were where it costs least."""
    exact_counts = _counts_for_unplaced(occupancy, vgpu_type)
    return max(exact_counts) if exact_counts is not None else _count_disjoint(_free_spans(vgpu_type, occupancy.spans))


def _counts_for_unplaced(occupancy: _Occupancy, vgpu_type: VgpuType) -> list[int] | None:
    """Return how many fit for each possible place of the only unplaced vGPU; None if there are none or several."""
    unplaced_type = occupancy.unplaced[0] if len(occupancy.unplaced) == 1 else None
    places = (
        _free_spans(unplaced_type, occupancy.spans)
        if unplaced_type is not None and unplaced_type.placement_size
        else ()
    )
    return [_count_disjoint(_free_spans(vgpu_type, (*occupancy.spans, place))) for place in places] or None


def _max_blocked_spans(
    vgpu_type: VgpuType | None, spans: Sequence[PlacementSpan], free: Sequence[PlacementSpan]
) -> int:
    """Return the most of these places that one vGPU can block; all of them when its own places are unknown."""
    places = (
        (_free_spans(vgpu_type, spans) or _all_spans(vgpu_type))
        if vgpu_type is not None and vgpu_type.placement_size
        else ()
    )
    if not places:
        return len(free)
    return max(_count_disjoint(f for f in free if f.overlaps(place)) for place in places)


def _blocks(gpu: Gpu, vgpu: Vgpu, vgpu_type: VgpuType) -> bool:
    occupancy = _read_occupancy(gpu, (vgpu,))
    return bool(occupancy.unplaced) or len(_free_spans(vgpu_type, occupancy.spans)) < len(_all_spans(vgpu_type))


def _cheapest_first(gpu: Gpu, spans: Sequence[PlacementSpan], vgpu_type: VgpuType) -> list[PlacementSpan]:
    """Return the free places of a type, first the one that costs the fewest places of larger types.

    Types of one size have the same places, which count once.
    """
    size = vgpu_type.placement_size or 0
    kinds = [t for t in gpu.types if t.placement_size and t.placement_ids]
    larger = {p for t in kinds if (t.placement_size or 0) > size for p in _free_spans(t, spans)}
    others = {p for t in kinds if (t.placement_size or 0) <= size for p in _free_spans(t, spans)}

    def cost(place: PlacementSpan) -> tuple[int, int, int]:
        return sum(place.overlaps(p) for p in larger), sum(place.overlaps(p) for p in others), place.start

    return sorted(_free_spans(vgpu_type, spans), key=cost)


def _all_fit(spans: Sequence[PlacementSpan], vgpu_types: Sequence[VgpuType]) -> bool:
    """Return whether all of these fit next to the spans.

    The search fills places from left to right. Each step puts a vGPU of one of the waiting sizes at its first place
    that is free there; a later place never leaves more room. It tries each state (position, what is waiting) once.
    """
    waiting = Counter((vgpu_type.placement_ids, vgpu_type.placement_size) for vgpu_type in vgpu_types)
    free = [
        _free_spans(next(k for k in vgpu_types if (k.placement_ids, k.placement_size) == key), spans) for key in waiting
    ]
    states = [(0, tuple(waiting.values()))]
    tried = set(states)
    while states:
        end, counts = states.pop()
        if not any(counts):
            return True
        for n, places in enumerate(free):
            place = next((p for p in places if p.start >= end), None) if counts[n] else None
            if place is None:
                continue
            state = (place.start + place.size, (*counts[:n], counts[n] - 1, *counts[n + 1 :]))
            if state not in tried:
                tried.add(state)
                states.append(state)
    return False
