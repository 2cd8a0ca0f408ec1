# SPDX-License-Identifier: Apache-2.0
"""Run the trials of moves and write docs/reports/moves.md: `python -m tests.moves`."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.moves.meanwhile import Meetings, Met
from tests.moves.page import PAGE, page
from tests.moves.pairs import KINDS, end_move
from tests.moves.trial import LEFT_BY, Moves, Result, tried

SEED = 14


def main(arguments: Sequence[str]) -> int:
    """Run the trials, and write the page after each kind of move, unless WORD leaves some of them out."""
    parser = argparse.ArgumentParser(prog="python -m tests.moves", description=__doc__)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only kinds of moves whose name has one of these in it"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one of N of the calls that fail")
    parser.add_argument("--meet", type=int, default=1000, metavar="N", help="as many trials of each kind with others")
    options = parser.parse_args(arguments)
    failed: list[Result] = []
    met: list[Met] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vgpuctl-moves-") as base:
        for name, kind in KINDS.items():
            if options.words and not any(word in name for word in options.words):
                continue
            directory = Path(base) / str(len(list(Path(base).iterdir())))
            moves = [Moves(kind, directory / "moves")]
            moves += [Moves(kind, directory / b, end_move, at) for b, (of, at) in LEFT_BY.items() if of == name]
            for each in moves:
                failed += tried(each, [*list(each.failures())[:: options.every], *each.deaths()])
            meetings = Meetings(kind, directory / "meet")
            instants = list(meetings.instants(every_call=True))
            met += [meetings.run(i) for i in Random(SEED).sample(instants, min(options.meet, len(instants)))]
            print(f"{name}: {len(failed)} and {len(met)} trials, {time.monotonic() - begin:.0f} s", flush=True)
            if not options.words:
                _write(failed, met, options.every, options.meet)
    bad = [r for r in (*failed, *met) if r.wrong]
    for result in bad:
        print(result.where, *result.wrong, sep="\n    ")
    return int(bool(bad) or not failed)


def _write(failed: Sequence[Result], met: Sequence[Met], every: int, meet: int) -> None:
    calls = "Of the calls that fail all are tried" if every == 1 else f"Of the calls that fail one of {every} is tried"
    sample = f"{calls},\nof the kills all, of the trials with another program at most {meet} of each kind of move."
    now = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    machine = f"{os.cpu_count()} CPUs ({platform.machine()})"
    PAGE.write_text(page(failed, met, date=now, machine=machine, sample=sample))


sys.exit(main(sys.argv[1:]))
