# SPDX-License-Identifier: Apache-2.0
"""A copy of the checkout, with its own virtual environment, in which tests run while a file differs."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, ignore_patterns

CHECKOUT = Path(__file__).resolve().parents[2]
LEFT_OUT = ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "*.egg-info", "dist", "build")
LONGEST_SECONDS = 900
FOUND = re.compile(r"^(?:FAILED|ERROR) (\S+\.py(?:::.+?)?)(?: - .*)?$", re.MULTILINE)
"""The test that failed, or the file that pytest could not read, in what pytest printed."""


class CannotTell(Exception):
    """The tests did not run, or they fail even without the bug."""


class NotOver(CannotTell):
    """The tests were not over in time."""


@contextmanager
def copied() -> Iterator[Path]:
    """Yield a copy. Its environment uses the package in the copy and everything else from this environment.

    So even a child process that ignores PYTHONPATH imports the copy's package.
    """
    with tempfile.TemporaryDirectory(prefix="vgpuctl-mutate-") as directory:
        copy = Path(directory) / "checkout"
        copytree(CHECKOUT, copy, ignore=LEFT_OUT, symlinks=True)
        venv.create(copy / ".venv", symlinks=True)
        (packages,) = (copy / ".venv").glob("lib/python3*/site-packages")
        (packages / "copy.pth").write_text(f"{copy}\n{sysconfig.get_path('purelib')}\n")
        words = [copy / ".venv/bin/python", "-I", "-c", "import vgpuctl; print(vgpuctl.__file__)"]
        output = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        if not Path(output).is_relative_to(copy):
            raise CannotTell(f"the package that runs would be {output.strip()}, not the one below {copy}")
        yield copy


@contextmanager
def changed(file: Path, text: str) -> Iterator[None]:
    """Give a file another text for a while."""
    original = file.read_text()
    file.write_text(text)
    try:
        yield
    finally:
        file.write_text(original)


def pytest(
    copy: Path,
    tests: Sequence[str],
    *,
    prefix: Sequence[str] = (),
    longest_seconds: float = LONGEST_SECONDS,
    everything: bool = True,
) -> tuple[int, str]:
    """Run tests of a copy, up to the first that fails; return pytest's exit status and what it printed.

    `prefix`: words in front of the command. `everything`: each fault point, not a sample.

    Raises:
        NotOver: they were not over in time.
    """
    python = str(copy / ".venv/bin/python")
    words = [*prefix, python, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests]
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "VGPUCTL_TESTS": "all" if everything else "",
    }
    try:
        completed = subprocess.run(
            words, cwd=copy, env=environment, capture_output=True, text=True, timeout=longest_seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise NotOver(f"{' '.join(words)}: not over after {longest_seconds:.0f} seconds") from error
    return completed.returncode, completed.stdout + completed.stderr
