# SPDX-License-Identifier: Apache-2.0
"""Plant bugs one at a time in a copy of the checkout, and report which tests find them: `python -m tests.mutate`.

Run it by hand after a change to the rules or their tests. It takes ten minutes or more. Each test that finds a bug runs
again without the bug and must then pass. `python -m tests.mutate automatic` chooses the bugs at random (automatic.py).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutate import automatic
from tests.mutate.bug import Bug, DoesNotApply
from tests.mutate.bugs import BUGS
from tests.mutate.copy_of_checkout import CHECKOUT, FOUND, CannotTell, changed, copied, pytest

TABLE = CHECKOUT / "docs" / "reports" / "mutations.md"
ROW = re.compile(r"^\| [^|]+ \| `([^`|]+)` \|.*$", re.MULTILINE)
HEAD = """# Planted bugs

{total} bugs, each of which breaks one rule, planted one at a time in a copy of the checkout. Only the tests that are
meant for a bug ran; the first one that failed is named. {survived} survived.

Made by `.venv/bin/python -m tests.mutate`, or line by line with `--only NAME`; last on {date}.

| rule | bug | where | found by |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Result:
    """The result of a bug. `found_by`: the first test that failed, or None."""

    bug: Bug
    found_by: str | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the bugs. Return 0 if none survived, 1 if one did, 2 if one does not apply or its tests cannot tell."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["automatic"]:
        return automatic.main(words[1:])
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=(__doc__ or "").split(":")[0])
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="this bug alone, and its line of the table; repeatable"
    )
    parser.add_argument("--list", action="store_true", help="name the bugs and their rules, and plant none")
    options = parser.parse_args(words)
    unknown = sorted(set(options.only or ()) - {bug.name for bug in BUGS})
    if unknown:
        parser.error(f"there is no bug {', '.join(unknown)}; --list names them")
    bugs = [bug for bug in BUGS if not options.only or bug.name in options.only]
    if options.list:
        print("\n".join(f"{bug.name:32} {bug.rule}" for bug in bugs))
        return 0
    try:
        for bug in bugs:
            bug.planted(CHECKOUT)
        results = run(bugs)
    except (DoesNotApply, CannotTell) as error:
        print(error, file=sys.stderr)
        return 2
    TABLE.write_text(table(rows(results, TABLE.read_text() if options.only else "")))
    return 1 if any(one.found_by is None for one in results) else 0


def run(bugs: Sequence[Bug]) -> list[Result]:
    """Plant each bug in a copy, run its tests, and restore the file."""
    results = []
    with copied() as copy:
        for number, bug in enumerate(bugs, 1):
            started = time.monotonic()
            results.append(Result(bug, _found_by(copy, bug)))
            outcome = results[-1].found_by or "SURVIVED"
            print(f"[{number}/{len(bugs)}] {bug.name}: {outcome} ({time.monotonic() - started:.0f} s)", flush=True)
    return results


def _found_by(copy: Path, bug: Bug) -> str | None:
    with changed(copy / bug.file, bug.planted(copy)):
        status, output = pytest(copy, bug.tests)
    failure = FOUND.search(output)
    if status == 0:
        return None
    if status != 1 or failure is None:
        raise CannotTell(f"{bug.name}: its tests did not run (pytest ended with {status}):\n{output[-2000:]}")
    status, output = pytest(copy, (failure[1],))
    if status != 0:
        raise CannotTell(f"{bug.name}: {failure[1]} fails without it, too:\n{output[-2000:]}")
    return failure[1]


def rows(results: Sequence[Result], earlier: str) -> dict[str, str]:
    """Return each bug's line of the table; those of other bugs stay as they are in `earlier`, the table before."""
    lines = {match[1]: match[0] for match in ROW.finditer(earlier)}
    lines |= {result.bug.name: _row(result) for result in results}
    return {bug.name: lines[bug.name] for bug in BUGS if bug.name in lines}


def _row(result: Result) -> str:
    found_by = "**survived**" if result.found_by is None else f"`{result.found_by.replace('|', '¦')}`"
    return f"| {result.bug.rule} | `{result.bug.name}` | `{result.bug.file}` | {found_by} |"


def table(lines: Mapping[str, str]) -> str:
    """Return the text of docs/reports/mutations.md."""
    survived = sum("**survived**" in line for line in lines.values())
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return HEAD.format(total=len(lines), survived=survived or "None", date=date) + "\n".join(lines.values()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
