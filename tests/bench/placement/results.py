# SPDX-License-Identifier: Apache-2.0
"""The CSV of the results: comment lines that say where and when they were made, and a row for each mean."""

from __future__ import annotations

import csv
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.paired import ROOT
from tests.bench.placement.runs import Cell, Row

FOLDER = ROOT / "docs" / "reports"
CSV = FOLDER / "placement.csv"
SAMPLE = FOLDER / "placement-sample.csv"
Results = Mapping[tuple[Cell, int, str], Row]
"""Rows by cell, load and policy."""


def read(path: Path) -> list[Row]:
    """Return the rows of a file; an empty list if there is no file."""
    if not path.is_file():
        return []
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [
        Row(r[0], int(r[1]), r[2], int(r[3]), r[4], int(r[5]), float(r[6]), float(r[7]), float(r[8]))
        for r in list(csv.reader(lines))[1:]
    ]


def write(path: Path, rows: Iterable[Row], head: Sequence[str]) -> None:
    """Write all rows in order, below the comment lines; the file is whole at any time."""
    new = path.with_suffix(".new")
    with new.open("w", newline="") as file:
        file.writelines(f"# {line}\n" for line in head)
        csv.writer(file, lineterminator="\n").writerows([Row._fields, *sorted(set(rows))])
    new.replace(path)


def head(path: Path) -> list[str]:
    """Return the comment lines of a file."""
    return [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]


def machine() -> str:
    """Return when and on what machine this runs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{datetime.now(UTC):%Y-%m-%d}, {cpu}, {os.cpu_count()} cores, Python {platform.python_version()}"


def by_key(rows: Iterable[Row]) -> Results:
    """Return the rows by cell, load and policy."""
    return {(Cell(row.setting, row.gpus, row.workload), row.load, row.policy): row for row in rows}
