# SPDX-License-Identifier: Apache-2.0
"""Files, links and directories: put, read back, and taken back only when they still are ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds import open_host
from vgpuctl.errors import Failed, VerifyFailed
from vgpuctl.steps.system import DropDirectory, DropFile, DropLink, PutDirectory, PutFile, PutLink


@pytest.fixture
def world(tmp_path: Path):
    return open_host(tmp_path).world


@pytest.mark.parametrize(
    "step", [PutFile("/etc/a/b", "text", 0o644), PutLink("/etc/a/c", "/etc/a/b"), PutDirectory("/etc/a/d")]
)
def test_put_then_undone_is_as_before(world, tmp_path, step):
    assert step.path in step.describe()
    with pytest.raises(VerifyFailed):
        step.verify(world)
    step.perform(world)
    step.verify(world)
    step.undo(world)
    step.undo(world)
    assert not (tmp_path / "state" / step.path[1:]).exists()


def test_what_somebody_else_wrote_since_is_not_taken_back(world, tmp_path):
    step = PutFile("/etc/a", "text", 0o644)
    step.perform(world)
    (tmp_path / "state/etc/a").write_text("his")
    step.undo(world)
    assert (tmp_path / "state/etc/a").read_text() == "his"


def test_a_replaced_file_comes_back(world, tmp_path):
    PutFile("/etc/a", "one", 0o644).perform(world)
    step = PutFile("/etc/a", "two", 0o644, "one")
    step.perform(world)
    step.undo(world)
    assert (tmp_path / "state/etc/a").read_text() == "one"


def test_removed_and_put_back(world, tmp_path):
    PutFile("/etc/a/b", "text", 0o644).perform(world)
    PutLink("/etc/a/c", "b").perform(world)
    PutDirectory("/etc/d").perform(world)
    for step in (DropFile("/etc/a/b", "text", 0o644), DropLink("/etc/a/c", "b"), DropDirectory("/etc/d")):
        path = tmp_path / "state" / step.path[1:]
        step.perform(world)
        step.verify(world)
        assert not path.exists()
        step.undo(world)
        assert path.exists()


def test_a_link_that_another_made_meanwhile_is_as_good_and_another_one_is_not(world, tmp_path):
    step = PutLink("/etc/a/c", "/etc/a/b")
    PutLink("/etc/a/c", "/etc/a/b").perform(world)
    step.perform(world)
    step.verify(world)
    with pytest.raises(Failed, match="File exists") as raised:
        PutLink("/etc/a/c", "/elsewhere").perform(world)
    assert raised.value.hint == "ls -ld /etc/a /etc/a/c"


def test_a_refused_write_names_the_path(world, tmp_path):
    (tmp_path / "state/etc/a").write_text("a file")
    with pytest.raises(Failed, match="/etc/a/b cannot be written"):
        PutFile("/etc/a/b", "text", 0o644).perform(world)
