# SPDX-License-Identifier: Apache-2.0
"""How VMs differ from a request, and the command for each field, as texts."""

from __future__ import annotations

import pytest

from vgpuctl.operations.plans import vm_diff as texts


@pytest.mark.parametrize(
    ("field", "before", "after", "text"),
    [
        ("profile", {"A16-2Q": 1}, {"A16-4Q": 1}, "profile: A16-2Q -> A16-4Q"),
        ("profile", {}, {"A16-4Q": 2, "A16-2Q": 1}, "profile: none -> A16-4Q:2 A16-2Q"),
        ("image", None, "/srv/a.qcow2", "image: none -> /srv/a.qcow2"),
        ("memory", 4096, 8192, "memory: 4 GiB -> 8 GiB"),
        ("display", False, True, "display: false -> true"),
        ("disk", [], ["1 GiB", "/srv/b"], "disk: none -> 1 GiB /srv/b"),
        ("vgpu_params", {}, {"frame_rate_limiter": "0"}, "vgpu_params: none -> frame_rate_limiter=0"),
    ],
)
def test_values_are_as_in_a_spec(field, before, after, text):
    assert texts.describe_differences({field: before}, {field: after}) == text


@pytest.mark.parametrize(
    ("field", "before", "after", "hint"),
    [
        ("image", "/a", "/b c", "vgpuctl refresh-vm vm --image '/b c' gives it a new disk; the current disk is lost"),
        ("image", None, "/b", "image cannot be changed in place"),
        ("disk", ["1 GiB"], ["2 GiB"], "vgpuctl resize-disk vm SIZE grows a disk"),
        ("scheduler", None, "equal_share", "only a new VM is placed by scheduler: omit that for one that exists"),
        ("os", "linux", "windows11", "os cannot be changed in place"),
    ],
)
def test_the_hint_names_the_command_for_the_field(field, before, after, hint):
    given = texts.fixed_field_hint(["vm"], [field], {field: before}, {field: after})
    assert given.startswith(hint)
    assert ("vgpuctl show-vm vm -o yaml" in given) == ("cannot be changed in place" in hint)
    assert "delete" not in given


def test_several_vms_are_one_word_if_they_are_numbered():
    change = ({"profile": {"A16-2Q": 1}}, {"profile": {"A16-4Q": 2}})
    hint = texts.difference_hint({f"ans-{n:03}": change for n in (9, 10, 11)}, {"profile"})
    words = "'ans-{009..011}'"
    assert hint == f"vgpuctl stop-vm {words}, then: vgpuctl set-vm {words} --profile A16-4Q:2"


@pytest.mark.parametrize(
    ("field", "before", "after", "words"),
    [
        ("memory", 4096, 8192, "--memory 8GiB"),
        ("memory", 4096, 1500, "--memory 1500MiB"),
        ("vcpus", 1, 2, "--vcpus 2"),
        ("gpu", None, ["A16", "T4"], "--gpu A16 --gpu T4"),
        ("gpu", None, "A16", "--gpu A16"),
        ("networks", ["a"], ["b", "bridge=br0,vlan=3"], "--network b --network bridge=br0,vlan=3"),
        ("networks", ["a"], ["none"], "--network none"),
        ("hugepages", "none", "2MiB", "--hugepages 2MiB"),
        ("cpu_pin", "auto", "none", "--cpu-pin none"),
        ("display", False, True, "--display"),
        ("display", True, False, "--no-display"),
        ("reserve", "always", "running", "--reserve running"),
        ("labels", {"old": "1", "team": "x"}, {"team": "c d"}, "--label 'team=c d' --label old-"),
        ("owner", "you", "me", "--owner me"),
        ("owner", "you", None, "--owner ''"),
    ],
)
def test_one_command_changes_every_field_that_can_change(field, before, after, words):
    assert texts.set_vm_command(["a", "b"], [field], {field: before}, {field: after}) == f"vgpuctl set-vm a b {words}"
