# SPDX-License-Identifier: Apache-2.0
"""The CSV of results: its head, its rows, and means of paired differences."""

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
"""Rows by setting, GPUs, workload, load and policy, and in it by seed."""


class Difference(NamedTuple):
    """The mean of one less the other over the seeds that both have, and its standard error; in points."""

    mean: float
    error: float
    seeds: int


def read(path: Path) -> list[Row]:
    """Return the rows of a file; none when there is no file."""
    return [
        Row(r[0], int(r[1]), r[2], int(r[3]), int(r[4]), r[5], r[6], r[7], int(r[8]))
        for r in kept.read(path)
        if len(r) == len(Row._fields)
    ]


def head(path: Path) -> list[str]:
    """Return the lines of a file that say where and when it was made."""
    return [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]


def append(path: Path, rows: Sequence[Row]) -> None:
    """Add rows to a file at once, so that a run that is stopped can go on later."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows if path.exists() else [Row._fields, *rows])
    with path.open("a") as file:
        file.write(text.getvalue())


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write all rows in order, below a head that says where and when."""
    text = StringIO()
    text.write("".join(f"# {line}\n" for line in machine()))
    csv.writer(text, lineterminator="\n").writerows([Row._fields, *sorted(set(rows))])
    new = path.with_suffix(".new")
    new.write_text(text.getvalue())
    new.replace(path)


def machine() -> list[str]:
    """Say on what and when this runs."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    when = datetime.now(UTC)
    return [
        f"made by python -m tests.bench.placement on {when:%Y-%m-%d}",
        f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}",
    ]


def done(rows: Iterable[Row]) -> set[Run]:
    """Return the runs whose rows are all there: one for each load, in churn one."""
    found = Counter(
        Run(r.setting, r.gpus, r.workload, r.load if r.workload == CHURN else 0, r.seed, r.policy) for r in set(rows)
    )
    return {run for run, number in found.items() if number == (1 if run.workload == CHURN else len(LOADS))}


def by_key(rows: Iterable[Row]) -> Results:
    """Return rows by what they are about."""
    found: dict[tuple[str, int, str, int, str], dict[int, Row]] = {}
    for row in rows:
        found.setdefault((row.setting, row.gpus, row.workload, row.load, row.policy), {})[row.seed] = row
    return found


def difference(ones: Mapping[int, Row], others: Mapping[int, Row]) -> Difference | None:
    """Return how much more framebuffer the ones have, seed by seed; None when they share no seed."""
    seeds = sorted(ones.keys() & others.keys())
    points = [float(ones[s].framebuffer_percent) - float(others[s].framebuffer_percent) for s in seeds]
    if not points:
        return None
    return Difference(mean(points), stdev(points) / sqrt(len(points)) if len(points) > 1 else 0.0, len(points))


def average(rows: Mapping[int, Row]) -> float:
    """Return the mean framebuffer in percent."""
    return mean(float(row.framebuffer_percent) for row in rows.values())
