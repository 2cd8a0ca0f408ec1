# SPDX-License-Identifier: Apache-2.0
"""Simulated hosts: their seams joined with real claims and a real lock."""

from __future__ import annotations

import pytest

from vgpuctl.cli import simulated, worlds
from vgpuctl.cli.settings import Settings
from vgpuctl.errors import InvalidInput


def test_a_simulated_host_is_needed() -> None:
    with pytest.raises(InvalidInput, match="is not a simulated host"):
        simulated.scenario(Settings())


def test_a_simulated_world() -> None:
    world = worlds.open_world_to_change(Settings(host="sim:a100-40"))
    assert world.read_only is None
    assert world.processes.alive(world.processes.this())
    assert world.processes.holders(("/dev/vfio/nothing",)) == ()
    assert world.processes.command()
    with world.claims.lock(0), pytest.raises(AssertionError):
        world.hypervisor.domains()


def test_scenarios_have_descriptions() -> None:
    found = dict(simulated.scenarios())
    assert {"a100-40", "t4", "a16", "l40s-x4", "mixed", "empty"} <= set(found)
    assert all(found.values())
