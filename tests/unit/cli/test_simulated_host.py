# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts: their ports with real claims and a real lock."""

from __future__ import annotations

import pytest

from vgpuctl.cli import hosts, simulated_host
from vgpuctl.cli.settings import Settings
from vgpuctl.errors import InvalidInput


def test_a_simulated_host_is_needed() -> None:
    with pytest.raises(InvalidInput, match="is not a simulated host"):
        simulated_host.selected_scenario(Settings())


def test_a_simulated_host() -> None:
    ports = hosts.open_host_to_change(Settings(host="sim:a100-40"))
    assert ports.read_only_reason is None
    assert ports.processes.is_alive(ports.processes.current_process())
    assert ports.processes.find_holders(("/dev/vfio/nothing",)) == ()
    assert ports.processes.command_line()
    with ports.claims.lock(0), pytest.raises(AssertionError):
        ports.hypervisor.domains()


def test_scenarios_have_descriptions() -> None:
    result = dict(simulated_host.list_scenarios())
    assert {"a100-40", "t4", "a16", "l40s-x4", "mixed", "empty"} <= set(result)
    assert all(result.values())
