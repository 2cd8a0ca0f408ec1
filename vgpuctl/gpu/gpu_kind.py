# SPDX-License-Identifier: Apache-2.0
"""What interchangeable GPUs take, as small hashable states: what is on a GPU, and its state after one more vGPU.

A way to divide a GPU (`division`) builds one of these and explains its numbers with names and holders. Without names a
policy can weigh thousands of choices in a second. Two GPUs of one kind in one state are interchangeable for every
choice, so a choice is among distinct states, not among GPUs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from vgpuctl.solver import Program


Columns: TypeAlias = Mapping[tuple[str, int], Sequence[int]]
"""Columns of an integer program: how many vGPUs of a profile are at a place."""

State: TypeAlias = Any
"""What is on a GPU, in the form of its kind: hashable. Equal states take the same, now and later."""


class Placement(NamedTuple):
    """One more vGPU: its place (which `GpuKind.remove` needs to remove it again), and the state after it."""

    place: int
    state_after: State


class AlikeKind(ABC):
    """The base of kinds that are equal if they have the same numbers: their GPUs are interchangeable then."""

    def __init__(self, *numbers: Hashable) -> None:
        self._numbers = numbers

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)

    @abstractmethod
    def count_remaining(self, state: State, profile: str) -> int:
        """See `GpuKind.count_remaining`."""

    def count_each(self, state: State, profiles: tuple[str, ...]) -> list[int]:
        """See `GpuKind.count_each`."""
        return [self.count_remaining(state, profile) for profile in profiles]

    def sizes_in_use(self, state: State) -> frozenset[int]:
        """See `GpuKind.sizes_in_use`."""
        return frozenset()


class GpuKind(Protocol):
    """GPUs of one model that are divided in the same way.

    `framebuffer_mib`: of a whole GPU. `sizes`: the framebuffer in MiB of each profile that it offers.
    """

    @property
    def name(self) -> str:
        """The model, and how it is divided: for tables and messages."""

    @property
    def framebuffer_mib(self) -> int:
        """The framebuffer of the whole GPU."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The framebuffer in MiB of each profile."""

    @property
    def empty(self) -> State:
        """The state of a GPU with nothing on it."""

    def footprint(self, profile: str) -> Hashable:
        """Return what a vGPU of the profile takes; vGPUs with equal footprints can always swap places."""

    def placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """Return every distinct state after one more vGPU of the profile, the lowest place first; empty: no room."""

    def all_placements(self, state: State, profile: str) -> tuple[Placement, ...]:
        """Return `placements` and also each equivalent place: these differ only by the vGPUs that are there."""

    def add(self, state: State, profile: str, place: int) -> State | None:
        """Return the state after one more vGPU of the profile at this place; None: it is not free.

        Of equivalent places `placements` names only the first; here each of them is valid.
        """

    def remove(self, state: State, profile: str, place: int) -> State:
        """Return the state after the vGPU at this place is removed."""

    def count_remaining(self, state: State, profile: str) -> int:
        """Return how many more of this one profile fit, exactly."""

    def count_each(self, state: State, profiles: tuple[str, ...]) -> list[int]:
        """Return how many more of each of these profiles alone fit."""

    def sizes_in_use(self, state: State) -> frozenset[int]:
        """Return the framebuffer sizes in MiB of the vGPUs on a GPU; none where the state does not have them."""

    def fits(self, state: State, requested: Mapping[str, int]) -> bool:
        """Return whether this many of each of these profiles fit together, exactly."""

    def add_rows(self, program: Program, state: State, columns: Columns, number: int) -> None:
        """Add to an integer program what vGPUs on so many GPUs, each in this state, have to satisfy together.

        `columns`: for each (profile, place) the columns that count vGPUs there, of `all_placements` of this state.
        """
