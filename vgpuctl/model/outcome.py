# SPDX-License-Identifier: Apache-2.0
"""How a command works for its caller, and what it did, as values that the CLI prints as text or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.subjects import Subjects

Data = TypeVar("Data", covariant=True)
OtherData = TypeVar("OtherData")


class Outcome(Value, Generic[Data]):
    """The result of a changing command, or of its dry run.

    `data`: a record of `model.results`. `steps`: the plan's lines; with `changed` they were executed, in a dry run they
    would be. `notes` are for people only ("its disk is empty"), `warnings` also for programs.
    """

    changed: bool
    data: Data
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dry_run: bool = False


def with_data(outcome: Outcome[object], data: OtherData) -> Outcome[OtherData]:
    """Return an outcome with other data."""
    return Outcome(outcome.changed, data, outcome.steps, outcome.warnings, outcome.notes, outcome.dry_run)


VMS_UNKNOWN = "VMs are unknown"
"""The beginning of the warning of a look that libvirt did not answer: no VM in its result means nothing."""


class QueryResult(Value, Generic[Data]):
    """The result of a command without steps: `data` is the record of the JSON `data`, several for list-commands.

    `changed`: only commands on simulated hosts change something without steps.
    """

    data: Data
    warnings: tuple[str, ...] = ()
    changed: bool = False
    notes: tuple[str, ...] = ()


AnyResult = Outcome[object] | QueryResult[object]
"""What any call returns."""


class Progress(Protocol):
    """Receives the progress of an operation; implementations print it or do nothing."""

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Receive the steps that are about to run."""

    def on_step_start(self, number: int, text: str) -> None:
        """Step `number` (from 1) starts."""

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Step `number` is done to this part; called at least once a second by a step that copies.

        Raises:
            Interrupted: the step is to stop.
        """

    def on_step_finish(self, number: int, text: str) -> None:
        """Step `number` is done and was read back."""

    def on_step_undo(self, text: str) -> None:
        """A step is undone."""

    def on_vm_finish(self, done: int, total: int, failed: int, text: str) -> None:
        """`done` of `total` VMs are finished, and `failed` of them failed; `text` names the latest one."""

    def on_wait(self) -> None:
        """The work waits, for VMs that are created at once or for a guest; called about twice a second.

        Raises:
            Interrupted: the work is to stop.
        """


class Confirm(Protocol):
    """Asks the user for confirmation before something is lost, or before VMs are shut down that the user did not name.

    An operation that asks only in some cases calls it in the others with an empty question: a batch checks all of its
    targets before it asks once for all. Callers of the library get no empty question.
    """

    def __call__(self, question: str, details: tuple[str, ...]) -> None:
        """Return when the answer is yes, or nothing is asked.

        Raises:
            NeedsConfirmation: the answer is no, or there is nobody to ask.
        """


def confirm_everything(question: str, details: tuple[str, ...]) -> None:
    """Answer yes: a program that calls the library means what it calls."""


class NoProgress:
    """Progress that shows nothing."""

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Do nothing."""

    def on_step_start(self, number: int, text: str) -> None:
        """Do nothing."""

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Do nothing."""

    def on_step_finish(self, number: int, text: str) -> None:
        """Do nothing."""

    def on_step_undo(self, text: str) -> None:
        """Do nothing."""

    def on_vm_finish(self, done: int, total: int, failed: int, text: str) -> None:
        """Do nothing."""

    def on_wait(self) -> None:
        """Do nothing."""


class Context(Value):
    """How an operation works for its caller: what the library hands to each, and what an operation hands on.

    `wait_seconds`: for another vgpuctl, a busy device, a guest that shuts down. `subjects`: gets the VMs and GPUs that
    the operation changes, for the audit entry. `dry_run`: it only plans. `confirm` is asked before something is lost.
    """

    progress: Progress
    wait_seconds: float
    subjects: Subjects
    dry_run: bool = False
    confirm: Confirm = confirm_everything
