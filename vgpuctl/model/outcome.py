# SPDX-License-Identifier: Apache-2.0
"""What a command did, as values that the command line prints as text or as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from vgpuctl.value import Value


class Outcome(Value):
    """The result of a changing command, or of its dry run.

    `data` is the JSON `data` object. `steps` are the plan's lines; with `changed` they were carried out, in a
    dry run they would be. `notes` are told to people ("no system is on its disk"), `warnings` also to programs.
    """

    changed: bool
    data: Mapping[str, object]
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dry_run: bool = False


class Answer(Value):
    """The result of a command that only looks: `data` is the JSON `data`, a list for list-commands."""

    data: Mapping[str, object] | Sequence[Mapping[str, object]]
    warnings: tuple[str, ...] = ()


class Progress(Protocol):
    """Told by the engine how work goes on; implementations print, or do nothing."""

    def planned(self, steps: tuple[str, ...]) -> None:
        """The steps that are about to be done."""

    def started(self, number: int, text: str) -> None:
        """Step `number` (from 1) begins."""

    def finished(self, number: int, text: str) -> None:
        """Step `number` is done and was read back."""

    def undoing(self, text: str) -> None:
        """A step is taken back."""


class Confirm(Protocol):
    """Asks the user before something is lost."""

    def __call__(self, question: str, details: tuple[str, ...]) -> None:
        """Return when the answer is yes.

        Raises:
            NeedsConfirmation: the answer is no, or nobody can be asked.
        """


class ManyProgress(Progress, Protocol):
    """Told how making several VMs goes on."""

    def tallied(self, done: int, total: int, failed: int, text: str) -> None:
        """One more of `total` VMs is done, `failed` of those without success; `text` says which."""
