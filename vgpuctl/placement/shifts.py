# SPDX-License-Identifier: Apache-2.0
"""vGPUs that are there and may be moved, and one stop and start after the other."""

from __future__ import annotations

from typing import NamedTuple

from vgpuctl.placement.fleet import Fleet
from vgpuctl.placement.kind import Kind, Move, State


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


class Room(NamedTuple):
    """`shifts`: in the order in which they can be done. `places`: where what is wanted goes then, in its order.

    `fewest`: whether it is known that no fewer would do.
    """

    shifts: tuple[Shift, ...]
    places: tuple[Placed, ...]
    fewest: bool = True


def copied(fleet: Fleet) -> Fleet:
    """Return a fleet that can be changed without this one."""
    gpus = range(len(fleet))
    return Fleet(fleet.kinds, [fleet.group_of(gpu) for gpu in gpus], [fleet.vgpus(gpu) for gpu in gpus])


def moved(fleet: Fleet, vgpu: Placed, shift: Shift) -> Placed:
    """Take a vGPU from its place and put it where a move says; returns where it is then."""
    fleet.take(vgpu.gpu, vgpu.profile, vgpu.place)
    there = Placed(shift.gpu, vgpu.profile, shift.place)
    put(fleet, there)
    return there


def put(fleet: Fleet, vgpu: Placed) -> None:
    """Place a vGPU at a place that is free."""
    group = fleet.group_of(vgpu.gpu)
    move = move_to(fleet.kind(group), group.state, vgpu.profile, vgpu.place)
    if move is None:
        raise ValueError(f"{vgpu} is not free")
    fleet.put(vgpu.gpu, move)


def move_to(kind: Kind, state: State, profile: str, place: int) -> Move | None:
    """Return the move that puts a vGPU at this place; None: it is not free."""
    return next((m for m in kind.moves(state, profile) if m.place == place), None)
