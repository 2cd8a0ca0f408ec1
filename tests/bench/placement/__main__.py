# SPDX-License-Identifier: Apache-2.0
"""Measure the cells that docs/reports/placement.csv does not have yet, then write the tables and the plot from it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing import Pool

from tests.bench.placement import page, results
from tests.bench.placement.fleets import SETTINGS
from tests.bench.placement.runs import ARRIVALS, CHURN, MOST_SEEDS, Cell, Row, measure

SAMPLE_GPUS, SAMPLE_SEEDS = 4, 4
CELLS = [Cell(name, gpus, workload) for workload in (ARRIVALS, CHURN) for gpus in MOST_SEEDS for name in SETTINGS]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options say."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.placement", description=__doc__)
    parser.add_argument("--hours", type=float, default=8.0, help="begin no more seeds after so many hours (8)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (all CPUs)")
    parser.add_argument("--again", action="store_true", help="measure all cells again")
    parser.add_argument("--page", action="store_true", help="only write the tables and the plot")
    options = parser.parse_args(arguments)
    if not options.page:
        measure_cells(options.hours * 3600, options.jobs, again=options.again)
    page.write()
    return 0


def measure_cells(seconds: float, jobs: int, *, again: bool) -> None:
    """Measure cells until the time is over. What is measured is kept, also when this is interrupted."""
    rows = [] if again else results.read(results.CSV)
    finished = {Cell(row.setting, row.gpus, row.workload) for row in rows}
    missing = [cell for cell in CELLS if cell not in finished]
    budget = _Budget(seconds, jobs, len(missing))
    results.FOLDER.mkdir(parents=True, exist_ok=True)
    with Pool(jobs) as pool:
        for number, new in enumerate(pool.imap_unordered(budget.measure, missing), 1):
            rows += new
            results.write(results.CSV, rows, [f"made by python -m tests.bench.placement on {results.machine()}"])
            print(f"{number} of {len(missing)} cells: {new[0][:3]}, {new[0].seeds} seeds", file=sys.stderr, flush=True)
    results.write(results.SAMPLE, sample_rows(), [f"the first {SAMPLE_SEEDS} seeds on {SAMPLE_GPUS} GPUs, arrivals"])


class _Budget:
    """Divides the time among the cells: each one may use its share of what is left when it begins."""

    def __init__(self, seconds: float, jobs: int, cells: int) -> None:
        self._end = time.monotonic() + seconds
        self._jobs = jobs
        self._cells = cells

    def measure(self, cell: Cell) -> list[Row]:
        """Measure a cell in its share of the time; at least one batch of seeds."""
        now = time.monotonic()
        left = len(CELLS) - CELLS.index(cell)
        return measure(cell, now + max(0.0, self._end - now) * self._jobs / max(1, min(left, self._cells)))


def sample_rows() -> list[Row]:
    """Return the rows of a small sample, which the tests measure again."""
    cells = (Cell(name, SAMPLE_GPUS, ARRIVALS) for name in SETTINGS)
    return [row for cell in cells for row in measure(cell, most_seeds=SAMPLE_SEEDS)]


if __name__ == "__main__":
    sys.exit(main())
