# SPDX-License-Identifier: Apache-2.0
"""The desired state is the file with its changes, and the steps show how host.yaml changes."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.errors import InvalidInput
from vgpuctl.operations.desired_state import HostFileText, read_desired_state
from vgpuctl.operations.steps.host_file import ReplaceHostFile, SetGpuKeys

GPU = "0000:3b:00.0"
TEXT = f'version: 1\ngpus: {{"{GPU}": {{mode: vgpu}}}}\n'


def test_the_hosts_own_file_needs_no_step(tmp_path):
    host = open_sim_host(tmp_path)
    assert read_desired_state(host.ports, None, ()).file_steps == ()
    host.sim.host_file.write_text(TEXT)
    asked = read_desired_state(host.ports, None, ())
    assert (asked.file_steps, asked.spec) == ((), asked.current)
    assert read_desired_state(host.ports, HostFileText(TEXT, "same"), ()).file_steps == ()


def test_another_file_is_put_in_its_place_and_changes_edit_it(tmp_path):
    host = open_sim_host(tmp_path)
    (step,) = read_desired_state(host.ports, HostFileText(TEXT, "FILE"), (f"gpus[{GPU}].mode=passthrough",)).file_steps
    assert step == ReplaceHostFile(TEXT.replace("vgpu", "passthrough"), None, "FILE")
    (step,) = read_desired_state(host.ports, None, ("gpus[all].cordoned=true",)).file_steps
    assert step == SetGpuKeys("all", {"cordoned": True}, {"cordoned": None})


def test_problems_name_the_file_that_has_them(tmp_path):
    host = open_sim_host(tmp_path)
    with pytest.raises(InvalidInput, match=r"FILE:1:1"):
        read_desired_state(host.ports, HostFileText("versoin: 1\n", "FILE"), ())
    host.sim.host_file.write_text("version: 2\n")
    with pytest.raises(InvalidInput, match=r"host\.yaml:1"):
        read_desired_state(host.ports, None, ())
