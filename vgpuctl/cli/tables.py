# SPDX-License-Identifier: Apache-2.0
"""Renders tables and text: the same columns in a pipe and on a terminal, where states have colours.

On a terminal that is too narrow only columns of free text are cut. Names, addresses and uuids stay whole, so that they
can be copied.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from vgpuctl.cli.shown import Block, Pairs, Table
from vgpuctl.cli.streams import sanitize
from vgpuctl.value import Value

GAP = "  "
MIN_FREE_TEXT = 12
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
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - limit
    for index in sorted((n for n, is_free in enumerate(is_free_text) if is_free), key=lambda n: -widths[n]):
        taken = min(excess, widths[index] - MIN_FREE_TEXT)
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
    return GAP.join(cells).rstrip()


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
