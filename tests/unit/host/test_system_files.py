# SPDX-License-Identifier: Apache-2.0
"""Configuration files below a root, replaced atomically."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from vgpuctl.host.system_files import HostSystem


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
