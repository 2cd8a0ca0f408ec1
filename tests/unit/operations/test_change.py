# SPDX-License-Identifier: Apache-2.0
"""set-vm and ensure-vm change a stopped VM in place and nothing else; when they fail, the VM is unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lxml import etree

from tests.hosts import (
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
    set_vm,
    start,
    stop,
)
from tests.meanwhile import unchanged
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InUse, NoCapacity, NotFound, Refused, SpecDiffers
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import Nic
from vgpuctl.operations.ensure_vm import ensure_vm
from vgpuctl.value import replace

HOSTS = {"a100-40": ("A100-4C", "A100-5C"), "t4": ("T4-2Q", "T4-4Q"), "a16": ("A16-2Q", "A16-4Q")}
FULL = """version: 1
gpus:
  - {model: A100, vfs: {total: 4, enabled: 4}, profiles: [A100-4C, A100-20C]}
"""


REFUSES = 'faults:\n  - {on: sysfs-write, match: "*/current_vgpu_type", kind: error, errno: EIO, nth: 3}\n'


def reprofile(host: SimulatedHost, profile: str, *, dry_run: bool = False, count: int = 1) -> Outcome:
    """Set-vm --profile."""
    wanted = request(profile, count, name="vm")
    with operation(host.ports):
        return set_vm(host.ports, wanted, dry_run=dry_run)


def ensure(host: SimulatedHost, wanted: VmRequest, state: str = "present", *, dry_run: bool = False) -> Outcome:
    """ensure-vm."""
    return ensure_vm(host.ports, context(dry_run=dry_run), wanted, state=state)


def xml_of(host: SimulatedHost) -> str:
    """Return the VM's config."""
    return host.ports.hypervisor.find_domain("vm").xml


def by_hand(host: SimulatedHost) -> None:
    """Change the VM as an admin would with virsh edit."""
    root = etree.fromstring(xml_of(host))
    etree.SubElement(root, "title").text = "of the drawing office"
    etree.SubElement(root.find("devices/hostdev"), "rom", {"bar": "off"})
    root.find("devices/graphics").set("passwd", "secret")
    host.ports.hypervisor.redefine(str(root.findtext("uuid")), etree.tostring(root, encoding="unicode"))


def lines(xml: str) -> list[str]:
    """Return every element but the record and the device's own reference, as text."""
    root = etree.fromstring(xml)
    for path in ("metadata", "devices/hostdev/source", "devices/hostdev/alias"):
        for element in root.findall(path):
            element.getparent().remove(element)
    return sorted(etree.tostring(e, encoding="unicode") for e in root.iter() if len(e) == 0 or e.tag == "hostdev")


@pytest.mark.parametrize("scenario", HOSTS)
def test_another_profile_replaces_the_first_and_nothing_else_changes(host: SimulatedHost, scenario: str) -> None:
    first, second = HOSTS[scenario]
    create(host.ports, request(first, name="vm"), start=False)
    by_hand(host)
    before, was = picture(host), lines(xml_of(host))
    data = reprofile(host, second).data
    assert [(v.profile, v.present) for v in data.vgpus] == [(second, True)]
    assert lines(xml_of(host)) == was
    assert "secret" not in xml_of(host)
    assert "passwd='secret'" in host.ports.hypervisor.definition(str(data.uuid))
    assert any('<rom bar="off"' in line for line in was)
    now = picture(host)
    assert (len(now.types) + len(now.mdevs), len(now.claims)) == (1, 1)
    assert (now.files, now.running) == (before.files, {})
    assert not reprofile(host, second).changed
    start(host.ports, "vm")
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings
    delete(host.ports, "vm")
    assert (picture(host).types, picture(host).mdevs, picture(host).claims) == ({}, {}, {})


