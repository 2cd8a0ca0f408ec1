# SPDX-License-Identifier: Apache-2.0
"""What is asked for is the file with its changes, and the steps say how host.yaml comes to say it."""

from __future__ import annotations

import pytest

from tests.worlds import open_host
from vgpuctl.engine.host_wish import File, ask
from vgpuctl.errors import InvalidInput
from vgpuctl.steps.host_file import PutHostFile, SetGpuKeys

GPU = "0000:3b:00.0"
TEXT = f'version: 1\ngpus: {{"{GPU}": {{mode: vgpu}}}}\n'


def test_the_hosts_own_file_needs_no_step(tmp_path):
    host = open_host(tmp_path)
    assert ask(host.world, None, ()).record == ()
    host.sim.host_file.write_text(TEXT)
    asked = ask(host.world, None, ())
    assert (asked.record, asked.spec) == ((), asked.now)
    assert ask(host.world, File(TEXT, "same"), ()).record == ()


def test_another_file_is_put_in_its_place_and_changes_edit_it(tmp_path):
    host = open_host(tmp_path)
    (step,) = ask(host.world, File(TEXT, "FILE"), (f"gpus[{GPU}].mode=passthrough",)).record
    assert step == PutHostFile(TEXT.replace("vgpu", "passthrough"), None, "FILE")
    (step,) = ask(host.world, None, ("gpus[all].cordoned=true",)).record
    assert step == SetGpuKeys("all", {"cordoned": True}, {"cordoned": None})


def test_problems_name_the_file_that_has_them(tmp_path):
    host = open_host(tmp_path)
    with pytest.raises(InvalidInput, match=r"FILE:1:1"):
        ask(host.world, File("versoin: 1\n", "FILE"), ())
    host.sim.host_file.write_text("version: 2\n")
    with pytest.raises(InvalidInput, match=r"host\.yaml:1"):
        ask(host.world, None, ())
