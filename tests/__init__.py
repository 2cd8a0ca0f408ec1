# SPDX-License-Identifier: Apache-2.0
"""All tests and their shared helpers."""

from __future__ import annotations

import os

EVERYTHING = os.environ.get("VGPUCTL_TESTS") == "all"
"""Whether this is the long run, `tests/bootstrap.py test --all`, or only a sample of what is the same many times."""


def examples(number: int) -> int:
    """Return how many examples a property gets: a run of every change takes one of five."""
    return number if EVERYTHING else max(1, number // 5)