def test_its_record_keeps_what_was_typed(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    reprofile(host, "GRID A100-5C")
    assert json.loads(etree.fromstring(xml_of(host)).findtext(".//{urn:vgpuctl:1}spec") or "")["profile"] == [
        "GRID A100-5C"
    ]
    assert not reprofile(host, "A100-5C").changed


def test_a_running_vm_is_refused_with_what_to_do(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"))
    with unchanged(host), pytest.raises(InUse) as caught:
        reprofile(host, "A100-5C")
    assert (caught.value.status, "stop-vm vm" in str(caught.value.hint)) == (3, True)


@pytest.mark.parametrize("why", ["another VM", "the driver refuses"])
def test_no_room_for_the_new_profile_leaves_it_exactly_as_it_was(tmp_path: Path, why: str) -> None:
    host = open_sim_host(tmp_path, text=FULL + (REFUSES if why == "the driver refuses" else ""))
    if why == "another VM":
        create(host.ports, request("A100-4C", name="other"))
    create(host.ports, request("A100-4C", name="vm"), start=False)
    with unchanged(host), pytest.raises(NoCapacity):
        reprofile(host, "A100-20C")


def test_a_driver_that_refuses_is_left_out_and_the_next_gpu_tried(tmp_path: Path) -> None:
    first = FULL.replace("A100, vfs", 'A100, address: "0000:3b:00.0", vfs')
    second = '  - {model: A100, address: "0000:5e:00.0", vfs: {total: 4, enabled: 4}}\n'
    host = open_sim_host(tmp_path, text=first + second + REFUSES)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    vgpus = reprofile(host, "A100-20C").data.vgpus
    assert [v.profile for v in vgpus] == ["A100-20C"]
    assert len(picture(host).types) == len(picture(host).claims) == 1


def test_more_and_fewer_of_the_same_profile(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    first = set(picture(host).claims)
    assert len(reprofile(host, "A100-4C", count=3).data.vgpus) == 3
    assert first < set(picture(host).claims)
    assert len(reprofile(host, "A100-4C").data.vgpus) == 1
    assert set(picture(host).claims) == first


def test_a_whole_gpu_has_no_profile_to_change_and_a_gpu_must_be_there(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "mixed")
    create(host.ports, request(name="vm", mode="passthrough"), start=False)
    with pytest.raises(Refused, match="no profile"):
        reprofile(host, "A100-4C")
    create(host.ports, request("A100-4C", name="other"), start=False)
    with pytest.raises(NotFound, match="H100"):
        set_vm(host.ports, request("A100-4C", name="other", gpu="H100"))


def test_a_dry_run_shows_what_would_be_and_changes_nothing(host: SimulatedHost) -> None:
    create(host.ports, request("A100-4C", name="vm"), start=False)
    with unchanged(host):
        planned = reprofile(host, "A100-5C", dry_run=True)
    assert [s.split()[0] for s in planned.steps] == ["claim", "remove", "create", "change", "release"]
    assert [v.profile for v in planned.data.vgpus] == ["A100-5C"]


TYPED = {"profile": "given", "memory": "given", "vcpus": "given", "networks": "given"}
TYPICAL = request("A100-4C", name="vm", sources=TYPED)
TWO_NETWORKS = """version: 1
networks: [{name: default}, {name: lab}, {name: down, active: false}]
gpus:
  - {model: A100, vfs: {total: 4, enabled: 4}}
"""


def test_ensure_changes_a_stopped_vm_in_place_and_the_second_time_nothing(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text=TWO_NETWORKS)
    ensure(host, TYPICAL, "stopped")
    by_hand(host)
    wanted = replace(TYPICAL, profiles=(("A100-5C", 1),), memory_mib=2048, vcpus=3, nics=(Nic(network="lab"),))
    planned = ensure(host, wanted, dry_run=True).data
    outcome = ensure(host, wanted)
    sides = [outcome.data.before, outcome.data.after]
    assert [(s.memory_mib, s.vcpus, [n.network for n in s.networks]) for s in sides] == [
        (1024, 1, ["default"]),
        (2048, 3, ["lab"]),
    ]
    assert sides[0].networks[0].mac == sides[1].networks[0].mac
    for field in ("memory_mib", "vcpus", "state"):
        assert getattr(planned.after, field) == getattr(outcome.data.after, field)
    assert "of the drawing office" in xml_of(host)
    assert not ensure(host, wanted).changed


def test_another_gpu_in_the_spec_moves_a_stopped_vm_there(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "l40s-x4")
    first, second = "0000:3b:00.0", "0000:3f:00.0"
    spec = request("L40S-4Q", name="vm", gpu=first, sources={**TYPED, "gpu": "given"})
    ensure(host, spec, "stopped")
    there = replace(spec, gpu=(second,))
    assert [v.gpu for v in ensure(host, there, dry_run=True).data.after.vgpus] == [second]
    moved = ensure(host, there)
    assert [v.gpu for v in moved.data.after.vgpus] == [second]
    assert f"gpu: {first} -> {second}" in moved.steps[-2]
    assert not ensure(host, there).changed
    both = replace(there, profiles=(("L40S-8Q", 1),), gpu=(first,))
    after = ensure(host, both, "started").data.after
    assert [(v.gpu, v.profile) for v in after.vgpus] == [(first, "L40S-8Q")]


def test_ensure_started_changes_it_and_then_starts_it(host: SimulatedHost) -> None:
    ensure(host, TYPICAL, "stopped")
    wanted = replace(TYPICAL, vcpus=2)
    assert ensure(host, wanted, "started", dry_run=True).steps[-1] == "start VM vm"
    outcome = ensure(host, wanted, "started")
    assert (outcome.data.state, outcome.data.vcpus, len(outcome.steps)) == ("running", 2, 2)


@pytest.mark.parametrize("network", ["nothing", "down"])
def test_a_network_that_cannot_be_used_is_refused(tmp_path: Path, network: str) -> None:
    host = open_sim_host(tmp_path, text=TWO_NETWORKS)
    ensure(host, TYPICAL, "stopped")
    with unchanged(host), pytest.raises(HostCannot):
        ensure(host, replace(TYPICAL, nics=(Nic(network=network),)))


def test_ensure_refuses_a_running_vm_and_what_cannot_be_changed_in_place(host: SimulatedHost) -> None:
    first = request("A100-4C", name="vm", sources={**TYPED, "hotplug_slots": "given"})
    ensure(host, first, "started")
    with pytest.raises(SpecDiffers) as caught:
        ensure(host, replace(first, vcpus=2))
    assert "stop-vm vm" in str(caught.value.hint)
    stop(host.ports, "vm")
    with unchanged(host), pytest.raises(SpecDiffers) as caught:
        ensure(host, replace(first, vcpus=2, hotplug_slots=1))
    assert str(caught.value.hint).startswith("hotplug_slots cannot be changed in place")
