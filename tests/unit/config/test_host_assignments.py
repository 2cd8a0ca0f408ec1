# SPDX-License-Identifier: Apache-2.0
"""--set follows the rules of the file, and an error names the text from the command line."""

from __future__ import annotations

import pytest

from vgpuctl.config.host_assignments import apply_changes, parse_assignment, resolve_assignments
from vgpuctl.config.host_editor import render_host_file
from vgpuctl.config.host_spec import GpuSpec, parse_host_spec
from vgpuctl.errors import InvalidInput

_SCHEDULER = "{policy: equal_share, time_slice_ms: 2}"
HOST = parse_host_spec(f'version: 1\ngpus:\n  "0000:3b:00.0": {{mode: vgpu, scheduler: {_SCHEDULER}}}\n', "host.yaml")
GPU = "0000:3b:00.0"


def changed(*texts):
    return resolve_assignments(HOST, [parse_assignment(text) for text in texts])


def test_a_key_within_a_mapping_leaves_the_others():
    (one,) = changed(f"gpus[{GPU}].scheduler.policy=fixed_share")
    assert one.changes == {"scheduler": {"policy": "fixed_share", "time_slice_ms": 2}}
    assert one.before == {"scheduler": {"policy": "equal_share", "time_slice_ms": 2}}


def test_values_are_typed_as_in_the_file():
    first, second = changed("gpus[3B:00.0].vfs=4", 'gpus["A16"].reserved_for=[vdi-*, lab-?]', "gpus[A16].cordoned=true")
    assert (first.gpu, first.changes) == (GPU, {"vfs": 4})
    assert second.changes == {"reserved_for": ["vdi-*", "lab-?"], "cordoned": True}
    assert second.entry == GpuSpec(cordoned=True, reserved_for=("vdi-*", "lab-?"))


def test_null_removes_a_key_and_the_last_one_counts():
    assert changed(f"gpus[{GPU}].mode=sriov", f"gpus[{GPU}].mode=null")[0].changes == {"mode": None}
    gone = changed(f"gpus[{GPU}].mode=", f"gpus[{GPU}].scheduler=null")
    assert apply_changes(HOST, gone).gpus == {}


def test_an_equal_assignment_changes_nothing():
    assert changed(f"gpus[{GPU}].mode=vgpu") == ()


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("gpus[A16].mode=vgpux", "mode: 'vgpux' is not"),
        ("gpus[A16].vfs=many", "vfs: "),
        ("gpus[A16].vfs='4'", "write the number without quotes"),
        ("gpus[A16].scheduler.time_slice_ms=2", "policy: missing"),
        ("gpus[A16].profiles=[]", "the list is empty"),
        ("gpus[A16].profiles=A16-2Q:2", "has a count"),
        ("gpus[A16].reserved_for=a b", "is not a pattern"),
        ("gpus[A16].reserved_for=vdi-[10:12]", "write 'vdi-{10..12}'"),
        ("gpus[A16].reserved_for=vdi-[10-12]", "write 'vdi-{10..12}'"),
        ("gpus[A16].moed=vgpu", "did you mean 'mode'"),
        ("gpus[3b:00].mode=vgpu", "3b:00"),
        ("gpus[A16].mode=[", "not YAML"),
        ("defaults.memory=4G", "does not name a key of a GPU"),
        ("gpus[].mode=vgpu", "does not name a key of a GPU"),
    ],
)
def test_an_error_names_the_text(text, reported):
    with pytest.raises(InvalidInput) as raised:
        changed(f"gpus[{GPU}].cordoned=true", text)
    assert f"--set {text}" in raised.value.message
    assert reported in raised.value.message


def test_each_problem_is_shown():
    with pytest.raises(InvalidInput) as raised:
        changed("gpus[A16].mode=x", "gpus[T4].vfs=-1", "gpus[T4].cordoned=1")
    assert raised.value.message.count("--set gpus[") == 3


def test_a_written_file_reads_back_as_the_same():
    spec = apply_changes(HOST, changed("gpus[A16].profiles=[A16-2Q, A16-4Q]", "gpus[all].cordoned=false"))
    text = render_host_file(spec, {GPU: "a card\n# not one"}, ("first", "second"))
    assert parse_host_spec(text, "x") == spec
    assert text.startswith("# first\n# second\nversion: 1\n")
    assert f'  # a card # not one\n  "{GPU}":\n' in text
