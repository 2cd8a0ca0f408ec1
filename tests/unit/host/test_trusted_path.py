# SPDX-License-Identifier: Apache-2.0
"""A path is only trusted when root alone decides where it leads, at the check and ever after."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpuctl.host.trusted_path import resolve_path
from vgpuctl.model.port_values import ResolvedPath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory with /srv/images/a.qcow2 and /etc/shadow."""
    images = tmp_path / "srv" / "images"
    images.mkdir(parents=True)
    (images / "a.qcow2").write_text("x")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "shadow").write_text("secret")
    for path in (tmp_path, *tmp_path.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tmp_path


def resolve(root: Path, path: str, *, mountinfo: str = "/dev/null") -> ResolvedPath | None:
    return resolve_path(path, (), root=str(root), root_uid=os.geteuid(), mountinfo=mountinfo)


def test_a_plain_path_leads_to_itself(root: Path) -> None:
    assert resolve(root, "/srv/images/a.qcow2") == ResolvedPath("/srv/images/a.qcow2")
    assert resolve(root, "/srv//images/./../images/a.qcow2") == ResolvedPath("/srv/images/a.qcow2")
    assert resolve(root, "/srv/images") == ResolvedPath("/srv/images")


@pytest.mark.parametrize(
    "path", ["/srv/images/b.qcow2", "/srv/images/a.qcow2/x", "/nothing/a", "/srv/images/pipe", "/srv/images/pipe/.."]
)
def test_what_is_not_there_or_no_file_leads_nowhere(root: Path, path: str) -> None:
    os.mkfifo(root / "srv" / "images" / "pipe")
    assert resolve(root, path) is None


def test_a_link_leads_to_its_target_and_a_loop_nowhere(root: Path) -> None:
    images = root / "srv" / "images"
    (images / "out").symlink_to("/etc/shadow")
    (images / "relative").symlink_to("../../etc")
    (images / "loop").symlink_to("loop")
    assert resolve(root, "/srv/images/out") == ResolvedPath("/etc/shadow")
    assert resolve(root, "/srv/images/relative/shadow") == ResolvedPath("/etc/shadow")
    assert resolve(root, "/srv/images/loop") is None


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777, 0o2775])
@pytest.mark.parametrize("folder", ["", "srv", "srv/images"])
def test_a_folder_on_the_way_that_others_write_to_is_reported(root: Path, folder: str, mode: int) -> None:
    (root / folder).chmod(mode)
    resolved = resolve(root, "/srv/images/a.qcow2")
    assert resolved is not None
    assert f"users other than root can write to the folder {root / folder}".rstrip("/") in str(resolved.exposure)


def test_the_folder_of_a_link_counts_too(root: Path) -> None:
    """Somebody swaps the link after the check: so its folder must be root's alone, wherever the link leads."""
    shared = root / "srv" / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "link").symlink_to("/srv/images/a.qcow2")
    resolved = resolve(root, "/srv/shared/link")
    assert resolved is not None
    assert resolved.path == "/srv/images/a.qcow2"
    assert "can write to the folder" in str(resolved.exposure)


@pytest.mark.parametrize("mode", [0o646, 0o666])
def test_a_file_that_others_write_to_is_reported(root: Path, mode: int) -> None:
    (root / "srv/images/a.qcow2").chmod(mode)
    resolved = resolve(root, "/srv/images/a.qcow2")
    assert resolved is not None
    assert "can write to the file" in str(resolved.exposure)


def test_what_belongs_to_another_user_is_reported_except_qemus_files(root: Path) -> None:
    uid = os.geteuid()
    asked = "/srv/images/a.qcow2"
    other = resolve_path(asked, (), root=str(root), root_uid=uid + 1, mountinfo="/dev/null")
    assert other is not None
    assert f"the folder {root}/ belongs to uid {uid}" in str(other.exposure)
    as_qemu = resolve_path(asked, (uid,), root=str(root), root_uid=uid + 1, mountinfo="/dev/null")
    assert as_qemu is not None
    assert "the folder" in str(as_qemu.exposure), "QEMU's user owns files, and no folder"


def test_a_file_system_of_a_user_is_his(root: Path, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    line = "36 25 0:31 / {} rw,nosuid shared:1 - {} sshfs rw,user_id={},group_id=0,allow_other\n"
    kept = resolve(root, "/srv/images/a.qcow2")
    for where, kind, user, is_reported in (
        (root / "srv", "fuse.sshfs", 1001, True),
        (root / "srv", "fuse.glusterfs", 0, False),
        (root / "srv", "ext4", 1001, False),
        (root / "sr", "fuse", 1001, False),
    ):
        mounts.write_text("25 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + line.format(where, kind, user))
        resolved = resolve(root, "/srv/images/a.qcow2", mountinfo=str(mounts))
        assert resolved is not None
        assert (resolved.exposure == f"{where} is a file system that uid {user} mounted") is is_reported, (kind, user)
        assert is_reported or resolved == kept
