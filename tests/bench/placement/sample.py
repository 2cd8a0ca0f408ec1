# SPDX-License-Identifier: Apache-2.0
"""Repeats a part of the runs, to check that this code still gives the committed results."""

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
    """Yield every arrivals run of the sample, and a few runs of churn."""
    for name in BY_NAME:
        for seed in SEEDS:
            for policy in [*POLICIES, OFFERED, OFFLINE, MIGRATION]:
                yield Run(name, GPUS, ARRIVALS, 0, seed, policy)
    for name in CHURNED:
        for policy in (OURS, "fgd", "depth", OFFERED):
            yield Run(name, GPUS, CHURN, 100, 1, policy)


def differing(committed: Sequence[Row]) -> list[str]:
    """Return a message for each row of the sample that differs from the committed row."""
    old = {row[:6]: row for row in committed}
    with Pool(os.cpu_count()) as pool:
        new = [row for rows in pool.imap(rows_of, runs(), chunksize=4) for row in rows]
    return [f"{row} now; committed: {old.get(row[:6], 'nothing')}" for row in new if old.get(row[:6]) != row]
