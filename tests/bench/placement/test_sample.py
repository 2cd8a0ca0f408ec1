# SPDX-License-Identifier: Apache-2.0
"""The committed results are what this code gives: a sample is made again."""

from __future__ import annotations

from tests.bench.placement import sample, table
from tests.bench.placement.__main__ import CSV


def test_a_sample_of_the_results_comes_out_as_committed() -> None:
    assert sample.differing(table.read(CSV)) == []
