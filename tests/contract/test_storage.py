# SPDX-License-Identifier: Apache-2.0
"""The contract of listing pools and volumes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.site import Site, new_uuid
from vgpuctl.errors import Exists, LibvirtFailed

pytestmark = pytest.mark.forms("mdev-pf")


def test_pools_are_listed_sorted_and_as_they_are_alone(site: Site) -> None:
    found = site.ports.storage.pools()
    names = [pool.name for pool in found]
    assert "default" in names
    assert names == sorted(names)
    alone = site.ports.storage.pool("default")
    assert alone is not None
    (listed,) = [pool for pool in found if pool.name == "default"]
    assert (listed.path, listed.kind, listed.active) == (alone.path, alone.kind, alone.active)


def test_volumes_are_listed_with_the_path_of_what_they_are_clones_of(site: Site) -> None:
    storage, stem = site.ports.storage, f"contract-{new_uuid()[:8]}"
    base = storage.make_volume("default", f"{stem}-a.qcow2", 64 << 20)
    try:
        storage.make_volume("default", f"{stem}-b.qcow2", 64 << 20, base.path, "qcow2")
        found = [v for v in storage.volumes("default") if v.name.startswith(stem)]
        assert [v.name for v in found] == [f"{stem}-a.qcow2", f"{stem}-b.qcow2"]
        assert [v.backing_path for v in found] == [None, base.path]
        assert [v.capacity_bytes for v in found] == [64 << 20, 64 << 20]
        storage.remove_volume("default", f"{stem}-b.qcow2")
        assert [v.name for v in storage.volumes("default") if v.name.startswith(stem)] == [base.name]
    finally:
        storage.remove_volume("default", f"{stem}-b.qcow2")
        storage.remove_volume("default", base.name)


def test_an_image_and_its_backing_file_by_every_path(site: Site) -> None:
    storage, stem = site.ports.storage, f"contract-{new_uuid()[:8]}"
    base = storage.make_volume("default", f"{stem}-a.qcow2", 64 << 20)
    try:
        clone = storage.make_volume("default", f"{stem}-b.qcow2", 64 << 20, base.path, "qcow2")
        known = {v.name: v.backing_path for v in storage.volumes("default", refresh=False) if v.name.startswith(stem)}
        assert known == {base.name: None, clone.name: base.path}
        folder, _, name = base.path.rpartition("/")
        lower, upper = storage.image_file(base.path), storage.image_file(clone.path)
        again = storage.image_file(f"{folder}/../{folder.rpartition('/')[2]}/{name}")
        assert lower is not None
        assert upper is not None
        assert again is not None
        assert (lower.backing_path, upper.backing_path, again.identity) == (None, base.path, lower.identity)
        assert upper.identity != lower.identity
        image = storage.image(clone.path)
        assert image is not None
        assert (image.backing_chain, image.unsafe_reason) == ((upper, lower), None)
        assert {base.path, clone.path} <= set(storage.list_files(folder))
        pool = storage.pool("default")
        assert pool is not None
        assert storage.file_system_bytes(folder) == pool.capacity_bytes
    finally:
        storage.remove_volume("default", f"{stem}-b.qcow2")
        storage.remove_volume("default", base.name)
    assert storage.image_file(base.path) is None


def test_a_pool_that_is_not_there_is_error_49(site: Site) -> None:
    with pytest.raises(LibvirtFailed) as caught:
        site.ports.storage.volumes("nothing")
    assert caught.value.facts["libvirt_code"] == 49


def test_bytes_are_put_into_a_volume_of_their_own_that_root_alone_may_read(site: Site) -> None:
    storage, name = site.ports.storage, f"contract-{new_uuid()[:8]}.iso"
    data = bytes(range(256)) * 2048
    made = storage.create_private_volume("default", name, data)
    try:
        assert (made.path.rpartition("/")[2], made.capacity_bytes) == (name, len(data))
        assert [v.capacity_bytes for v in storage.volumes("default") if v.name == name] == [len(data)]
        with pytest.raises(Exists):
            storage.create_private_volume("default", name, b"other")
        with pytest.raises(Exists):
            storage.make_volume("default", name, 64 << 20)
        if site.real:
            assert Path(made.path).read_bytes() == data
            assert Path(made.path).stat().st_mode & 0o777 == 0o600
    finally:
        storage.remove_volume("default", name)
    assert storage.volume("default", name) is None
