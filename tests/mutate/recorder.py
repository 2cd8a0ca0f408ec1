# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest (`-p tests.mutate.recorder`): which lines of the package each test runs, and for how long.

VGPUCTL_RECORD names the directory: `coverage.*` of coverage, whose contexts are ids of tests, and `durations.*`, JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage

RECORD = Path(os.environ["VGPUCTL_RECORD"])
SECONDS: dict[str, float] = {}
OTHERS: set[str] = set()
"""Tests that did not pass: they can tell nothing."""
COVERAGE = Coverage(
    str(RECORD / "coverage"), data_suffix=True, config_file=False, source=[str(Path.cwd() / "vgpuctl")], messages=False
)
COVERAGE.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    COVERAGE.switch_context(item.nodeid)
    started = time.monotonic()
    try:
        return (yield)
    finally:
        SECONDS[item.nodeid] = time.monotonic() - started
        COVERAGE.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome != "passed":
        OTHERS.add(report.nodeid)


def pytest_unconfigure() -> None:
    COVERAGE.stop()
    COVERAGE.save()
    passed = {test: seconds for test, seconds in SECONDS.items() if test not in OTHERS}
    (RECORD / f"durations.{os.getpid()}").write_text(json.dumps(passed))
