# SPDX-License-Identifier: Apache-2.0
"""Namespaces for tests: child processes with private mounts, network links or processes, or the reason why they fail.

`python -m tests.namespaces COMMAND...` runs a command where tests can create namespaces, or says what is missing.
unshare(1), ip-netns(8) and others first make the mounts below / private. That fails in a chroot into a plain
directory, because / is not a mount point. In this case, the command runs in a mount namespace where / is one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

PRIVATE = ("unshare", "--mount", "--propagation", "private")
UNCHANGED = ("unshare", "--mount", "--propagation", "unchanged")
PLAIN_CHROOT = "cannot change root filesystem propagation"
"""The error of unshare(1) where / is not a mount point."""
BIND_ROOT = 'mount --rbind / "$1" && exec chroot "$1" /usr/bin/env -C "$2" "${@:3}"'
"""Makes / a mount point. Its arguments are a directory for that, the working directory, and the command."""


def unshare(*options: str) -> tuple[str, ...]:
    """Return the command prefix for a program in its own mount namespace, plus those that `options` name."""
    return (*PRIVATE, *options)


def expect(child: subprocess.Popen[str], word: str, errors: IO[str]) -> None:
    """Wait for the line `word` from a child whose stderr is the file `errors`.

    Raises:
        RuntimeError: the child printed something else, or ended; the text contains its stderr.
    """
    assert child.stdout is not None
    line = child.stdout.readline()
    if line != f"{word}\n":
        errors.seek(0)
        raise RuntimeError(f"expected {word!r} from {child.args!r}, got {line!r}: {errors.read().strip()}")


def _refusal(words: tuple[str, ...]) -> str | None:
    """Return the error of unshare with these arguments, or None when it succeeds."""
    result = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    return None if result.returncode == 0 else result.stderr.strip() or f"exit status {result.returncode}"


def _any_shared() -> bool:
    """Return whether any mount is shared. In a chroot, only process 1 lists the mount that contains its root."""
    try:
        lists = [Path(f"/proc/{process}/mountinfo").read_text() for process in ("self", "1")]
    except OSError:
        return True
    return any(" shared:" in text for text in lists)


def main(command: list[str]) -> int:
    """Run the command, or exit with the reason why its tests would fail."""
    refusal = _refusal(PRIVATE)
    if refusal is None:
        return subprocess.run(command, check=False).returncode
    if PLAIN_CHROOT not in refusal:
        sys.exit(f"The tests need root, and mount, process and network namespaces: {refusal}")
    if _any_shared():
        sys.exit(f"{refusal}: / must be a mount point: outside, mount --bind DIR DIR, then chroot DIR again.")
    with tempfile.TemporaryDirectory(prefix="vgpuctl-root-") as directory:
        argv = [*UNCHANGED, "bash", "-c", BIND_ROOT, "bash", directory, os.getcwd(), *command]
        return subprocess.run(argv, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
