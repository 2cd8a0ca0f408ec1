# SPDX-License-Identifier: Apache-2.0
"""Start, stop and delete: only our own VMs, and only what was made for them."""

from __future__ import annotations

import pytest

from tests.faults import Watch
from tests.unit.engine.test_change import reprofile
from tests.worlds import create, delete, open_host, picture, start, stop, wish
from vgpuctl.errors import Busy, Foreign, InUse, NotFound
from vgpuctl.model.wish import ExistingDisk

IMAGE = "/srv/images/ubuntu-24.04.qcow2"


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_create_then_delete_restores_the_host_exactly(tmp_path, scenario, profile):
    host = open_host(tmp_path, scenario)
    before = picture(host)
    create(host.world, wish(profile, 2 if scenario == "t4" else 1, name="vm", image=IMAGE))
    assert picture(host) != before
    done = delete(host.world, "vm")
    assert (done.changed, done.data["state"]) == (True, "absent")
    assert picture(host) == before


def test_a_stopped_vm_keeps_its_vgpu_and_starts_again(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"))
    made = picture(host).types
    assert stop(host.world, "vm").data["state"] == "stopped"
    assert picture(host).types == made
    assert not stop(host.world, "vm").changed
    assert start(host.world, "vm").data["state"] == "running"
    assert not start(host.world, "vm").changed


@pytest.mark.parametrize(("scenario", "profile"), [("a100-40", "A100-4C"), ("t4", "T4-2Q"), ("a16", "A16-2Q")])
def test_after_a_reboot_start_makes_the_device_again_at_its_place(tmp_path, scenario, profile):
    host = open_host(tmp_path, scenario)
    create(host.world, wish(profile, name="vm"))
    before = picture(host)
    host.sim.reboot()
    host = host.again()
    assert picture(host).types == picture(host).mdevs == {}
    start(host.world, "vm")
    assert picture(host) == before


def test_after_a_reboot_a_vf_that_somebody_took_is_not_taken_back(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"))
    host.sim.reboot()
    host = host.again()
    host.world.sysfs.write("/sys/bus/pci/devices/0000:3b:00.4/nvidia/current_vgpu_type", "469\n")
    before = picture(host)
    with pytest.raises(InUse) as raised:
        start(host.world, "vm")
    assert "A100-5C, not A100-4C as vm needs" in str(raised.value)
    assert picture(host) == before


def test_delete_keeps_base_images_existing_disks_and_what_it_is_told_to_keep(tmp_path):
    host = open_host(tmp_path)
    before = picture(host)
    create(host.world, wish("A100-4C", name="one", image=IMAGE))
    made = set(picture(host).files) - set(before.files)
    done = delete(host.world, "one", keep_disks=True)
    assert {d["path"] for d in done.data["disks"]} == made
    assert set(picture(host).files) == set(before.files) | made
    create(host.world, wish("A100-4C", name="two", disks=(ExistingDisk("/srv/images/windows-11.qcow2"),)))
    delete(host.world, "two")
    assert "/srv/images/windows-11.qcow2" in picture(host).files


@pytest.mark.parametrize("act", [start, stop, delete])
def test_a_foreign_vm_is_refused_and_left_alone(tmp_path, act):
    host = open_host(tmp_path, "mixed")
    before = picture(host)
    with pytest.raises(Foreign) as raised:
        act(host.world, "old-desktop")
    assert "old-desktop" in str(raised.value)
    assert raised.value.hint
    assert picture(host) == before


@pytest.mark.parametrize("act", [start, stop, delete])
def test_a_vm_that_is_not_there_is_answered_with_near_names(tmp_path, act):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="desktop-1"))
    with pytest.raises(NotFound) as raised:
        act(host.world, "desktop-2")
    assert "desktop-1" in str(raised.value.hint)


def test_a_vm_is_found_by_its_uuid_too(tmp_path):
    host = open_host(tmp_path)
    uuid = create(host.world, wish("A100-4C")).data["uuid"]
    assert stop(host.world, uuid).data["uuid"] == uuid


def test_a_vm_that_was_given_another_profile_meanwhile_is_busy_and_not_without_room(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"), start=False)
    looks = []

    def change(number, call, args):
        if call == "claims.read":
            looks.append(number)
            if len(looks) == 1:
                reprofile(host.again(), "A100-5C")

    with pytest.raises(Busy, match="was changed just now"):
        start(Watch(before=change).watch(host.again().world), "vm")
    assert start(host.again().world, "vm").data["vgpus"][0]["profile"] == "A100-5C"


def test_a_vm_that_was_started_while_its_deletion_was_asked_about_runs_on(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"), start=False)
    with pytest.raises(InUse, match="has been started since"):
        delete(host.world, "vm", confirm=lambda *_: start(host.again().world, "vm"))
    assert picture(host).claims
    assert picture(host).running
    assert not start(host.world, "vm").changed
