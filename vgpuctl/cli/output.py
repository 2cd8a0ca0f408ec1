# SPDX-License-Identifier: Apache-2.0
"""Renders a result as text and writes it to stdout.

Tables have the same columns in a pipe and on a terminal, where states have colours. On a terminal that is too narrow
only columns of free text are cut. Names, addresses and uuids stay whole, so that they can be copied. If a result that
reports a change cannot be written, it goes to stderr: nobody may miss it.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from vgpuctl.cli import listings, streams
from vgpuctl.cli.command import how_shown
from vgpuctl.cli.shown import Block, Pairs, Table
from vgpuctl.cli.streams import sanitize
from vgpuctl.errors import OutputLost
from vgpuctl.model.outcome import AnyResult, Outcome
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.cli.global_options import Settings

_GAP = "  "
_MIN_FREE_TEXT = 12
"""The least width that a column of free text is cut to."""
BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"
_COLOURS = {
    **dict.fromkeys(("running", "ok", "created"), GREEN),
    **dict.fromkeys(("stopped", "absent", "off", "not-applicable", "unchanged"), DIM),
    **dict.fromkeys(("crashed", "fail", "missing", "leaked", "orphan", "problem"), RED),
    **dict.fromkeys(("paused", "warn", "unknown", "cordoned", "kept"), YELLOW),
}
"""The first of these words in a state decides its colour: `vgpu, cordoned` is yellow."""
_WORD = re.compile(r"[\w-]+")

LOCAL = ""
"""The host's name in `changes`, for a command that runs on one host."""
_NAME_FIELDS = {"show-vm": "name", "show-gpu": "address"}
"""Commands that show what a change did, and the field of its result that names it."""


class Look(Value):
    """How a page is rendered. `width`: the terminal's, None where nothing is cut. `ellipsis`: ends a text that is cut.

    `has_headers`: whether tables have their first line.
    """

    width: int | None = None
    has_colours: bool = False
    has_headers: bool = True
    ellipsis: str = "\N{HORIZONTAL ELLIPSIS}"


PLAIN = Look()


def render(blocks: Sequence[Block], look: Look = PLAIN) -> str:
    """Return the page as text."""
    return "".join(f"{line}\n" for block in blocks for line in _block_lines(block, look))


def colour(text: str, code: str) -> str:
    """Return the text with a terminal's sequences for a colour around it."""
    return f"\x1b[{code}m{text}\x1b[0m"


