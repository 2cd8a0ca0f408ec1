# SPDX-License-Identifier: Apache-2.0
"""Files of other VMs are read only on this host's own disks and known servers. /sys plays a server here."""

from __future__ import annotations

from pathlib import Path

import pytest

from vgpuctl.host.backing_chain import read_image_file

FAR = "/sys/kernel/uevent_seqnum"


def seen(path: Path | str, *near: str) -> bool:
    return read_image_file(str(path), reachable=near) is not None


def test_a_file_of_this_host_is_looked_at_by_whatever_path(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(b"data")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("../disk")
    (tmp_path / "short").symlink_to(tmp_path / "folder")
    assert read_image_file(str(tmp_path / "short" / "link"), reachable=()) == read_image_file(
        str(tmp_path / "short" / "link")
    )
    assert seen(f"{tmp_path}/folder/.././/disk")
    assert not seen(tmp_path / "missing")


@pytest.mark.parametrize("target", [FAR, "../" * 30 + FAR[1:], "other"])
def test_another_file_system_is_not_touched_through_links_either(tmp_path: Path, target: str) -> None:
    assert read_image_file(FAR) is not None
    (tmp_path / "other").symlink_to("/sys/../sys/kernel/uevent_seqnum")
    (tmp_path / "link").symlink_to(target)
    assert not seen(FAR)
    assert not seen(tmp_path / "link")


def test_what_is_opened_anyway_opens_its_file_system_alone(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/sys/kernel/notes")
    (tmp_path / "other").symlink_to("/proc/self/environ")
    assert seen(FAR, str(tmp_path / "link"))
    assert not seen(FAR, str(tmp_path / "other"), str(tmp_path))


def test_links_that_lead_back_end(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    assert not seen(tmp_path / "link")
