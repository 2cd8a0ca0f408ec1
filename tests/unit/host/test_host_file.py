# SPDX-License-Identifier: Apache-2.0
"""host.yaml on a disk: whole or not at all, with its owner and mode, and never over somebody else's change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpuctl.errors import Busy
from vgpuctl.host.host_file import HostFileOnDisk


def file_at(path: Path, *, held: bool = False) -> HostFileOnDisk:
    return HostFileOnDisk(path, lock_held=lambda: held)


def test_a_new_file_can_be_read_by_all_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "vgpuctl" / "host.yaml"
    file = file_at(path)
    assert file.read() is None
    file.replace("version: 1\n", None)
    assert file.read() == "version: 1\n"
    assert os.stat(path).st_mode & 0o7777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_mode_and_owner_stay(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text("old")
    os.chmod(path, 0o640)
    os.chown(path, 1234, 4321)
    file_at(path).replace("new", "old")
    known = os.stat(path)
    assert (path.read_text(), known.st_mode & 0o7777, known.st_uid, known.st_gid) == ("new", 0o640, 1234, 4321)


def test_a_link_stays_and_the_file_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "h.yaml").write_text("old")
    (tmp_path / "host.yaml").symlink_to("real/h.yaml")
    file_at(tmp_path / "host.yaml").replace("new", "old")
    assert (tmp_path / "host.yaml").is_symlink()
    assert (tmp_path / "real" / "h.yaml").read_text() == "new"


@pytest.mark.parametrize("was", [None, "older"])
def test_a_change_by_somebody_else_is_kept(tmp_path: Path, was: str | None) -> None:
    path = tmp_path / "host.yaml"
    path.write_text("theirs")
    with pytest.raises(Busy, match="changed by somebody else"):
        file_at(path).replace("new", was)
    assert path.read_text() == "theirs"


def test_nothing_is_written_under_the_host_lock(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        file_at(tmp_path / "host.yaml", held=True).replace("new", None)
    assert not (tmp_path / "host.yaml").exists()


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text("old")
    (tmp_path / f".host.yaml.{os.getpid()}").symlink_to("/nowhere/else")
    with pytest.raises(OSError):  # noqa: PT011 - a link where the new file is written is not followed
        file_at(path).replace("new", "old")
    assert path.read_text() == "old"
