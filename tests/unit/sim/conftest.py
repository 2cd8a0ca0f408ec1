# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts with their state below the test's own directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sim.hosts import MakeHost
from vgpuctl.sim import SimHost, open_host


@pytest.fixture
def make(tmp_path: Path) -> MakeHost:
    """Make a host from a built-in name, or from YAML text without its version line."""

    def build(scenario: str, name: str = "host") -> SimHost:
        if "\n" not in scenario and ":" not in scenario:
            return open_host(scenario, state_dir=tmp_path / f"{name}.state")
        file = tmp_path / f"{name}.yaml"
        if not file.exists():
            file.write_text(f"version: 1\n{scenario}")
        return open_host(str(file), state_dir=tmp_path / f"{name}.state")

    return build
