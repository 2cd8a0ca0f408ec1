# SPDX-License-Identifier: Apache-2.0
"""--watch: reads again and again, and shows what changed.

On a terminal the page is drawn again in place, on the alternate screen, which is left at the end. In a pipe the page is
printed once, then one line per change; with -o json one document per line, the first and every one that differs.

Each look is a new call of the library on the one host: no lock is held between two looks. If the first look fails, the
command fails. A later one that fails is shown, and the next one is tried; a lost connection to libvirt is opened again.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from vgpuctl.cli import document, failures, listings, pages, signals, streams, tables
from vgpuctl.cli.output import look_of
from vgpuctl.cli.settings import Settings
from vgpuctl.cli.signals import SignalGuard
from vgpuctl.cli.tables import Pairs, Table
from vgpuctl.errors import HostCannot
from vgpuctl.model.outcome import VMS_UNKNOWN, AnyResult

ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?7l\x1b[?25l", "\x1b[?25h\x1b[?7h\x1b[?1049l"
"""The alternate screen without line wrap and without a cursor, and back."""
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
DEFAULT_HEIGHT = 24

Rows = Mapping[str, Mapping[str, str]]
"""What is compared: by name of a row, its texts by column."""


class Viewer(Protocol):
    """Shows each look."""

    def show(self, result: AnyResult) -> None:
        """Show what was read."""

    def show_failure(self, exc: BaseException) -> None:
        """Show why it could not be read."""

    def close(self) -> None:
        """Leave the terminal as it was."""


def run(
    settings: Settings,
    kind: str,
    prepare: Callable[[SignalGuard], Callable[[], AnyResult]],
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Read and show until a signal comes; return the exit status, 0 after Ctrl-C.

    `prepare` opens the host once and returns what reads it.
    """
    settings.kind = kind
    viewer = _choose_viewer(settings)
    with signals.handle_signals() as guard:
        try:
            read = prepare(guard)
            result = read()
            needs_vms = not pages.are_vms_unknown(result)
            viewer.show(result)
            while True:
                wait(settings.watch or 0)
                _look_again(viewer, read, guard, needs_vms=needs_vms)
        except BaseException as exc:  # noqa: BLE001
            guard.ignore_signals()
            viewer.close()
            stopped = isinstance(exc, KeyboardInterrupt) or guard.received
            if stopped:
                return 0 if guard.exit_status == 128 + signal.SIGINT else guard.exit_status
            if isinstance(exc, BrokenPipeError):  # a reader like `head` has what it needs
                return 0
            return failures.report(exc, settings)


def _look_again(viewer: Viewer, read: Callable[[], AnyResult], guard: SignalGuard, *, needs_vms: bool) -> None:
    """Show another look. While libvirt does not answer, no VM counts as removed."""
    try:
        result = read()
        if needs_vms and pages.are_vms_unknown(result):
            raise HostCannot(next(w for w in result.warnings if w.startswith(VMS_UNKNOWN)), check="libvirt")
    except Exception as exc:  # noqa: BLE001 - whatever it is, the next look may succeed
        guard.check()
        viewer.show_failure(exc)
    else:
        viewer.show(result)


def _choose_viewer(settings: Settings) -> Viewer:
    if settings.json:
        return DocumentViewer(settings)
    return ScreenViewer(settings) if streams.is_terminal(sys.stdout) else LineViewer(settings)


class DocumentViewer:
    """Prints a document in one line when it differs from the one before."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.last = ""

    def show(self, result: AnyResult) -> None:
        """Print the document of the result."""
        self._print(document.line(document.success_body(self.settings.kind, result)))

    def show_failure(self, exc: BaseException) -> None:
        """Print the document of the failure."""
        failure = failures.failure_from_exception(exc, self.settings)
        self._print(document.line(failures.failure_document(failure, self.settings.kind)))

    def close(self) -> None:
        """Do nothing: each line is complete."""

    def _print(self, line: str) -> None:
        if line != self.last:
            streams.write_out(line)
            self.last = line


class LineViewer:
    """Prints the page once, then a line for each row that was added, changed or removed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rows: Rows | None = None
        self.last_failure = ""

    def show(self, result: AnyResult) -> None:
        """Print the page, or what changed since."""
        rows = rows_of(self.settings, result)
        if self.rows is None:
            page = pages.page(self.settings.kind, result, listings.view_of(self.settings))
            streams.write_out(tables.render(page.blocks, look_of(self.settings, sys.stdout)))
        elif rows != self.rows:
            text = "".join(f"{_clock()} {line}\n" for line in change_lines(self.rows, rows))
            streams.write_out(streams.sanitize(text))
        if self.last_failure:
            streams.write_err(f"{_clock()} it can be read again")
        self.rows, self.last_failure = rows, ""

    def show_failure(self, exc: BaseException) -> None:
        """Print the failure once."""
        text = "\n".join(failures.text_lines(failures.failure_from_exception(exc, self.settings)))
        if text != self.last_failure:
            streams.write_err(f"{_clock()} {text}")
        self.last_failure = text

    def close(self) -> None:
        """Do nothing: each line is complete."""


