# SPDX-License-Identifier: Apache-2.0
"""The whole matrix: `python -m tests.outside` writes docs/outside.md. It takes half an hour; WORDs pick commands."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.outside.cases import all_cases
from tests.outside.page import PAGE, page
from tests.outside.trial import Result, Trials


def main(arguments: Sequence[str]) -> int:
    """Run every trial of the commands that are picked; the page is written when none is left out."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="only commands whose name has one of these in it")
    words = parser.parse_args(arguments).words
    results: list[Result] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vgpuctl-outside-") as base:
        for number, case in enumerate(all_cases()):
            if words and not any(word in case.name for word in words):
                continue
            trials = Trials(case, Path(base) / str(number))
            new = [trials.run(instant) for instant in trials.instants()]
            results += new
            bad = [r for r in new if r.wrong]
            print(f"{case.name}: {len(new)} trials, {len(bad)} wrong, {time.monotonic() - began:.0f} s", flush=True)
            for result in bad:
                print(f"  {result.where}: status {result.status} {result.error}", *result.wrong, sep="\n    ")
    if not words:
        PAGE.write_text(page(results))
        print(PAGE)
    return int(any(r.wrong for r in results) or not results)


sys.exit(main(sys.argv[1:]))
