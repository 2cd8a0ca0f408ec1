"""Runs one program on L1 with a deadline, and shows its output if it fails.

The lab's build starts every child process through this module, so no child hangs a test run forever and no
child fails silently.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.errors import CommandFailed


def run(
    argv: Sequence[str | Path],
    *,
    deadline_seconds: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> str:
    """Return stdout and stderr together; raise CommandFailed with both if the exit status is not 0."""
    words = [str(word) for word in argv]
    process = subprocess.Popen(
        words,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output = process.communicate(stdin, timeout=deadline_seconds)[0]
    except subprocess.TimeoutExpired:
        _end(process)
        output = process.communicate()[0]
        raise CommandFailed(_short(words), None, output.decode(errors="replace")) from None
    except BaseException:
        _end(process)
        process.communicate()
        raise
    text: str = output.decode(errors="replace")
    if process.returncode != 0:
        raise CommandFailed(_short(words), process.returncode, text)
    return text


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the child and its own children: the process group that start_new_session created."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _short(words: Sequence[str]) -> str:
    line = " ".join(words)
    return line if len(line) <= 400 else f"{line[:400]} ..."