class ScreenViewer:
    """Draws the page again in place; the first line has the command and the time."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.is_open = False
        self.page: list[str] = []
        self.page_time = ""

    def show(self, result: AnyResult) -> None:
        """Draw the page with its warnings."""
        page = pages.page(self.settings.kind, result, listings.view_of(self.settings))
        self.page = tables.render(page.blocks, look_of(self.settings, sys.stdout)).splitlines()
        notes = [*page.stderr_lines, *(f"warning: {warning}" for warning in result.warnings)]
        self.page += [streams.sanitize(note) for note in notes]
        self.page_time = _clock()
        self._draw([])

    def show_failure(self, exc: BaseException) -> None:
        """Draw the failure above the last page."""
        failure = failures.failure_from_exception(exc, self.settings)
        self._draw([*failures.text_lines(failure), "", f"as it was at {self.page_time}:"])

    def close(self) -> None:
        """Leave the alternate screen."""
        if self.is_open:
            streams.write_out(LEAVE_SCREEN)

    def _draw(self, lines: list[str]) -> None:
        command = streams.sanitize(shlex.join(("vgpuctl", *self.settings.args)))
        shown = [f"{_clock()}  every {self.settings.watch:g} s: {command}", "", *lines, *self.page]
        height = _terminal_height()
        if len(shown) > height:
            shown = [*shown[: height - 1], f"({len(shown) - height + 1} more lines)"]
        text = "\n".join(f"{line}{CLEAR_LINE}" for line in shown)
        enter = "" if self.is_open else ENTER_SCREEN
        self.is_open = True
        streams.write_out(f"{enter}{HOME}{text}{CLEAR_BELOW}")


def rows_of(settings: Settings, result: AnyResult) -> Rows:
    """Return what is compared: the rows of a list, or the lines and tables of another page."""
    view = listings.view_of(settings)
    listing = listings.find_listing(settings.kind)
    if listing is not None and isinstance(result.data, tuple):
        columns = listings.shown_columns(listing, view)
        return {
            listing.identity(row): {column.key: listings.cell_text(column, row) for column in columns}
            for row in result.data
        }
    name = str(getattr(result.data, "name", None) or getattr(result.data, "address", ""))
    rows: dict[str, dict[str, str]] = {name: {}}
    for block in pages.page(settings.kind, result).blocks:
        if isinstance(block, Pairs):
            for title, value in block.items:
                before = rows[name].get(title)
                rows[name][title] = value if before is None else f"{before}, {value}"
        elif isinstance(block, Table):
            for first, *rest in block.rows:
                rows[f"{name} {first}"] = dict(zip((header.lower() for header in block.headers[1:]), rest, strict=True))
        elif block:
            rows[f"{name} {block.strip()}"] = {}
    return rows


def change_lines(before: Rows, after: Rows) -> Iterator[str]:
    """Yield a line for each row that was removed, changed or added."""
    for name in before:
        if name not in after:
            yield f"{name} removed"
    for name, texts in after.items():
        if name not in before:
            details = ", ".join(f"{key} {text}" for key, text in texts.items() if text not in ("-", name))
            yield f"{name} added{': ' if details else ''}{details}"
        elif texts != before[name]:
            keys = dict.fromkeys((*before[name], *texts))
            old, new = before[name], texts
            changes = [f"{k} {old.get(k, '-')} -> {new.get(k, '-')}" for k in keys if old.get(k) != new.get(k)]
            yield f"{name} changed: {', '.join(changes)}"


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _terminal_height() -> int:
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).lines or DEFAULT_HEIGHT, 3)
    except (OSError, ValueError):
        return DEFAULT_HEIGHT
