# SPDX-License-Identifier: Apache-2.0
"""What a line of the live screen consists of: which columns fit a width, and their cells as text and bars.

It knows no terminal: `LineMaker` turns rows into words with a tone each, `grid` paints them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from vgpuctl.cli.output import text_width
from vgpuctl.cli.shown import Column
from vgpuctl.cli.streams import sanitize
from vgpuctl.value import Value

HIGH, FULL = 0.8, 0.95
"""From these ratios on a bar has another colour, and a mark: `+` and `!`."""
GAP = 2
MIN_BAR, MAX_BAR = 4, 10
_NUMBER = 6
"""The width of a ratio beside its bar, with the mark: ` 100%!`."""
_MAX_TEXT = 28
_EIGHTHS = "\N{LEFT ONE EIGHTH BLOCK}\N{LEFT ONE QUARTER BLOCK}\N{LEFT THREE EIGHTHS BLOCK}\N{LEFT HALF BLOCK}" \
    "\N{LEFT FIVE EIGHTHS BLOCK}\N{LEFT THREE QUARTERS BLOCK}\N{LEFT SEVEN EIGHTHS BLOCK}"  # fmt: skip


class Tone(StrEnum):
    """How a word looks; without colours some of it is lost, and no meaning with it."""

    PLAIN = "plain"
    DIM = "dim"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    HEAD = "head"


Word = tuple[str, Tone]
"""A text without control characters, and how it looks."""

_TONES = {
    **dict.fromkeys(("running", "ok"), Tone.GOOD),
    **dict.fromkeys(("paused", "cordoned", "restricted", "shutting-down", "pmsuspended"), Tone.WARN),
    **dict.fromkeys(("crashed", "lost", "none", "missing"), Tone.BAD),
    **dict.fromkeys(("stopped", "?", "-"), Tone.DIM),
}


class Field(Value):
    """A column of the screen. `rank`: those with the highest go first where the width does not do for all.

    `is_bar`: its ratio is a bar too. `takes_rest`: it gets what the others leave. `width`: where that is fixed.
    """

    column: Column
    rank: int
    is_bar: bool = False
    takes_rest: bool = False
    width: int = 0


class Placed(Value):
    """A field with its width. `bar`: the width of its bar, 0 for none."""

    field: Field
    width: int
    bar: int = 0


def plain(text: str) -> str:
    """Return a text of another program as one line without control characters."""
    return sanitize(text).replace("\n", " ").replace("\t", " ")


def cut(text: str, width: int) -> str:
    """Return a text that takes exactly so many columns of a terminal."""
    if text_width(text) > width:
        while text and text_width(text) >= width:
            text = text[:-1]
        text += "~" if width else ""
    return text + " " * (width - text_width(text))


def cell_text(column: Column, row: Any) -> str:
    """Return a cell as tables show it; a remark that there is none is empty."""
    if column.text is not None:
        return plain(column.text(row))
    cell = column.cell(row)
    nothing = "?" if column.numeric else "" if column.free_text else "-"
    return plain(nothing if cell is None else str(cell))


def place(fields: Sequence[Field], rows: Sequence[Any], width: int) -> tuple[Placed, ...]:
    """Return the fields that fit a width, in their order, with bars as wide as there is room for."""
    natural = {
        n: _natural_width(field, rows)
        for n, field in enumerate(fields)
        if not field.column.optional or any(field.column.cell(row) is not None for row in rows)
    }
    chosen = sorted(natural, key=lambda n: fields[n].rank)
    while len(chosen) > 1 and _total(fields, natural, chosen, MIN_BAR) > width:
        chosen.pop()
    chosen.sort()
    bar = max((b for b in range(MIN_BAR, MAX_BAR + 1) if _total(fields, natural, chosen, b) <= width), default=MIN_BAR)
    rest = width - _total(fields, natural, chosen, bar)
    placed = []
    for n in chosen:
        own = natural[n] + (max(0, rest) if fields[n].takes_rest else 0)
        placed.append(Placed(fields[n], max(own, bar + _NUMBER), bar) if fields[n].is_bar else Placed(fields[n], own))
    if _total(fields, natural, chosen, bar) > width:  # one is left, and is too wide
        placed = [Placed(one.field, max(1, width), 0) for one in placed[:1]]
    return tuple(placed)


def _natural_width(field: Field, rows: Sequence[Any]) -> int:
    header = text_width(field.column.header) + 1
    if field.is_bar or field.width:
        return max(header, field.width)
    widest = max((text_width(cell_text(field.column, row)) for row in rows), default=0)
    return max(header, min(widest, _MAX_TEXT))


def _total(fields: Sequence[Field], natural: dict[int, int], chosen: Sequence[int], bar: int) -> int:
    widths = [max(natural[n], bar + _NUMBER) if fields[n].is_bar else natural[n] for n in chosen]
    return sum(widths) + GAP * (len(widths) - 1)


class LineMaker:
    """Makes the words of lines. `has_unicode`: the terminal shows blocks and arrows."""

    def __init__(self, *, has_unicode: bool) -> None:
        self._has_unicode = has_unicode

    def header(self, placed: Sequence[Placed], sorted_by: str, *, descending: bool) -> list[Word]:
        """Return the words of the header; an arrow is at the column by which the rows are sorted."""
        arrow = ("\N{BLACK DOWN-POINTING TRIANGLE}" if descending else "\N{BLACK UP-POINTING TRIANGLE}") \
            if self._has_unicode else "v" if descending else "^"  # fmt: skip
        words: list[Word] = []
        for one in placed:
            column = one.field.column
            title = column.header if self._has_unicode else column.header.replace("\N{DEGREE SIGN}", "")
            text = title + (arrow if column.key == sorted_by else "")
            right = column.numeric and not one.bar
            padding = " " * (one.width - text_width(text))
            words += [(cut(padding + text if right else text, one.width), Tone.HEAD), (" " * GAP, Tone.HEAD)]
        return words[:-1]

    def row(self, placed: Sequence[Placed], row: Any) -> list[Word]:
        """Return the words of a row."""
        words: list[Word] = []
        for one in placed:
            words += [*self._cell(one, row), (" " * GAP, Tone.PLAIN)]
        return words[:-1]

    def _cell(self, one: Placed, row: Any) -> list[Word]:
        text, column = cell_text(one.field.column, row), one.field.column
        if one.bar:
            ratio = column.cell(row)
            return self._bar(ratio if isinstance(ratio, (int, float)) else None, text, one)
        tone = _tone(text)
        if column.numeric:
            text = " " * (one.width - text_width(text)) + text
        return [(cut(text, one.width), tone)]

    def _bar(self, ratio: float | None, text: str, one: Placed) -> list[Word]:
        number = one.width - one.bar
        if ratio is None:
            return [(" " * one.bar, Tone.PLAIN), (cut(f"{text:>{number - 1}}", number), Tone.DIM)]
        mark, tone = ("!", Tone.BAD) if ratio >= FULL else ("+", Tone.WARN) if ratio >= HIGH else (" ", Tone.GOOD)
        filled = self.filled(ratio, one.bar)
        track = "\N{MIDDLE DOT}" if self._has_unicode else "."
        return [
            (filled, tone),
            (track * (one.bar - len(filled)), Tone.DIM),
            (cut(f"{text:>{number - 1}}{mark}", number), tone if mark != " " else Tone.PLAIN),
        ]

    def filled(self, ratio: float, width: int) -> str:
        """Return the filled part of a bar; something that is not zero has at least its smallest part."""
        part = min(max(ratio, 0.0), 1.0) * width
        if not self._has_unicode:
            return "#" * max(round(part), 1 if ratio > 0 else 0)
        eighths = max(round(part * 8), 1 if ratio > 0 else 0)
        rest = eighths % 8
        return "\N{FULL BLOCK}" * (eighths // 8) + (_EIGHTHS[rest - 1] if rest else "")


def _tone(text: str) -> Tone:
    return next((_TONES[word] for word in text.replace(",", " ").split() if word in _TONES), Tone.PLAIN)


def join_fitting(parts: Sequence[tuple[str, int]], width: int, gap: str = "   ") -> str:
    """Return the parts that fit a width, in their order; those with the highest rank are left out first."""
    chosen = sorted(range(len(parts)), key=lambda n: parts[n][1])
    while len(chosen) > 1 and len(gap.join(parts[n][0] for n in chosen)) > width:
        chosen.pop()
    return gap.join(parts[n][0] for n in sorted(chosen))
