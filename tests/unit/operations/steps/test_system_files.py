# SPDX-License-Identifier: Apache-2.0
"""Writing a modprobe file as a step: atomic, only over the text that was read, and undone."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.errors import Busy, VerifyFailed
from vgpuctl.operations.steps.system_files import WriteModprobeFile

PATH = "/etc/modprobe.d/x.conf"


def test_a_file_is_written_verified_undone(tmp_path):
    ports = open_sim_host(tmp_path).ports
    step = WriteModprobeFile(PATH, "new\n", None, "a word")
    with pytest.raises(VerifyFailed):
        step.verify(ports)
    step.perform(ports)
    step.verify(ports)
    assert (ports.sysfs.read(PATH), step.describe()) == ("new\n", f"write a word to {PATH}")
    step.undo(ports)
    assert ports.sysfs.listdir("/etc/modprobe.d") == ()


def test_a_file_that_somebody_changed_meanwhile_is_left_alone(tmp_path):
    ports = open_sim_host(tmp_path).ports
    ports.system.put(PATH, "theirs\n", 0o644)
    for was in (None, "older\n"):
        with pytest.raises(Busy, match="changed by another program"):
            WriteModprobeFile(PATH, "new\n", was, "a word").perform(ports)
    assert ports.sysfs.read(PATH) == "theirs\n"
