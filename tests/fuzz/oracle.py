# SPDX-License-Identifier: Apache-2.0
"""Runs one case in a child of its own, and reports violations.

Whatever comes in: the exit status and the error's code are documented ones, no traceback is shown, it ends, it takes no
more memory than a command needs, and what was refused has written nothing.
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
"""What a case may map beyond what is mapped before: a command takes some 100 MiB."""
REFUSED = (2, 3)
_UNCOUNTED = ("audit", "scratch", "lock", "templates")
_ROW = re.compile(r"^\| `([a-z-]+)` \| ([^|]+) \|", re.M)
STATUSES = frozenset({0, 1, 2, 3, 4, 5, 6, 7, 75, 130, 143})


@dataclass(frozen=True)
class Ended:
    """What a case came to: an exit status, both outputs, the code of an error below the command line, what it wrote."""

    status: int
    out: str = ""
    err: str = ""
    code: str | None = None
    wrote: bool = False


Case = Callable[[Path], Ended]
"""Runs in an empty directory of its own, which is the current one."""


def documented() -> frozenset[str]:
    """Return the codes of docs/exit-codes.md."""
    return frozenset(code for code, _ in _ROW.findall((ROOT / "docs/exit-codes.md").read_text()))


def run(case: Case, base: Path | None) -> str | None:
    """Run a case in a child, in a copy of the directory `base`; return what is wrong, None for nothing."""
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
            return _waited(pid, reading)
        finally:
            os.close(reading)


def _waited(pid: int, reading: int) -> str | None:
    """Return what the child found; it is killed when it does not end."""
    process = os.pidfd_open(pid)
    try:
        waiting = select.poll()  # select(2) takes no descriptor from 1024 on
        waiting.register(process, select.POLLIN)
        ended = waiting.poll(DEADLINE_SECONDS * 1000)
    finally:
        os.close(process)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not ended:
        return f"it had not ended after {DEADLINE_SECONDS:.0f} seconds"
    said = b"".join(iter(lambda: os.read(reading, 65536), b"")).decode("utf-8", "replace")
    if status != 0:
        return f"the process ended with {status}: {said}"
    return said or None


def _child(case: Case, place: Path, reading: int, writing: int) -> None:
    """Run the case and write what is wrong; never returns. What was found is at most what a pipe takes at once."""
    status = 1
    try:
        os.close(reading)
        _limit()
        found = _judged(case, place)
        os.write(writing, (found or "").encode("utf-8", "replace")[-30_000:])
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


def _judged(case: Case, place: Path) -> str | None:
    os.chdir(place)
    os.environ.update(XDG_STATE_HOME=str(place / "state"), TMPDIR=str(place / "tmp"))
    (place / "tmp").mkdir(exist_ok=True)
    tempfile.tempdir = None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    ended = case(place)
    wrong = _wrong(ended)
    if wrong is None and ended.status in REFUSED and ended.wrote:
        wrong = "it was refused, and something was written"
    if wrong is None:
        return None
    traces = "".join(path.read_text()[-3000:] for path in (place / "tmp").glob("vgpuctl-*/traceback.txt"))
    return f"{wrong}\n  status {ended.status}\n{_shortened(ended.out)}\n{_shortened(ended.err)}\n{traces}"


def _shortened(text: str) -> str:
    return text if len(text) < 4000 else f"{text[:2000]} ... {text[-2000:]}"


def _wrong(ended: Ended) -> str | None:
    """Return what an end breaks."""
    both = ended.out + ended.err
    if ended.status not in STATUSES:
        return f"exit status {ended.status} is not documented"
    if "Traceback (most recent call last)" in both or "[bug]" in both or "the check stumbled" in both:
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
    """Return what is written of a simulated host: its journal, its files, claims and notes."""
    found = hashlib.sha256()
    for path in sorted(state.rglob("*")) if state.exists() else ():
        parts = path.relative_to(state).parts
        counts = path.is_file() and not any(word in part for part in parts for word in _UNCOUNTED)
        if counts and path.stat().st_size:
            found.update(f"{path.relative_to(state)}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def command(*words: str) -> Ended:
    """Run the program's command line in this process."""
    from vgpuctl.cli import entry

    return _captured(lambda: entry.main(words))


def call(work: Callable[[], object]) -> Ended:
    """Call what is below the command line; what it returns is its exit status, or something that is shown."""
    from vgpuctl.cli import failures
    from vgpuctl.cli.settings import Settings

    told: list[str] = []

    def run() -> int:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the program explains it
            failure = failures.failure_from_exception(error, Settings())
            told.append(failure.code)
            print("\n".join(failures.text_lines(failure)), file=sys.stderr)
            return failure.status
        return result if isinstance(result, int) else 0

    ended = _captured(run)
    return Ended(ended.status, ended.out, ended.err, told[0] if told else None, ended.wrote)


def _captured(run: Callable[[], int]) -> Ended:
    out, err = io.BytesIO(), io.BytesIO()
    state = Path(os.environ["XDG_STATE_HOME"])
    before = digest(state)
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (io.TextIOWrapper(stream, "utf-8", write_through=True) for stream in (out, err))
    try:
        status = run()
        texts = [stream.getvalue().decode("utf-8", "replace") for stream in (out, err)]
    finally:
        sys.stdout, sys.stderr = kept
    return Ended(status, texts[0], texts[1], wrote=digest(state) != before)
