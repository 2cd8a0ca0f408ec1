# SPDX-License-Identifier: Apache-2.0
"""Where vGPUs of several sizes go on one GPU: which placement ids are free, how many fit, and which one costs least.

On a mixed-size GPU a vGPU of a type starts at one of its placement ids and covers its placement size from there; two
may not overlap. Both come from the driver (nvmlDeviceGetVgpuTypeSupportedPlacements, heterogeneous mode): without
them nothing is known, and the rules that NVIDIA publishes are not applied instead. On some GPUs the ids of small types
leave gaps that nothing fits, so fewer fit than of one size alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from vgpuctl.capacity.left import MAX_TIME_SLICED, Left, type_on, who
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.model.partition import Span
from vgpuctl.value import Value


class _Seen(Value):
    """What is on a GPU: the spans that are taken or promised, and the types of those whose place is not known."""

    spans: tuple[Span, ...]
    unplaced: tuple[VgpuType | None, ...]


def left(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType) -> Left:
    """Return how many more of a type fit: the most of its placements that overlap neither each other nor what is there.

    What is at an unknown place, as where a driver has no file that tells it, is taken to be where it costs most: the
    number is never too big. It is exact where every place of it costs the same.
    """
    if not _told(wanted):
        return Left(None)
    seen = _seen(gpu, taken)
    free = _most_beside(seen, wanted)
    least = bool(seen.unplaced) and free < _most_at_best(seen, wanted)
    if free:
        return Left(free, least=least)
    blocking = [v for v in taken if _blocks(gpu, v, wanted)]
    why = f"it has mixed sizes, and none of its {len(_places(wanted))} places for {wanted.profile} is free"
    why += f": {len(blocking)} in the way, held by {who(blocking)}" if blocking else ""
    return Left(0, why, least=least)


def most_when_empty(wanted: VgpuType) -> int | None:
    """Return how many of a type fit on a mixed-size GPU that has nothing else; None when its driver does not tell."""
    return _most(_places(wanted)) if _told(wanted) else None


def pack(gpu: Gpu, taken: Sequence[Vgpu], wanted: Sequence[VgpuType]) -> tuple[int, ...] | None:
    """Return a placement id for each of these vGPUs, in their order, so that all fit; None when they do not.

    Larger ones choose first. Each takes the id after which the fewest placements of larger types are lost, then the
    fewest of others, then the lowest; but only one that leaves room for the rest. Where something is at an unknown
    place, each must fit wherever that is.
    """
    if len(taken) + len(wanted) > MAX_TIME_SLICED:
        return None
    seen = _seen(gpu, taken)
    spans = seen.spans
    chosen: dict[int, int] = {}
    order = sorted(range(len(wanted)), key=lambda n: (-(wanted[n].placement_size or 0), n))
    for number, index in enumerate(order):
        rest = [wanted[n] for n in order[number + 1 :]]
        place = next((p for p in _cheapest_first(gpu, spans, wanted[index]) if _fit((*spans, p), rest)), None)
        if place is None:
            return None
        chosen[index] = place.start
        spans = (*spans, place)
    placed = [Span(chosen[n], kind.placement_size or 0) for n, kind in enumerate(wanted)]
    if seen.unplaced and len(wanted) > 1:  # for one alone, `left` and the driver have answered
        for n, kind in enumerate(wanted):
            others = (*seen.spans, *placed[:n], *placed[n + 1 :])
            if _most_beside(_Seen(others, seen.unplaced), kind) == 0:
                return None
    return tuple(chosen[n] for n in range(len(wanted)))


def cheapest(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType) -> int | None:
    """Return the placement id that one more vGPU takes; None where the driver chooses, or none is free."""
    ids = pack(gpu, taken, (wanted,)) if gpu.chooses_places else None
    return ids[0] if ids is not None else None


def is_free(gpu: Gpu, taken: Sequence[Vgpu], wanted: VgpuType, placement_id: int) -> bool:
    """Say whether a vGPU of a type can be at a placement, as far as the places of the others are known."""
    return any(p.start == placement_id for p in _free(wanted, _seen(gpu, taken).spans))


def _told(kind: VgpuType) -> bool:
    """Say whether the driver tells where a type can be; one that can be nowhere has no ids and needs no size."""
    return kind.placement_ids == () or (kind.placement_ids is not None and bool(kind.placement_size))


def _seen(gpu: Gpu, taken: Sequence[Vgpu]) -> _Seen:
    spans: list[Span] = []
    unplaced: list[VgpuType | None] = []
    for vgpu in taken:
        kind = type_on(gpu, vgpu)
        size = kind.placement_size if kind is not None else None
        ids = kind.placement_ids if kind is not None else None
        due = vgpu.due_placement_id if ids is None or vgpu.due_placement_id in ids else None  # else it is never moved
        starts = {n for n in (vgpu.placement_id, due) if n is not None}
        if starts and size:
            spans += [Span(start, size) for start in sorted(starts)]
        else:
            unplaced.append(kind)
    return _Seen(tuple(spans), tuple(unplaced))


def _places(kind: VgpuType) -> tuple[Span, ...]:
    return tuple(Span(start, kind.placement_size or 0) for start in sorted(kind.placement_ids or ()))


def _free(kind: VgpuType, spans: Sequence[Span]) -> tuple[Span, ...]:
    return tuple(p for p in _places(kind) if not any(p.overlaps(s) for s in spans))


def _most(places: Iterable[Span]) -> int:
    """Return how many of these places, all of one size and sorted, can be taken at once: always the next that fits."""
    number = end = 0
    for place in places:
        if number == 0 or place.start >= end:
            number, end = number + 1, place.start + place.size
    return number


def _most_beside(seen: _Seen, wanted: VgpuType) -> int:
    """Return how many fit beside what is there, wherever what is at unknown places is.

    Of a largest set of places one vGPU at an unknown place spoils at most as many as a place of it overlaps.
    """
    free = _free(wanted, seen.spans)
    alone = _with_one_unplaced(seen, wanted)
    if alone is not None:
        return min(alone)
    return max(0, _most(free) - sum(_spoiled(kind, seen.spans, free) for kind in seen.unplaced))


def _most_at_best(seen: _Seen, wanted: VgpuType) -> int:
    """Return how many fit at most, were everything at the unknown place that costs least."""
    alone = _with_one_unplaced(seen, wanted)
    return max(alone) if alone is not None else _most(_free(wanted, seen.spans))


def _with_one_unplaced(seen: _Seen, wanted: VgpuType) -> list[int] | None:
    """Return how many fit for each place of the only vGPU whose place is not known; None for none or several."""
    kind = seen.unplaced[0] if len(seen.unplaced) == 1 else None
    places = _free(kind, seen.spans) if kind is not None and kind.placement_size else ()
    return [_most(_free(wanted, (*seen.spans, place))) for place in places] or None


def _spoiled(kind: VgpuType | None, spans: Sequence[Span], free: Sequence[Span]) -> int:
    """Return the most of these places that one vGPU can spoil; all of them when nothing is known of its own."""
    places = (_free(kind, spans) or _places(kind)) if kind is not None and kind.placement_size else ()
    if not places:
        return len(free)
    return max(_most(f for f in free if f.overlaps(place)) for place in places)


def _blocks(gpu: Gpu, vgpu: Vgpu, wanted: VgpuType) -> bool:
    seen = _seen(gpu, (vgpu,))
    return bool(seen.unplaced) or len(_free(wanted, seen.spans)) < len(_places(wanted))


def _cheapest_first(gpu: Gpu, spans: Sequence[Span], wanted: VgpuType) -> list[Span]:
    """Return the free places of a type, first the one after which the fewest places of larger types are lost.

    Types of one size have the same places, which count once.
    """
    size = wanted.placement_size or 0
    kinds = [t for t in gpu.types if t.placement_size and t.placement_ids]
    larger = {p for t in kinds if (t.placement_size or 0) > size for p in _free(t, spans)}
    others = {p for t in kinds if (t.placement_size or 0) <= size for p in _free(t, spans)}

    def cost(place: Span) -> tuple[int, int, int]:
        return sum(place.overlaps(p) for p in larger), sum(place.overlaps(p) for p in others), place.start

    return sorted(_free(wanted, spans), key=cost)


def _fit(spans: Sequence[Span], wanted: Sequence[VgpuType]) -> bool:
    """Say whether all of these fit beside the spans.

    Places are filled from left to right: each next vGPU is of one of the sizes that are waiting, at the first place of
    it that is free there: a later one never leaves more room. Each state (how far, what is waiting) is tried once.
    """
    waiting = Counter((kind.placement_ids, kind.placement_size) for kind in wanted)
    free = [_free(next(k for k in wanted if (k.placement_ids, k.placement_size) == key), spans) for key in waiting]
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
