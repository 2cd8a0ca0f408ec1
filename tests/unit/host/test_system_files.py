# SPDX-License-Identifier: Apache-2.0
"""Configuration files below a root, replaced atomically; the scratch directory, which is only for root."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from vgpuctl.host.system_files import HostScratch, HostSystem


def test_a_file_is_replaced_atomically_without_leftovers(tmp_path: Path) -> None:
    system = HostSystem(tmp_path, allow_systemctl=False)
    assert system.read("/a/b") is None
    system.put("/a/b", "one", 0o644)
    system.put("/a/b", "two", 0o755)
    assert system.read("/a/b") == "two"
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o755
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]
    assert not system.is_empty("/a")
    assert not system.remove_directory("/a")
    system.remove("/a/b")
    system.remove("/a/b")
    assert system.remove_directory("/a")


def test_a_link_is_created_once_and_replaced_on_request(tmp_path: Path) -> None:
    system = HostSystem(tmp_path, allow_systemctl=False)
    system.link("/a/b", "one")
    with pytest.raises(FileExistsError):
        system.link("/a/b", "two")
    (tmp_path / "a/.b.vgpuctl-link").symlink_to("of a run that was killed")
    system.link("/a/b", "two", replace=True)
    assert system.readlink("/a/b") == "two"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


def test_services_are_not_touched_where_they_are_not_to_be(tmp_path: Path) -> None:
    system = HostSystem(tmp_path, allow_systemctl=False)
    assert not system.has_systemd
    assert not system.is_active("libvirtd.service")


def test_systemd_is_notified_only_where_it_has_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not HostSystem(tmp_path).notify_ready("done")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    assert not HostSystem(tmp_path).notify_ready("done")
    for name in (str(tmp_path / "notify"), f"@vgpuctl-{os.getpid()}"):
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(name.replace("@", "\0"))
            assert HostSystem(tmp_path).notify_ready("the vGPUs are ready")
            assert systemd.recv(100) == b"READY=1\nSTATUS=the vGPUs are ready\n"
            assert not HostSystem(tmp_path, allow_systemctl=False).notify_ready("a simulated host")


def test_files_are_read_and_private(tmp_path: Path) -> None:
    scratch = HostScratch(tmp_path / "run/vgpuctl/scratch")
    assert scratch.read("a") is None
    scratch.write("a", b"1")
    scratch.write("a", b"2")
    assert scratch.read("a") == b"2"
    directory = tmp_path / "run/vgpuctl/scratch"
    assert [path.name for path in directory.iterdir()] == ["a"]
    assert [os.stat(p).st_mode & 0o777 for p in (directory.parent, directory, directory / "a")] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o755])
def test_a_directory_that_others_can_reach_is_not_used(tmp_path: Path, mode: int) -> None:
    scratch = HostScratch(tmp_path / "scratch")
    scratch.write("a", b"1")
    os.chmod(tmp_path / "scratch", mode)
    assert scratch.read("a") is None
    scratch.write("b", b"1")
    assert not (tmp_path / "scratch/b").exists()


def test_a_link_in_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    HostScratch(tmp_path / "there").write("a", b"1")
    os.symlink(tmp_path / "there", tmp_path / "scratch")
    assert HostScratch(tmp_path / "scratch").read("a") is None


def test_a_failed_write_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "scratch").write_text("a file")
    scratch = HostScratch(tmp_path / "scratch")
    scratch.write("a", b"1")
    assert scratch.read("a") is None
