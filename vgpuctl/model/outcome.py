# SPDX-License-Identifier: Apache-2.0
"""What a command did, as values that the CLI prints as text or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from vgpuctl.value import Value


class Outcome(Value):
    """The result of a changing command, or of its dry run.

    `data`: the JSON `data` object. `steps`: the plan's lines; with `changed` they were executed, in a dry run they
    would be. `notes` are for people only ("no system is on its disk"), `warnings` also for programs.
    """

    changed: bool
    data: Mapping[str, object]
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dry_run: bool = False


class QueryResult(Value):
    """The result of a read-only command: `data` is the JSON `data`, a list for list-commands."""

    data: Mapping[str, object] | Sequence[Mapping[str, object]]
    warnings: tuple[str, ...] = ()


class Progress(Protocol):
    """Receives progress from the engine; implementations print it or do nothing."""

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Receive the steps that are about to run."""

    def on_step_start(self, number: int, text: str) -> None:
        """Step `number` (from 1) starts."""

    def on_step_finish(self, number: int, text: str) -> None:
        """Step `number` is done and was read back."""

    def on_step_undo(self, text: str) -> None:
        """A step is undone."""


class Confirm(Protocol):
    """Asks the user for confirmation before something is lost."""

    def __call__(self, question: str, details: tuple[str, ...]) -> None:
        """Return when the answer is yes.

        Raises:
            NeedsConfirmation: the answer is no, or there is nobody to ask.
        """


class BatchProgress(Progress, Protocol):
    """Receives the progress of a command that creates several VMs."""

    def on_vm_finish(self, done: int, total: int, failed: int, text: str) -> None:
        """`done` of `total` VMs are finished, and `failed` of them failed; `text` names the latest one."""
