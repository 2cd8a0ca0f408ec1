# SPDX-License-Identifier: Apache-2.0
"""The live screen: a head line, the GPUs, the vGPUs, events, and a line of keys or what is wrong.

It paints with the terminal's own colours, so it fits a light background and a dark one.
"""

from __future__ import annotations

import asyncio
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from vgpuctl.cli.commands.top import vgpu_label
from vgpuctl.cli.live.feed import Feed
from vgpuctl.cli.live.grid import Grid
from vgpuctl.cli.live.layout import LineMaker, Tone, join_fitting, place
from vgpuctl.cli.live.pages import detail_text, help_text
from vgpuctl.cli.live.state import GPU_FIELDS, VGPU_FIELDS, TopState
from vgpuctl.errors import VgpuctlError

if TYPE_CHECKING:
    from vgpuctl.cli.listings import View
    from vgpuctl.cli.top_source import Reading
    from vgpuctl.model.results.usage import VgpuUsageResult
    from vgpuctl.model.usage import ProcessUse

MIN_WIDTH, MIN_HEIGHT = 40, 10
FEW_EVENTS = 4
_KEYS = (
    ("q quit", 0), ("? help", 1), ("s sort", 4), ("/ filter", 2), ("g by GPU", 6), ("e events", 7), ("p pause", 5),
    ("Enter detail", 3), ("+ - interval", 8),
)  # fmt: skip


class TextPage(ModalScreen[None]):
    """A page of text over the table."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark", "dismiss", show=False)]
    CSS = """
    TextPage { background: ansi_default; color: ansi_default; }
    TextPage Static { width: 100%; height: auto; }
    #title { text-style: bold underline; height: 1; }
    """

    def __init__(self, title: str, text: str) -> None:
        super().__init__()
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        """Lay the page out."""
        yield Static(Text(self._title, no_wrap=True), id="title")
        with VerticalScroll():
            yield Static(Text(self._text), id="text")

    def update(self, text: str) -> None:
        """Show another text."""
        self.query_one("#text", Static).update(Text(text))


def has_hung_up(descriptor: int) -> bool:
    """Return whether the other end of a terminal is gone, as after a connection broke."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return bool(poll.poll(0))


