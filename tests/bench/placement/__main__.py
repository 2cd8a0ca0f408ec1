# SPDX-License-Identifier: Apache-2.0
"""Run what is missing in the results CSV; then write docs/placement.md and its pictures from it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

from tests.bench.paired import ROOT
from tests.bench.placement import claims, needs, page, pictures, sample, table, times
from tests.bench.placement.fleets import BY_NAME, SETTINGS
from tests.bench.placement.requests import LOADS
from tests.bench.placement.runs import (
    ARRIVALS,
    CHURN,
    MIGRATION,
    MOVERS,
    OFFERED,
    OFFLINE,
    POLICIES,
    Run,
    rows_of,
)

DOCS = ROOT / "docs"
CSV = DOCS / "placement" / "results.csv"
TIMES = DOCS / "placement" / "times.csv"
NEEDS = DOCS / "placement" / "needs.csv"


MOVED, MOVED_GPUS = ("a40-a16", "a40-a10", "h100-mig", "h100-mig-uniform-5"), 16
MARKS = {True: "[x]", False: "[ ]", None: "[?]"}


def numbers(text: str) -> list[int]:
    """Parse a comma-separated list of integers."""
    return [int(word) for word in text.split(",")]


def words(text: str) -> list[str]:
    """Parse a comma-separated list of words."""
    return text.split(",")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.placement", description=__doc__)
    parser.add_argument("--sizes", type=numbers, default=[16, 160, 1600], help="GPUs in a fleet (16,160,1600)")
    parser.add_argument("--seeds", type=int, default=10, help="seeds from 1 on (10)")
    parser.add_argument("--fleets", type=words, default=list(BY_NAME), help=f"of {', '.join(BY_NAME)}")
    parser.add_argument("--policies", type=words, default=list(POLICIES), help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--workloads", type=words, default=[ARRIVALS, CHURN], help="arrivals,churn")
    parser.add_argument("--loads", type=numbers, default=list(LOADS), help="loads of churn in percent")
    parser.add_argument("--again", type=words, default=[], help="make the rows again that these policies have")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--out", type=Path, default=CSV, help="the CSV; runs whose rows it has are not made again")
    parser.add_argument("--sample", action="store_true", help="only make 16 GPUs and 3 seeds again and compare")
    parser.add_argument("--check", action="store_true", help="only print what was to be reached, from the CSV")
    parser.add_argument("--times", action="store_true", help="only time decisions, and write the page again")
    parser.add_argument("--needs", action="store_true", help="only count the moves that refused requests need")
    parser.add_argument("--page", action="store_true", help="only write the page and pictures from the CSV")
    return parser.parse_args()


def runs(options: argparse.Namespace) -> Iterator[Run]:
    """Yield all requested runs, small fleets first."""
    for gpus in sorted(options.sizes):
        for workload in options.workloads:
            references = [OFFERED, OFFLINE, MIGRATION] if workload == ARRIVALS else [OFFERED]
            for seed in range(1, options.seeds + 1):
                for setting in options.fleets:
                    for load in [0] if workload == ARRIVALS else options.loads:
                        for policy in [*references, *options.policies, *moving(setting, gpus, workload)]:
                            yield Run(setting, gpus, workload, load, seed, policy)


def moving(setting: str, gpus: int, workload: str) -> list[str]:
    """Return the policies that move vGPUs, if there are claims about them for this fleet."""
    return [*MOVERS] if setting in MOVED and gpus == MOVED_GPUS and workload == ARRIVALS else []


def main() -> int:
    """Run the requested actions."""
    options = arguments()
    if options.sample:
        differences = sample.differing(table.read(options.out))
        print("\n".join(differences) or "as committed")
        return 1 if differences else 0
    if options.check:
        return check(options.out)
    if options.times:
        times.write(TIMES, table.machine(), list(times.timed()))
    elif options.needs:
        needs.write(NEEDS, table.machine(), [needs.needs_of(name) for name in MOVED])
    elif not options.page:
        carry_out(options)
    if options.out == CSV:
        write_page()
    return 0


def carry_out(options: argparse.Namespace) -> None:
    """Do the missing runs. An interruption keeps the finished ones."""
    finished_rows = table.read(options.out)
    finished_runs = table.done(finished_rows)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.again:
        missing = sorted((run for run in finished_runs if run.policy in options.again), key=lambda run: (run.gpus, run))
        finished_rows = [row for row in finished_rows if row.policy not in options.again]
        table.write(options.out, finished_rows)
    else:
        missing = [run for run in runs(options) if run not in finished_runs]
    with Pool(options.jobs) as pool:
        for number, rows in enumerate(pool.imap(rows_of, missing), 1):
            table.append(options.out, rows)
            if number % 100 == 0 or number == len(missing):
                print(f"{number} of {len(missing)} runs", file=sys.stderr, flush=True)
    table.write(options.out, table.read(options.out))


def check(path: Path) -> int:
    """Print whether each claim is reached; return 1 if one is not."""
    result = list(claims.claims(table.by_key(table.read(path))))
    for claim in result:
        print(f"{MARKS[claim.reached]} {claim.says}: {claim.measured}")
    slow = [t for t in times.read(TIMES) if float(t.milliseconds) > float(t.limit)]
    for timing in times.read(TIMES):
        print(f"{MARKS[timing not in slow]} {timing.what}: {timing.milliseconds} ms (at most {timing.limit})")
    return 1 if slow or any(claim.reached is False for claim in result) else 0


def write_page() -> None:
    """Write the page and the pictures from the committed CSV files."""
    results = table.by_key(table.read(CSV))
    page.write(DOCS / "placement.md", page.page(results, table.head(CSV), times.read(TIMES), needs.read(NEEDS)))
    for setting in SETTINGS:
        gpus = page.shown_size(results, setting.name)
        if gpus and setting.asked == setting.name:
            (DOCS / "placement" / f"{setting.name}.svg").write_bytes(pictures.picture(results, setting, gpus))


if __name__ == "__main__":
    sys.exit(main())
