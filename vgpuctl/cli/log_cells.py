# SPDX-License-Identifier: Apache-2.0
"""What the table of `vgpuctl log` shows of an entry: times in this machine's zone, and one form of command lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpuctl.model.results.host import LogEntryResult


def log_result(entry: LogEntryResult) -> str:
    """Return how a command ended: `ok`, `no change`, or the error's code."""
    return "no change" if entry.result == "ok" and not entry.changed else entry.result


def local_time(entry: LogEntryResult) -> str:
    """Return when a command ended, in local time; the text of another version as it is."""
    try:
        return datetime.fromisoformat(entry.time).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return entry.time


def log_command(entry: LogEntryResult) -> str:
    """Return the command line without the program's name and without --host: the log is one host's.

    A line that no shell takes, such as one that was cut, is returned as it is.
    """
    text = entry.arguments.removeprefix("vgpuctl ")
    try:
        words = shlex.split(text)
    except ValueError:
        return text
    kept = tuple(_without_host(words))
    return text if len(kept) == len(words) else shlex.join(kept)


def _without_host(words: Sequence[str]) -> Iterator[str]:
    is_value = False
    for word in words:
        if not is_value and word != "--host" and not word.startswith("--host="):
            yield word
        is_value = word == "--host"
