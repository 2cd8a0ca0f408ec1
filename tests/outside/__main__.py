# SPDX-License-Identifier: Apache-2.0
"""Run all trials and write docs/reports/outside.md: `python -m tests.outside`. This takes half an hour or more."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.outside.cases import all_cases, two_commands
from tests.outside.page import FULL, PAGE, page
from tests.outside.trial import Result, Trials

SEED = 14
OF_TWO_COMMANDS = 4
SAMPLED = (
    f"at most N trials of each command with other devices than {FULL}, and of move-vms; "
    f"{OF_TWO_COMMANDS} times as many of each command that changes a GPU while another vgpuctl works"
)


def main(arguments: Sequence[str]) -> int:
    """Run the trials. Write the page after each command, unless WORD leaves some commands out."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only commands whose name has one of these in it")
    parser.add_argument("--sample", type=int, metavar="N", help=SAMPLED)
    options = parser.parse_args(arguments)
    words = options.words
    results: list[Result] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vgpuctl-outside-") as base:
        for number, case in enumerate(
            sorted(
                (*all_cases(), *two_commands()),
                key=lambda case: (not case.second, "move-vms" in case.command, case.kind != FULL),
            )
        ):
            if words and not any(word in case.name for word in words):
                continue
            trials = Trials(case, Path(base) / str(number))
            instants = list(trials.instants())
            run_all = case.kind == FULL and "move-vms" not in case.command and not case.second
            count = (options.sample or 0) * (OF_TWO_COMMANDS if case.second else 1)
            if options.sample is not None and not run_all and len(instants) > count:
                instants = Random(SEED).sample(instants, count)
            batch = [trials.run(instant) for instant in instants]
            results += batch
            bad = [r for r in batch if r.wrong]
            print(f"{case.name}: {len(batch)} trials, {len(bad)} wrong, {time.monotonic() - start:.0f} s", flush=True)
            for result in bad:
                print(f"  {result.where}: status {result.status} {result.error}", *result.wrong, sep="\n    ")
            if not words:
                PAGE.write_text(page(results, options.sample))
    return int(any(r.wrong for r in results) or not results)


sys.exit(main(sys.argv[1:]))
