# SPDX-License-Identifier: Apache-2.0
"""The scratch directory: only for root, read only if nobody else can write to it, and never a cause of errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vgpuctl.host.system_files import HostScratch


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
