# SPDX-License-Identifier: Apache-2.0
"""Changing host.yaml: what people wrote stays as it is, and what comes out is a host.yaml."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.errors import InvalidInput
from vgpuctl.spec.edit import edit_gpu
from vgpuctl.spec.host import GpuSpec, parse_host_spec

NAME = "/etc/vgpuctl/host.yaml"
GPU, OTHER = "0000:3b:00.0", "0000:af:00.0"
WRITTEN = """# ours, ask the GPU team
version: 1   # the format
defaults:
    image: '/srv/images/base.qcow2'
gpus:
    # the old card
    '0000:af:00.0': {mode: passthrough}  # for the lab
    3B:00.0:
        mode: vgpu # day shift
        # broken fan, 2026-10
        cordoned: true
boot: {deadline_seconds: 60}
"""


def test_without_a_file_one_is_made():
    text = edit_gpu(None, GPU, {"mode": "sriov", "vfs": 7, "cordoned": None}, NAME)
    assert text == 'version: 1\ngpus:\n  "0000:3b:00.0":\n    mode: sriov\n    vfs: 7\n'


def test_comments_order_quotes_and_indentation_stay():
    text = edit_gpu(WRITTEN, GPU, {"mode": "unmanaged"}, NAME)
    assert text == WRITTEN.replace("mode: vgpu # day", "mode: unmanaged # day")
    text = edit_gpu(WRITTEN, OTHER, {"mode": "sriov", "vfs": 4}, NAME)
    assert text == WRITTEN.replace("{mode: passthrough}  #", "{mode: sriov, vfs: 4} #")


def test_a_new_gpus_address_is_quoted():
    text = edit_gpu(WRITTEN, "0000:41:00.0", {"cordoned": True}, NAME)
    assert '    "0000:41:00.0":\n        cordoned: true\n' in text


def test_a_gpu_of_which_nothing_is_said_any_more_is_taken_out():
    text = edit_gpu('version: 1\ngpus:\n  "0000:3b:00.0": {cordoned: true}\n', GPU, {"cordoned": None}, NAME)
    assert text == "version: 1\n"


@pytest.mark.parametrize("changes", [{"mode": "vgpu"}, {"cordoned": True}, {"vfs": None}])
def test_what_it_says_already_changes_no_byte(changes):
    assert edit_gpu(WRITTEN, GPU, changes, NAME) is WRITTEN


@pytest.mark.parametrize("text", ["version: 2\n", "gpus: [", "version: 1\nversion: 1\n", ""])
def test_what_is_no_host_yaml_is_refused_and_not_mended(text):
    with pytest.raises(InvalidInput, match=r"host\.yaml"):
        edit_gpu(text, GPU, {"cordoned": True}, NAME)


def test_a_value_that_host_yaml_does_not_take_is_refused():
    with pytest.raises(InvalidInput, match="vfs"):
        edit_gpu(WRITTEN, GPU, {"vfs": 4000}, NAME)


@pytest.mark.parametrize("text", [WRITTEN, "{version: 1}", "---\nversion: 1\ngpus:\n", "version: 1\ngpus: {}\n"])
@given(
    mode=st.sampled_from(["vgpu", "sriov", "passthrough", "unmanaged", None]),
    vfs=st.none() | st.integers(1, 256),
    cordoned=st.sampled_from([True, None]),
    address=st.sampled_from([GPU, OTHER, "0000:41:00.0", "0001:05:00.7"]),
)
def test_it_says_what_was_meant_and_nothing_else_changes(text, mode, vfs, cordoned, address):
    changed = edit_gpu(text, address, {"mode": mode, "vfs": vfs, "cordoned": cordoned}, NAME)
    before, after = parse_host_spec(text, NAME), parse_host_spec(changed, NAME)
    assert after.gpus.get(address, GpuSpec()) == GpuSpec(mode, vfs, bool(cordoned))
    assert {k: v for k, v in after.gpus.items() if k != address} == {
        k: v for k, v in before.gpus.items() if k != address
    }
    assert (after.defaults, after.boot) == (before.defaults, before.boot)
    assert edit_gpu(changed, address, {"mode": mode, "vfs": vfs, "cordoned": cordoned}, NAME) == changed
