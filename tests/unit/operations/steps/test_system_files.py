# SPDX-License-Identifier: Apache-2.0
"""Files, links and directories: written, verified, and undone only while unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import open_sim_host
from vgpuctl.errors import Failed, VerifyFailed
from vgpuctl.operations.steps.system_files import (
    CreateDirectory,
    CreateLink,
    RemoveDirectory,
    RemoveFile,
    RemoveLink,
    WriteFile,
)


@pytest.fixture
def ports(tmp_path: Path):
    return open_sim_host(tmp_path).ports


@pytest.mark.parametrize(
    "step", [WriteFile("/etc/a/b", "text", 0o644), CreateLink("/etc/a/c", "/etc/a/b"), CreateDirectory("/etc/a/d")]
)
def test_put_then_undone_is_as_before(ports, tmp_path, step):
    assert step.path in step.describe()
    with pytest.raises(VerifyFailed):
        step.verify(ports)
    step.perform(ports)
    step.verify(ports)
    step.undo(ports)
    step.undo(ports)
    assert not (tmp_path / "state" / step.path[1:]).exists()


def test_another_programs_later_write_is_kept(ports, tmp_path):
    step = WriteFile("/etc/a", "text", 0o644)
    step.perform(ports)
    (tmp_path / "state/etc/a").write_text("his")
    step.undo(ports)
    assert (tmp_path / "state/etc/a").read_text() == "his"


def test_a_replaced_file_comes_back(ports, tmp_path):
    WriteFile("/etc/a", "one", 0o644).perform(ports)
    step = WriteFile("/etc/a", "two", 0o644, "one")
    step.perform(ports)
    step.undo(ports)
    assert (tmp_path / "state/etc/a").read_text() == "one"


def test_removed_and_put_back(ports, tmp_path):
    WriteFile("/etc/a/b", "text", 0o644).perform(ports)
    CreateLink("/etc/a/c", "b").perform(ports)
    CreateDirectory("/etc/d").perform(ports)
    for step in (RemoveFile("/etc/a/b", "text", 0o644), RemoveLink("/etc/a/c", "b"), RemoveDirectory("/etc/d")):
        path = tmp_path / "state" / step.path[1:]
        step.perform(ports)
        step.verify(ports)
        assert not path.exists()
        step.undo(ports)
        assert path.exists()


def test_an_equal_link_made_meanwhile_is_ok_and_another_is_not(ports, tmp_path):
    step = CreateLink("/etc/a/c", "/etc/a/b")
    CreateLink("/etc/a/c", "/etc/a/b").perform(ports)
    step.perform(ports)
    step.verify(ports)
    with pytest.raises(Failed, match="File exists") as raised:
        CreateLink("/etc/a/c", "/elsewhere").perform(ports)
    assert raised.value.hint == "ls -ld /etc/a /etc/a/c"


def test_a_refused_write_names_the_path(ports, tmp_path):
    (tmp_path / "state/etc/a").write_text("a file")
    with pytest.raises(Failed, match="/etc/a/b cannot be written"):
        WriteFile("/etc/a/b", "text", 0o644).perform(ports)
