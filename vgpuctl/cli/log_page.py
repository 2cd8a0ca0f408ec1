# SPDX-License-Identifier: Apache-2.0
"""The page of `vgpuctl log`: times in this machine's zone, and command lines without the program's name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from vgpuctl.cli.pages import Page, or_unknown
from vgpuctl.cli.tables import Table
from vgpuctl.model.results.host import LogEntryResult

HEADERS = ("TIME", "USER", "RESULT", "SECONDS", "COMMAND")


def _log(data: tuple[LogEntryResult, ...]) -> Page:
    if not data:
        return Page(stderr_lines=["no commands in the log"])
    rows = tuple(
        (
            _local_time(entry.time), or_unknown(entry.user), _result(entry), f"{entry.duration_seconds:.1f}",
            entry.arguments.removeprefix("vgpuctl "),
        )
        for entry in data
    )  # fmt: skip
    return Page([Table(HEADERS, rows, frozenset({"SECONDS"}))])


def _result(entry: LogEntryResult) -> str:
    return "no change" if entry.result == "ok" and not entry.changed else entry.result


def _local_time(text: str) -> str:
    """Return a time in UTC as local time, or the text of another version as it is."""
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return text


PAGES: dict[str, Callable[[Any], Page]] = {"log": _log}
