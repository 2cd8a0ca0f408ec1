# SPDX-License-Identifier: Apache-2.0
"""Plant random small mutations, one at a time, in code that unit tests run: `python -m tests.mutate automatic`.

It says which the tests do not notice, as `FILE:LINE: MUTATION`. That measures the tests: after tests went, or code
changed much, as few may survive as before with the same `--count`. One that survives is no fault by itself: some change
nothing that anybody sees.

First the unit tests run once and record which lines of the package each runs (half an hour; `--record DIRECTORY` keeps
it for the next run on the same code). Then each mutation gets up to half a minute of the tests that run its line, those
first that run the fewest lines. As root the tests run where only the copy is writable and no other process is visible:
a mutation may delete any file and signal any process.
"""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from json import loads
from pathlib import Path
from queue import SimpleQueue

from tests.mutate.copy_of_checkout import FOUND, CannotTell, NotOver, changed, copied, pytest
from tests.mutate.mutations import Mutation, mutations

LEFT_ALONE = ("vgpuctl/sim/",)
"""The simulated host is the tests' own tool; contract tests hold it to a real one."""
SECONDS_OF_TESTS = 30.0
MOST_MEMORY = 4 << 30
"""A mutation may end a loop's end, and fill a list for ever."""


@dataclass(frozen=True)
class Record:
    """What the unit tests ran: tests by file and line; seconds and number of lines of each test that passed."""

    tests: Mapping[str, Mapping[int, Sequence[str]]]
    seconds: Mapping[str, float]
    lines: Mapping[str, int]

    def choose(self, file: str, mutation: Mutation) -> list[str]:
        """Return tests that run a mutation's lines, up to half a minute of them.

        The first of each function, then other parameters of the same ones; those that run the fewest lines first.
        """
        by_line = self.tests[file]
        ran = {test for line in range(mutation.begin[0], mutation.end[0] + 1) for test in by_line.get(line, ())}
        turn: Counter[str] = Counter()
        order = []
        for test in sorted(ran, key=lambda test: (self.lines[test], test)):
            function = test.partition("[")[0]
            order.append((turn[function], self.lines[test], test))
            turn[function] += 1
        chosen, total = [], 0.0
        for _, _, test in sorted(order):
            if chosen and total + self.seconds[test] > SECONDS_OF_TESTS:
                continue
            chosen.append(test)
            total += self.seconds[test]
        return chosen


