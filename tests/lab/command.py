"""Runs one program of L1 with a deadline, and shows what it printed when it fails.

Every child of the lab's build goes through here, so that none hangs a test run forever and none fails
silently.
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
    """Returns stdout and stderr together; raises CommandFailed with both when the status is not 0."""
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
    """Ends the child with its own children: its process group, which start_new_session made."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _short(words: Sequence[str]) -> str:
    line = " ".join(words)
    return line if len(line) <= 400 else f"{line[:400]} ..."
