# SPDX-License-Identifier: Apache-2.0
"""Pools and volumes: exclusive, read back, and never another's file removed."""

from __future__ import annotations

import pytest

from tests.worlds import open_host, picture
from vgpuctl.errors import Exists, LibvirtFailed, VerifyFailed
from vgpuctl.model.vm import MadeDisk
from vgpuctl.steps.storage import MakePool, MakeVolume, RemoveVolume, StartPool

POOL = "/var/lib/libvirt/images"
DISK = MadeDisk("default", "vm.qcow2", f"{POOL}/vm.qcow2", 1 << 30)
BASE = "/srv/images/ubuntu-24.04.qcow2"


def test_a_pool_is_made_once_however_many_ask(tmp_path):
    world = open_host(tmp_path).world
    step = MakePool("default", POOL)
    with pytest.raises(VerifyFailed):
        step.verify(world)
    step.perform(world)
    step.perform(world)
    step.verify(world)
    with pytest.raises(VerifyFailed):
        MakePool("default", "/elsewhere").verify(world)


def test_an_inactive_pool_is_started_and_seen_active(tmp_path):
    text = "version: 1\nstorage: {pools: [{name: default, active: false}]}\n"
    world = open_host(tmp_path, text=text).world
    step = StartPool("default")
    with pytest.raises(VerifyFailed):
        step.verify(world)
    step.perform(world)
    step.perform(world)
    step.verify(world)


def test_a_pool_that_cannot_be_started_keeps_libvirts_reason(tmp_path):
    text = "version: 1\nstorage: {pools: [{name: default, active: false}]}\nfaults: [{on: start-pool, code: 38}]\n"
    with pytest.raises(LibvirtFailed):
        StartPool("default").perform(open_host(tmp_path, text=text).world)


@pytest.mark.parametrize("base", [None, BASE])
def test_a_volume_is_made_read_back_and_taken_back(tmp_path, base):
    host = open_host(tmp_path)
    MakePool("default", POOL).perform(host.world)
    before = picture(host)
    step = MakeVolume(MadeDisk(**{**_fields(DISK), "base": base, "base_format": "qcow2" if base else None}))
    step.perform(host.world)
    step.verify(host.world)
    step.undo(host.world)
    assert picture(host) == before
    step.undo(host.world)


def test_a_volume_of_that_name_is_somebody_elses_and_stays(tmp_path):
    host = open_host(tmp_path)
    MakePool("default", POOL).perform(host.world)
    MakeVolume(DISK).perform(host.world)
    before = picture(host)
    with pytest.raises(Exists):
        MakeVolume(DISK).perform(host.world)
    assert picture(host) == before


def test_a_volume_of_another_size_or_base_is_noticed(tmp_path):
    host = open_host(tmp_path)
    MakePool("default", POOL).perform(host.world)
    MakeVolume(DISK).perform(host.world)
    for change in ({"capacity_bytes": 1}, {"base": BASE}, {"path": "/x"}):
        with pytest.raises(VerifyFailed):
            MakeVolume(MadeDisk(**{**_fields(DISK), **change})).verify(host.world)


def test_removing_is_read_back_and_twice_is_once(tmp_path):
    host = open_host(tmp_path)
    RemoveVolume(DISK).perform(host.world)
    RemoveVolume(DISK).verify(host.world)
    MakePool("default", POOL).perform(host.world)
    MakeVolume(DISK).perform(host.world)
    with pytest.raises(VerifyFailed):
        RemoveVolume(DISK).verify(host.world)
    RemoveVolume(DISK).perform(host.world)
    RemoveVolume(DISK).perform(host.world)
    RemoveVolume(DISK).verify(host.world)


def _fields(disk):
    return {name: getattr(disk, name) for name in disk.__slots__}
