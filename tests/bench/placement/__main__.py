# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.bench.placement`: run what is missing in the CSV, then write docs/placement.md from it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

from tests.bench.paired import ROOT
from tests.bench.placement import table
from tests.bench.placement.fleets import BY_NAME
from tests.bench.placement.requests import LOADS
from tests.bench.placement.runs import (
    ARRIVALS,
    CHURN,
    MIGRATION,
    OFFERED,
    OFFLINE,
    POLICIES,
    Run,
    rows_of,
)

CSV = ROOT / "docs" / "placement" / "results.csv"


def numbers(text: str) -> list[int]:
    """Return numbers with commas between them."""
    return [int(word) for word in text.split(",")]


def words(text: str) -> list[str]:
    """Return words with commas between them."""
    return text.split(",")


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.placement", description=__doc__)
    parser.add_argument("--sizes", type=numbers, default=[16, 160, 1600], help="GPUs in a fleet (16,160,1600)")
    parser.add_argument("--seeds", type=int, default=10, help="seeds from 1 on (10)")
    parser.add_argument("--fleets", type=words, default=list(BY_NAME), help=f"of {', '.join(BY_NAME)}")
    parser.add_argument("--policies", type=words, default=list(POLICIES), help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--workloads", type=words, default=[ARRIVALS, CHURN], help="arrivals,churn")
    parser.add_argument("--loads", type=numbers, default=list(LOADS), help="loads of churn in percent")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--out", type=Path, default=CSV, help="the CSV; runs whose rows it has are not made again")
    return parser.parse_args()


def runs(wanted: argparse.Namespace) -> Iterator[Run]:
    """Return all runs that were asked for, the small fleets first."""
    for gpus in sorted(wanted.sizes):
        for workload in wanted.workloads:
            references = [OFFERED, OFFLINE, MIGRATION] if workload == ARRIVALS else [OFFERED]
            for seed in range(1, wanted.seeds + 1):
                for setting in wanted.fleets:
                    for load in [0] if workload == ARRIVALS else wanted.loads:
                        for policy in [*references, *wanted.policies]:
                            yield Run(setting, gpus, workload, load, seed, policy)


def main() -> int:
    """Do what was asked for."""
    wanted = arguments()
    have = table.read(wanted.out)
    there = table.done(have)
    missing = [run for run in runs(wanted) if run not in there]
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    with Pool(wanted.jobs) as pool:
        for number, rows in enumerate(pool.imap(rows_of, missing), 1):
            table.append(wanted.out, rows)
            if number % 100 == 0 or number == len(missing):
                print(f"{number} of {len(missing)} runs", file=sys.stderr, flush=True)
    table.write(wanted.out, table.read(wanted.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
