# SPDX-License-Identifier: Apache-2.0
"""vGPUs that may move, and their migrations, each a stop and start: one after the other, or several at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.gpu_kind import Placement


class PlacedVgpu(NamedTuple):
    """An existing vGPU that may move. `place` is its place as in `Placement.place`."""

    gpu: int
    profile: str
    place: int


class Migration(NamedTuple):
    """One stop and start: which of the existing vGPUs, and where it goes."""

    vgpu_index: int
    gpu: int
    place: int


MigrationRound = tuple[Migration, ...]
"""One migration, or several of vGPUs that wait for each other.

All vGPUs of a round are removed first, and then each goes to its place.
"""


class MigrationPlan(NamedTuple):
    """`rounds`: in an order that works. `places`: where the requested vGPUs go afterwards, in request order.

    `is_minimal`: whether it is known that fewer migrations would not do.
    """

    rounds: tuple[MigrationRound, ...]
    places: tuple[PlacedVgpu, ...]
    is_minimal: bool = True

    @property
    def largest_round(self) -> int:
        """How many vGPUs move together in the largest round."""
        return max((len(migrations) for migrations in self.rounds), default=0)

    @property
    def migrations(self) -> tuple[Migration, ...]:
        """All migrations in their order."""
        return tuple(migration for migration_round in self.rounds for migration in migration_round)


FreeFunctions = Mapping[int, int]
"""How many functions are free on a GPU, by its number; a GPU that is not in it has enough."""


def count_free_after(
    free_functions: FreeFunctions, departing: Sequence[int], arrivals: Sequence[int]
) -> FreeFunctions | None:
    """Return the free functions after a round, by GPU: departures add to them, arrivals use them.

    None: a GPU has too few. The functions of departing vGPUs become free only after the whole round is at its new
    places.
    """
    arriving = Counter(arrivals)
    if any(free_functions.get(gpu, needed) < needed for gpu, needed in arriving.items()):
        return None
    leaving = Counter(departing)
    return {gpu: free + leaving[gpu] - arriving[gpu] for gpu, free in free_functions.items()}


def count_free_after_rounds(
    free_functions: FreeFunctions, placed: Sequence[PlacedVgpu], rounds: Sequence[MigrationRound]
) -> FreeFunctions | None:
    """Return the free functions after these rounds; None: a round has too few."""
    free: FreeFunctions | None = free_functions
    for migration_round in rounds:
        free = (
            count_free_after(
                free,
                [placed[migration.vgpu_index].gpu for migration in migration_round],
                [migration.gpu for migration in migration_round],
            )
            if free is not None
            else None
        )
    return free


def copy_fleet(fleet: Fleet) -> Fleet:
    """Return a copy of the fleet that can change independently."""
    gpus = range(len(fleet))
    return Fleet(fleet.kinds, [fleet.group_of(gpu) for gpu in gpus], [fleet.vgpu_count(gpu) for gpu in gpus])


def apply_round(fleet: Fleet, placed: list[PlacedVgpu], migration_round: MigrationRound) -> None:
    """Remove the vGPUs of a round from their places, and put each at its new place; updates `placed` too."""
    for migration in migration_round:
        vgpu = placed[migration.vgpu_index]
        fleet.remove_vgpu(vgpu.gpu, vgpu.profile, vgpu.place)
    for migration in migration_round:
        placed[migration.vgpu_index] = PlacedVgpu(migration.gpu, placed[migration.vgpu_index].profile, migration.place)
        add_placed_vgpu(fleet, placed[migration.vgpu_index])


def renumber_rounds(rounds: Sequence[MigrationRound], indexes: Sequence[int]) -> tuple[MigrationRound, ...]:
    """Return rounds of a subset of vGPUs with the numbers that these have among all."""
    return tuple(
        tuple(migration._replace(vgpu_index=indexes[migration.vgpu_index]) for migration in migration_round)
        for migration_round in rounds
    )


def add_placed_vgpu(fleet: Fleet, vgpu: PlacedVgpu) -> None:
    """Place a vGPU at a free place."""
    group = fleet.group_of(vgpu.gpu)
    state = fleet.kind_of(group).add(group.state, vgpu.profile, vgpu.place)
    if state is None:
        raise ValueError(f"{vgpu} is not free")
    fleet.add_vgpu(vgpu.gpu, Placement(vgpu.place, state))
