# SPDX-License-Identifier: Apache-2.0
"""A fleet as an integer program: for each GPU, profile and place, how many vGPUs are there in the end.

Profiles that take the same on every GPU are one class, and GPUs that are alike one block. The kinds of the GPUs give
the rows, and check every answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacedVgpu
from vgpuctl.solver import Program, Solution
from vgpuctl.value import Value


class Spot(Value):
    """A place for vGPUs of a class on each GPU of a block."""

    block: int
    profile: str
    place: int


class _Block(Value):
    """GPUs that are alike, and their state without the vGPUs that may move."""

    gpus: tuple[int, ...]
    kind: GpuKind
    state: State


class ProfileClasses:
    """Profiles by what they take: of a class, each can be where another of it is."""

    def __init__(self, fleet: Fleet, profiles: Iterable[str]) -> None:
        first: dict[object, str] = {}
        self.class_of: dict[str, str] = {}
        for profile in sorted(set(profiles)):
            takes = tuple((kind.footprint(profile), kind.sizes.get(profile)) for kind in fleet.kinds)
            self.class_of[profile] = first.setdefault(takes, profile)

    def count(self, profiles: Mapping[str, int]) -> Counter[str]:
        """Return how many of each class these are."""
        counts = Counter[str]()
        for profile, count in profiles.items():
            counts[self.class_of[profile]] += count
        return counts


class FleetProgram(Program):
    """An integer program over the GPUs of a fleet without the vGPUs that may move.

    `columns`: for each place that a vGPU of one of the classes may have, the column that counts the vGPUs there.
    """

    def __init__(
        self, fleet: Fleet, movable: Sequence[PlacedVgpu], classes: Iterable[str], apart: Collection[int] = ()
    ) -> None:
        """`movable`: vGPUs of the fleet that may be elsewhere in the end. `apart`: GPUs that are blocks of their own.

        Others that are alike are one block. Limits of a whole GPU, such as its VFs, the block has together; `spread`
        tells whether each GPU keeps them.
        """
        super().__init__()
        states: dict[int, State] = {gpu: fleet.group_of(gpu).state for gpu in range(len(fleet))}
        for vgpu in movable:
            kind = fleet.kind_of(fleet.group_of(vgpu.gpu))
            states[vgpu.gpu] = kind.remove(states[vgpu.gpu], vgpu.profile, vgpu.place)
        alike: dict[object, list[int]] = {}
        for gpu, state in states.items():
            group = GpuGroup(fleet.group_of(gpu).kind_index, state)
            alike.setdefault(gpu if gpu in apart else group, []).append(gpu)
        self.blocks = [
            _Block(tuple(gpus), fleet.kind_of(fleet.group_of(gpus[0])), states[gpus[0]]) for gpus in alike.values()
        ]
        self._block_of = {gpu: number for number, block in enumerate(self.blocks) for gpu in block.gpus}
        self.columns = self._add_columns(classes)
        self._add_rows(self.columns)

    def add_unused_room(self, profile: str) -> list[int]:
        """Add columns for vGPUs of one class that would fit beside those in `columns`, and only beside these."""
        room = self._add_columns([profile])
        self._add_rows(self.columns, room)
        return list(room.values())

    def columns_of(self, profile: str, gpu: int | None = None) -> list[int]:
        """Return the columns of one class, on all GPUs or on one that is a block of its own."""
        block = self._block_of[gpu] if gpu is not None else None
        return [
            column
            for spot, column in self.columns.items()
            if spot.profile == profile and (block is None or spot.block == block)
        ]

    def column_at(self, vgpu: PlacedVgpu) -> int:
        """Return the column of a place on a GPU that is a block of its own."""
        return self.columns[Spot(self._block_of[vgpu.gpu], vgpu.profile, vgpu.place)]

    def spread(self, solution: Solution) -> list[PlacedVgpu] | None:
        """Return the vGPUs of a solution, each on one GPU; None when the GPUs of a block do not take them."""
        on_block: dict[int, list[Spot]] = {}
        for spot, column in self.columns.items():
            on_block.setdefault(spot.block, []).extend([spot] * solution.values[column])
        placed: list[PlacedVgpu] = []
        for number, spots in on_block.items():
            orders = (_spread(self.blocks[number], spots, sign) for sign in (-1, 1))
            order = next((order for order in orders if order is not None), None)
            if order is None:
                return None
            placed += order
        return placed

    def _add_columns(self, classes: Iterable[str]) -> dict[Spot, int]:
        columns: dict[Spot, int] = {}
        profiles = sorted(set(classes))
        for number, block in enumerate(self.blocks):
            for profile in profiles:
                most = len(block.gpus) * block.kind.count_remaining(block.state, profile)
                for placement in block.kind.all_placements(block.state, profile):
                    columns[Spot(number, profile, placement.place)] = self.add_column(most)
        return columns

    def _add_rows(self, *columns: Mapping[Spot, int]) -> None:
        """Add the rows of each block for all of these columns together."""
        on_block: dict[int, dict[tuple[str, int], list[int]]] = {}
        for spot, column in (item for part in columns for item in part.items()):
            on_block.setdefault(spot.block, {}).setdefault((spot.profile, spot.place), []).append(column)
        for number, of_block in on_block.items():
            block = self.blocks[number]
            block.kind.add_rows(self, block.state, of_block, len(block.gpus))


def _spread(block: _Block, spots: Sequence[Spot], sign: int) -> list[PlacedVgpu] | None:
    """Give each vGPU a GPU of its block, from left to right: the fullest that takes it (`sign` -1) or the emptiest."""
    states = dict.fromkeys(block.gpus, block.state)
    placed: list[PlacedVgpu] = []
    counts = Counter(dict.fromkeys(block.gpus, 0))
    from_left = sorted(  # of one size those with the lower maximum first: it counts the others, too
        spots, key=lambda s: (s.place & -s.place, block.kind.count_remaining(block.state, s.profile), s.profile)
    )
    for spot in from_left:
        for gpu in sorted(block.gpus, key=lambda gpu: (sign * counts[gpu], gpu)):
            after = block.kind.add(states[gpu], spot.profile, spot.place)
            if after is not None:
                break
        else:
            return None
        states[gpu], counts[gpu] = after, counts[gpu] + 1
        placed.append(PlacedVgpu(gpu, spot.profile, spot.place))
    return placed
