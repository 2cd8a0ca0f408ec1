# SPDX-License-Identifier: Apache-2.0
"""Small CSV tables next to the results: comment lines on where and when, a row of column names, and the rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path


def write(path: Path, head: Sequence[str], names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write these rows to a file."""
    with path.open("w", newline="") as file:
        file.write("".join(f"# {line}\n" for line in head))
        csv.writer(file, lineterminator="\n").writerows([names, *rows])


def read(path: Path) -> list[list[str]]:
    """Return the rows of a file without the column names; an empty list if there is no file."""
    if not path.is_file():
        return []
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.reader(lines))[1:]
