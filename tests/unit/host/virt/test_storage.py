# SPDX-License-Identifier: Apache-2.0
"""Pools and volumes of libvirt's test driver."""

import os

import pytest

from vgpuctl.errors import Exists, LibvirtFailed
from vgpuctl.host.virt import constants
from vgpuctl.host.virt.storage import LibvirtStorage

GIB = 1 << 30


def test_a_pool_whose_directory_is_here_has_the_file_systems_sizes(storage, tmp_path):
    storage.create_pool("mine", str(tmp_path))
    result = storage.pool("mine")
    here = os.statvfs(tmp_path)
    assert (result.name, result.kind, result.active, result.path) == ("mine", "dir", True, str(tmp_path))
    assert result.capacity_bytes == here.f_frsize * here.f_blocks
    assert 0 < result.available_bytes <= result.capacity_bytes


def test_a_pool_that_is_elsewhere_has_the_sizes_that_libvirt_tells(storage):
    assert storage.pool("default").available_bytes == 100 * GIB


def test_a_pool_that_is_not_there(storage):
    assert storage.pool("none") is None
    storage.remove_pool("none")
    storage.remove_volume("none", "a")


def test_the_file_system_of_a_directory_that_is_yet_to_be_made(storage, tmp_path):
    here = os.statvfs(tmp_path)
    size = here.f_frsize * here.f_blocks
    assert storage.file_system_bytes(str(tmp_path)) == storage.file_system_bytes(str(tmp_path / "a" / "b")) == size


def test_the_files_of_a_directory(storage, tmp_path):
    images = tmp_path / "images"
    (images / "folder").mkdir(parents=True)
    for name in ("b", "a"):
        (images / name).write_text("")
    assert storage.list_files(str(images)) == (str(images / "a"), str(images / "b"))
    assert storage.list_files(str(tmp_path / "none")) == ()


def test_an_image_is_looked_at_with_the_directories_of_the_pools(connection, clock):
    seen = []
    LibvirtStorage(connection, clock, lambda path, pools: seen.append((path, tuple(pools())))).image("/a")
    assert seen == [("/a", ("/no/such/place",))]


def test_a_pools_life(storage, connection, tmp_path):
    storage.create_pool("mine", str(tmp_path))
    with connection.call("x", "cannot") as connect:
        pool = connect.storagePoolLookupByName("mine")
        assert pool.autostart() == 1
        pool.destroy()
    stopped = storage.pool("mine")
    assert (stopped.active, stopped.capacity_bytes, stopped.available_bytes) == (False, None, None)
    storage.start_pool("mine")
    storage.start_pool("mine")
    assert storage.pool("mine").active
    storage.remove_pool("mine")
    assert storage.pool("mine") is None
    assert tmp_path.is_dir()


def test_a_pool_name_that_is_taken(storage, tmp_path):
    with pytest.raises(Exists, match="default"):
        storage.create_pool("default", str(tmp_path))
    assert storage.pool("default").path == "/no/such/place"


def test_a_pool_that_cannot_be_made_is_not_left_half_made(storage):
    with pytest.raises(LibvirtFailed, match="cannot create storage pool"):
        storage.create_pool("a/b", "/x")  # libvirt allows no slash in a name
    assert storage.pool("a/b") is None


def test_a_volumes_life(storage):
    assert storage.volume("default", "a.qcow2") is None
    made = storage.create_volume("default", "a.qcow2", 5 * GIB)
    assert (made.path, made.capacity_bytes, made.backing_path) == ("/no/such/place/a.qcow2", 5 * GIB, None)
    assert storage.volume("default", "a.qcow2") == made
    storage.remove_volume("default", "a.qcow2")
    storage.remove_volume("default", "a.qcow2")
    assert storage.volume("default", "a.qcow2") is None


def test_a_linked_clone(storage):
    made = storage.create_volume("default", "b.qcow2", 5 * GIB, base="/images/base.qcow2", base_format="qcow2")
    assert made.backing_path == "/images/base.qcow2"


def test_a_volume_that_cannot_be_filled_is_not_left(storage):
    with pytest.raises(LibvirtFailed, match=r"cannot create volume seed\.iso in pool default") as caught:
        storage.create_private_volume("default", "seed.iso", b"x")  # the test driver accepts no upload
    assert caught.value.facts["libvirt_code"] == constants.VIR_ERR_NO_SUPPORT
    assert storage.volume("default", "seed.iso") is None


def test_a_name_that_is_taken_is_not_written_over(storage):
    made = storage.create_volume("default", "a.iso", GIB)
    with pytest.raises(Exists, match=r"a\.iso already exists"):
        storage.create_private_volume("default", "a.iso", b"x")
    assert storage.volume("default", "a.iso") == made


def test_a_volume_name_that_is_taken(storage):
    made = storage.create_volume("default", "a.qcow2", 5 * GIB)
    with pytest.raises(Exists, match=r"a\.qcow2 already exists in pool default"):
        storage.create_volume("default", "a.qcow2", GIB)
    assert storage.volume("default", "a.qcow2") == made


def test_a_volume_in_a_pool_that_is_not_there(storage):
    for call in (storage.volume, lambda pool, name: storage.create_volume(pool, name, GIB)):
        with pytest.raises(LibvirtFailed, match=r"volume a .*pool none") as caught:
            call("none", "a")
        assert caught.value.facts["libvirt_code"] == constants.VIR_ERR_NO_STORAGE_POOL


def test_no_storage_call_under_host_lock(storage, lock):
    lock.on = True
    calls = (
        lambda: storage.pool("default"),
        lambda: storage.create_pool("a", "/x"),
        lambda: storage.start_pool("default"),
        lambda: storage.remove_pool("default"),
        lambda: storage.volume("default", "a"),
        lambda: storage.create_volume("default", "a", GIB),
        lambda: storage.create_private_volume("default", "a", b"x"),
        lambda: storage.send_volume("default", "a", "test:///default", print),
        lambda: storage.remove_volume("default", "a"),
    )
    for call in calls:
        with pytest.raises(AssertionError):
            call()


def test_pools_and_their_volumes_are_listed_sorted(storage, tmp_path):
    storage.create_pool("a", str(tmp_path))
    assert [pool.name for pool in storage.pools()] == ["a", "default"]
    assert storage.volumes("default") == ()
    made = [storage.create_volume("default", name, GIB) for name in ("b.qcow2", "a.qcow2")]
    assert storage.volumes("default") == (made[1], made[0])
    with pytest.raises(LibvirtFailed, match="cannot list the volumes of storage pool none"):
        storage.volumes("none")
