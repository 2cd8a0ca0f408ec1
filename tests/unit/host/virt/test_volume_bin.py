# SPDX-License-Identifier: Apache-2.0
"""The bins of libvirt's pools, with libvirt's test driver; tests/contract has real pools and volume groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpuctl.errors import Refused
from vgpuctl.host.virt.storage import LibvirtStorage
from vgpuctl.host.virt.volume_bin import LibvirtVolumeBin, read_logical_volumes
from vgpuctl.model.deleted_disk import BinEntry

ENTRY = BinEntry(0, 1, "ada", "00000000-0000-0000-0000-000000000000", "vm", "vm-00000000.qcow2", 1)


def test_the_disks_of_a_directory_pool_are_files_in_its_directory(storage: LibvirtStorage, tmp_path: Path) -> None:
    storage.create_pool("here", str(tmp_path))
    (tmp_path / ENTRY.volume).write_text("data")
    volume_bin = LibvirtVolumeBin(storage)
    volume_bin.prepare("here")
    volume_bin.move_in("here", ENTRY.volume, ENTRY.name)
    assert [one.entry for one in volume_bin.volumes("here")] == [ENTRY]
    assert volume_bin.move_out("here", ENTRY.name, "b") == f"{tmp_path}/b"
    assert (tmp_path / "b").read_text() == "data"
    volume_bin.delete("here", ENTRY.name)


def test_a_pool_that_is_missing_has_no_bin(storage: LibvirtStorage) -> None:
    volume_bin = LibvirtVolumeBin(storage)
    assert volume_bin.volumes("none") == ()
    with pytest.raises(Refused, match="is missing: it has no bin"):
        volume_bin.prepare("none")


def test_what_lvs_prints_is_read() -> None:
    text = "  root 8388608 \n  vgpuctl-deleted-0123456789ab 4194304 backup,vgpuctl-deleted=x+y\n\n"
    assert read_logical_volumes(text) == {
        "root": (8388608, [""]),
        "vgpuctl-deleted-0123456789ab": (4194304, ["backup", "vgpuctl-deleted=x+y"]),
    }
