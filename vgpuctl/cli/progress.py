# SPDX-License-Identifier: Apache-2.0
"""Progress on stderr: a line that changes on a terminal, plain lines in a pipe, nothing for programs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from vgpuctl.cli import output, streams
from vgpuctl.cli.settings import Settings
from vgpuctl.model.outcome import NoProgress

SECONDS_BETWEEN_LINES = 3.0
"""How often a pipe gets a line about a copy that is running."""


class SilentProgress(NoProgress):
    """Prints nothing, for --json: programs read the result."""

    def close(self) -> None:
        """Do nothing: no line is left on the screen."""


class LineProgress(SilentProgress):
    """Prints one plain line for each finished step. `clock`: seconds that only increase."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.total = 0
        self.failed = 0
        self.next_report: dict[str, float] = {}

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Remember how many steps there are."""
        self.total = len(steps)

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Write how far a copy is, a line every few seconds; a short copy gets none."""
        now = self.clock()
        if now >= self.next_report.setdefault(text, now + SECONDS_BETWEEN_LINES):
            self.next_report[text] = now + SECONDS_BETWEEN_LINES
            streams.write_err(f"{_count(number, self.total)} {percent:.0f}% {streams.sanitize(text)}")

    def on_step_finish(self, number: int, text: str) -> None:
        """Write the finished step."""
        streams.write_err(f"{_count(number, self.total)} {streams.sanitize(text)}")

    def on_step_undo(self, text: str) -> None:
        """Write which step is undone."""
        streams.write_err(f"undoing: {streams.sanitize(text)}")

    def on_vm_finish(self, done: int, total: int, failed: int, text: str) -> None:
        """Write which VM is finished."""
        streams.write_err(f"{_count(done, total)} {streams.sanitize(text)}")


class TerminalProgress(LineProgress):
    """Shows the running step on a line of its own; the finished step replaces it."""

    CLEAR = "\r\x1b[K"
    NO_WRAP = "\x1b[?7l"
    WRAP = "\x1b[?7h"
    DIM, GREEN, YELLOW = "2", "32", "33"
    has_shown = False

    def __init__(self, *, has_colours: bool) -> None:
        super().__init__()
        self.has_colours = has_colours

    def on_step_start(self, number: int, text: str) -> None:
        """Show the step as running."""
        self._show(f"… {_count(number, self.total)} {streams.sanitize(text)}")

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Show how far the running step is."""
        self._show(f"… {_count(number, self.total)} {percent:.0f}% {streams.sanitize(text)}")

    def on_step_finish(self, number: int, text: str) -> None:
        """Replace the running step's line with the finished step."""
        done = self._coloured("✓", self.GREEN)
        streams.write_err(f"{self.CLEAR}{done} {_count(number, self.total)} {streams.sanitize(text)}")

    def on_step_undo(self, text: str) -> None:
        """Write which step is undone."""
        streams.write_err(f"{self.CLEAR}{self._coloured('↶', self.YELLOW)} undoing: {streams.sanitize(text)}")

    def on_vm_finish(self, done: int, total: int, failed: int, text: str) -> None:
        """Show how many VMs are finished on a line that changes; a VM that failed gets a line that stays."""
        if failed > self.failed:
            self.failed = failed
            streams.write_err(f"{self.CLEAR}{self._coloured('✗', self.YELLOW)} {streams.sanitize(text)}")
        self._show(f"… {done} of {total} done, {failed} failed: {streams.sanitize(text)}")

    def close(self) -> None:
        """Clear the line of a running step."""
        if self.has_shown:
            streams.write_err_raw(self.CLEAR)

    def _show(self, line: str) -> None:
        self.has_shown = True
        streams.write_err_raw(f"{self.CLEAR}{self.NO_WRAP}{self._coloured(line, self.DIM)}{self.WRAP}")

    def _coloured(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.has_colours else text


def _count(number: int, total: int) -> str:
    return f"[{number:>{len(str(total))}}/{total}]" if total else f"[{number}]"


def choose_progress(settings: Settings) -> SilentProgress:
    """Return the progress that fits the reader: a person on a terminal, a pipe, a program."""
    if settings.json and not (settings.verbose or settings.progress):
        return SilentProgress()
    if not streams.is_terminal(sys.stderr):
        return LineProgress()
    return TerminalProgress(has_colours=output.has_colours(settings, sys.stderr))
