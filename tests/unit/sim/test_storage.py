# SPDX-License-Identifier: Apache-2.0
"""Pools, thin volumes, linked clones, images, and a disk that is full."""

from __future__ import annotations

import pytest

from tests.unit.sim.hosts import MakeHost, libvirt_refused
from vgpuctl.errors import Exists, NoSpace
from vgpuctl.model.port_values import PoolInfo, VolumeInfo
from vgpuctl.sim.storage import EMPTY_QCOW2_BYTES

GIB = 1 << 30


def test_a_fresh_host_has_no_pool(make: MakeHost) -> None:
    host = make("a100-40")
    assert host.storage.pool("default") is None
    libvirt_refused(49, lambda: host.storage.volume("default", "a"))
    libvirt_refused(49, lambda: host.storage.create_volume("default", "a", GIB))
    libvirt_refused(49, lambda: host.storage.start_pool("default"))
    host.storage.create_pool("default", "/var/lib/libvirt/images")
    assert host.storage.pool("default") == PoolInfo(
        "default", "dir", active=True, path="/var/lib/libvirt/images", capacity_bytes=1000 * GIB,
        available_bytes=900 * GIB,
    )  # fmt: skip


def test_pools_have_their_own_name_and_directory(make: MakeHost) -> None:
    host = make("empty")
    host.storage.create_pool("a", "/pool")
    with pytest.raises(Exists):
        host.storage.create_pool("a", "/other")
    libvirt_refused(9, lambda: host.storage.create_pool("b", "/pool"))


def test_a_pools_files_stay_when_it_goes(make: MakeHost) -> None:
    host = make("empty")
    host.storage.create_pool("a", "/pool")
    made = host.storage.create_volume("a", "v", GIB)
    host.storage.remove_pool("a")
    host.storage.remove_pool("a")
    assert host.storage.image("/pool/v") is not None
    host.storage.create_pool("again", "/pool")
    assert host.storage.volume("again", "v") == VolumeInfo("again", "v", made.path, GIB, "qcow2")
    host.storage.remove_volume("a", "v")


def test_an_inactive_pool_must_be_started(make: MakeHost) -> None:
    host = make("storage: {pools: [{name: default, active: false}]}\n")
    pool = host.storage.pool("default")
    assert pool is not None
    assert (pool.active, pool.capacity_bytes) == (False, None)
    libvirt_refused(55, lambda: host.storage.create_volume("default", "a", GIB))
    host.storage.start_pool("default")
    host.storage.start_pool("default")
    host.storage.create_volume("default", "a", GIB)


def test_a_linked_clone(make: MakeHost) -> None:
    host = make("images: [{path: /srv/base.qcow2, size_gib: 20, firmware: uefi}]\nstorage: {pools: [{name: p}]}\n")
    made = host.storage.create_volume("p", "v", 30 * GIB, "/srv/base.qcow2", "qcow2")
    assert made.backing_path == "/srv/base.qcow2"
    result = host.storage.image(made.path)
    assert result is not None
    assert (result.format, result.virtual_size_bytes, result.firmware) == ("qcow2", 30 * GIB, "uefi")
    assert [one.path for one in result.backing_chain] == [made.path, "/srv/base.qcow2"]
    libvirt_refused(38, lambda: host.storage.create_volume("p", "w", GIB, "/srv/none.qcow2", "qcow2"))


def test_images_are_the_scenarios_never_this_machines(make: MakeHost, tmp_path) -> None:
    real = tmp_path / "real.qcow2"
    real.write_bytes(b"QFI\xfb")
    host = make(
        "images:\n"
        "  - {path: /srv/a.iso, size_gib: 1}\n"
        "  - {path: /srv/b.qcow2, firmware: bios, problem: /srv is closed to libvirt-qemu}\n"
    )
    assert host.storage.image(str(real)) is None
    iso = host.storage.image("/srv/a.iso")
    assert iso is not None
    assert (iso.format, iso.virtual_size_bytes, iso.firmware, iso.access_problem) == ("raw", GIB, "both", None)
    result = host.storage.image("/srv/./b.qcow2")
    assert result is not None
    assert (result.firmware, result.access_problem) == ("bios", "/srv is closed to libvirt-qemu")


def test_a_full_file_system(make: MakeHost) -> None:
    host = make("storage: {filesystem_gib: 10, used_gib: 10, pools: [{name: p}, {name: q, capacity_gib: 1}]}\n")
    with pytest.raises(NoSpace):
        host.storage.create_volume("p", "v", GIB)
    host.storage.create_volume("q", "v", 100 * GIB)
    own, shared = host.storage.pool("q"), host.storage.pool("p")
    assert own is not None
    assert shared is not None
    assert own.available_bytes == GIB - EMPTY_QCOW2_BYTES, "thin: only what is written counts"
    assert shared.available_bytes == 0


def test_bytes_that_do_not_fit_are_refused(make: MakeHost) -> None:
    full = "{name: full, path: /full, capacity_gib: 1, used_gib: 1}"
    host = make(f"storage: {{pools: [{{name: default}}, {full}]}}\n")
    with pytest.raises(NoSpace):
        host.storage.create_private_volume("full", "a.iso", b"x")
    assert host.storage.create_private_volume("default", "a.iso", b"x").capacity_bytes == 1
