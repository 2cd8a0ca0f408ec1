# SPDX-License-Identifier: Apache-2.0
"""How work goes on, on stderr: a line that changes on a terminal, plain lines in a pipe, nothing for programs."""

from __future__ import annotations

import os
import sys

from vgpuctl.cli import streams
from vgpuctl.cli.settings import Settings
from vgpuctl.cli.signals import Guard


class Silent:
    """For --json: programs read the result. Every kind stops before a step when a signal came."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = guard
        self.total = 0
        self.failed = 0
        self.steps: tuple[str, ...] = ()

    def planned(self, steps: tuple[str, ...]) -> None:
        """Remember how many there are."""
        self.total = len(steps)
        self.steps = steps

    def started(self, number: int, text: str) -> None:
        """Stop here when a signal came and nobody took notice.

        Raises:
            Interrupted: a signal came.
        """
        if self.guard is not None:
            self.guard.check()

    def finished(self, number: int, text: str) -> None:
        """Say nothing."""

    def undoing(self, text: str) -> None:
        """Say nothing."""

    def tallied(self, done: int, total: int, failed: int, text: str) -> None:
        """Stop here when a signal came and nobody took notice.

        Raises:
            Interrupted: a signal came.
        """
        if self.guard is not None:
            self.guard.check()

    def close(self) -> None:
        """Nothing is left on the screen."""


class Lines(Silent):
    """One plain line for each step that is done."""

    def finished(self, number: int, text: str) -> None:
        """Write the step."""
        streams.write_err(f"{_count(number, self.total)} {streams.clean(text)}")

    def undoing(self, text: str) -> None:
        """Write what is taken back."""
        streams.write_err(f"undoing: {streams.clean(text)}")

    def tallied(self, done: int, total: int, failed: int, text: str) -> None:
        """Write which VM is done."""
        streams.write_err(f"{_count(done, total)} {streams.clean(text)}")
        super().tallied(done, total, failed, text)


class Terminal(Lines):
    """The step that is being done on a line of its own, which is replaced when it is done."""

    CLEAR = "\r\x1b[K"
    NO_WRAP = "\x1b[?7l"
    WRAP = "\x1b[?7h"
    DIM, GREEN, YELLOW = "2", "32", "33"

    def started(self, number: int, text: str) -> None:
        """Show the step as running."""
        super().started(number, text)
        self._show(f"… {_count(number, self.total)} {streams.clean(text)}")

    def finished(self, number: int, text: str) -> None:
        """Replace it by the step as done."""
        done = _coloured("✓", self.GREEN)
        streams.write_err(f"{self.CLEAR}{done} {_count(number, self.total)} {streams.clean(text)}")

    def undoing(self, text: str) -> None:
        """Write what is taken back."""
        streams.write_err(f"{self.CLEAR}{_coloured('↶', self.YELLOW)} undoing: {streams.clean(text)}")

    def tallied(self, done: int, total: int, failed: int, text: str) -> None:
        """Show how many are done on a line that changes; a VM that failed gets a line that stays."""
        if failed > self.failed:
            self.failed = failed
            streams.write_err(f"{self.CLEAR}{_coloured('✗', self.YELLOW)} {streams.clean(text)}")
        self._show(f"… {done} of {total} done, {failed} failed: {streams.clean(text)}")
        Silent.tallied(self, done, total, failed, text)

    def close(self) -> None:
        """Remove a line that is still running."""
        streams.write_err_raw(self.CLEAR)

    def _show(self, line: str) -> None:
        streams.write_err_raw(f"{self.CLEAR}{self.NO_WRAP}{_coloured(line, self.DIM)}{self.WRAP}")


def _coloured(text: str, colour: str) -> str:
    return text if os.environ.get("NO_COLOR") else f"\x1b[{colour}m{text}\x1b[0m"


def _count(number: int, total: int) -> str:
    return f"[{number:>{len(str(total))}}/{total}]" if total else f"[{number}]"


def choose(settings: Settings, guard: Guard | None = None) -> Silent:
    """Return what fits the caller: a person on a terminal, a pipe, a program."""
    if settings.json and not (settings.verbose or settings.progress):
        return Silent(guard)
    return Terminal(guard) if streams.is_terminal(sys.stderr) else Lines(guard)
