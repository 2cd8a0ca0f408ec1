# SPDX-License-Identifier: Apache-2.0
"""What a page lists, as a file for spreadsheets: all that its filters choose, and not one page of it.

The names of accounts and what guests say are in it, so a text that a spreadsheet would compute is marked as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vgpuctl.controller.web.cells import changes_text, one_line
from vgpuctl.model.csv_cells import csv_file
from vgpuctl.model.results.fleet import FleetEventResult
from vgpuctl.model.results.people import UseResult
from vgpuctl.value import Value, field_names

CSV_TYPE = "text/csv; charset=utf-8"
MOST_ROWS, PART = 10_000, 1000
"""A file has so many rows at most, and so many are read at a time."""


def use_csv(ask: Any, filters: Mapping[str, str | None]) -> str:
    """Return what people had. `ask`: makes the page's calls."""
    rows: list[UseResult] = []
    after = None
    while len(rows) < MOST_ROWS:
        part = ask("show-use", after=after, limit=PART, **filters)
        rows += part
        if len(part) < PART:
            break
        after = part[-1].name or ""
    return csv_text(UseResult, rows)


def journal_csv(ask: Any, filters: Mapping[str, str | None]) -> str:
    """Return entries of the journal, the newest first."""
    rows: list[FleetEventResult] = []
    before = None
    while len(rows) < MOST_ROWS:
        part = ask("find-events", before=before, limit=PART, **filters)
        rows += part
        if len(part) < PART:
            break
        before = part[-1].id
    return csv_text(FleetEventResult, rows)


def csv_text(kind: type[Value], rows: Sequence[Value]) -> str:
    """Return results of one kind, with the names of their fields. What is not known is empty."""
    names = field_names(kind)
    lines = [list(names)]
    for one in rows:
        texts = {"changed": changes_text(one)} if isinstance(one, FleetEventResult) else {}
        lines.append([one_line(texts.get(name, getattr(one, name))) for name in names])
    return csv_file(lines, "\r\n")
