# SPDX-License-Identifier: Apache-2.0
"""A step: one change of the host, as data that describes the change and how to undo it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Protocol

from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


class Step(Value, ABC):
    """A value that a backend or `vgpuctl.operations.steps` creates.

    `perform` changes the host and is not repeated. `verify` reads back and raises VerifyFailed when the host does not
    show the intended state. `undo` removes only what `perform` made, only if it still reads as written, and is safe to
    call when `perform` failed half-way or never ran. A step whose class sets `records_owner` records which VM owns the
    rest: it is kept when a step before it cannot be undone. One that sets `precedes_off` comes before the VM is off, in
    a removal that needs it off.
    """

    records_owner: ClassVar[bool] = False
    precedes_off: ClassVar[bool] = False

    @abstractmethod
    def describe(self) -> str:
        """Return one line for people, in the imperative: "make vGPU A100-4C on 0000:3b:00.4"."""

    @abstractmethod
    def perform(self, host: Host) -> str | None:
        """Perform the change; returns a note for the user where the change came about in another way than this call."""

    @abstractmethod
    def verify(self, host: Host) -> None:
        """Read the change back."""

    @abstractmethod
    def undo(self, host: Host) -> None:
        """Undo the change."""


class Removal(Step):
    """A step that is not undone: what was begun to be removed is removed, by `reconcile` if need be."""

    def undo(self, host: Host) -> None:
        """Nothing."""


class StepReport(Protocol):
    """Tells how far a step is."""

    def __call__(self, percent: float, detail: str = "") -> None:
        """Tell the percentage, and what else people may want to know meanwhile."""


def ignore_progress(percent: float, detail: str = "") -> None:
    """Tell nobody."""


class LongStep(Step):
    """A step that may take minutes, such as a copy, and says how far it is."""

    @abstractmethod
    def perform_with_progress(self, host: Host, report: StepReport) -> str | None:
        """Perform the change; `report` gets how far it is, and when it raises, the step stops at once."""


class Plan(Value):
    """Steps in the order in which they run, and notes for people.

    `vms_required_off`: uuids of the VMs that must be off when something is taken from them: by the undo, and by the
    steps themselves where there is no undo. Empty where libvirt is not used, or where a running VM is changed.
    """

    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()
    undo_on_failure: bool = True
    vms_required_off: tuple[str, ...] = ()
