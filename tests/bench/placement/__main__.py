# SPDX-License-Identifier: Apache-2.0
"""Run what is missing in the CSV of results, and write docs/placement.md and its pictures from it."""

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
    """Return numbers with commas between them."""
    return [int(word) for word in text.split(",")]


def words(text: str) -> list[str]:
    """Return words with commas between them."""
    return text.split(",")


def arguments() -> argparse.Namespace:
    """Return the requested options."""
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


def runs(wanted: argparse.Namespace) -> Iterator[Run]:
    """Return all requested runs, the small fleets first."""
    for gpus in sorted(wanted.sizes):
        for workload in wanted.workloads:
            references = [OFFERED, OFFLINE, MIGRATION] if workload == ARRIVALS else [OFFERED]
            for seed in range(1, wanted.seeds + 1):
                for setting in wanted.fleets:
                    for load in [0] if workload == ARRIVALS else wanted.loads:
                        for policy in [*references, *wanted.policies, *moving(setting, gpus, workload)]:
                            yield Run(setting, gpus, workload, load, seed, policy)


def moving(setting: str, gpus: int, workload: str) -> list[str]:
    """Return the policies that move, where there are claims about them."""
    return [*MOVERS] if setting in MOVED and gpus == MOVED_GPUS and workload == ARRIVALS else []


def main() -> int:
    """Run the requested actions."""
    wanted = arguments()
    if wanted.sample:
        found = sample.differing(table.read(wanted.out))
        print("\n".join(found) or "as committed")
        return 1 if found else 0
    if wanted.check:
        return check(wanted.out)
    if wanted.times:
        times.write(TIMES, table.machine(), list(times.timed()))
    elif wanted.needs:
        needs.write(NEEDS, table.machine(), [needs.needs_of(name) for name in MOVED])
    elif not wanted.page:
        carry_out(wanted)
    if wanted.out == CSV:
        write_page()
    return 0


def carry_out(wanted: argparse.Namespace) -> None:
    """Make the runs that are missing; what was made is kept when this is stopped."""
    have = table.read(wanted.out)
    there = table.done(have)
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    if wanted.again:
        missing = sorted((run for run in there if run.policy in wanted.again), key=lambda run: (run.gpus, run))
        have = [row for row in have if row.policy not in wanted.again]
        table.write(wanted.out, have)
    else:
        missing = [run for run in runs(wanted) if run not in there]
    with Pool(wanted.jobs) as pool:
        for number, rows in enumerate(pool.imap(rows_of, missing), 1):
            table.append(wanted.out, rows)
            if number % 100 == 0 or number == len(missing):
                print(f"{number} of {len(missing)} runs", file=sys.stderr, flush=True)
    table.write(wanted.out, table.read(wanted.out))


def check(path: Path) -> int:
    """Print the claims; the exit status is 1 when something was not."""
    found = list(claims.claims(table.by_key(table.read(path))))
    for claim in found:
        print(f"{MARKS[claim.reached]} {claim.says}: {claim.found}")
    slow = [t for t in times.read(TIMES) if float(t.milliseconds) > float(t.limit)]
    for one in times.read(TIMES):
        print(f"{MARKS[one not in slow]} {one.what}: {one.milliseconds} ms (at most {one.limit})")
    return 1 if slow or any(claim.reached is False for claim in found) else 0


def write_page() -> None:
    """Write the page and the pictures from what is committed."""
    results = table.by_key(table.read(CSV))
    page.write(DOCS / "placement.md", page.page(results, table.head(CSV), times.read(TIMES), needs.read(NEEDS)))
    for setting in SETTINGS:
        gpus = page.shown_size(results, setting.name)
        if gpus and setting.asked == setting.name:
            (DOCS / "placement" / f"{setting.name}.svg").write_bytes(pictures.picture(results, setting, gpus))


if __name__ == "__main__":
    sys.exit(main())
