# SPDX-License-Identifier: Apache-2.0
"""host.yaml on a disk: replaced atomically, with its owner and mode, and never over a concurrent change."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpuctl.errors import Busy
from vgpuctl.host.host_file import HostFileOnDisk
from vgpuctl.host.processes import HostProcesses


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
def test_a_concurrent_change_is_kept(tmp_path: Path, was: str | None) -> None:
    path = tmp_path / "host.yaml"
    path.write_text("theirs")
    with pytest.raises(Busy, match="changed by another program"):
        file_at(path).replace("new", was)
    assert path.read_text() == "theirs"


def test_nothing_is_written_under_the_host_lock(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        file_at(tmp_path / "host.yaml", held=True).replace("new", None)
    assert not (tmp_path / "host.yaml").exists()


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text("old")
    me = HostProcesses().current_process()
    (tmp_path / f".host.yaml.vgpuctl-{me.pid}-{me.start_ticks}").symlink_to("/nowhere/else")
    with pytest.raises(OSError):  # noqa: PT011 - a link where the new file is written is not followed
        file_at(path).replace("new", "old")
    assert path.read_text() == "old"


def versions(path: Path) -> dict[int, str]:
    """Return the existing old versions by number."""
    return {int(p.suffix[1:]): p.read_text() for p in path.parent.glob(f"{path.name}.[0-9]*")}


def test_ten_old_versions_keep_their_mode_and_owner(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text("0")
    os.chmod(path, 0o640)
    os.chown(path, 1234, 4321)
    for number in range(13):
        file_at(path).replace(str(number + 1), str(number))
        file_at(path).replace(str(number + 1), str(number + 1))
    assert versions(path) == {number: str(13 - number) for number in range(1, 11)}
    known = {(s.st_mode & 0o7777, s.st_uid, s.st_gid) for s in (os.stat(p) for p in tmp_path.iterdir())}
    assert known == {(0o640, 1234, 4321)}
    assert (
        file_at(path).previous_version(1),
        file_at(path).previous_version(10),
        file_at(path).previous_version(11),
    ) == ("12", "3", None)


def test_what_is_taken_back_leaves_no_version(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    file_at(path).replace("a", None)
    file_at(path).replace("b", "a")
    before = versions(path)
    file_at(path).replace("c", "b")
    file_at(path).replace("b", "c", is_undo=True)
    assert (path.read_text(), versions(path)) == ("b", before)
    file_at(path).replace("another", "b", is_undo=True)
    assert versions(path) == before


def test_versions_stay_where_the_link_is(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "h.yaml").write_text("old")
    path = tmp_path / "host.yaml"
    path.symlink_to("real/h.yaml")
    file_at(path).replace("new", "old")
    assert versions(path) == {1: "old"}
    assert [p.name for p in (tmp_path / "real").iterdir()] == ["h.yaml"]


def test_a_power_cut_between_two_renames_loses_no_version(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text("now")
    for number in (1, 3, 4):  # 2 became 3, and 1 would have become 2 next
        path.with_name(f"host.yaml.{number}").write_text(f"old {number}")
    file_at(path).replace("new", "now")
    assert versions(path) == {1: "now", 2: "old 1", 3: "old 3", 4: "old 4"}
    path.with_name("host.yaml.1").write_text("new")  # the old version was saved, and the file not replaced yet
    file_at(path).replace("newer", "new")
    assert versions(path) == {1: "new", 2: "old 1", 3: "old 3", 4: "old 4"}


def test_a_version_that_cannot_be_saved_is_fatal(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text("old")
    me = HostProcesses().current_process()
    (tmp_path / f".host.yaml.1.vgpuctl-{me.pid}-{me.start_ticks}").symlink_to("/nowhere/else")
    with pytest.raises(OSError):  # noqa: PT011
        file_at(path).replace("new", "old")
    assert (path.read_text(), versions(path)) == ("old", {})


@pytest.mark.parametrize("kind", ["pipe", "endless", "directory", "large"])
def test_only_a_regular_file_of_a_bounded_size_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "host.yaml"
    {
        "pipe": lambda: os.mkfifo(path),
        "endless": lambda: path.symlink_to("/dev/zero"),
        "directory": path.mkdir,
        "large": lambda: (path.touch(), os.truncate(path, 3 << 30)),
    }[kind]()
    for act in (file_at(path).read, lambda: file_at(path).replace("new", "old")):
        with pytest.raises(OSError, match="it is"):
            act()


def test_a_version_keeps_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_bytes(b"version: 1\r\n# caf\xe9\r\n")
    file_at(path).replace("new", file_at(path).read())
    assert path.with_name("host.yaml.1").read_bytes() == b"version: 1\r\n# caf\xe9\r\n"


def test_the_first_file_has_a_version_to_go_back_to(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    file_at(path).replace("version: 1\ngpus: {}\n", None)
    assert versions(path) == {1: "version: 1\n"}
    file_at(path).replace("version: 1\n", "version: 1\ngpus: {}\n", is_undo=True)
    assert versions(path) == {}
