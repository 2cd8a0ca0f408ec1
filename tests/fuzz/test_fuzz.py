# SPDX-License-Identifier: Apache-2.0
"""Runs some cases of each surface. To run more: `python -m tests.fuzz --cases 5000 --seed 2`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import EVERYTHING
from tests.fuzz import oracle, surfaces

CASES = 60 if EVERYTHING else 20
SEED = 20


@pytest.mark.parametrize("surface", sorted(surfaces.SURFACES))
def test_any_input_ends_as_documented(surface):
    """Use a process without threads, because it forks for each case."""
    words = ["--surface", surface, "--cases", str(CASES), "--seed", str(SEED)]
    completed = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words], cwd=oracle.ROOT, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


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
