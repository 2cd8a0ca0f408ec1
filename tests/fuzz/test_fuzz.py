# SPDX-License-Identifier: Apache-2.0
"""Some cases of each surface; more by hand: `python -m tests.fuzz --cases 5000 --seed 2`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz import oracle, surfaces

CASES = 56
SEED = 20


@pytest.mark.parametrize("surface", sorted(surfaces.SURFACES))
def test_any_input_ends_as_documented(surface):
    """A process without threads, for each case is forked from it."""
    words = ["--surface", surface, "--cases", str(CASES), "--seed", str(SEED)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words], cwd=oracle.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        (lambda place: oracle.Ended(0, "{}"), "contradict"),
        (lambda place: oracle.Ended(99), "not documented"),
        (lambda place: oracle.Ended(1, '{"ok": false, "error": {"code": "bug"}}'), "bug is not documented"),
        (lambda place: oracle.Ended(1, err="vgpuctl: unexpected KeyError   [bug]"), "internal error"),
        (lambda place: oracle.call(lambda: 1 // 0), "internal error"),
        (lambda place: oracle.Ended(0, str(len(bytearray(4 << 30)))), "MemoryError"),
        (lambda place: oracle.call(lambda: _refused_too_late(place)), "something was written"),
        (lambda place: sys.exit(3), "ended with 1"),
    ],
)
def test_the_oracle_detects_violations(case, wrong):
    assert wrong in (oracle.run(case, None) or "")


def _refused_too_late(place):
    (place / "state").mkdir()
    (place / "state/journal").write_text("x")
    return 2
