# SPDX-License-Identifier: Apache-2.0
"""The whole matrix: `python -m tests.outside` writes docs/outside.md. It takes half an hour or more."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.outside.cases import all_cases
from tests.outside.page import FULL, PAGE, page
from tests.outside.trial import Result, Trials

SEED = 14
SAMPLED = f"at most N trials of each command with other devices than {FULL}, and of plan-moves"


def main(arguments: Sequence[str]) -> int:
    """Run the trials; the page is written after each command, unless some are left out by name."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only commands whose name has one of these in it")
    parser.add_argument("--sample", type=int, metavar="N", help=SAMPLED)
    given = parser.parse_args(arguments)
    words = given.words
    results: list[Result] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vgpuctl-outside-") as base:
        for number, case in enumerate(
            sorted(all_cases(), key=lambda case: ("moves" in case.command, case.kind != FULL))
        ):
            if words and not any(word in case.name for word in words):
                continue
            trials = Trials(case, Path(base) / str(number))
            instants = list(trials.instants())
            every = case.kind == FULL and "moves" not in case.command
            if given.sample is not None and not every and len(instants) > given.sample:
                instants = Random(SEED).sample(instants, given.sample)
            new = [trials.run(instant) for instant in instants]
            results += new
            bad = [r for r in new if r.wrong]
            print(f"{case.name}: {len(new)} trials, {len(bad)} wrong, {time.monotonic() - began:.0f} s", flush=True)
            for result in bad:
                print(f"  {result.where}: status {result.status} {result.error}", *result.wrong, sep="\n    ")
            if not words:
                PAGE.write_text(page(results, given.sample))
    return int(any(r.wrong for r in results) or not results)


sys.exit(main(sys.argv[1:]))
