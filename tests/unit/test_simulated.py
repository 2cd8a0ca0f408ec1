# SPDX-License-Identifier: Apache-2.0
"""The simulated host joined with this machine: processes of both are alive, and no port may write under its lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import create, request
from vgpuctl import simulated
from vgpuctl.errors import InvalidInput
from vgpuctl.host.processes import HostProcesses
from vgpuctl.model.vm import ProcessId
from vgpuctl.ports.host import Host
from vgpuctl.simulated import open_simulated_host


@pytest.fixture
def ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A simulated host of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return open_simulated_host("a100-40")


def test_a_process_lives_here_or_there(ports: Host) -> None:
    (vgpu,) = create(ports, request("A100-4C", name="vm")).data.vgpus
    group = ports.sysfs.readlink(f"/sys/bus/pci/devices/{vgpu.carrier}/iommu_group").rpartition("/")[2]
    (holder,) = ports.processes.find_holders((f"/dev/vfio/{group}",))
    assert ports.processes.is_alive(ProcessId(holder.pid, 0))
    assert ports.processes.is_alive(HostProcesses().current_process())
    assert not ports.processes.is_alive(ProcessId(HostProcesses().current_process().pid, 1))


def test_under_its_lock_nothing_is_written(ports: Host) -> None:
    with ports.claims.lock(5), pytest.raises(AssertionError):
        ports.sysfs.write("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "469\n")


def test_another_process_opens_the_same_host(ports: Host) -> None:
    create(ports, request("A100-4C", name="vm"), start=False)
    assert open_simulated_host("a100-40").claims.all() == ports.claims.all() != ()


def test_a_real_host_is_no_scenario() -> None:
    with pytest.raises(InvalidInput, match="is not a simulated host"):
        simulated.scenario_of("local")


def test_scenarios_have_descriptions() -> None:
    titles = dict(simulated.list_scenarios())
    assert {"a100-40", "t4", "a16", "l40s-x4", "mixed", "empty"} <= set(titles)
    assert all(titles.values())
