# SPDX-License-Identifier: Apache-2.0
"""A file of modprobe's as a step: whole, only over what was read, and back as it was."""

from __future__ import annotations

import pytest

from tests.worlds import open_host
from vgpuctl.errors import Busy, VerifyFailed
from vgpuctl.steps.modprobe import PutModprobeFile

PATH = "/etc/modprobe.d/x.conf"


def test_it_is_written_read_back_and_taken_back(tmp_path):
    world = open_host(tmp_path).world
    step = PutModprobeFile(PATH, "new\n", 0o644, None, what="a word")
    with pytest.raises(VerifyFailed):
        step.verify(world)
    step.perform(world)
    step.verify(world)
    assert (world.sysfs.read(PATH), step.describe()) == ("new\n", f"write a word to {PATH}")
    step.undo(world)
    assert world.sysfs.listdir("/etc/modprobe.d") == ()


def test_a_file_that_somebody_changed_meanwhile_is_left_alone(tmp_path):
    world = open_host(tmp_path).world
    world.system.put(PATH, "theirs\n", 0o644)
    for was in (None, "older\n"):
        with pytest.raises(Busy, match="changed by somebody else"):
            PutModprobeFile(PATH, "new\n", 0o644, was, what="a word").perform(world)
    assert world.sysfs.read(PATH) == "theirs\n"
