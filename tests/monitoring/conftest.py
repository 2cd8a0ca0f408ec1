# SPDX-License-Identifier: Apache-2.0
"""The files that vgpuctl monitoring prints for a simulated host without a host.yaml."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.monitoring.servers import PROGRAMS
from vgpuctl import library

Printed = Callable[..., str]


@pytest.fixture(scope="session")
def printed() -> Printed:
    """Return what gives the text of one of the files."""
    with library.open_host("sim:empty") as host:
        yield lambda name, targets=(): host.monitoring(name, targets=targets).data.text


@pytest.fixture(scope="session")
def rules_file(printed: Printed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file with the rules."""
    path = tmp_path_factory.mktemp("rules") / "rules.yml"
    path.write_text(printed("rules"))
    return path


def promtool(*words: str | Path, cwd: Path | None = None) -> str:
    """Run promtool, which must succeed, and return its output."""
    ran = subprocess.run([PROGRAMS / "promtool", *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    return ran.stdout + ran.stderr
