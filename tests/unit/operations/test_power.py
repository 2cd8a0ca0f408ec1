# SPDX-License-Identifier: Apache-2.0
"""Start, stop and delete: only managed VMs, and only what was created for them."""

from __future__ import annotations

import pytest

from tests.faults import Watch
from tests.hosts import create, delete, open_sim_host, picture, request, start, stop
from tests.unit.operations.test_change import reprofile
from vgpuctl.errors import Busy, InUse, NotFound, Unmanaged
from vgpuctl.model.request import ExistingDisk

IMAGE = "/srv/images/ubuntu-24.04.qcow2"


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_create_then_delete_restores_the_host_exactly(tmp_path, scenario, profile):
    host = open_sim_host(tmp_path, scenario)
    before = picture(host)
    create(host.ports, request(profile, 2 if scenario == "t4" else 1, name="vm", image=IMAGE))
    assert picture(host) != before
    done = delete(host.ports, "vm")
    assert (done.changed, done.data.state) == (True, "absent")
    assert picture(host) == before


def test_a_stopped_vm_keeps_its_vgpu_and_starts_again(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    made = picture(host).types
    assert stop(host.ports, "vm").data.state == "stopped"
    assert picture(host).types == made
    assert not stop(host.ports, "vm").changed
    assert start(host.ports, "vm").data.state == "running"
    assert not start(host.ports, "vm").changed


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_after_a_reboot_start_makes_the_device_again_at_its_place(tmp_path, scenario, profile):
    host = open_sim_host(tmp_path, scenario)
    create(host.ports, request(profile, name="vm"))
    before = picture(host)
    host.sim.reboot()
    host = host.again()
    assert picture(host).types == picture(host).mdevs == {}
    start(host.ports, "vm")
    assert picture(host) == before


def test_after_a_reboot_a_vf_that_somebody_took_is_not_taken_back(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    host.sim.reboot()
    host = host.again()
    host.ports.sysfs.write("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "469\n")
    before = picture(host)
    with pytest.raises(InUse) as raised:
        start(host.ports, "vm")
    assert "A100-5C, not A100-4C as vm needs" in str(raised.value)
    assert picture(host) == before


def test_delete_keeps_base_images_existing_disks_and_requested_disks(tmp_path):
    host = open_sim_host(tmp_path)
    before = picture(host)
    create(host.ports, request("A100-4C", name="one", image=IMAGE))
    made = set(picture(host).files) - set(before.files)
    done = delete(host.ports, "one", keep_disks=True)
    assert {d.path for d in done.data.disks} == made
    assert set(picture(host).files) == set(before.files) | made
    create(host.ports, request("A100-4C", name="two", disks=(ExistingDisk("/srv/images/windows-11.qcow2"),)))
    delete(host.ports, "two")
    assert "/srv/images/windows-11.qcow2" in picture(host).files


@pytest.mark.parametrize("act", [start, stop, delete])
def test_an_unmanaged_vm_is_refused_unchanged(tmp_path, act):
    host = open_sim_host(tmp_path, "mixed")
    before = picture(host)
    with pytest.raises(Unmanaged) as raised:
        act(host.ports, "old-desktop")
    assert "old-desktop" in str(raised.value)
    assert raised.value.hint
    assert picture(host) == before


@pytest.mark.parametrize("act", [start, stop, delete])
def test_a_vm_that_is_not_there_is_answered_with_near_names(tmp_path, act):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="desktop-1"))
    with pytest.raises(NotFound) as raised:
        act(host.ports, "desktop-2")
    assert "desktop-1" in str(raised.value.hint)


def test_a_vm_is_matched_by_uuid_too(tmp_path):
    host = open_sim_host(tmp_path)
    uuid = create(host.ports, request("A100-4C")).data.uuid
    assert stop(host.ports, uuid).data.uuid == uuid


def test_a_vm_that_was_given_another_profile_meanwhile_is_busy_and_not_without_room(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    observations = []

    def change(number, call, args):
        if call == "claims.read":
            observations.append(number)
            if len(observations) == 1:
                reprofile(host.again(), "A100-5C")

    with pytest.raises(Busy, match="has just been changed"):
        start(Watch(before=change).watch(host.again().ports), "vm")
    assert start(host.again().ports, "vm").data.vgpus[0].profile == "A100-5C"


def test_a_vm_started_during_the_deletion_prompt_keeps_running(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"), start=False)
    with pytest.raises(InUse, match="has been started since"):
        delete(host.ports, "vm", confirm=lambda *_: start(host.again().ports, "vm"))
    assert picture(host).claims
    assert picture(host).running
    assert not start(host.ports, "vm").changed
