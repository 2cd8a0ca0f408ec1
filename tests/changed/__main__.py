# SPDX-License-Identifier: Apache-2.0
"""Run all trials and write docs/reports/changed-hosts.md and known.txt: `python -m tests.changed`, half an hour."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.changed.page import KNOWN, KNOWN_HEAD, PAGE, known_cells, page
from tests.changed.trial import Cell, Result, Trials, all_cells, sampled

SEED = 14


def run_group(names: Sequence[str]) -> list[tuple[str, int, tuple[str, ...]]]:
    """Run the trials of these names, print those that break a rule, and return name, status and broken rules."""
    wanted = set(names)
    results: list[tuple[str, int, tuple[str, ...]]] = []
    with tempfile.TemporaryDirectory(prefix="vgpuctl-changed-") as base:
        trials = Trials(Path(base))
        for cell in all_cells():
            if cell.name in wanted:
                result = trials.run(cell)
                results.append((cell.name, result.status, result.wrong))
                if result.wrong:
                    print("\n    ".join((f"{cell.name}: status {result.status}", *result.wrong)), flush=True)
    return results


def groups(cells: Sequence[Cell]) -> list[list[str]]:
    """Return the names of the trials, those on one kind of host together."""
    return [[cell.name for cell in group] for _, group in groupby(cells, lambda cell: cell.kind.name)]


def main(arguments: Sequence[str]) -> int:
    """Run the trials. If all ran, write the page and the list of known ones."""
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only trials whose name has all of these in it")
    parser.add_argument("--sample", type=int, metavar="N", help="only N trials, drawn with the seed of CI")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many processes")
    options = parser.parse_args(arguments)
    cells = list(all_cells()) if options.sample is None else sampled(options.sample, SEED)
    cells = [cell for cell in cells if all(word in cell.name for word in options.words)]
    start, known = time.monotonic(), known_cells()
    with multiprocessing.Pool(options.jobs) as pool:
        parts = pool.map(run_group, groups(cells), chunksize=1)
    by_name = {cell.name: cell for cell in cells}
    results = [Result(by_name[name], status, rules) for part in parts for name, status, rules in part]
    wrong = {r.cell.name for r in results if r.wrong}
    print(f"{len(results)} trials, {len(wrong)} wrong, {time.monotonic() - start:.0f} s")
    if not options.words and options.sample is None:
        PAGE.write_text(page(results))
        KNOWN.write_text(KNOWN_HEAD + "".join(f"{r.cell.name}\n" for r in results if r.wrong))
    return int(bool(wrong - known) or not results)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
