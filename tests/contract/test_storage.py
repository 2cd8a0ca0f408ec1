# SPDX-License-Identifier: Apache-2.0
"""The contract of the storage port: pools, volumes and image files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.site import Site, new_uuid
from vgpuctl.errors import Exists, LibvirtFailed

pytestmark = pytest.mark.forms("mdev-pf")


def test_pools_are_listed_by_name_and_equal_a_single_lookup(site: Site) -> None:
    result = site.ports.storage.pools()
    names = [pool.name for pool in result]
    assert "default" in names
    assert names == sorted(names)
    single = site.ports.storage.pool("default")
    assert single is not None
    (listed,) = [pool for pool in result if pool.name == "default"]
    assert (listed.path, listed.kind, listed.active) == (single.path, single.kind, single.active)


def test_volumes_are_listed_with_the_path_of_their_backing_file(site: Site) -> None:
    storage, stem = site.ports.storage, f"contract-{new_uuid()[:8]}"
    base = storage.create_volume("default", f"{stem}-a.qcow2", 64 << 20)
    try:
        storage.create_volume("default", f"{stem}-b.qcow2", 64 << 20, base.path, "qcow2")
        result = [v for v in storage.volumes("default") if v.name.startswith(stem)]
        assert [v.name for v in result] == [f"{stem}-a.qcow2", f"{stem}-b.qcow2"]
        assert [v.backing_path for v in result] == [None, base.path]
        assert [v.capacity_bytes for v in result] == [64 << 20, 64 << 20]
        storage.remove_volume("default", f"{stem}-b.qcow2")
        assert [v.name for v in storage.volumes("default") if v.name.startswith(stem)] == [base.name]
    finally:
        storage.remove_volume("default", f"{stem}-b.qcow2")
        storage.remove_volume("default", base.name)


def test_an_image_and_its_backing_file_are_identified_by_every_path(site: Site) -> None:
    storage, stem = site.ports.storage, f"contract-{new_uuid()[:8]}"
    base = storage.create_volume("default", f"{stem}-a.qcow2", 64 << 20)
    try:
        clone = storage.create_volume("default", f"{stem}-b.qcow2", 64 << 20, base.path, "qcow2")
        known = {v.name: v.backing_path for v in storage.volumes("default", refresh=False) if v.name.startswith(stem)}
        assert known == {base.name: None, clone.name: base.path}
        folder, _, name = base.path.rpartition("/")
        lower, upper = storage.image_file(base.path), storage.image_file(clone.path)
        by_other_path = storage.image_file(f"{folder}/../{folder.rpartition('/')[2]}/{name}")
        assert lower is not None
        assert upper is not None
        assert by_other_path is not None
        assert (lower.backing_path, upper.backing_path, by_other_path.identity) == (None, base.path, lower.identity)
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


def test_a_missing_pool_is_error_49(site: Site) -> None:
    with pytest.raises(LibvirtFailed) as caught:
        site.ports.storage.volumes("nothing")
    assert caught.value.facts["libvirt_code"] == 49


def test_a_private_volume_holds_the_bytes_and_only_root_can_read_it(site: Site) -> None:
    storage, name = site.ports.storage, f"contract-{new_uuid()[:8]}.iso"
    data = bytes(range(256)) * 2048
    volume = storage.create_private_volume("default", name, data)
    try:
        assert (volume.path.rpartition("/")[2], volume.capacity_bytes) == (name, len(data))
        assert [v.capacity_bytes for v in storage.volumes("default") if v.name == name] == [len(data)]
        with pytest.raises(Exists):
            storage.create_private_volume("default", name, b"other")
        with pytest.raises(Exists):
            storage.create_volume("default", name, 64 << 20)
        if site.real:
            assert Path(volume.path).read_bytes() == data
            assert Path(volume.path).stat().st_mode & 0o777 == 0o600
    finally:
        storage.remove_volume("default", name)
    assert storage.volume("default", name) is None
