# SPDX-License-Identifier: Apache-2.0
"""The policies that choose the GPU of the next vGPU, and its place on it.

Every policy admits whatever fits, and puts a vGPU at the place of its GPU that costs the least room (`RoomLost`). Ties
go to the lowest address. The same fleet always gives the same answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TypeAlias

from vgpuctl.gpu.gpu_kind import GpuKind, Placement, RoomLost, RoomLostByKind
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice

SortKey: TypeAlias = tuple[int, ...]


class PlacementPolicy(ABC):
    """A way to choose among the GPUs with room. One instance is for fleets of the same kinds; it caches."""

    def __init__(self) -> None:
        self._room_lost: dict[int, RoomLostByKind] = {}

    @abstractmethod
    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """Return where the next vGPU of a profile goes; None only when no GPU has room."""

    @abstractmethod
    def key(self, fleet: Fleet, gpu: int, profile: str, lost: RoomLost) -> SortKey:
        """Return what a place on a GPU is compared by, given what it takes there; the lowest is best."""

    def order_choices(self, fleet: Fleet, profile: str, gpus: Iterable[int]) -> list[PlacementChoice]:
        """Return every place for the next vGPU of a profile on each of these GPUs, the best first."""
        keyed = [
            (key, PlacementChoice(gpu, fleet.group_of(gpu), place))
            for gpu in gpus
            for key, place in self._keyed_places(fleet, profile, gpu)
        ]
        return [choice for _, choice in sorted(keyed, key=itemgetter(0))]

    def best_place(self, fleet: Fleet, profile: str, gpu: int) -> tuple[SortKey, Placement] | None:
        """Return the best place for the next vGPU of a profile on a GPU, with its `key`; None: there is no room."""
        return min(self._keyed_places(fleet, profile, gpu), key=itemgetter(0), default=None)

    def _keyed_places(self, fleet: Fleet, profile: str, gpu: int) -> list[tuple[SortKey, Placement]]:
        group = fleet.group_of(gpu)
        costs = self._room_lost_on(fleet.kinds, group.kind_index).placements_by_cost(group.state, profile)
        return [(self.key(fleet, gpu, profile, lost), place) for lost, place in costs]

    def _best_placements(self, fleet: Fleet, profile: str) -> Iterator[tuple[GpuGroup, RoomLost, Placement]]:
        """Yield the best place on the GPUs of each group that have room."""
        for group, _ in fleet.groups():
            costs = self._room_lost_on(fleet.kinds, group.kind_index).placements_by_cost(group.state, profile)
            if costs:
                yield group, *costs[0]

    def _room_lost_on(self, kinds: tuple[GpuKind, ...], index: int) -> RoomLostByKind:
        return self._room_lost.get(index) or self._room_lost.setdefault(index, RoomLostByKind(kinds[index]))


class LeastWaste(PlacementPolicy):
    """The GPU on which the least room is wasted: docs/explanation/placement.md has the rule and what it is worth."""

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`."""
        best: tuple[SortKey, PlacementChoice] | None = None
        for group, lost, placement in self._best_placements(fleet, profile):
            gpu = fleet.first_gpu(group)
            key = self.key(fleet, gpu, profile, lost)
            if best is None or key < best[0]:
                best = key, PlacementChoice(gpu, group, placement)
        return None if best is None else best[1]

    def key(self, fleet: Fleet, gpu: int, profile: str, lost: RoomLost) -> SortKey:
        """See `PlacementPolicy.key`."""
        group = fleet.group_of(gpu)
        remaining = fleet.kind_of(group).count_remaining(group.state, profile)
        return lost.extra, *self._cost_of_opening(fleet, gpu, profile), lost.total, remaining, gpu

    def _cost_of_opening(self, fleet: Fleet, gpu: int, profile: str) -> SortKey:
        """Return what makes a GPU in use better than an empty one, and one empty GPU better than another.

        Of empty GPUs the best is of the model that vGPUs of this profile leave the least of unused; then of a model
        that is not needed for a size in use; then the one with the most framebuffer. Where a driver does not report
        what vGPUs take, a GPU in use has the state of an empty one, so the number of its vGPUs counts too.
        """
        group = fleet.group_of(gpu)
        kind = fleet.kind_of(group)
        if group.state != kind.empty or fleet.vgpu_count(gpu):
            return 0, 0, 0, 0
        unfilled = self._room_lost_on(fleet.kinds, group.kind_index).lost_when_empty(profile) - kind.sizes[profile]
        return 1, unfilled, int(_is_alone_with_a_size_in_use(fleet, group.kind_index)), -kind.framebuffer_mib


def _is_alone_with_a_size_in_use(fleet: Fleet, index: int) -> bool:
    """Return whether vGPUs on these GPUs have a size that only the GPUs of this kind offer."""
    in_use = {size for group, _ in fleet.groups() for size in fleet.kind_of(group).sizes_in_use(group.state)}
    others = {size for number, kind in enumerate(fleet.kinds) if number != index for size in kind.sizes.values()}
    return bool((in_use & set(fleet.kinds[index].sizes.values())) - others)


class _GpuPolicy(PlacementPolicy):
    """A policy that compares GPUs by one number."""

    @abstractmethod
    def rank(self, fleet: Fleet, gpu: int) -> int:
        """Return the rank of a GPU; the lowest wins."""

    def key(self, fleet: Fleet, gpu: int, profile: str, lost: RoomLost) -> SortKey:
        """See `PlacementPolicy.key`."""
        return self.rank(fleet, gpu), gpu, *lost

    def choose(self, fleet: Fleet, profile: str) -> PlacementChoice | None:
        """See `PlacementPolicy.choose`."""
        placements = {group: placement for group, _, placement in self._best_placements(fleet, profile)}
        gpus = (gpu for gpu in range(len(fleet)) if fleet.group_of(gpu) in placements)
        best = min(gpus, key=lambda gpu: (self.rank(fleet, gpu), gpu), default=None)
        if best is None:
            return None
        group = fleet.group_of(best)
        return PlacementChoice(best, group, placements[group])


class FirstFit(_GpuPolicy):
    """The GPU with the lowest address."""

    def rank(self, fleet: Fleet, gpu: int) -> int:
        """See `_GpuPolicy.rank`."""
        return gpu


class Depth(_GpuPolicy):
    """The GPU with the most vGPUs: one is filled before the next is used."""

    def rank(self, fleet: Fleet, gpu: int) -> int:
        """See `_GpuPolicy.rank`."""
        return -fleet.vgpu_count(gpu)


class Breadth(_GpuPolicy):
    """The GPU with the fewest vGPUs: each vGPU shares its GPU with as few others as possible."""

    def rank(self, fleet: Fleet, gpu: int) -> int:
        """See `_GpuPolicy.rank`."""
        return fleet.vgpu_count(gpu)


POLICIES: Mapping[str, Callable[[], PlacementPolicy]] = {
    "least-waste": LeastWaste,
    "depth": Depth,
    "breadth": Breadth,
    "first-fit": FirstFit,
}
"""By name. Those of `PLACEMENT_POLICIES` in config/vm_fields.py."""
