# SPDX-License-Identifier: Apache-2.0
"""The committed results are what this code gives, and the page is what they give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.bench.paired import ROOT
from tests.bench.placement import needs, page, sample, table, times
from tests.bench.placement.__main__ import CSV, NEEDS, TIMES
from tests.bench.placement.runs import ARRIVALS, OURS, Row


def test_a_sample_of_the_results_comes_out_as_committed() -> None:
    """When a policy was changed: `python -m tests.bench.placement --again least-waste`."""
    assert sample.differing(table.read(CSV)) == []


def test_the_page_is_the_one_that_the_results_give() -> None:
    """When it was not made again: `python -m tests.bench.placement --page`."""
    made = page.page(table.by_key(table.read(CSV)), table.head(CSV), times.read(TIMES), needs.read(NEEDS))
    assert (ROOT / "docs" / "placement.md").read_text() == made


def test_a_run_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "results.csv"
    words = ["--sizes", "2", "--seeds", "2", "--fleets", "h100-mig", "--policies", "depth,fgd", "--loads", "100"]
    assert bench(out, *words).endswith("16 of 16 runs")
    whole = table.read(out)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-9]))
    assert bench(out, *words).endswith(" runs")
    assert table.read(out) == whole
    assert bench(out, *words) == ""
    assert bench(out, "--again", "fgd").endswith("4 of 4 runs")
    assert table.read(out) == whole
    assert len(table.head(out)) == 2


def bench(out: Path, *words: str) -> str:
    """Run the command, and return what it says."""
    command = [sys.executable, "-m", "tests.bench.placement", "--out", str(out), *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stderr.strip()


def row(seed: int, policy: str, percent: str) -> Row:
    return Row("a40", 16, ARRIVALS, 100, seed, policy, percent, "")


def test_differences_are_taken_seed_by_seed() -> None:
    ours = {seed: row(seed, OURS, percent) for seed, percent in ((1, "90"), (2, "94"), (3, "80"))}
    theirs = {seed: row(seed, "fgd", percent) for seed, percent in ((1, "89"), (2, "91"))}
    found = table.difference(ours, theirs)
    assert found is not None
    assert (found.mean, round(found.error, 6), found.seeds) == (2, 1, 2)
    assert table.difference(ours, {}) is None
