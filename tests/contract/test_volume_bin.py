# SPDX-License-Identifier: Apache-2.0
"""The contract of the bins of storage pools: a disk that was deleted waits there, can come back, and can be purged."""

from __future__ import annotations

import pytest

from tests.contract.site import Site, new_uuid
from vgpuctl.errors import Exists, NotFound
from vgpuctl.model.deleted_disk import BinEntry, BinnedVolume
from vgpuctl.ports.libvirt import VolumeBin

pytestmark = pytest.mark.forms("mdev-pf")
POOLS = ["default", "vg0"]
SIZE = 8 << 20


def bin_of(site: Site) -> VolumeBin:
    volume_bin = site.ports.volume_bin
    assert volume_bin is not None
    return volume_bin


def new_entry(name: str) -> BinEntry:
    return BinEntry(1_790_000_000, 14, "EXAMPLE\\ada@x", new_uuid(), "vdi 001", name, SIZE)


def listed(site: Site, pool: str, entry: BinEntry) -> list[BinnedVolume]:
    return [one for one in bin_of(site).volumes(pool) if one.entry == entry]


@pytest.mark.parametrize("pool", POOLS)
def test_a_volume_moves_into_the_bin_and_out_again(site: Site, pool: str) -> None:
    storage, volume_bin, name = site.ports.storage, bin_of(site), f"contract-{new_uuid()[:8]}"
    entry = new_entry(name)
    path = storage.create_volume(pool, name, SIZE).path
    try:
        volume_bin.prepare(pool)
        volume_bin.move_in(pool, name, entry.name)
        volume_bin.move_in(pool, name, entry.name)
        assert storage.volume(pool, name) is None
        (binned,) = listed(site, pool, entry)
        assert binned.problem is None
        assert binned.allocated_bytes
        assert [v.name for v in storage.volumes(pool) if "vgpuctl-deleted" in v.name] == []
        assert storage.create_volume(pool, name, SIZE).path == path, "the name is free"
        with pytest.raises(Exists):
            volume_bin.move_out(pool, entry.name, name)
        storage.remove_volume(pool, name)
        assert volume_bin.move_out(pool, entry.name, name) == path
        assert storage.volume(pool, name) is not None
        assert listed(site, pool, entry) == []
        with pytest.raises(NotFound):
            volume_bin.move_out(pool, entry.name, f"{name}-2")
    finally:
        storage.remove_volume(pool, name)
        volume_bin.delete(pool, entry.name)


@pytest.mark.parametrize("pool", POOLS)
def test_an_entry_is_deleted_for_good(site: Site, pool: str) -> None:
    storage, volume_bin, name = site.ports.storage, bin_of(site), f"contract-{new_uuid()[:8]}"
    entry = new_entry(name)
    storage.create_volume(pool, name, SIZE)
    volume_bin.prepare(pool)
    volume_bin.move_in(pool, name, entry.name)
    volume_bin.delete(pool, entry.name)
    volume_bin.delete(pool, entry.name)
    assert listed(site, pool, entry) == []
    assert storage.volume(pool, name) is None
