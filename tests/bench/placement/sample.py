# SPDX-License-Identifier: Apache-2.0
"""A part of the results made again, to see that the committed ones are those of this code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from multiprocessing import Pool

from tests.bench.placement.fleets import BY_NAME
from tests.bench.placement.runs import (
    ARRIVALS,
    CHURN,
    MIGRATION,
    OFFERED,
    OFFLINE,
    OURS,
    POLICIES,
    Row,
    Run,
    rows_of,
)

GPUS, SEEDS = 16, (1, 2, 3)
CHURNED = ("a40-a16", "h100-mig", "pro6000-2-8")


def runs() -> Iterator[Run]:
    """Return every arrivals run of the sample, and a little churn."""
    for name in BY_NAME:
        for seed in SEEDS:
            for policy in [*POLICIES, OFFERED, OFFLINE, MIGRATION]:
                yield Run(name, GPUS, ARRIVALS, 0, seed, policy)
    for name in CHURNED:
        for policy in (OURS, "fgd", "depth", OFFERED):
            yield Run(name, GPUS, CHURN, 100, 1, policy)


def differing(committed: Sequence[Row]) -> list[str]:
    """Return each row of the sample that the committed ones do not have as it is."""
    there = {row[:6]: row for row in committed}
    with Pool(os.cpu_count()) as pool:
        made = [row for rows in pool.imap(rows_of, runs(), chunksize=4) for row in rows]
    return [f"{row} now; committed: {there.get(row[:6], 'nothing')}" for row in made if there.get(row[:6]) != row]