class TopApp(App[None]):
    """The live screen. `sample` reads the host, `read_processes` what runs in a VM; both may be slow, and fail."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", show=False),
        Binding("ctrl+c", "leave", show=False, priority=True),
        Binding("s", "sort", show=False),
        Binding("S,upper_s", "reverse", show=False),
        Binding("slash", "filter", show=False),
        Binding("g", "group", show=False),
        Binding("e", "events", show=False),
        Binding("p", "pause", show=False),
        Binding("plus,equals_sign", "interval(-1)", show=False),
        Binding("minus", "interval(1)", show=False),
        Binding("question_mark", "help", show=False),
        Binding("escape", "clear", show=False),
    ]
    CSS = """
    Screen { background: ansi_default; color: ansi_default; layout: vertical; }
    Static { height: 1; }
    #head { text-style: bold reverse; }
    Grid { background: ansi_default; color: ansi_default; scrollbar-size: 1 1; overflow-x: hidden;
        scrollbar-background: ansi_default; scrollbar-color: ansi_bright_black;
        scrollbar-background-hover: ansi_default; scrollbar-color-hover: ansi_bright_black;
        scrollbar-background-active: ansi_default; scrollbar-color-active: ansi_bright_black; }
    Grid:focus { background: ansi_default; }
    #gpus { height: 2; margin-bottom: 1; }
    #vms { height: 1fr; }
    #events { height: 5; margin-top: 1; }
    #filter { display: none; border: none; height: 1; padding: 0; background: ansi_default; color: ansi_default; }
    #small { display: none; height: auto; }
    .small Grid, .small #head, .small #foot { display: none; }
    .small #small { display: block; }
    """

    class Answered(Message):
        """A call that was asked for has ended."""

        def __init__(self, take: Callable[[], None]) -> None:
            super().__init__()
            self.take = take

    def __init__(
        self,
        sample: Callable[[], Reading],
        read_processes: Callable[[str], tuple[ProcessUse, ...]],
        view: View,
        *,
        interval: float,
        has_colours: bool = True,
        has_unicode: bool = True,
        state: TopState | None = None,
    ) -> None:
        super().__init__(ansi_color=True)
        self.state = state or TopState(view, interval)
        self.feed: Feed[Any] = Feed()
        self._sample = sample
        self._read_processes = read_processes
        self._has_colours = has_colours
        self._lines = LineMaker(has_unicode=has_unicode)
        self._events_height = FEW_EVENTS
        self._ticks_left = 0.0
        self._is_in_terminal = False
        self._complaint: str | None = None
        """What is wrong with the filter that is being typed."""

    def compose(self) -> ComposeResult:
        """Lay the screen out."""
        yield Static("", id="head")
        yield Static(f"This needs {MIN_WIDTH}x{MIN_HEIGHT}.", id="small")
        yield Grid("gpus", has_colours=self._has_colours)
        yield Grid("vms", has_colours=self._has_colours)
        yield Grid("events", has_colours=self._has_colours, has_cursor=False)
        yield Input(placeholder="a word, or KEY=VALUE,...", id="filter")
        yield Static("", id="foot")

    def on_mount(self) -> None:
        """Begin to read; signals leave as q does."""
        loop = asyncio.get_running_loop()
        self._is_in_terminal = not self.is_headless
        with suppress(ValueError, RuntimeError, NotImplementedError):  # only the main thread gets signals
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                status = 0 if number == signal.SIGINT else 128 + number
                loop.add_signal_handler(number, partial(self.exit, return_code=status))
        self.query_one("#vms").focus()
        self.feed.start()
        self._ask()
        self._ticks_left = self.state.interval
        self.set_interval(1.0, self._tick)

    def on_resize(self, event: Resize) -> None:
        """Fit the new size."""
        is_small = event.size.width < MIN_WIDTH or event.size.height < MIN_HEIGHT
        self.screen_stack[0].set_class(is_small, "small")
        self.call_after_refresh(self.paint)

    def _tick(self) -> None:
        if self._is_in_terminal and has_hung_up(0):  # without a controlling terminal no signal says so
            self.exit(return_code=128 + signal.SIGHUP)
            return
        if not self._is_shown:
            return
        self._ticks_left -= 1.0
        if self._ticks_left <= 0:
            self._ticks_left = self.state.interval
            if not self.state.is_paused:
                self._ask()
        self._paint_lines()

    def _ask(self) -> None:
        self.feed.ask("look", self._sample, lambda answer: self._hand_over(lambda: self._take(answer)))

    def _hand_over(self, take: Callable[[], None]) -> None:
        """Let this screen's own thread take an answer; the screen may be gone."""
        with suppress(RuntimeError):
            self.post_message(self.Answered(take))

    def on_top_app_answered(self, message: Answered) -> None:
        """Take an answer."""
        if self._is_shown:
            message.take()

    @property
    def _is_shown(self) -> bool:
        """Whether the screen has its parts; they go before the timer when it ends."""
        return bool(self.screen_stack and self.screen_stack[0].query("#foot"))

    def _take(self, answer: Reading | VgpuctlError) -> None:
        if self.state.is_paused and self.state.reading is not None:
            return
        self.state.take(answer)
        self.paint()

    def paint(self) -> None:
        """Show the state."""
        self._paint_gpus()
        self._paint_vms()
        lines = self.state.event_lines()
        events = self._grid("events")
        events.show([("EVENTS", Tone.HEAD)], len(lines), lines.__getitem__, 0)
        events.styles.height = self._events_height + 1
        events.display = bool(self._events_height)
        self._paint_lines()

    def _grid(self, name: str) -> Grid:
        return self.screen_stack[0].query_one(f"#{name}", Grid)

    def _paint_gpus(self) -> None:
        grid, rows = self._grid("gpus"), self.state.gpus
        grid.styles.height = min(len(rows), max(2, self.size.height // 4)) + 1
        placed = place(GPU_FIELDS, rows, self.size.width - 1)
        header = self._lines.header(placed, "", descending=False)
        grid.show(header, len(rows), lambda number: self._lines.row(placed, rows[number]), grid.cursor)

    def _paint_vms(self) -> None:
        grid, rows, state = self._grid("vms"), self.state.rows, self.state
        every = () if state.reading is None else state.reading.usage.vgpus
        placed = place(VGPU_FIELDS, every, self.size.width - 1)
        header = self._lines.header(placed, state.sort_key, descending=state.descending)
        grid.show(header, len(rows), lambda number: self._lines.row(placed, rows[number]), grid.cursor)

    def _paint_lines(self) -> None:
        width = self.size.width
        base = self.screen_stack[0]
        base.query_one("#head", Static).update(Text(f"{self.state.head(width):<{width}}", no_wrap=True))
        problem = self._complaint or self.state.problem()
        base.query_one("#foot", Static).update(
            Text(self._foot(width) if problem is None else problem, "bold reverse" if problem else "", no_wrap=True,
                 overflow="ellipsis")
        )  # fmt: skip

    def _foot(self, width: int) -> str:
        notes = [(f"filter: {self.state.filter_text}", -1)] if self.state.filter_text else []
        notes += [("by GPU", -1)] if self.state.by_gpu else []
        return join_fitting([*notes, *_KEYS], width, "  ")

    def _rearrange(self) -> None:
        """Sort and filter again; the cursor stays on its vGPU."""
        grid = self._grid("vms")
        current = self.state.rows[grid.cursor] if self.state.rows else None
        self.state.arrange()
        key = current and (current.vm, current.carrier)
        grid.cursor = next((n for n, row in enumerate(self.state.rows) if (row.vm, row.carrier) == key), 0)
        self.paint()

    def action_leave(self) -> None:
        """End with the exit status 0."""
        self.exit()

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.state.sort_by_next()
        self._grid("vms").cursor = 0
        self.paint()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        self.state.descending = not self.state.descending
        self._rearrange()

    def action_group(self) -> None:
        """Keep the vGPUs of a GPU together, or no longer."""
        self.state.by_gpu = not self.state.by_gpu
        self._rearrange()

    def action_events(self) -> None:
        """Show half a screen of events, none, or four."""
        many = max(FEW_EVENTS + 1, self.size.height // 2)
        self._events_height = {FEW_EVENTS: many, 0: FEW_EVENTS}.get(self._events_height, 0)
        self.paint()

    def action_pause(self) -> None:
        """Look no more, or again."""
        self.state.is_paused = not self.state.is_paused
        if not self.state.is_paused:
            self._ask()
        self._paint_lines()

    def action_interval(self, steps: int) -> None:
        """Look more rarely, or more often."""
        self.state.step_interval(steps)
        self._ticks_left = min(self._ticks_left, self.state.interval)
        self._paint_lines()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(TextPage("vgpuctl top: keys", help_text()))

    def action_filter(self) -> None:
        """Let the user type a filter."""
        field = self.query_one("#filter", Input)
        field.value = self.state.filter_text
        field.display = True
        field.focus()

    def action_clear(self) -> None:
        """Leave the filter's line, or clear the filter."""
        if not self.query_one("#filter").display:
            self.state.filter_text = ""
        self._close_filter()
        self._rearrange()

    def _close_filter(self) -> None:
        self._complaint = None
        self.query_one("#filter").display = False
        self.query_one("#vms").focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Filter, unless the conditions are wrong."""
        self._complaint = self.state.check_filter(event.value)
        if self._complaint is not None:
            self._paint_lines()
            return
        self.state.filter_text = event.value.strip()
        self._close_filter()
        self._rearrange()

    def on_grid_picked(self, event: Grid.Picked) -> None:
        """Show all about a vGPU; of a GPU only its vGPUs."""
        if event.grid.id == "vms":
            self._show_detail(self.state.rows[event.number])
            return
        chosen = f"gpu={self.state.gpus[event.number].address}"
        self.state.filter_text = "" if self.state.filter_text == chosen else chosen
        self._rearrange()

    def _show_detail(self, row: VgpuUsageResult) -> None:
        reading = self.state.reading
        if reading is None:
            return
        usage = reading.usage
        page = TextPage(vgpu_label(row), detail_text(usage, row, None))
        self.push_screen(page)
        vm = row.vm_uuid

        def show(processes: Sequence[ProcessUse] | VgpuctlError) -> None:
            if page.is_attached:
                page.update(detail_text(usage, row, processes))

        if vm is not None:
            self.feed.ask(
                f"processes {vm}",
                lambda: self._read_processes(vm),
                lambda answer: self._hand_over(lambda: show(answer)),
            )
