# SPDX-License-Identifier: Apache-2.0
"""A step: one change of the host, as data that says what it is and how it is taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.world import World


class Step(Protocol):
    """A value made by a backend or by `vgpuctl.steps`.

    `perform` changes the host and is not repeated; `verify` reads back and raises VerifyFailed when the host
    does not show what was meant; `undo` removes only what `perform` made, only if it still reads as written,
    and is safe to call when `perform` failed half-way or never ran. A step whose class says `tells_owner` writes whose
    the rest is: it is kept when something before it cannot be undone.
    """

    def describe(self) -> str:
        """Return one line for people, in the imperative: "make vGPU A100-4C on 0000:3b:00.4"."""

    def perform(self, world: World) -> str | None:
        """Do it; returns what the user must know where it came about otherwise than by this."""

    def verify(self, world: World) -> None:
        """Read it back."""

    def undo(self, world: World) -> None:
        """Take it back."""


class Plan(Value):
    """Steps in the order in which they are done, and what people are told beside them.

    `off`: uuids of the VMs of which something is taken away only while they are off: by the undo, and by the steps
    themselves where there is no undo. Empty where libvirt is not asked, or a running VM is changed.
    """

    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    undo_on_failure: bool = True
    off: tuple[str, ...] = ()
