# SPDX-License-Identifier: Apache-2.0
"""What the live screen shows of the last look: rows in their order, the head line, events. It knows no terminal.

A failed look keeps the rows, which are then old.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from vgpuctl.cli import listings
from vgpuctl.cli.commands.top import GPUS, MAX_INTERVAL, MIN_INTERVAL, VGPUS
from vgpuctl.cli.listings import View
from vgpuctl.cli.live.layout import Field, Tone, Word, cell_text, join_fitting, plain
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.event import Severity
from vgpuctl.model.numbers import count_text
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.cli.shown import Column
    from vgpuctl.cli.top_source import Reading
    from vgpuctl.model.event import Event
    from vgpuctl.model.results.usage import GpuUsageResult, VgpuUsageResult

INTERVALS = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 300.0)
_RANKS = {
    "vm": 0, "sm": 1, "share": 2, "memory": 3, "fb": 4, "license": 5, "gpu": 6, "state": 7, "profile": 8, "peak": 9,
    "encoder": 10, "fps": 11, "hint": 12,
}  # fmt: skip
"""The columns of vGPUs: those with the highest number go first on a narrow terminal."""
_GPU_RANKS = {
    "gpu": 0, "sm": 1, "given": 2, "note": 3, "vgpus": 4, "temperature": 5, "power": 6, "mode": 7, "model": 8,
    "scheduler": 9,
}  # fmt: skip
_BARS = ("sm", "share", "fb", "given")
_SEVERITY_TONES = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.WARN}


_TEXTS: dict[str, Callable[[Any], str]] = {
    "model": lambda gpu: gpu.model.removeprefix("NVIDIA "),
    "gpu": lambda row: row.address if hasattr(row, "address") else row.gpu.removeprefix("0000:"),
}
"""Shorter texts than in tables: every column counts."""


def _fields(columns: Sequence[Column], ranks: dict[str, int], rest: str) -> tuple[Field, ...]:
    return tuple(
        Field(
            replace(column, text=_TEXTS.get(column.key, column.text)),
            ranks[column.key],
            column.key in _BARS,
            column.key == rest,
            _WIDTHS.get(column.key, 0),
        )
        for column in columns
        if column.key in ranks
    )


_WIDTHS = {"memory": 9, "peak": 6, "encoder": 4, "fps": 4, "temperature": 3, "power": 9, "vgpus": 5}
"""Of columns of numbers, so that they do not move from one look to the next."""
VGPU_FIELDS = _fields(VGPUS.columns, _RANKS, "hint")
GPU_FIELDS = _fields(GPUS.columns, _GPU_RANKS, "note")


class TopState:
    """The last look and how it is shown. `view`: the options of the command line. `monotonic`: a clock in seconds."""

    def __init__(self, view: View, interval: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.reading: Reading | None = None
        self.error: VgpuctlError | None = None
        self.interval = interval
        self.is_paused = False
        self.by_gpu = False
        self.filter_text = ",".join(view.filters)
        self._monotonic = monotonic
        self._read_at = 0.0
        first = view.sort_by[0] if view.sort_by else "vm"
        self.sort_key = first.removeprefix("-").partition(":")[0]
        self.descending = first.startswith("-") or first.endswith(":desc")
        self.rows: tuple[VgpuUsageResult, ...] = ()

    def take(self, answer: Reading | VgpuctlError) -> None:
        """Take the result of a look, or why it failed."""
        if isinstance(answer, VgpuctlError):
            self.error = answer
            return
        self.reading, self.error, self._read_at = answer, None, self._monotonic()
        self.arrange()

    def arrange(self) -> None:
        """Filter and sort the rows again."""
        rows: tuple[Any, ...] = () if self.reading is None else self.reading.usage.vgpus
        keys = (*(("gpu",) if self.by_gpu else ()), f"{self.sort_key}:{'desc' if self.descending else 'asc'}")
        view, words = View(sort_by=keys), self.filter_text.strip()
        if "=" in words:
            view = replace(view, filters=(words,))
        elif words:
            rows = tuple(row for row in rows if _mentions(row, words.lower()))
        self.rows = tuple(rows[number] for number in listings.row_numbers(VGPUS, view, rows))

    def check_filter(self, text: str) -> str | None:
        """Return why a filter cannot be used; None if it can."""
        if "=" not in text:
            return None
        import click

        try:
            listings.row_numbers(VGPUS, View(filters=(text,)), ())
        except click.UsageError as error:
            return error.message
        return None

    def sort_by_next(self) -> None:
        """Sort by the next column; numbers with the largest first."""
        keys = [field.column.key for field in VGPU_FIELDS]
        self.sort_key = keys[(keys.index(self.sort_key) + 1) % len(keys)] if self.sort_key in keys else keys[0]
        self.descending = next(field.column.numeric for field in VGPU_FIELDS if field.column.key == self.sort_key)
        self.arrange()

    def step_interval(self, steps: int) -> None:
        """Look more rarely, or with a negative number more often."""
        others = [i for i in INTERVALS if (i > self.interval if steps > 0 else i < self.interval)]
        if others:
            self.interval = min(max(min(others) if steps > 0 else max(others), MIN_INTERVAL), MAX_INTERVAL)

    @property
    def gpus(self) -> tuple[GpuUsageResult, ...]:
        """The GPUs of the last look."""
        return () if self.reading is None else self.reading.usage.gpus

    @property
    def is_old(self) -> bool:
        """Whether the values are not those of the last look that was tried."""
        return self.error is not None and self.reading is not None

    def age(self) -> float | None:
        """Return how long ago the values were read, in seconds; None before the first look."""
        if self.reading is None:
            return None
        return self.reading.usage.age_seconds + self._monotonic() - self._read_at

    def head(self, width: int) -> str:
        """Return the first line."""
        if self.reading is None:
            return "vgpuctl top   " + ("no values yet" if self.error else "reading the host ...")
        usage, age = self.reading.usage, self.age() or 0.0
        lost = sum("lost" in gpu.notes for gpu in usage.gpus)
        running = sum(gpu.running_vgpus for gpu in usage.gpus)
        state = "OLD" if self.is_old else "PAUSED" if self.is_paused else ""
        parts = [
            ("vgpuctl top", 8),
            (plain(usage.host), 2),
            (time.strftime("%H:%M:%S", time.localtime(usage.time)), 6),
            (f"every {self.interval:g} s", 7),
            (f"{count_text(len(usage.gpus), 'GPU')}{f' ({lost} lost)' if lost else ''}", 3),
            (f"{count_text(sum(gpu.vgpus for gpu in usage.gpus), 'vGPU')}, {running} running", 4),
            (f"driver {plain(usage.driver_version or '?')}", 5),
            (f"{self.reading.source}: {age:.1f} s old", 1),
            *([(state, 0)] if state else []),
            *([("NVML paused", 0)] if usage.nvml_paused else []),
        ]
        return join_fitting(parts, width)

    def problem(self) -> str | None:
        """Return what is wrong, for the last line: why the host cannot be read, or which source gave nothing."""
        if self.error is not None:
            hint = f" ({plain(self.error.hint)})" if self.error.hint else ""
            kept = "values are old; " if self.reading else ""
            return f"{kept}{plain(self.error.message)}; trying again every {self.interval:g} s{hint}"
        warnings = () if self.reading is None else self.reading.warnings
        return plain("; ".join(warnings)) if warnings else None

    def event_lines(self) -> list[list[Word]]:
        """Return the events, the newest first."""
        if self.reading is None:
            return []
        if self.reading.events is None:
            return [[("no events: no host agent runs here (vgpuctl install-host --agent)", Tone.DIM)]]
        return [_event_words(event) for event in reversed(self.reading.events)] or [[("no events yet", Tone.DIM)]]


def _event_words(event: Event) -> list[Word]:
    parts = (event.vm, event.gpu, None if event.vgpu is None else f"vGPU {event.vgpu}", event.reason)
    text = "  ".join(plain(part) for part in parts if part)
    count = f"  ({event.count} steps)" if event.count > 1 else ""
    return [
        (f"{_local_time(event.time)}  ", Tone.DIM),
        (f"{event.type:<16} ", _SEVERITY_TONES.get(event.severity, Tone.PLAIN)),
        (text + count, Tone.PLAIN),
    ]


def _local_time(text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return "?       "


def _mentions(row: VgpuUsageResult, text: str) -> bool:
    """Return whether a row names what a person typed: in a column, its owner or a label."""
    labels = (f"{key}={value}" for key, value in row.labels.items())
    cells = (cell_text(field.column, row) for field in VGPU_FIELDS)
    return any(text in word.lower() for word in (*cells, row.owner or "", *labels))
