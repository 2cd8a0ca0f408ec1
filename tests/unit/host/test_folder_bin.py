# SPDX-License-Identifier: Apache-2.0
"""The bin of a directory pool, on a real file system: whatever is put into it, nothing outside of it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpuctl.errors import Exists, FileFailed, NotFound, Refused
from vgpuctl.host.folder_bin import FolderBin
from vgpuctl.model.deleted_disk import BIN_FOLDER, BinEntry

DISK = "vm-00000000.qcow2"
ENTRY = BinEntry(0, 1, "ada", "00000000-0000-0000-0000-000000000000", "vm", DISK, 1)


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """A pool with one disk."""
    directory = tmp_path / "pool"
    directory.mkdir()
    (directory / DISK).write_text("data")
    return directory


def bin_of(pool: Path) -> FolderBin:
    return FolderBin("default", str(pool))


def test_a_disk_moves_in_and_out_with_its_content(pool: Path) -> None:
    one = bin_of(pool)
    assert one.volumes() == ()
    one.prepare()
    one.prepare()
    assert (pool / BIN_FOLDER).stat().st_mode & 0o777 == 0o700
    one.move_in(DISK, ENTRY.name)
    one.move_in(DISK, ENTRY.name)
    assert os.listdir(pool) == [BIN_FOLDER]
    (binned,) = one.volumes()
    assert (binned.entry, binned.path, binned.problem) == (ENTRY, f"{pool}/{BIN_FOLDER}/{ENTRY.name}", None)
    (pool / DISK).write_text("another")
    with pytest.raises(Exists):
        one.move_out(ENTRY.name, DISK)
    with pytest.raises(Refused, match="exists already"):
        one.move_in(DISK, ENTRY.name)
    assert one.move_out(ENTRY.name, "free.qcow2") == f"{pool}/free.qcow2"
    assert (pool / "free.qcow2").read_text() == "data"
    assert (pool / DISK).read_text() == "another"
    with pytest.raises(NotFound):
        one.move_out(ENTRY.name, "x")


def test_one_that_was_killed_while_it_moved_a_disk_out_loses_nothing(pool: Path) -> None:
    one = bin_of(pool)
    one.prepare()
    one.move_in(DISK, ENTRY.name)
    os.link(pool / BIN_FOLDER / ENTRY.name, pool / DISK)
    one.delete(ENTRY.name)
    one.delete(ENTRY.name)
    assert (pool / DISK).read_text() == "data"
    assert one.volumes() == ()


def test_links_and_other_files_in_the_bin_are_told_and_left_alone(pool: Path, tmp_path: Path) -> None:
    one, folder, outside = bin_of(pool), pool / BIN_FOLDER, tmp_path / "outside"
    one.prepare()
    outside.write_text("precious")
    names = [ENTRY.name, "notes", "{bad json", "fifo", "folder"]
    (folder / ENTRY.name).symlink_to(outside)
    (folder / "notes").write_text("x")
    (folder / "{bad json").write_text("{")
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    volumes = one.volumes()
    assert [volume.entry for volume in volumes] == [None] * 5
    assert [os.path.basename(volume.path) for volume in volumes] == sorted(names)
    assert all(volume.problem for volume in volumes)
    for name in names:
        one.delete(name)
        with pytest.raises(NotFound):
            one.move_out(name, "stolen")
    assert sorted(os.listdir(folder)) == sorted(names)
    assert outside.read_text() == "precious"


def test_a_link_in_place_of_the_disk_is_not_moved(pool: Path, tmp_path: Path) -> None:
    one, outside = bin_of(pool), tmp_path / "outside"
    one.prepare()
    outside.write_text("precious")
    (pool / DISK).unlink()
    (pool / DISK).symlink_to(outside)
    with pytest.raises(Refused, match="is not a file"):
        one.move_in(DISK, ENTRY.name)
    assert (pool / DISK).is_symlink()


@pytest.mark.parametrize("what", ["link", "file", "mode"])
def test_a_bin_that_is_not_roots_alone_is_not_used(pool: Path, tmp_path: Path, what: str) -> None:
    one, folder = bin_of(pool), pool / BIN_FOLDER
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ENTRY.name).write_text("precious")
    if what == "link":
        folder.symlink_to(tmp_path / "elsewhere")
    elif what == "file":
        folder.write_text("x")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(Refused, match="it cannot be made"):
        one.prepare()
    for act in (
        lambda: one.move_in(DISK, ENTRY.name),
        one.volumes,
        lambda: one.delete(ENTRY.name),
        lambda: one.move_out(ENTRY.name, "x"),
    ):
        with pytest.raises(FileFailed):
            act()
    assert (pool / DISK).read_text() == "data"
    assert (tmp_path / "elsewhere" / ENTRY.name).read_text() == "precious"


def test_a_pool_whose_folder_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="No such file or directory"):
        bin_of(tmp_path / "gone").prepare()