def text_width(text: str) -> int:
    """Return how many columns a terminal needs for the text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )


def _block_lines(block: Block, look: Look) -> list[str]:
    if isinstance(block, str):
        return [sanitize(block)]
    return _pairs_lines(block, look) if isinstance(block, Pairs) else _table_lines(block, look)


def _pairs_lines(block: Pairs, look: Look) -> list[str]:
    items = [(sanitize(name), sanitize(value)) for name, value in block.items]
    width = max((text_width(name) for name, _ in items), default=0) + 1
    lines = []
    for name, value in items:
        title = _pad(f"{name}:", width)
        if look.has_colours:
            value = _coloured_state(value) if name == "state" else colour(value, RED) if name == "problem" else value
            title = colour(title, BOLD)
        lines.append(f"{title} {value}".rstrip())
    return lines


def _table_lines(table: Table, look: Look) -> list[str]:
    rows = [tuple(sanitize(cell).replace("\n", " ") for cell in row) for row in table.rows]
    measured = [table.headers, *rows] if look.has_headers else rows
    widths = [max((text_width(row[n]) for row in measured), default=0) for n in range(len(table.headers))]
    if look.width is not None:
        _narrow(widths, [header in table.free_text for header in table.headers], look.width)
    lines = []
    if look.has_headers:
        header_line = _row_line(table.headers, widths, table, look)
        lines.append(colour(header_line, BOLD) if look.has_colours else header_line)
    for row in rows:
        lines.append(_row_line(row, widths, table, look, coloured=look.has_colours))
    return lines


def _narrow(widths: list[int], is_free_text: Sequence[bool], limit: int) -> None:
    """Take what the table is too wide from its columns of free text, the widest first."""
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - limit
    for index in sorted((n for n, is_free in enumerate(is_free_text) if is_free), key=lambda n: -widths[n]):
        taken = min(excess, widths[index] - _MIN_FREE_TEXT)
        if taken > 0:
            widths[index] -= taken
            excess -= taken


def _row_line(row: Sequence[str], widths: Sequence[int], table: Table, look: Look, *, coloured: bool = False) -> str:
    cells = []
    last = len(widths) - 1
    for index, (cell, width, header) in enumerate(zip(row, widths, table.headers, strict=True)):
        text = _cut(cell, width, look.ellipsis)
        right = header in table.right_aligned
        padding = " " * (width - text_width(text))
        shown = _coloured_state(text) if coloured and header in table.states else text
        cells.append(padding + shown if right else shown if index == last else shown + padding)
    return _GAP.join(cells).rstrip()


def _pad(text: str, width: int) -> str:
    return text + " " * (width - text_width(text))


def _cut(text: str, width: int, ellipsis: str) -> str:
    """Return the text in at most so many columns."""
    if text_width(text) <= width:
        return text
    while text and text_width(text) + len(ellipsis) > width:
        text = text[:-1]
    return text + ellipsis


def _coloured_state(text: str) -> str:
    code = next((_COLOURS[word] for word in _WORD.findall(text) if word in _COLOURS), None)
    return text if code is None else colour(text, code)


def look_of(settings: Settings, stream: TextIO) -> Look:
    """Return how pages look on the stream."""
    ellipsis = "\N{HORIZONTAL ELLIPSIS}" if streams.supports_unicode(stream) else "..."
    width = _terminal_width(stream) if streams.is_terminal(stream) else None
    return Look(width, has_colours(settings, stream), not settings.no_headers, ellipsis)


def has_colours(settings: Settings, stream: TextIO) -> bool:
    """Say whether text on the stream has colours."""
    if settings.color != "auto":
        return settings.color == "always"
    return streams.is_terminal(stream) and not os.environ.get("NO_COLOR")


def _terminal_width(stream: TextIO) -> int | None:
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None


def write_result(kind: str, write: Callable[[], None], changes: Mapping[str, AnyResult]) -> bool:
    """Write a result; if it cannot be written, report that and return False. `changes`: by host.

    Raises:
        OutputLost: it could not be written, and there are changes.
    """
    try:
        write()
    except OSError as error:
        applied = {
            host: result for host, result in changes.items() if not (isinstance(result, Outcome) and result.dry_run)
        }
        if applied:
            raise _output_lost(kind, error, applied) from error
        if isinstance(error, BrokenPipeError):  # a reader like `head` has what it needs, and nothing changed
            return True
        streams.write_err(f"vgpuctl: the result could not be written: {error.strerror}   [output]")
        return False
    return True


def _output_lost(kind: str, error: OSError, applied: Mapping[str, AnyResult]) -> OutputLost:
    lines = [
        line if host == LOCAL else f"{host}: {line}"
        for host, result in applied.items()
        for line in _result_lines(kind, result)
    ]
    output_error = OutputLost(
        f"{kind} is done, and its result could not be written: {error.strerror}",
        hint=f"{inspect_command(kind, next(iter(applied.values())).data)} shows the result",
        lines=lines,
        errno=error.errno,
    )
    output_error.changed = True
    return output_error


def _result_lines(kind: str, result: AnyResult) -> list[str]:
    """Return the lines of a result that people would have read, or its steps if its page cannot be rendered."""
    try:
        return render(listings.page(kind, result).blocks).splitlines()
    except Exception:  # noqa: BLE001 - changes must be reported even if the page cannot be rendered
        return list(result.steps) if isinstance(result, Outcome) else []


def inspect_command(kind: str, data: object, address: str | None = None) -> str:
    """Return the command that shows what a change made, here or on the host of that address.

    `data`: the record, or what another version's host sent instead.
    """
    program = "vgpuctl" if address is None else f"vgpuctl --host {address}"
    fields = data if isinstance(data, Mapping) else getattr(data, "__dict__", {})
    shown_by = how_shown(kind).shown_by
    if shown_by not in _NAME_FIELDS:
        return f"{program} {shown_by}"
    name = fields.get(_NAME_FIELDS[shown_by])
    return (
        f"{program} {shown_by} {shlex.quote(str(name))}" if name else f"{program} {shown_by.replace('show', 'list')}s"
    )


def print_page(settings: Settings, result: AnyResult) -> None:
    """Print the page of a result, and its lines for stderr."""
    page = listings.page(settings.kind, result, listings.view_of(settings))
    if page.blocks:
        streams.write_out(render(page.blocks, look_of(settings, sys.stdout)))
    for line in page.stderr_lines:
        streams.write_err(streams.sanitize(line))
