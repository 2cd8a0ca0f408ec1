# SPDX-License-Identifier: Apache-2.0
"""The simulated host joined with this machine: processes of both live, and its lock keeps its seams shut."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds import create, wish
from vgpuctl.model.vm import ProcessId
from vgpuctl.model.world import World
from vgpuctl.simulated import simulated_world


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A simulated host of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return simulated_world("a100-40")


def test_a_process_lives_here_or_there(world: World) -> None:
    data = create(world, wish("A100-4C", name="vm")).data
    (vgpu,) = data["vgpus"] if isinstance(data["vgpus"], list) else ()
    group = world.sysfs.readlink(f"/sys/bus/pci/devices/{vgpu['carrier']}/iommu_group").rpartition("/")[2]
    (holder,) = world.processes.holders((f"/dev/vfio/{group}",))
    assert world.processes.alive(ProcessId(holder.pid, 0))
    assert world.processes.alive(world.processes.this())
    assert not world.processes.alive(ProcessId(world.processes.this().pid, 1))


def test_under_its_lock_nothing_is_written(world: World) -> None:
    with world.claims.lock(5), pytest.raises(AssertionError):
        world.sysfs.write("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "469\n")


def test_another_process_opens_the_same_host(world: World) -> None:
    create(world, wish("A100-4C", name="vm"), start=False)
    assert simulated_world("a100-40").claims.all() == world.claims.all() != ()
