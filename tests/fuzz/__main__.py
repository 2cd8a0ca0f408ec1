# SPDX-License-Identifier: Apache-2.0
"""Runs cases by hand: `python -m tests.fuzz --cases 2000 --seed 7 --surface spec`, or one: `--case 12`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz import oracle, surfaces


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; the exit status is 1 when one of them fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=500, help="how many, shared among the surfaces (500)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--surface", choices=sorted(surfaces.SURFACES))
    parser.add_argument("--case", type=int, help="only that case of --surface")
    asked = parser.parse_args(arguments)
    names = [asked.surface] if asked.surface else sorted(surfaces.SURFACES)
    if asked.case is not None and asked.surface is None:
        parser.error("--case needs --surface")
    each = -(-asked.cases // len(names))
    numbers = range(each) if asked.case is None else [asked.case]
    failed = 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vgpuctl-fuzz-base-") as name:
        base = surfaces.prepared(Path(name))
        for surface in names:
            for number in numbers:
                wrong = oracle.run(surfaces.case_of(surface, asked.seed, number), base)
                if wrong is not None:
                    failed += 1
                    again = f"python -m tests.fuzz --surface {surface} --seed {asked.seed} --case {number}"
                    print(f"FAILED: {again}\n{wrong}\n", flush=True)
    print(f"{len(names) * len(numbers)} cases, {failed} failed, {time.monotonic() - begun:.0f} s, seed {asked.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
