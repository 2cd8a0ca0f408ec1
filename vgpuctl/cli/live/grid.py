# SPDX-License-Identifier: Apache-2.0
"""A table on the screen whose header stays, and whose lines are made when they are painted: 4,000 rows cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from vgpuctl.cli.live.layout import Tone, Word

_COLOURS = {Tone.GOOD: "green", Tone.WARN: "yellow", Tone.BAD: "red"}


def style_of(tone: Tone, *, has_colours: bool) -> Style:
    """Return a tone as the terminal's own colours: they fit its background, light or dark."""
    if tone is Tone.HEAD:
        return Style(bold=True, underline=True)
    if not has_colours:
        return Style(bold=tone is Tone.BAD, dim=tone is Tone.DIM)
    return Style(color=_COLOURS.get(tone), bold=tone is Tone.BAD, dim=tone is Tone.DIM)


def segments(words: Sequence[Word], *, has_colours: bool) -> list[Segment]:
    """Return words as what textual paints; no text is read as markup."""
    return [Segment(text, style_of(tone, has_colours=has_colours)) for text, tone in words]


class Grid(ScrollView, can_focus=True):
    """Lines below a header. `line` returns the words of a row by its number."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "pick", show=False),
    ]

    class Picked(Message):
        """Enter was pressed on a row, or it was clicked."""

        def __init__(self, grid: Grid, number: int) -> None:
            super().__init__()
            self.grid = grid
            self.number = number

    def __init__(self, name: str, *, has_colours: bool, has_cursor: bool = True) -> None:
        super().__init__(id=name)
        self.can_focus = has_cursor
        self.cursor = 0
        self._has_colours = has_colours
        self._header: list[Word] | None = None
        self._line: Callable[[int], list[Word]] = lambda _: []
        self._count = 0

    @property
    def count(self) -> int:
        """How many rows it has."""
        return self._count

    def show(self, header: list[Word] | None, count: int, line: Callable[[int], list[Word]], cursor: int) -> None:
        """Show other rows, with the cursor on that of this number."""
        self._header, self._count, self._line = header, count, line
        self.virtual_size = Size(self.size.width, count + (header is not None))
        self.cursor = max(0, min(cursor, count - 1))
        self._keep_cursor_visible()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return what is painted on a line of the widget."""
        width, has_header = self.size.width, self._header is not None
        if has_header and y == 0:
            header = Style(bold=True, underline=True)
            return Strip(segments(self._header or [], has_colours=self._has_colours)).adjust_cell_length(width, header)
        number = y - has_header + round(self.scroll_offset.y)
        if not 0 <= number < self._count:
            return Strip.blank(width, self.rich_style)
        painted = segments(self._line(number), has_colours=self._has_colours)
        if number == self.cursor and self.has_focus:
            first, *others = painted
            painted = [
                *Segment.apply_style([first], post_style=Style(reverse=True)),
                *Segment.apply_style(others, post_style=Style(bold=True)),
            ]
        return Strip(painted).adjust_cell_length(width)

    def action_move(self, rows: int) -> None:
        """Move the cursor."""
        self.cursor = max(0, min(self.cursor + rows, self._count - 1))
        self._keep_cursor_visible()
        self.refresh()

    def action_page(self, pages: int) -> None:
        """Move the cursor by what is visible."""
        self.action_move(pages * max(1, self._visible()))

    def action_pick(self) -> None:
        """Tell the screen which row was picked."""
        if self._count:
            self.post_message(self.Picked(self, self.cursor))

    def on_click(self, event: Click) -> None:
        """Move the cursor to the row that was clicked; a second click picks it."""
        number = event.y - (self._header is not None) + round(self.scroll_offset.y)
        if not self.can_focus or not 0 <= number < self._count or event.y < (self._header is not None):
            return
        if number == self.cursor:
            self.action_pick()
        self.action_move(number - self.cursor)

    def _visible(self) -> int:
        return self.size.height - (self._header is not None)

    def _keep_cursor_visible(self) -> None:
        if not self.can_focus:
            return
        top = round(self.scroll_offset.y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, force=True)
        elif self.cursor >= top + self._visible() > top:
            self.scroll_to(y=self.cursor - self._visible() + 1, animate=False, force=True)
