# SPDX-License-Identifier: Apache-2.0
"""Pools and volumes: exclusive, read back, and never another's file removed."""

from __future__ import annotations

import pytest

from tests.worlds import open_host, picture
from vgpuctl.errors import Exists, HostCannot, LibvirtFailed, VerifyFailed
from vgpuctl.model.vm import MadeDisk
from vgpuctl.steps.storage import MakePool, MakeVolume, RemoveVolume, StartPool
from vgpuctl.value import field_names, replace

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


@pytest.mark.parametrize(
    "step", [MakePool("default", "/x"), StartPool("default"), MakeVolume(DISK), RemoveVolume(DISK)]
)
def test_what_reads_back_wrong_says_where_to_look(tmp_path, step):
    host = open_host(tmp_path)
    if not isinstance(step, StartPool):
        MakePool("default", POOL).perform(host.world)
    if isinstance(step, RemoveVolume):
        MakeVolume(DISK).perform(host.world)
    with pytest.raises(VerifyFailed) as raised:
        step.verify(host.world)
    assert raised.value.hint.startswith("virsh ")


def test_a_disk_whose_pool_is_gone_stays_and_is_named(tmp_path):
    host = open_host(tmp_path)
    MakePool("default", POOL).perform(host.world)
    MakeVolume(DISK).perform(host.world)
    host.world.storage.remove_pool("default")
    before = picture(host)
    with pytest.raises(HostCannot) as raised:
        RemoveVolume(DISK).perform(host.world)
    assert raised.value.facts == {"check": "pool", "pool": "default", "path": DISK.path}
    assert DISK.path in raised.value.message
    assert f"virsh pool-define-as default dir --target {POOL}, then virsh pool-start default" in raised.value.hint
    assert "--keep-disks" in raised.value.hint
    assert picture(host) == before


def test_a_pool_that_is_off_is_started_to_delete_a_disk_from_it(tmp_path):
    text = "version: 1\nstorage: {pools: [{name: default, active: false}]}\n"
    host = open_host(tmp_path, text=text)
    empty = picture(host)
    host.world.storage.start_pool("default")
    MakeVolume(DISK).perform(host.world)
    world = replace(host.world, storage=_Off(host.world.storage))
    RemoveVolume(DISK).perform(world)
    RemoveVolume(DISK).verify(world)
    assert picture(host) == empty


def test_a_pool_that_cannot_be_started_keeps_the_disk_and_says_why(tmp_path):
    text = "version: 1\nstorage: {pools: [{name: default, active: false}]}\nfaults: [{on: start-pool, code: 38}]\n"
    with pytest.raises(HostCannot) as raised:
        RemoveVolume(DISK).perform(open_host(tmp_path, text=text).world)
    assert raised.value.facts["check"] == "pool"
    assert DISK.path in raised.value.message
    assert isinstance(raised.value.__cause__, LibvirtFailed)


class _Off:
    """A storage whose pools are off until they are started."""

    def __init__(self, inner):
        self._inner, self._started = inner, False

    def pool(self, name):
        return replace(self._inner.pool(name), active=self._started)

    def start_pool(self, name):
        self._started = True

    def remove_volume(self, pool, name):
        assert self._started
        self._inner.remove_volume(pool, name)

    def volume(self, pool, name):
        return self._inner.volume(pool, name)


def _fields(disk):
    return {name: getattr(disk, name) for name in field_names(disk)}
