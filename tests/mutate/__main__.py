# SPDX-License-Identifier: Apache-2.0
"""Plant bugs one at a time in a copy of the checkout, and report which tests find them: `python -m tests.mutate`.

Run it by hand after a change to the rules or their tests. It takes ten minutes or more. The copy has its own virtual
environment, which uses the package in the copy and everything else from this environment. So even a child process that
ignores PYTHONPATH imports the copy's package. Each test that finds a bug runs again without the bug and must then pass.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, ignore_patterns

from tests.mutate.bug import Bug, DoesNotApply
from tests.mutate.bugs import BUGS

CHECKOUT = Path(__file__).resolve().parents[2]
TABLE = CHECKOUT / "docs" / "reports" / "mutations.md"
LEFT_OUT = ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "*.egg-info", "dist", "build")
LONGEST_SECONDS = 900
FOUND = re.compile(r"^(?:FAILED|ERROR) (\S+\.py::.+?)(?: - .*)?$", re.MULTILINE)
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


class CannotTell(Exception):
    """The tests did not run, or they fail even without the bug."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the bugs. Return 0 if none survived, 1 if one did, 2 if one does not apply or its tests cannot tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=(__doc__ or "").split(":")[0])
    parser.add_argument(
        "--only", metavar="NAME", action="append", help="this bug alone, and its line of the table; repeatable"
    )
    parser.add_argument("--list", action="store_true", help="name the bugs and their rules, and plant none")
    options = parser.parse_args(arguments)
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
    with tempfile.TemporaryDirectory(prefix="vgpuctl-mutate-") as directory:
        copy = Path(directory) / "checkout"
        copytree(CHECKOUT, copy, ignore=LEFT_OUT, symlinks=True)
        _make_environment(copy)
        for number, bug in enumerate(bugs, 1):
            started = time.monotonic()
            results.append(Result(bug, _found_by(copy, bug)))
            outcome = results[-1].found_by or "SURVIVED"
            print(f"[{number}/{len(bugs)}] {bug.name}: {outcome} ({time.monotonic() - started:.0f} s)", flush=True)
    return results


def _make_environment(copy: Path) -> None:
    venv.create(copy / ".venv", symlinks=True)
    (packages,) = (copy / ".venv").glob("lib/python3*/site-packages")
    (packages / "copy.pth").write_text(f"{copy}\n{sysconfig.get_path('purelib')}\n")
    words = [copy / ".venv/bin/python", "-I", "-c", "import vgpuctl; print(vgpuctl.__file__)"]
    output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    if not Path(output).is_relative_to(copy):
        raise CannotTell(f"the package that runs would be {output.strip()}, not the one below {copy}")


def _found_by(copy: Path, bug: Bug) -> str | None:
    file = copy / bug.file
    original = file.read_text()
    file.write_text(bug.planted(copy))
    try:
        status, output = _pytest(copy, bug.tests)
    finally:
        file.write_text(original)
    failure = FOUND.search(output)
    if status == 0:
        return None
    if status != 1 or failure is None:
        raise CannotTell(f"{bug.name}: its tests did not run (pytest ended with {status}):\n{output[-2000:]}")
    status, output = _pytest(copy, (failure[1],))
    if status != 0:
        raise CannotTell(f"{bug.name}: {failure[1]} fails without it, too:\n{output[-2000:]}")
    return failure[1]


def _pytest(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    words = [str(copy / ".venv/bin/python"), "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "VGPUCTL_TESTS": "all"}
    try:
        completed = subprocess.run(
            words, cwd=copy, env=environment, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CannotTell(f"{' '.join(words)}: not over after {LONGEST_SECONDS} seconds") from error
    return completed.returncode, completed.stdout + completed.stderr


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
