# SPDX-License-Identifier: Apache-2.0
"""The progress of an operation that carries out several plans, one after the other."""

from __future__ import annotations

from vgpuctl.model.outcome import NoProgress, Progress


class WholeProgress(NoProgress):
    """Reports several plans, one after the other, as one: their steps are numbered through.

    `steps`: the expected steps of all plans. A plan may have others, as for a claim that is missing; they are added.
    """

    def __init__(self, progress: Progress, steps: tuple[str, ...]) -> None:
        self._progress = progress
        self._ahead = steps
        self._finished: list[str] = []
        self._before = 0

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Report the steps of all plans, as far as they are known."""
        self._ahead = tuple(step for step in self._ahead if step not in steps)
        self._before = len(self._finished)
        self._progress.on_plan((*self._finished, *steps, *self._ahead))

    def on_step_start(self, number: int, text: str) -> None:
        """Report the step with its number among all."""
        self._progress.on_step_start(self._before + number, text)

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Report the step with its number among all."""
        self._progress.on_step_progress(self._before + number, text, percent)

    def on_step_finish(self, number: int, text: str) -> None:
        """Report the step with its number among all."""
        self._finished.append(text)
        self._progress.on_step_finish(self._before + number, text)

    def on_step_undo(self, text: str) -> None:
        """Report what is undone."""
        self._progress.on_step_undo(text)
