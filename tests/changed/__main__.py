# SPDX-License-Identifier: Apache-2.0
"""Run all trials and write docs/reports/changed-hosts.md and known.txt: `python -m tests.changed`, half an hour."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.changed.page import KNOWN, KNOWN_HEAD, PAGE, known_cells, page
from tests.changed.trial import Cell, Result, Trials, all_cells, sampled

SEED = 14


Row = tuple[str, int, tuple[str, ...]]
"""A trial's name, the command's status, and the broken rules."""
_trials: dict[str, Trials] = {}
"""This process's trials: they keep the hosts that they created."""


def run_group(work: tuple[str, list[str]]) -> list[Row]:
    """Run the trials of these names below a directory, and print those that break a rule."""
    directory, names = work
    trials = _trials.setdefault(directory, Trials(Path(directory) / str(os.getpid())))
    wanted, rows = set(names), []
    for cell in (cell for cell in all_cells() if cell.name in wanted):
        result = trials.run(cell)
        rows.append((cell.name, result.status, result.wrong))
        if result.wrong:
            print("\n    ".join((f"{cell.name}: status {result.status}", *result.wrong)), flush=True)
    return rows


def groups(cells: Sequence[Cell]) -> list[list[str]]:
    """Return the names of the trials, those on one changed host together."""
    hosts = groupby(cells, lambda cell: (cell.kind.name, cell.change.name))
    return [[cell.name for cell in group] for _, group in hosts]


def main(arguments: Sequence[str]) -> int:
    """Run the trials. Unless words leave some out, write the page and the list of known ones after each change."""
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only trials whose name has all of these in it")
    parser.add_argument("--sample", type=int, metavar="N", help="only N trials, drawn with CI's seed")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many processes")
    options = parser.parse_args(arguments)
    cells = list(all_cells()) if options.sample is None else sampled(options.sample, SEED)
    cells = [cell for cell in cells if all(word in cell.name for word in options.words)]
    start, known = time.monotonic(), known_cells()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="vgpuctl-changed-") as base, multiprocessing.Pool(options.jobs) as pool:
        for rows in pool.imap_unordered(run_group, [(base, names) for names in groups(cells)]):
            outcomes = {name: (status, wrong) for name, status, wrong in rows}
            results += [Result(cell, *outcomes[cell.name]) for cell in cells if cell.name in outcomes]
            if not options.words:
                _write(results, known)
    wrong = {r.cell.name for r in results if r.wrong}
    print(f"{len(results)} trials, {len(wrong)} wrong, {time.monotonic() - start:.0f} s")
    return int(bool(wrong - known) or not results)


def _write(results: list[Result], known: frozenset[str]) -> None:
    """Write the page of these results; the list of known ones keeps those that were not tried."""
    order = {cell.name: number for number, cell in enumerate(all_cells())}
    results.sort(key=lambda result: order[result.cell.name])
    PAGE.write_text(page(results, len(order)))
    tried = {r.cell.name for r in results}
    wrong = {r.cell.name for r in results if r.wrong} | (known - tried)
    KNOWN.write_text(KNOWN_HEAD + "".join(f"{name}\n" for name in order if name in wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
