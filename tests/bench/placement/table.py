# SPDX-License-Identifier: Apache-2.0
"""The results CSV: its comment lines, its rows, and means of paired differences."""

from __future__ import annotations

import csv
import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from tests.bench.placement import kept
from tests.bench.placement.requests import LOADS
from tests.bench.placement.runs import CHURN, Row, Run

Results = Mapping[tuple[str, int, str, int, str], Mapping[int, Row]]
"""Rows by setting, GPUs, workload, load and policy, and within that by seed."""


class Difference(NamedTuple):
    """The mean difference over the seeds that both have, and its standard error, in percentage points."""

    mean: float
    error: float
    seeds: int


def read(path: Path) -> list[Row]:
    """Return the rows of a file; an empty list if there is no file."""
    return [
        Row(r[0], int(r[1]), r[2], int(r[3]), int(r[4]), r[5], r[6], r[7], int(r[8]))
        for r in kept.read(path)
        if len(r) == len(Row._fields)
    ]


def head(path: Path) -> list[str]:
    """Return the comment lines of a file. They say where and when it was made."""
    return [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]


def append(path: Path, rows: Sequence[Row]) -> None:
    """Append rows to a file immediately, so that an interrupted run can continue later."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows if path.exists() else [Row._fields, *rows])
    with path.open("a") as file:
        file.write(text.getvalue())


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write all rows in order, below comment lines that say where and when they were made."""
    text = StringIO()
    text.write("".join(f"# {line}\n" for line in machine()))
    csv.writer(text, lineterminator="\n").writerows([Row._fields, *sorted(set(rows))])
    new = path.with_suffix(".new")
    new.write_text(text.getvalue())
    new.replace(path)


def machine() -> list[str]:
    """Return lines that say when and on what machine this runs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    when = datetime.now(UTC)
    return [
        f"made by python -m tests.bench.placement on {when:%Y-%m-%d}",
        f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}",
    ]


def done(rows: Iterable[Row]) -> set[Run]:
    """Return the runs that have all their rows: one for each load, or a single one in churn."""
    result = Counter(
        Run(r.setting, r.gpus, r.workload, r.load if r.workload == CHURN else 0, r.seed, r.policy) for r in set(rows)
    )
    return {run for run, number in result.items() if number == (1 if run.workload == CHURN else len(LOADS))}


def by_key(rows: Iterable[Row]) -> Results:
    """Return the rows grouped by setting, GPUs, workload, load and policy."""
    result: dict[tuple[str, int, str, int, str], dict[int, Row]] = {}
    for row in rows:
        result.setdefault((row.setting, row.gpus, row.workload, row.load, row.policy), {})[row.seed] = row
    return result


def difference(ours: Mapping[int, Row], theirs: Mapping[int, Row]) -> Difference | None:
    """Return how much more framebuffer `ours` has, seed by seed; None if there is no common seed."""
    seeds = sorted(ours.keys() & theirs.keys())
    points = [float(ours[s].framebuffer_percent) - float(theirs[s].framebuffer_percent) for s in seeds]
    if not points:
        return None
    return Difference(mean(points), stdev(points) / sqrt(len(points)) if len(points) > 1 else 0.0, len(points))


def average(rows: Mapping[int, Row]) -> float:
    """Return the mean framebuffer in percent."""
    return mean(float(row.framebuffer_percent) for row in rows.values())
