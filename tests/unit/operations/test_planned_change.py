# SPDX-License-Identifier: Apache-2.0
"""What set-vm --when-off plans for a running VM: it is kept, replaced, forgotten, and made when the VM is off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.callers import host_of
from tests.hosts import SimulatedHost, open_sim_host
from vgpuctl.errors import InvalidInput, NoCapacity, NotFound, Refused
from vgpuctl.library import GpuHost
from vgpuctl.model.planned_fields import planned_fields
from vgpuctl.observe import ReadScope, observe


@pytest.fixture
def simulated(tmp_path: Path) -> SimulatedHost:
    host = open_sim_host(tmp_path)
    host_of(host, None).create_vm("a", profile="A100-8C:2", memory="4GiB")
    return host


@pytest.fixture
def host(simulated: SimulatedHost) -> GpuHost:
    return host_of(simulated, None)


def planned(host: GpuHost) -> dict[str, str]:
    return dict(host.show_vm("a").data.planned)


def test_a_running_vm_keeps_a_plan_and_gets_it_when_it_is_off(host: GpuHost) -> None:
    before = host.show_vm("a").data
    done = host.set_vm("a", profile="A100-4C:2", memory="8GiB", when_off=True)
    assert done.changed
    assert done.steps == ("plan for VM a when it is off: memory 8 GiB, profile A100-4C, A100-4C",)
    after = host.show_vm("a").data
    assert (after.memory_mib, after.vgpus) == (before.memory_mib, before.vgpus), "nothing has changed yet"
    assert planned(host) == {"memory": "8 GiB", "profile": "A100-4C, A100-4C"}
    assert not host.set_vm("a", profile="A100-4C:2", memory="8GiB", when_off=True).changed, "it is planned already"
    host.stop_vm("a")
    record = host.show_vm("a").data
    assert record.planned
    host.set_vm("a", profile=["A100-4C", "A100-4C"], memory="8 GiB", when_off=True)
    changed = host.show_vm("a").data
    assert [vgpu.profile for vgpu in changed.vgpus] == ["A100-4C", "A100-4C"]
    assert (changed.memory_mib, changed.planned) == (8192, {})


def test_a_later_plan_or_change_replaces_what_it_names(host: GpuHost) -> None:
    host.set_vm("a", vcpus=6, memory="8GiB", when_off=True)
    host.set_vm("a", vcpus=8, when_off=True)
    assert planned(host) == {"memory": "8 GiB", "vcpus": "8"}
    host.set_vm("a", memory="4GiB", when_off=True)
    assert planned(host) == {"vcpus": "8"}, "that is what it has"
    host.set_vm("a", labels={"team": "cad"})
    assert planned(host) == {"vcpus": "8"}
    host.set_vm("a", vcpus=3, drain=True)
    assert planned(host) == {}
    assert host.show_vm("a").data.vcpus == 3


def test_a_plan_is_forgotten_without_fields(host: GpuHost) -> None:
    host.set_vm("a", vcpus=6, memory="8GiB", when_off=True)
    assert host.set_vm("a", when_off=True, dry_run=True).changed
    assert planned(host) != {}
    assert host.set_vm("a", when_off=True).changed
    assert planned(host) == {}
    assert not host.set_vm("a", when_off=True).changed


def test_what_is_not_possible_is_refused_before_it_is_planned(host: GpuHost) -> None:
    with pytest.raises(NotFound, match="A100-99C"):
        host.set_vm("a", profile="A100-99C", when_off=True)
    with pytest.raises(NoCapacity):
        host.set_vm("a", profile="A100-8C:6", when_off=True)
    with pytest.raises(InvalidInput, match="labels can change while it runs"):
        host.set_vm("a", vcpus=4, labels={"team": "cad"}, when_off=True)
    with pytest.raises(InvalidInput, match="exclude each other"):
        host.set_vm("a", vcpus=4, drain=True, when_off=True)
    with pytest.raises(InvalidInput, match="nothing to change"):
        host.set_vm("a")
    assert planned(host) == {}


def test_a_vm_that_is_off_changes_at_once(host: GpuHost) -> None:
    host.stop_vm("a")
    host.set_vm("a", vcpus=6, when_off=True)
    assert (host.show_vm("a").data.vcpus, planned(host)) == (6, {})


def test_every_field_is_planned_as_set_vm_takes_it(host: GpuHost, simulated: SimulatedHost) -> None:
    nic = "network=default,mac=52:54:00:00:00:01"
    host.set_vm(
        "a", when_off=True, profile="A100-4C", gpu="0000:3b:00.0", memory="6GiB", vcpus=5, cpu_pin="0-1",
        networks=["default", nic], reserve="running", scheduler="best_effort", placement="depth",
    )  # fmt: skip
    host.stop_vm("a")
    vm = observe(simulated.ports, ReadScope()).vm("a")
    assert vm is not None
    assert vm.record is not None
    host.set_vm("a", when_off=True, **planned_fields(vm.record))
    changed = host.show_vm("a").data
    assert (changed.planned, changed.memory_mib, changed.vcpus, changed.reserve) == ({}, 6144, 5, "running")
    assert (changed.pinned_cpus, len(changed.networks), changed.networks[1].mac) == ("0-1", 2, nic[-17:])
    assert [vgpu.profile for vgpu in changed.vgpus] == ["A100-4C"]


def test_what_a_vm_has_already_is_not_planned(host: GpuHost) -> None:
    host.set_vm("a", labels={"team": "cad"}, owner="ada")
    host.set_vm("a", vcpus=6, memory="4GiB", labels={"team": "cad"}, owner="ada", when_off=True)
    assert planned(host) == {"vcpus": "6"}


def test_what_places_vgpus_is_planned_and_forgotten_with_them(host: GpuHost) -> None:
    host.set_vm("a", profile="A100-4C:2", placement="depth", vcpus=6, when_off=True)
    assert planned(host) == {"profile": "A100-4C, A100-4C", "placement": "depth", "vcpus": "6"}
    host.set_vm("a", profile="A100-4C", when_off=True)
    assert planned(host) == {"profile": "A100-4C", "vcpus": "6"}
    host.set_vm("a", profile="A100-8C:2", placement="breadth", when_off=True)
    assert planned(host) == {"vcpus": "6"}, "these profiles it has"


def test_a_vgpu_that_is_attached_or_detached_meanwhile_stays_so(host: GpuHost) -> None:
    host.set_vm("a", profile="A100-8C", vcpus=6, when_off=True)
    host.attach_vgpu("a", profile="A100-8C")
    assert planned(host) == {"vcpus": "6"}
    host.set_vm("a", profile="A100-8C", when_off=True)
    host.detach_vgpu("a", host.show_vm("a").data.vgpus[0].carrier)
    assert planned(host) == {"vcpus": "6"}


def test_a_vm_without_a_definition_could_not_keep_a_plan(host: GpuHost, simulated: SimulatedHost) -> None:
    uuid = host.show_vm("a").data.uuid
    simulated.sim.hypervisor.make_transient(uuid)
    with pytest.raises(Refused, match="running without a definition"):
        host.set_vm("a", vcpus=6, when_off=True)