def main(arguments: Sequence[str]) -> int:
    """Plant them. Return 0 if all were found, 1 if some survived, 2 if the tests cannot tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate automatic", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", metavar="DIRECTORY", type=Path, help="where the record of the tests is kept")
    parser.add_argument("--tests", metavar="PATH", nargs="+", default=["tests/unit"], help="these tests alone")
    parser.add_argument("--only", metavar="PATH", default="vgpuctl/", help="files whose names begin like this alone")
    parser.add_argument("--jobs", type=int, default=2, help="how many tests run at once, and how many mutations (2)")
    options = parser.parse_args(arguments)
    try:
        with ExitStack() as stack:
            copies = [stack.enter_context(copied()) for _ in range(options.jobs)]
            directory = options.record or stack.enter_context(tempfile.TemporaryDirectory())
            record = _record(copies[0], Path(directory).resolve(), options.tests, options.jobs)
            sample = _sample(copies[0], record, options)
            survivors = _plant_all(copies, record, sample)
    except CannotTell as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{len(survivors)} of {len(sample)} survived (seed {options.seed})", *survivors, sep="\n")
    return 1 if survivors else 0


def _jail(copy: Path, writable: Path | None = None, *, cpu_seconds: int | None = None) -> list[str]:
    """Return the prefix of a command that can write to the copy alone. Without root it cannot do much elsewhere.

    With `cpu_seconds` its memory is bounded too.
    """
    (copy / "tmp").mkdir(exist_ok=True)
    limits = [] if cpu_seconds is None else ["prlimit", f"--as={MOST_MEMORY}", f"--cpu={cpu_seconds}"]
    prefix = [*limits, "env", f"TMPDIR={copy / 'tmp'}"]
    if os.geteuid() != 0:
        return prefix
    binds = "".join(f"mount --bind {place} {place} && " for place in (copy, writable) if place)
    script = f'{binds}mount -o remount,bind,ro / && exec "$@"'
    return ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh", *prefix]


def _record(copy: Path, directory: Path, tests: Sequence[str], jobs: int) -> Record:
    """Run the tests once, unless the directory has their record already."""
    directory.mkdir(parents=True, exist_ok=True)
    if not list(directory.glob("durations.*")):
        words = [*_jail(copy, directory), str(copy / ".venv/bin/python"), "-m", "pytest", "-q", "--tb=no"]
        words += ["-n", str(jobs), "--dist", "worksteal", "-m", "not slow"]
        words += ["-p", "tests.mutate.recorder", "-p", "no:cacheprovider"]
        more = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "VGPUCTL_RECORD": str(directory)}
        done = subprocess.run([*words, *tests], cwd=copy, env={**os.environ, **more}, check=False)
        if done.returncode not in (0, 1):
            raise CannotTell(f"the tests did not run: pytest ended with {done.returncode}")
    seconds: dict[str, float] = {}
    for file in directory.glob("durations.*"):
        seconds |= loads(file.read_text())
    if not seconds:
        raise CannotTell("no test passed without a mutation")
    tests_of: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    lines: Counter[str] = Counter()
    for file in directory.glob("coverage.*"):
        for name, test, numbers in _read(file):
            if test in seconds:
                lines[test] += len(numbers)
                for number in numbers:
                    tests_of[name][number].append(test)
    return Record(tests_of, seconds, lines)


def _read(file: Path) -> list[tuple[str, str, list[int]]]:
    """Return file, test and lines of each entry of one file of coverage. The copy that it ran in may be another one."""
    from coverage.numbits import numbits_to_nums

    tables = "line_bits JOIN file ON file.id = file_id JOIN context ON context.id = context_id"
    connection = sqlite3.connect(file)
    try:
        rows = connection.execute(f"SELECT path, context, numbits FROM {tables}").fetchall()
    finally:
        connection.close()
    return [
        (f"vgpuctl/{path.partition('/checkout/vgpuctl/')[2]}", test, numbits_to_nums(bits)) for path, test, bits in rows
    ]


def _sample(copy: Path, record: Record, options: argparse.Namespace) -> list[tuple[str, Mutation]]:
    """Choose statements at random, and one mutation of each."""
    statements: dict[tuple[str, int], list[Mutation]] = defaultdict(list)
    for file in sorted(record.tests):
        if file.startswith(options.only) and not file.startswith(LEFT_ALONE):
            for mutation in mutations((copy / file).read_text()):
                if record.choose(file, mutation):
                    statements[file, mutation.statement].append(mutation)
    chance = random.Random(options.seed)
    chosen = chance.sample(sorted(statements), min(options.count, len(statements)))
    return [(file, chance.choice(statements[file, line])) for file, line in chosen]


def _plant_all(copies: Sequence[Path], record: Record, sample: Sequence[tuple[str, Mutation]]) -> list[str]:
    """Plant each mutation in the next copy that is free; return the names of those that survive."""
    free: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def plant(number: int, file: str, mutation: Mutation) -> str | None:
        copy = free.get()
        try:
            started = time.monotonic()
            line = (copy / file).read_text().splitlines()[mutation.begin[0] - 1].strip()
            name = f"{file}:{mutation.begin[0]}: {mutation.name}: {line}"
            found_by = _found_by(copy, record, file, mutation)
        finally:
            free.put(copy)
        outcome = f"found by {found_by}" if found_by else "SURVIVED"
        print(f"[{number}/{len(sample)}] {name}\n    {outcome} ({time.monotonic() - started:.0f} s)", flush=True)
        return None if found_by else name

    with ThreadPoolExecutor(len(copies)) as threads:
        done = [threads.submit(plant, number, *each) for number, each in enumerate(sample, 1)]
        return [name for each in done if (name := each.result()) is not None]


def _found_by(copy: Path, record: Record, file: str, mutation: Mutation) -> str | None:
    """Return the test that fails with a mutation and passes without it, or None."""
    tests = record.choose(file, mutation)
    while tests:
        with changed(copy / file, mutation.planted((copy / file).read_text())):
            failure = _failing(copy, record, tests)
        if failure is None:
            return None
        name, suspects = failure
        if _failing(copy, record, suspects) is None:
            return name
        tests = [test for test in tests if test not in suspects]  # they fail without it, too, in this order or alone
    return None


def _failing(copy: Path, record: Record, tests: Sequence[str]) -> tuple[str, list[str]] | None:
    """Return the first failure and its tests, or None; one directory at a time, because fixtures belong to it."""
    for _, group in groupby(sorted(tests, key=_directory), key=_directory):
        names = list(group)
        seconds = 30 + int(2 * sum(record.seconds[test] for test in names))
        prefix = _jail(copy, cpu_seconds=seconds)  # a busy machine makes nothing late
        try:
            status, output = pytest(copy, names, prefix=prefix, longest_seconds=600 + 10 * seconds, everything=False)
        except NotOver:
            return f"{names[0]} or a later one, which did not end", names
        failure = FOUND.search(output)
        if status != 0 and failure and failure[1] in names:
            return failure[1], [failure[1]]
        if status != 0:
            return failure[1] if failure else f"pytest, which ended with {status}", names
    return None


def _directory(test: str) -> str:
    return test.split("/")[2]
