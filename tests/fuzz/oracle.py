# SPDX-License-Identifier: Apache-2.0
"""Runs one case in its own child process, and reports violations.

For any input:

- The exit status and the error code are documented.
- The program prints no traceback.
- It ends, and it uses no more memory than a command needs.
- If it refuses the input, it writes nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 60.0
MOST_MORE_MEMORY = 1 << 30
"""How much more memory a case may map than is mapped before it starts. A command needs about 100 MiB."""
REFUSED = (2, 3)
_UNCOUNTED = ("audit", "scratch", "lock", "templates")
_ROW = re.compile(r"^\| `([a-z-]+)` \| ([^|]+) \|", re.M)
STATUSES = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 75, 130, 143})


@dataclass(frozen=True)
class Ended:
    """A case's exit status, stdout, stderr, the code of an error below the command line, and whether it wrote."""

    status: int
    out: str = ""
    err: str = ""
    code: str | None = None
    wrote: bool = False


Case = Callable[[Path], Ended]
"""A case runs in its own directory, which is the current one."""


def documented() -> frozenset[str]:
    """Return the error codes in docs/reference/exit-codes.md."""
    return frozenset(code for code, _ in _ROW.findall((ROOT / "docs/reference/exit-codes.md").read_text()))


def run(case: Case, base: Path | None) -> str | None:
    """Run a case in a child, in a copy of the directory `base`. Return the violation, or None."""
    with tempfile.TemporaryDirectory(prefix="vgpuctl-fuzz-") as name:
        place = Path(name) / "case"
        if base is None:
            place.mkdir()
        else:
            shutil.copytree(base, place, symlinks=True)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(case, place, reading, writing)
        os.close(writing)
        try:
            return _result_of(pid, reading)
        finally:
            os.close(reading)


def _result_of(pid: int, reading: int) -> str | None:
    """Return the violation that the child reports. Kill the child if it does not end in time."""
    process = os.pidfd_open(pid)
    try:
        waiting = select.poll()  # select(2) supports no descriptor above 1023
        waiting.register(process, select.POLLIN)
        has_ended = waiting.poll(DEADLINE_SECONDS * 1000)
    finally:
        os.close(process)
    if not has_ended:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not has_ended:
        return f"it had not ended after {DEADLINE_SECONDS:.0f} seconds"
    output = b"".join(iter(lambda: os.read(reading, 65536), b"")).decode("utf-8", "replace")
    if status != 0:
        return f"the process ended with {status}: {output}"
    return output or None


def _child(case: Case, directory: Path, reading: int, writing: int) -> None:
    """Run the case, write the violation to the pipe and exit. The text is short enough for one write to a pipe."""
    status = 1
    try:
        os.close(reading)
        _limit()
        violation = _checked(case, directory)
        os.write(writing, (violation or "").encode("utf-8", "replace")[-30_000:])
        status = 0
    except BaseException as error:  # noqa: BLE001
        with contextlib.suppress(BaseException):
            import traceback

            os.write(writing, "".join(traceback.format_exception(error))[-30_000:].encode("utf-8", "replace"))
    finally:
        os._exit(status)


def _limit() -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MOST_MORE_MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _checked(case: Case, directory: Path) -> str | None:
    os.chdir(directory)
    os.environ.update(XDG_STATE_HOME=str(directory / "state"), TMPDIR=str(directory / "tmp"))
    (directory / "tmp").mkdir(exist_ok=True)
    tempfile.tempdir = None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    ended = case(directory)
    violation = _violation(ended)
    if violation is None and ended.status in REFUSED and ended.wrote:
        violation = "it was refused, and something was written"
    if violation is None:
        return None
    traces = "".join(path.read_text()[-3000:] for path in (directory / "tmp").glob("vgpuctl-*/traceback.txt"))
    return f"{violation}\n  status {ended.status}\n{_shortened(ended.out)}\n{_shortened(ended.err)}\n{traces}"


def _shortened(text: str) -> str:
    return text if len(text) < 4000 else f"{text[:2000]} ... {text[-2000:]}"


def _violation(ended: Ended) -> str | None:
    """Return the invariant that the result violates, or None."""
    both = ended.out + ended.err
    if ended.status not in STATUSES:
        return f"exit status {ended.status} is not documented"
    if "Traceback (most recent call last)" in both or "[bug]" in both or "the check failed" in both:
        return "an internal error"
    if ended.code is not None and ended.code not in documented():
        return f"the code {ended.code} is not documented"
    if not ended.out.startswith("{"):
        return None
    try:
        document = json.loads(ended.out)
    except ValueError:
        return "stdout is not one JSON document"
    code = (document.get("error") or {}).get("code")
    if code is not None and code not in documented():
        return f"the code {code} is not documented"
    if bool(document.get("ok")) is (code is not None):
        return "ok and error contradict each other"
    return None


def digest(state: Path) -> str:
    """Return a digest of what a simulated host stores: its journal, files, claims and notes."""
    result = hashlib.sha256()
    for path in sorted(state.rglob("*")) if state.exists() else ():
        parts = path.relative_to(state).parts
        counts = path.is_file() and not any(word in part for part in parts for word in _UNCOUNTED)
        if counts and path.stat().st_size:
            result.update(f"{path.relative_to(state)}\0".encode())
            result.update(path.read_bytes())
    return result.hexdigest()


def command(*words: str) -> Ended:
    """Run the program's command line in this process."""
    from vgpuctl.cli import entry

    return _captured(lambda: entry.main(words))


def call(work: Callable[[], object]) -> Ended:
    """Call code below the command line. An integer that it returns is the exit status."""
    from vgpuctl.cli import failures
    from vgpuctl.cli.global_options import Settings

    reported: list[str] = []

    def run() -> int:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the program must explain any exception
            failure = failures.failure_from_exception(error, Settings())
            reported.append(failure.code)
            print("\n".join(failures.text_lines(failure)), file=sys.stderr)
            return failure.status
        return result if isinstance(result, int) else 0

    ended = _captured(run)
    return Ended(ended.status, ended.out, ended.err, reported[0] if reported else None, ended.wrote)


def _captured(run: Callable[[], int]) -> Ended:
    out, err = io.BytesIO(), io.BytesIO()
    state = Path(os.environ["XDG_STATE_HOME"])
    before = digest(state)
    saved = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (io.TextIOWrapper(stream, "utf-8", write_through=True) for stream in (out, err))
    try:
        status = run()
        texts = [stream.getvalue().decode("utf-8", "replace") for stream in (out, err)]
    finally:
        sys.stdout, sys.stderr = saved
    return Ended(status, texts[0], texts[1], wrote=digest(state) != before)
