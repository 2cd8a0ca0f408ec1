# SPDX-License-Identifier: Apache-2.0
"""Progress and confirmation on stderr, while a command runs.

Progress is a line that changes on a terminal, plain lines in a pipe, nothing for programs. Before something is lost the
user confirms on a terminal; elsewhere only --yes does.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import groupby, takewhile

from vgpuctl.cli import output, streams
from vgpuctl.cli.global_options import Settings
from vgpuctl.errors import NeedsConfirmation
from vgpuctl.model.outcome import NoProgress
from vgpuctl.value import Value

SECONDS_BETWEEN_LINES = 3.0
"""How often a pipe gets a line about a copy that is running."""
MANY_ALIKE = 4
"""So many steps of a kind in a row get one line together."""
_INTERNAL_KINDS = ("claim", "release the")


class SilentProgress(NoProgress):
    """Prints nothing, for --json: programs read the result."""

    def close(self) -> None:
        """Do nothing: no line is left on the screen."""


class PlannedLine(Value):
    """A line about the steps `first` to `last` of a plan. `text`: what it says of several, None for one."""

    first: int
    last: int
    text: str | None = None
    is_internal: bool = False


def _plan_lines(steps: tuple[str, ...]) -> Iterator[PlannedLine]:
    """Yield the lines of a plan: one for each step, or for MANY_ALIKE or more steps of a kind in a row."""
    number = 1
    for kind, group in groupby(steps, key=_kind):
        texts = tuple(group)
        last = number + len(texts) - 1
        if kind in _INTERNAL_KINDS:
            yield PlannedLine(number, last, is_internal=True)
        elif len(texts) >= MANY_ALIKE:
            yield PlannedLine(number, last, f"{_common_words(texts)}: {len(texts)} of them")
        else:
            yield from (PlannedLine(n, n) for n in range(number, last + 1))
        number = last + 1


def _kind(step: str) -> str:
    """Return the kind of a step: its first two words, or "claim"."""
    words = step.split()
    return words[0] if words[:1] == ["claim"] else " ".join(words[:2])


def _common_words(steps: tuple[str, ...]) -> str:
    """Return the words with which all steps begin, without a preposition at the end."""
    common = [
        words[0] for words in takewhile(lambda words: len({*words}) == 1, zip(*map(str.split, steps), strict=False))
    ]
    while common[-1:] and common[-1] in ("from", "on", "of", "for", "to"):
        common.pop()
    return " ".join(common)


class LineProgress(SilentProgress):
    """Prints one plain line for each finished step. `clock`: seconds that only increase; `write_line` prints.

    Claims get no line, and many steps of a kind in a row get one together, when the last of them is done.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, write_line: Callable[[str], None] = streams.write_err
    ) -> None:
        self.clock = clock
        self._write_line = write_line
        self.failed = 0
        self.next_report: dict[str, float] = {}
        self._lines: tuple[PlannedLine, ...] = ()

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Decide which steps get a line."""
        self._lines = tuple(_plan_lines(steps))

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Write how far a copy is, a line every few seconds; a short copy gets none."""
        now, step = self.clock(), text.partition("; ")[0]
        if now >= self.next_report.setdefault(step, now + SECONDS_BETWEEN_LINES):
            self.next_report[step] = now + SECONDS_BETWEEN_LINES
            self._write_line(f"{self._count_of(number)}{percent:.0f}% {streams.sanitize(text)}")

    def on_step_finish(self, number: int, text: str) -> None:
        """Write the finished step, if it is the last of its line."""
        line = self._finished_line(number, text)
        if line is not None:
            self._write_line(line)

    def on_step_undo(self, text: str) -> None:
        """Write which step is undone."""
        self._write_line(f"undoing: {streams.sanitize(text)}")

    def on_vm_finish(self, done: int, total: int, failed: int, text: str) -> None:
        """Write which VM is finished."""
        self._write_line(f"{_count(done, total)}{streams.sanitize(text)}")

    def _finished_line(self, number: int, text: str) -> str | None:
        line = self._line_of(number)
        if line is None:
            return f"{_count(number, 0)}{streams.sanitize(text)}" if number > self._planned_steps() else None
        if number < line.last:
            return None
        return f"{self._count_of(number)}{streams.sanitize(text if line.text is None else line.text)}"

    def _count_of(self, number: int) -> str:
        """Return the number of a step's line among all lines of the plan; nothing for the only one."""
        line = self._line_of(number)
        if line is None:
            return "" if number <= self._planned_steps() else _count(number, 0)
        visible = [one for one in self._lines if not one.is_internal]
        return _count(visible.index(line) + 1, len(visible)) if len(visible) > 1 else ""

    def _line_of(self, number: int) -> PlannedLine | None:
        """Return the line in which a step is reported; None if the plan has no such step or it gets no line."""
        return next((one for one in self._lines if one.first <= number <= one.last and not one.is_internal), None)

    def _planned_steps(self) -> int:
        return self._lines[-1].last if self._lines else 0


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
        self._show(f"… {self._count_of(number)}{streams.sanitize(text)}")

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Show how far the running step is."""
        self._show(f"… {self._count_of(number)}{percent:.0f}% {streams.sanitize(text)}")

    def on_step_finish(self, number: int, text: str) -> None:
        """Replace the running step's line with the finished step."""
        line = self._finished_line(number, text)
        if line is not None:
            streams.write_err(f"{self.CLEAR}{self._coloured('✓', self.GREEN)} {line}")

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
    return f"[{number:>{len(str(total))}}/{total}] " if total else f"[{number}] "


def choose_progress(settings: Settings) -> SilentProgress:
    """Return the progress that fits the reader: a person on a terminal, a pipe, a program.

    Of one of several other hosts each line goes where its route says.
    """
    if settings.agent_route is not None and settings.agent_route.outputs is not None:
        report_line = settings.agent_route.report_line
        return SilentProgress() if report_line is None else LineProgress(write_line=report_line)
    if settings.json and not (settings.verbose or settings.progress):
        return SilentProgress()
    if not streams.is_terminal(sys.stderr):
        return LineProgress()
    return TerminalProgress(has_colours=output.has_colours(settings, sys.stderr))


class ConfirmationPrompt:
    """Answers the library's question: by `--yes`, by asking the user, or with NeedsConfirmation."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def __call__(self, question: str, details: tuple[str, ...]) -> None:
        """Return normally if the answer is yes.

        Raises:
            NeedsConfirmation: the answer is no, or there is no user to ask.
        """
        if self.settings.yes:
            return
        if self.settings.json or not (_is_tty(sys.stdin) and _is_tty(sys.stderr)):
            raise NeedsConfirmation(
                f"confirmation required, but there is no terminal: {question}",
                hint="rerun with --yes",
                lines=list(details),
            )
        for line in details:
            streams.write_err(f"  {streams.sanitize(line)}")
        streams.write_err_raw(f"{streams.sanitize(question)} [y/N] ")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NeedsConfirmation("not confirmed: nothing changed")


def _is_tty(stream: object) -> bool:
    isatty = getattr(stream, "isatty", None)
    return bool(isatty and isatty())
