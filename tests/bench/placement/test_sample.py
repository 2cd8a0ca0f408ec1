# SPDX-License-Identifier: Apache-2.0
"""This code gives the committed results, and the committed results give the page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bench.paired import ROOT
from tests.bench.placement import needs, page, sample, table, times
from tests.bench.placement.__main__ import CSV, NEEDS, TIMES
from tests.bench.placement.runs import ARRIVALS, OURS, Row


def test_a_sample_matches_the_committed_results() -> None:
    """After a change to a policy, run `python -m tests.bench.placement --again least-waste`."""
    assert sample.differing(table.read(CSV)) == []


def test_the_page_matches_the_committed_results() -> None:
    """If the page is out of date, run `python -m tests.bench.placement --page`."""
    expected = page.page(table.by_key(table.read(CSV)), table.head(CSV), times.read(TIMES), needs.read(NEEDS))
    assert (ROOT / "docs" / "placement.md").read_text() == expected


def test_an_interrupted_run_continues(tmp_path: Path) -> None:
    out = tmp_path / "results.csv"
    words = ["--sizes", "2", "--seeds", "2", "--fleets", "h100-mig", "--policies", "depth,fgd", "--loads", "100"]
    assert bench(out, *words).endswith("16 of 16 runs")
    all_rows = table.read(out)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-9]))
    assert bench(out, *words).endswith(" runs")
    assert table.read(out) == all_rows
    assert bench(out, *words) == ""
    assert bench(out, "--again", "fgd").endswith("4 of 4 runs")
    assert table.read(out) == all_rows
    assert len(table.head(out)) == 2


def bench(out: Path, *words: str) -> str:
    """Run the command and return its stderr."""
    command = [sys.executable, "-m", "tests.bench.placement", "--out", str(out), *words]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return completed.stderr.strip()


def row(seed: int, policy: str, percent: str) -> Row:
    return Row("a40", 16, ARRIVALS, 100, seed, policy, percent, "")


def test_differences_are_taken_seed_by_seed() -> None:
    ours = {seed: row(seed, OURS, percent) for seed, percent in ((1, "90"), (2, "94"), (3, "80"))}
    theirs = {seed: row(seed, "fgd", percent) for seed, percent in ((1, "89"), (2, "91"))}
    result = table.difference(ours, theirs)
    assert result is not None
    assert (result.mean, round(result.error, 6), result.seeds) == (2, 1, 2)
    assert table.difference(ours, {}) is None
