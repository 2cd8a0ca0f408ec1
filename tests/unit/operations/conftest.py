# SPDX-License-Identifier: Apache-2.0
"""The host of a test that does not say which, one A100 whose VFs are on; and what starts processes that are killed."""

from __future__ import annotations

from multiprocessing.context import BaseContext
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, open_sim_host
from tests.processes import clean
from vgpuctl.ports.host import Host


@pytest.fixture
def scenario() -> str:
    """Return the scenario of `host`; a test or a file chooses another by this name."""
    return "a100-40"


@pytest.fixture
def host(tmp_path: Path, scenario: str) -> SimulatedHost:
    return open_sim_host(tmp_path, scenario)


@pytest.fixture
def ports(host: SimulatedHost) -> Host:
    return host.ports


@pytest.fixture(scope="module")
def spawn() -> BaseContext:
    return clean()
