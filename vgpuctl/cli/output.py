# SPDX-License-Identifier: Apache-2.0
"""Writes a result to stdout. If that fails, a result that reports a change goes to stderr: nobody may miss it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO

from vgpuctl.cli import listings, pages, streams, tables
from vgpuctl.cli.command import how_shown
from vgpuctl.errors import OutputLost
from vgpuctl.model.outcome import AnyResult, Outcome

if TYPE_CHECKING:
    from vgpuctl.cli.settings import Settings
    from vgpuctl.cli.tables import Look

LOCAL = ""
"""The host's name in `changes`, for a command that runs on one host."""
_NAME_FIELDS = {"show-vm": "name", "show-gpu": "address"}
"""Commands that show what a change did, and the field of its result that names it."""


def look_of(settings: Settings, stream: TextIO) -> Look:
    """Return how pages look on the stream."""
    ellipsis = "\N{HORIZONTAL ELLIPSIS}" if streams.supports_unicode(stream) else "..."
    width = _terminal_width(stream) if streams.is_terminal(stream) else None
    return tables.Look(width, has_colours(settings, stream), not settings.no_headers, ellipsis)


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
        for line in result_lines(kind, result)
    ]
    output_error = OutputLost(
        f"{kind} is done, and its result could not be written: {error.strerror}",
        hint=f"{inspect_command(kind, next(iter(applied.values())).data)} shows the result",
        lines=lines,
        errno=error.errno,
    )
    output_error.changed = True
    return output_error


def result_lines(kind: str, result: AnyResult) -> list[str]:
    """Return the lines of a result that people would have read, or its steps if its page cannot be rendered."""
    try:
        return tables.render(pages.page(kind, result).blocks).splitlines()
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
    page = pages.page(settings.kind, result, listings.view_of(settings))
    if page.blocks:
        streams.write_out(tables.render(page.blocks, look_of(settings, sys.stdout)))
    for line in page.stderr_lines:
        streams.write_err(streams.sanitize(line))
