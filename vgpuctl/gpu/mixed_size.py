# SPDX-License-Identifier: Apache-2.0
"""Where vGPUs of several sizes go on one GPU: which placement ids are free, how many fit, and which one costs least.

On a mixed-size (heterogeneous) GPU a vGPU starts at one of its type's placement ids and covers its placement size from
there; two vGPUs may not overlap. The driver reports both (nvmlDeviceGetVgpuTypeSupportedPlacements, heterogeneous
mode). Without them nothing is known; the rules that NVIDIA publishes are not applied instead. On some GPUs the ids of
small types leave gaps that nothing fits into, so fewer fit than of one size alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from vgpuctl.gpu.division import (
    MAX_TIME_SLICED,
    AllocatedSlot,
    DivisionOnVfs,
    GpuNumbers,
    Remaining,
    find_type,
    framebuffer_of,
    full_reason,
    name_holders,
    sizes_of,
)
from vgpuctl.gpu.gpu_kind import RoomLostByKind
from vgpuctl.gpu.slice_kind import Footprint, SliceKind, count_disjoint
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType


class MixedSize(DivisionOnVfs):
    """A mixed-size GPU. A set of placements is a number with a bit for each covered slice."""

    rule = "vGPUs of several sizes, each at one of its placements, and no two of them overlap"

    def remaining(self, vgpu_type: VgpuType, *, is_confirmed: bool) -> Remaining:
        """See `DivisionOnVfs.remaining`.

        A vGPU at an unknown place (a driver may have no file that reports it) counts as if it were where it costs most,
        so the number is never too high. It is exact where every place costs the same.
        """
        left = MAX_TIME_SLICED - len(self.taken)
        if left <= 0:
            return Remaining(0, full_reason(self.taken, MAX_TIME_SLICED, "the maximum for a GPU"))
        if not _has_known_placements(vgpu_type):
            return Remaining(None)
        covered, unplaced = self._occupancy
        counts = self._counts(vgpu_type, covered, unplaced)
        is_lower_bound = bool(unplaced) and min(counts) < max(counts)
        if min(counts):
            return Remaining(min(min(counts), left), is_lower_bound=is_lower_bound)
        places = _placements(vgpu_type)
        blocking = [v for v in self.taken if self._is_in_the_way(v, vgpu_type)]
        reason = f"it has mixed sizes, but none of its {len(places)} places for {vgpu_type.profile} is free"
        reason += f": {len(blocking)} overlap with it, held by {name_holders(blocking)}" if blocking else ""
        return Remaining(0, reason, is_lower_bound=is_lower_bound)

    def max_when_empty(self, vgpu_type: VgpuType) -> int | None:
        """See `Division.max_when_empty`."""
        if vgpu_type.gi_profile_id is not None:
            return vgpu_type.max_per_gpu
        return count_disjoint(_placements(vgpu_type)) if _has_known_placements(vgpu_type) else None

    def describe(self, types: Sequence[VgpuType]) -> GpuNumbers | None:
        """See `DivisionOnVfs.describe`. The place of every vGPU has to be known.

        One that is about to move counts at both places; None where it overlaps another one.
        """
        placed = [t for t in types if t.placement_size and t.placement_ids and t.framebuffer_mib is not None]
        kind = self._make_kind(placed, f"{self.gpu.model}, mixed sizes", min(MAX_TIME_SLICED, self.carriers))
        covered, allocated = 0, []
        for vgpu in self.taken:
            vgpu_type = find_type(self.gpu, vgpu)
            mask = self._cover(vgpu, vgpu_type)
            if vgpu_type is None or not mask or mask >> self._slices or covered & mask:
                return None
            covered |= mask
            allocated.append(AllocatedSlot(vgpu, vgpu_type.profile, mask + (1 << self._slices)))
        return GpuNumbers(kind, covered + (len(self.taken) << self._slices), tuple(allocated))

    def pack(self, vgpu_types: Sequence[VgpuType]) -> tuple[int, ...] | None:
        """Return a placement id for each of these vGPUs, in their order, so that all fit; None when they do not.

        `vgpu_types`: types of this GPU. Larger vGPUs choose first. Each takes the id that costs the least room, of
        equal ones the lowest; but only an id that leaves room for the rest. If an existing vGPU is at an unknown place,
        each new one must fit wherever that is.
        """
        covered, unplaced = self._occupancy
        state = (covered & self._all_slices) + (len(self.taken) << self._slices)
        order = sorted(range(len(vgpu_types)), key=lambda n: (-(vgpu_types[n].placement_size or 0), n))
        room_lost = RoomLostByKind(self._packing_kind)
        chosen: dict[int, int] = {}
        for position, index in enumerate(order):
            rest = Counter(vgpu_types[n].profile for n in order[position + 1 :])
            candidates = room_lost.placements_by_cost(state, vgpu_types[index].profile)
            place = next((p.place for _, p in candidates if self._packing_kind.fits(p.state_after, rest)), None)
            if place is None:
                return None
            chosen[index] = place & self._all_slices
            state += place
        # for a single vGPU, `remaining` and the driver have answered
        if unplaced and len(vgpu_types) > 1:
            for n, vgpu_type in enumerate(vgpu_types):
                others = covered + sum(mask for index, mask in chosen.items() if index != n)
                if min(self._counts(vgpu_type, others, unplaced)) == 0:
                    return None
        return tuple(placement_id_of(chosen[n]) for n in range(len(vgpu_types)))

    def is_placement_free(self, vgpu_type: VgpuType, placement_id: int) -> bool:
        """Return whether a vGPU of a type can be at a placement, as far as the places of the others are known."""
        return any(placement_id_of(place) == placement_id for place in _free(vgpu_type, self._occupancy[0]))

    @cached_property
    def _slices(self) -> int:
        ends = [start + (t.placement_size or 0) for t in self.gpu.types for start in t.placement_ids or ()]
        return max(ends, default=0)

    @property
    def _all_slices(self) -> int:
        return (1 << self._slices) - 1

    @cached_property
    def _packing_kind(self) -> SliceKind:
        """The kind that knows every type that has places."""
        return self._make_kind([t for t in self.gpu.types if t.placement_size and t.placement_ids], "", MAX_TIME_SLICED)

    def _make_kind(self, types: Sequence[VgpuType], name: str, carriers: int) -> SliceKind:
        footprints = {
            t.profile: Footprint(tuple(sorted(t.placement_ids or ())), t.placement_size or 0, ((0, 1),)) for t in types
        }
        sizes = sizes_of(types)
        framebuffer = framebuffer_of(self.gpu, list(sizes.values()))
        return SliceKind(name, framebuffer, sizes, footprints, slices=self._slices, pools=(carriers,))

    @cached_property
    def _occupancy(self) -> tuple[int, tuple[VgpuType | None, ...]]:
        """What is on the GPU: the slices that are taken or reserved, and the types of vGPUs whose place is unknown."""
        covered, unplaced = 0, []
        for vgpu in self.taken:
            vgpu_type = find_type(self.gpu, vgpu)
            mask = self._cover(vgpu, vgpu_type)
            covered |= mask
            if not mask:
                unplaced.append(vgpu_type)
        return covered, tuple(unplaced)

    def _cover(self, vgpu: Vgpu, vgpu_type: VgpuType | None) -> int:
        """Return the slices that a vGPU covers where it is and where it will be; 0 when its place is unknown."""
        ids = vgpu_type.placement_ids if vgpu_type is not None else None
        size = (vgpu_type.placement_size if vgpu_type is not None else None) or 0
        # vgpuctl never moves it to a place that its type does not have
        target = vgpu.target_placement_id if ids is None or vgpu.target_placement_id in ids else None
        covered = 0
        for start in {n for n in (vgpu.placement_id, target) if n is not None}:
            covered |= _mask(start, size)
        return covered

    def _counts(self, vgpu_type: VgpuType, covered: int, unplaced: Sequence[VgpuType | None]) -> list[int]:
        """Return how many of a type fit: the fewest and the most, or for each place of the only unplaced vGPU.

        A vGPU at an unknown place blocks at most as many of a largest set of places as one of its own places overlaps.
        """
        free = _free(vgpu_type, covered)
        most = count_disjoint(free)
        if len(unplaced) == 1 and unplaced[0] is not None:
            places = _free(unplaced[0], covered)
            if places:
                return [count_disjoint(_free(vgpu_type, covered | place)) for place in places]
        return [max(0, most - sum(_most_blocked(other, covered, free) for other in unplaced)), most]

    def _is_in_the_way(self, vgpu: Vgpu, vgpu_type: VgpuType) -> bool:
        mask = self._cover(vgpu, find_type(self.gpu, vgpu))
        return not mask or any(place & mask for place in _placements(vgpu_type))


def pack_vgpus(gpu: Gpu, taken: Sequence[Vgpu], vgpu_types: Sequence[VgpuType]) -> tuple[int, ...] | None:
    """Return placement ids for several more vGPUs: see `MixedSize.pack`."""
    return MixedSize(gpu, taken).pack(vgpu_types)


def choose_placement_id(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType) -> int | None:
    """Return the placement id for one more vGPU; None where the driver chooses, or none is free."""
    ids = pack_vgpus(gpu, taken, (vgpu_type,)) if gpu.accepts_placements else None
    return ids[0] if ids is not None else None


def is_placement_free(gpu: Gpu, taken: Sequence[Vgpu], vgpu_type: VgpuType, placement_id: int) -> bool:
    """Return whether a placement is free: see `MixedSize.is_placement_free`."""
    return MixedSize(gpu, taken).is_placement_free(vgpu_type, placement_id)


def _has_known_placements(vgpu_type: VgpuType) -> bool:
    """Return whether the driver reports where a type can be.

    A type with no possible place has no ids and needs no size.
    """
    return vgpu_type.placement_ids == () or (vgpu_type.placement_ids is not None and bool(vgpu_type.placement_size))


def _mask(start: int, size: int) -> int:
    return ((1 << size) - 1) << start


def placement_id_of(place: int) -> int:
    """Return the placement id of a place: the lowest slice that it covers."""
    return (place & -place).bit_length() - 1


def _placements(vgpu_type: VgpuType) -> list[int]:
    """Return the slices of each place of a type, the lowest first."""
    size = vgpu_type.placement_size
    return [_mask(start, size) for start in sorted(vgpu_type.placement_ids or ())] if size else []


def _free(vgpu_type: VgpuType, covered: int) -> list[int]:
    return [place for place in _placements(vgpu_type) if not place & covered]


def _most_blocked(vgpu_type: VgpuType | None, covered: int, free: Sequence[int]) -> int:
    """Return the most of these places that one vGPU can block; all of them when its own places are unknown."""
    places = (_free(vgpu_type, covered) or _placements(vgpu_type)) if vgpu_type is not None else []
    if not places:
        return len(free)
    return max(count_disjoint([f for f in free if f & place]) for place in places)
