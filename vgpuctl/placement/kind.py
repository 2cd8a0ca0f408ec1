# SPDX-License-Identifier: Apache-2.0
"""What GPUs that are alike take, as small hashable states: what is on one, and what it is after one vGPU more.

`capacity` decides and explains on GPUs as they were observed, with names and holders. Here is the same in numbers,
without either, so that thousands of choices can be weighed in a second; a test holds the two to each other. Two GPUs
of one kind in one state are alike for every choice, so a choice is among distinct states, not among GPUs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

State: TypeAlias = Any
"""What is on a GPU, as its kind writes it down: hashable. Equal states take the same, now and later."""


class Move(NamedTuple):
    """One vGPU more: where it is put (what `Kind.without` needs to take it away again), and the state after it."""

    place: int
    after: State


class Filling(Protocol):
    """The best way to fill up GPUs of one kind when each profile is worth so much; exact, and it remembers."""

    def worth(self, state: State) -> float:
        """Return the most that what still fits on the GPU can be worth together."""

    def counts(self, state: State) -> Mapping[str, int]:
        """Return how many of each profile that is; the same for the same state."""


class Kind(Protocol):
    """GPUs of one model that are divided alike.

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

    def takes(self, profile: str) -> Hashable:
        """Return what a vGPU of the profile takes: equal for two of which one can always be in the other's place."""

    def moves(self, state: State, profile: str) -> tuple[Move, ...]:
        """Return every different state after one more vGPU of the profile, the lowest place first; empty: no room."""

    def everywhere(self, state: State, profile: str) -> tuple[Move, ...]:
        """Return the same as `moves`, and also each place that is like another one: who is there tells them apart."""

    def at(self, state: State, profile: str, place: int) -> State | None:
        """Return the state after one more vGPU of the profile at this place; None: it is not free.

        Of places that are alike `moves` names the first alone; here each of them counts.
        """

    def without(self, state: State, profile: str, place: int) -> State:
        """Return the state after a vGPU that is at this place was taken away."""

    def left(self, state: State, profile: str) -> int:
        """Return how many more of this one profile fit, exactly."""

    def fits(self, state: State, wanted: Mapping[str, int]) -> bool:
        """Say whether so many of each of these profiles fit together, exactly."""

    def filling(self, worth: Mapping[str, float]) -> Filling:
        """Return the best ways to fill up its GPUs when a vGPU of each profile is worth so much; others: nothing."""
