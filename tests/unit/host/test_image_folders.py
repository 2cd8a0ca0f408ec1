# SPDX-License-Identifier: Apache-2.0
"""The files of images on a real host: one name, all or nothing, readable by QEMU's group."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from vgpuctl.host.image_folders import HostImageFolders
from vgpuctl.host.qemu_access import QemuUser


def folders(*groups: int) -> HostImageFolders:
    return HostImageFolders(lambda: QemuUser("qemu", 64055, frozenset(groups), True))


def test_an_image_gets_its_name_once(tmp_path: Path) -> None:
    part, image = tmp_path / ".a.part", tmp_path / "a.img"
    part.write_bytes(b"x" * 512)
    part.chmod(0o600)
    own = folders(os.getegid() or 7)
    assert own.file_bytes(str(image)) is None
    own.publish(str(part), str(image), "raw", 512)
    assert own.file_bytes(str(image)) == 512
    assert stat.S_IMODE(image.stat().st_mode) == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["a.img"]
    part.write_bytes(b"y")
    with pytest.raises(FileExistsError):
        own.publish(str(part), str(image), "raw", 1)
    assert image.read_bytes() == b"x" * 512
    own.remove(str(image))
    own.remove(str(image))
    assert own.file_bytes(str(image)) is None
    assert own.free_bytes(str(tmp_path)) > 0


def test_without_a_group_of_qemu_everybody_reads_it(tmp_path: Path) -> None:
    part, image = tmp_path / ".a.part", tmp_path / "a.img"
    part.write_bytes(b"x")
    folders().publish(str(part), str(image), "raw", 512)
    assert stat.S_IMODE(image.stat().st_mode) == 0o644


def test_a_link_in_the_place_of_a_part_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / ".a.part").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        folders().publish(str(tmp_path / ".a.part"), str(tmp_path / "a.img"), "raw", 512)
