# SPDX-License-Identifier: Apache-2.0
"""CSV files. Names of accounts and what guests say are in them: a spreadsheet must not compute such a text."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Iterable

_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def text_cell(text: str) -> str:
    """Return a text as a cell that no spreadsheet computes: one that begins as a formula gets an apostrophe.

    A number stays, also with a minus.
    """
    first = unicodedata.normalize("NFKC", text.lstrip()[:1])  # spreadsheets read wide forms as the others
    is_formula = text.startswith(("\t", "\r")) or first in _FORMULA
    return f"'{text}" if is_formula and not _NUMBER.fullmatch(text) else text


def csv_file(rows: Iterable[Iterable[str]], line_end: str) -> str:
    """Return rows of texts as a CSV file."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator=line_end).writerows(map(text_cell, row) for row in rows)
    return stream.getvalue()
