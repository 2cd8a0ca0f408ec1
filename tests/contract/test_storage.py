# SPDX-License-Identifier: Apache-2.0
"""The contract of the storage port: pools, volumes and image files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.contract.site import Site, libvirt_refuses, new_uuid
from vgpuctl.errors import Exists, Failed, LibvirtFailed, NoSpace
from vgpuctl.model.port_values import ResolvedPath

EXTENT = 4 << 20
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
        other_path = f"{folder}/../{folder.rpartition('/')[2]}/{name}"
        missing = f"{folder}/{stem}-missing"
        files = storage.image_files((base.path, clone.path, other_path, missing))
        assert set(files) == {base.path, clone.path, other_path}
        lower, upper, by_other_path = files[base.path], files[clone.path], files[other_path]
        assert (lower.backing_path, upper.backing_path, by_other_path.identity) == (None, base.path, lower.identity)
        assert upper.identity != lower.identity
        assert storage.resolve(other_path) == storage.resolve(base.path) == ResolvedPath(base.path)
        assert (storage.resolve(folder), storage.resolve(missing)) == (ResolvedPath(folder), None)
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
    assert storage.image_files((base.path,)) == {}


def test_a_missing_pool_is_error_49(site: Site) -> None:
    with libvirt_refuses(49):
        site.ports.storage.volumes("nothing")


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
        assert storage.read_private_volume("default", name) == data
        other = data[::-1]
        storage.rewrite_private_volume("default", name, other)
        assert storage.read_private_volume("default", name) == other
        if site.real:
            assert Path(volume.path).read_bytes() == other
            assert Path(volume.path).stat().st_mode & 0o777 == 0o600
    finally:
        storage.remove_volume("default", name)
    assert storage.volume("default", name) is None


def ignore(percent: float) -> None:
    """Progress that nobody reads."""


def test_a_volume_of_a_logical_pool_is_raw_and_takes_whole_extents(site: Site) -> None:
    storage, name = site.ports.storage, f"contract-{new_uuid()[:8]}"
    before = storage.pool("vg0")
    assert before is not None
    assert before.available_bytes is not None
    assert (before.kind, before.active, before.path) == ("logical", True, "/dev/vg0")
    volume = storage.create_volume("vg0", name, 10 << 20)
    try:
        assert (volume.path, volume.format, volume.capacity_bytes) == (f"/dev/vg0/{name}", "raw", 3 * EXTENT)
        assert volume.backing_path is None
        assert storage.volume("vg0", name) == volume
        assert volume in storage.volumes("vg0")
        after = storage.pool("vg0")
        assert after is not None
        assert after.available_bytes == before.available_bytes - 3 * EXTENT
        image = storage.image(volume.path)
        assert image is not None
        assert (image.format, image.virtual_size_bytes) == ("raw", 3 * EXTENT)
        with pytest.raises(Exists):
            storage.create_volume("vg0", name, 10 << 20)
        with pytest.raises(NoSpace):
            storage.create_volume("vg0", f"{name}-2", 2 << 30)
        with pytest.raises(LibvirtFailed):
            storage.create_volume("vg0", f"{name}-3", 10 << 20, "/var/lib/libvirt/images/none.qcow2", "qcow2")
        assert [v.name for v in storage.volumes("vg0") if v.name.startswith(name)] == [name]
    finally:
        storage.remove_volume("vg0", name)
    assert storage.volume("vg0", name) is None
    assert storage.pool("vg0") == before


def test_a_logical_volume_grows_and_never_shrinks(site: Site) -> None:
    storage, name = site.ports.storage, f"contract-{new_uuid()[:8]}"
    storage.create_volume("vg0", name, 2 * EXTENT)
    try:
        assert storage.resize_volume("vg0", name, 17 << 20).capacity_bytes == 5 * EXTENT
        assert storage.resize_volume("vg0", name, 17 << 20).capacity_bytes == 5 * EXTENT
        assert storage.resize_volume("vg0", name, EXTENT).capacity_bytes == 5 * EXTENT
        with pytest.raises(NoSpace):
            storage.resize_volume("vg0", name, 2 << 30)
        result = storage.volume("vg0", name)
        assert result is not None
        assert result.capacity_bytes == 5 * EXTENT
    finally:
        storage.remove_volume("vg0", name)
    with libvirt_refuses(50):
        storage.resize_volume("vg0", name, 17 << 20)


def test_a_qcow2_volume_grows_and_never_shrinks(site: Site) -> None:
    storage, name = site.ports.storage, f"contract-{new_uuid()[:8]}.qcow2"
    base = storage.create_volume("default", f"base-{name}", 64 << 20)
    try:
        storage.create_volume("default", name, 64 << 20, base.path, "qcow2")
        grown = storage.resize_volume("default", name, 96 << 20)
        assert (grown.capacity_bytes, grown.backing_path) == (96 << 20, base.path)
        with pytest.raises(LibvirtFailed):
            storage.resize_volume("default", name, 64 << 20)
        assert storage.volume("default", name) == grown
    finally:
        storage.remove_volume("default", name)
        storage.remove_volume("default", base.name)


@pytest.mark.parametrize("pool", ["default", "vg0"])
def test_a_copy_holds_what_the_image_and_its_backing_file_show(site: Site, pool: str) -> None:
    storage, stem = site.ports.storage, f"contract-{new_uuid()[:8]}"
    kind = "qcow2" if pool == "default" else "raw"
    base = storage.create_volume("default", f"{stem}-a.qcow2", 64 << 20)
    try:
        clone = storage.create_volume("default", f"{stem}-b.qcow2", 64 << 20, base.path, "qcow2")
        if site.real:
            write_pattern(base.path)
        target = storage.create_volume(pool, f"{stem}-c", 64 << 20)
        reported: list[float] = []
        storage.copy_image(clone.path, "qcow2", target, kind, reported.append)
        assert reported == sorted(reported)
        assert reported[-1] == 100.0
        copied = storage.volume(pool, target.name)
        assert copied == target
        if site.real:
            shown = subprocess.run(
                ["qemu-img", "compare", "-f", "qcow2", "-F", kind, clone.path, target.path],
                capture_output=True,
                text=True,
                check=False,
            )
            assert shown.returncode == 0, shown.stdout + shown.stderr
            read = subprocess.run(
                ["qemu-io", "-f", kind, "-r", "-c", "read -P 0x5a 1M 64k", target.path],
                capture_output=True,
                text=True,
                check=True,
            )
            assert "Pattern verification failed" not in read.stdout
    finally:
        storage.remove_volume(pool, f"{stem}-c")
        storage.remove_volume("default", f"{stem}-b.qcow2")
        storage.remove_volume("default", base.name)


def test_a_copy_stops_when_its_progress_is_refused(site: Site) -> None:
    class Refusal(Exception):
        pass

    def refuse(percent: float) -> None:
        raise Refusal

    storage, stem = site.ports.storage, f"contract-{new_uuid()[:8]}"
    image = storage.create_volume("default", f"{stem}.qcow2", 64 << 20)
    try:
        target = storage.create_volume("vg0", stem, 64 << 20)
        with pytest.raises(Refusal):
            storage.copy_image(image.path, "qcow2", target, "raw", refuse)
        storage.remove_volume("vg0", stem)  # nobody has it open any more
        assert storage.volume("vg0", stem) is None
    finally:
        storage.remove_volume("vg0", stem)
        storage.remove_volume("default", image.name)


def test_a_copy_of_a_missing_image_fails(site: Site) -> None:
    storage, name = site.ports.storage, f"contract-{new_uuid()[:8]}"
    target = storage.create_volume("vg0", name, EXTENT)
    try:
        with pytest.raises(Failed):
            storage.copy_image("/var/lib/libvirt/images/none.qcow2", "qcow2", target, "raw", ignore)
    finally:
        storage.remove_volume("vg0", name)


def test_a_private_volume_of_a_logical_pool(site: Site) -> None:
    storage, name = site.ports.storage, f"contract-{new_uuid()[:8]}-seed"
    data = bytes(range(256)) * 2048
    volume = storage.create_private_volume("vg0", name, data)
    try:
        assert (volume.path, volume.capacity_bytes) == (f"/dev/vg0/{name}", EXTENT)
        if site.real:
            with Path(volume.path).open("rb") as device:
                assert device.read(len(data)) == data
    finally:
        storage.remove_volume("vg0", name)
    storage.create_volume("vg0", name, EXTENT)
    try:
        if site.real:  # the same extent
            assert not any(Path(volume.path).read_bytes())
    finally:
        storage.remove_volume("vg0", name)


def write_pattern(path: str) -> None:
    """Write something into a qcow2 image, as a guest does."""
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", "write -P 0x5a 1M 64k", path], check=True, capture_output=True)
