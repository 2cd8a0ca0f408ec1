# SPDX-License-Identifier: Apache-2.0
"""Pools and volumes: exclusive, verified, and files of other programs never removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, open_sim_host, picture
from vgpuctl.errors import Exists, HostCannot, LibvirtFailed, VerifyFailed
from vgpuctl.model.request import CloudInit, CloudInitFile
from vgpuctl.model.vm import DiskRole, ManagedDisk
from vgpuctl.operations.steps.seed import CreateSeed
from vgpuctl.operations.steps.storage import CreatePool, CreateVolume, DeleteVolume, StartPool
from vgpuctl.value import field_names, replace

POOL = "/var/lib/libvirt/images"
DISK = ManagedDisk("default", "vm.qcow2", f"{POOL}/vm.qcow2", 1 << 30)
BASE = "/srv/images/ubuntu-24.04.qcow2"


def with_pool(tmp_path: Path) -> SimulatedHost:
    host = open_sim_host(tmp_path)
    CreatePool("default", POOL).perform(host.ports)
    return host


def test_a_pool_is_made_once_however_many_ask(tmp_path):
    ports = open_sim_host(tmp_path).ports
    step = CreatePool("default", POOL)
    step.perform(ports)
    step.perform(ports)
    step.verify(ports)
    with pytest.raises(VerifyFailed):
        CreatePool("default", "/elsewhere").verify(ports)


def test_an_inactive_pool_is_started_and_seen_active(tmp_path):
    text = "version: 1\nstorage: {pools: [{name: default, active: false}]}\n"
    ports = open_sim_host(tmp_path, text=text).ports
    step = StartPool("default")
    step.perform(ports)
    step.perform(ports)
    step.verify(ports)


def test_an_existing_volume_of_that_name_stays(tmp_path):
    host = with_pool(tmp_path)
    CreateVolume(DISK).perform(host.ports)
    before = picture(host)
    with pytest.raises(Exists):
        CreateVolume(DISK).perform(host.ports)
    assert picture(host) == before


def test_a_volume_of_another_size_or_base_is_noticed(tmp_path):
    host = with_pool(tmp_path)
    CreateVolume(DISK).perform(host.ports)
    for change in ({"capacity_bytes": 1}, {"base": BASE}, {"path": "/x"}):
        with pytest.raises(VerifyFailed):
            CreateVolume(ManagedDisk(**{**_fields(DISK), **change})).verify(host.ports)


def test_removing_is_read_back_and_twice_is_once(tmp_path):
    host = open_sim_host(tmp_path)
    DeleteVolume(DISK).perform(host.ports)
    DeleteVolume(DISK).verify(host.ports)
    CreatePool("default", POOL).perform(host.ports)
    CreateVolume(DISK).perform(host.ports)
    DeleteVolume(DISK).perform(host.ports)
    DeleteVolume(DISK).perform(host.ports)
    DeleteVolume(DISK).verify(host.ports)


@pytest.mark.parametrize(
    "step", [CreatePool("default", "/x"), StartPool("default"), CreateVolume(DISK), DeleteVolume(DISK)]
)
def test_a_wrong_read_back_has_a_hint(tmp_path, step):
    host = open_sim_host(tmp_path)
    if not isinstance(step, StartPool):
        CreatePool("default", POOL).perform(host.ports)
    if isinstance(step, DeleteVolume):
        CreateVolume(DISK).perform(host.ports)
    with pytest.raises(VerifyFailed) as raised:
        step.verify(host.ports)
    assert raised.value.hint.startswith("virsh ")


def test_a_disk_whose_pool_is_gone_stays_and_is_named(tmp_path):
    host = with_pool(tmp_path)
    CreateVolume(DISK).perform(host.ports)
    host.ports.storage.remove_pool("default")
    before = picture(host)
    with pytest.raises(HostCannot) as raised:
        DeleteVolume(DISK).perform(host.ports)
    assert raised.value.facts == {"check": "pool", "pool": "default", "path": DISK.path}
    assert DISK.path in raised.value.message
    assert f"virsh pool-define-as default dir --target {POOL}, then virsh pool-start default" in raised.value.hint
    assert "--keep-disks" in raised.value.hint
    assert picture(host) == before


def test_a_pool_that_is_off_is_started_to_delete_a_disk_from_it(tmp_path):
    text = "version: 1\nstorage: {pools: [{name: default, active: false}]}\n"
    host = open_sim_host(tmp_path, text=text)
    empty = picture(host)
    host.ports.storage.start_pool("default")
    CreateVolume(DISK).perform(host.ports)
    ports = replace(host.ports, storage=_Off(host.ports.storage))
    DeleteVolume(DISK).perform(ports)
    DeleteVolume(DISK).verify(ports)
    assert picture(host) == empty


def test_a_pool_that_cannot_be_started_keeps_the_disk_and_says_why(tmp_path):
    text = "version: 1\nstorage: {pools: [{name: default, active: false}]}\nfaults: [{on: start-pool, code: 38}]\n"
    with pytest.raises(HostCannot) as raised:
        DeleteVolume(DISK).perform(open_sim_host(tmp_path, text=text).ports)
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


SEED_PATH = "/var/lib/libvirt/images/vm-seed.iso"
SEED_DISK = ManagedDisk("default", "vm-seed.iso", SEED_PATH, 0, role=DiskRole.SEED)
STEP = CreateSeed(SEED_DISK, CloudInit(CloudInitFile("/root/ud", "#cloud-config\npassword: hunter2\n")), "id", "vm")


@pytest.fixture
def host(tmp_path):
    return open_sim_host(tmp_path, "t4")


def test_an_existing_seed_is_kept(host):
    host.ports.storage.create_private_volume("default", SEED_DISK.volume, b"somebody's")
    before = picture(host)
    with pytest.raises(Exists):
        STEP.perform(host.ports)
    assert picture(host) == before


def test_only_its_paths_are_shown():
    assert STEP.describe() == f"create cloud-init seed {SEED_PATH} from /root/ud"
    assert DeleteVolume(SEED_DISK).describe() == f"delete cloud-init seed {SEED_PATH}"
    assert "hunter2" not in repr(STEP)
