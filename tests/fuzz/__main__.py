# SPDX-License-Identifier: Apache-2.0
"""Runs fuzz cases by hand: `python -m tests.fuzz --cases 2000 --seed 7 --surface spec`; `--case 12` runs only one."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import oracle, surfaces


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; return 1 if one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=500, help="how many, shared among the surfaces (500)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--surface", choices=sorted(surfaces.SURFACES))
    parser.add_argument("--case", type=int, help="only that case of --surface")
    options = parser.parse_args(arguments)
    names = [options.surface] if options.surface else sorted(surfaces.SURFACES)
    if options.case is not None and options.surface is None:
        parser.error("--case needs --surface")
    per_surface = -(-options.cases // len(names))
    numbers = range(per_surface) if options.case is None else [options.case]
    failed = 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vgpuctl-fuzz-base-") as name:
        base = surfaces.prepared(Path(name))
        for surface in names:
            for number in numbers:
                violation = oracle.run(surfaces.case_of(surface, options.seed, number), base)
                if violation is not None:
                    failed += 1
                    rerun = f"python -m tests.fuzz --surface {surface} --seed {options.seed} --case {number}"
                    print(f"FAILED: {rerun}\n{violation}\n", flush=True)
    print(f"{len(names) * len(numbers)} cases, {failed} failed, {time.monotonic() - start:.0f} s, seed {options.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
