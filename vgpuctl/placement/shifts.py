# SPDX-License-Identifier: Apache-2.0
"""vGPUs that are there and may be moved, and one stop and start after the other, or several at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.kind import Move


class Placed(NamedTuple):
    """A vGPU that is there and may be moved. `place` is what `Kind.moves` called where it is."""

    gpu: int
    profile: str
    place: int


class Shift(NamedTuple):
    """One stop and start: which of the vGPUs that are there, and where it goes."""

    which: int
    gpu: int
    place: int


Round = tuple[Shift, ...]
"""One shift; or more, of vGPUs that wait for each other: all are taken away, and then each is put at its place."""


class Room(NamedTuple):
    """`rounds`: in the order in which they can be done. `places`: where what is wanted goes then, in its order.

    `fewest`: whether it is known that no fewer shifts would do.
    """

    rounds: tuple[Round, ...]
    places: tuple[Placed, ...]
    fewest: bool = True

    @property
    def at_once(self) -> int:
        """How many go together in the largest round."""
        return max((len(one) for one in self.rounds), default=0)

    @property
    def shifts(self) -> tuple[Shift, ...]:
        """All of them in their order."""
        return tuple(shift for one in self.rounds for shift in one)


Spare = Mapping[int, int]
"""How many functions are free on a GPU, by its number; a GPU that is not in it lacks none."""


def spared(spare: Spare, leave: Sequence[int], come: Sequence[int]) -> Spare | None:
    """Return the functions that are free after a round: by GPU, those that leave it and those that come.

    None: one has too few. Those of the vGPUs that leave are not free before all of the round are at their new places.
    """
    arriving = Counter(come)
    if any(spare.get(gpu, number) < number for gpu, number in arriving.items()):
        return None
    leaving = Counter(leave)
    return {gpu: free + leaving[gpu] - arriving[gpu] for gpu, free in spare.items()}


def spared_by_all(spare: Spare, placed: Sequence[Placed], rounds: Sequence[Round]) -> Spare | None:
    """Return the functions that are free after these rounds; None: one of them lacks some."""
    now: Spare | None = spare
    for one in rounds:
        now = spared(now, [placed[s.which].gpu for s in one], [s.gpu for s in one]) if now is not None else None
    return now


def copied(fleet: Fleet) -> Fleet:
    """Return a fleet that can be changed without this one."""
    gpus = range(len(fleet))
    return Fleet(fleet.kinds, [fleet.group_of(gpu) for gpu in gpus], [fleet.vgpus(gpu) for gpu in gpus])


def moved(fleet: Fleet, there: list[Placed], one: Round) -> None:
    """Take the vGPUs of a round from their places, and put each where it says; `there` is where all are, then too."""
    for shift in one:
        vgpu = there[shift.which]
        fleet.take(vgpu.gpu, vgpu.profile, vgpu.place)
    for shift in one:
        there[shift.which] = Placed(shift.gpu, there[shift.which].profile, shift.place)
        put(fleet, there[shift.which])


def renumbered(rounds: Sequence[Round], which: Sequence[int]) -> tuple[Round, ...]:
    """Return rounds of some vGPUs with the numbers that these have among all."""
    return tuple(tuple(shift._replace(which=which[shift.which]) for shift in one) for one in rounds)


def put(fleet: Fleet, vgpu: Placed) -> None:
    """Place a vGPU at a place that is free."""
    group = fleet.group_of(vgpu.gpu)
    state = fleet.kind(group).at(group.state, vgpu.profile, vgpu.place)
    if state is None:
        raise ValueError(f"{vgpu} is not free")
    fleet.put(vgpu.gpu, Move(vgpu.place, state))
