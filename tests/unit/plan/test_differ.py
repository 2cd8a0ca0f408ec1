# SPDX-License-Identifier: Apache-2.0
"""Only what was typed is compared with a VM that exists."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.values import A4C, a100, promised, vm
from tests.worlds import wish
from vgpuctl.model.wish import NewDisk
from vgpuctl.plan.differ import differences, kept_spec

FIELDS = ("profile", "memory", "vcpus", "network", "gpu", "os", "template", "hotplug_slots", "vgpu_params", "disk")
WANTED = wish("A100-4C", name="vdi-001", sources=dict.fromkeys(FIELDS, "typed"), disks=(NewDisk(1024),))


def existing(wanted=WANTED):
    found = vm(1, promised(a100(), A4C), networks=("default",))
    return replace(found, promise=replace(found.promise, spec=kept_spec(wanted)))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"memory_mib": 2048}, "memory"),
        ({"vcpus": 2}, "vcpus"),
        ({"network": "lab"}, "network"),
        ({"os": "generic"}, "os"),
        ({"template": "mine"}, "template"),
        ({"hotplug_slots": 0}, "hotplug_slots"),
        ({"vgpu_params": (("a", "1"),)}, "vgpu_params"),
        ({"profiles": (("A100-4C", 2),)}, "profile"),
        ({"gpu": "0000:86:00.0"}, "gpu"),
    ],
)
def test_a_typed_field_that_differs_is_named_with_both_sides(changes, field):
    quiet = replace(WANTED, sources={**WANTED.sources, "disk": "built in"}, **changes)
    before, after = differences(existing(), quiet)
    assert list(before) == list(after) == [field]
    assert before[field] != after[field]
    assert differences(existing(), replace(quiet, sources={})) == ({}, {})


def test_the_same_wish_makes_no_difference():
    assert differences(existing(), replace(WANTED, sources={**WANTED.sources, "disk": "built in"})) == ({}, {})


def test_a_gpu_that_is_typed_by_the_address_it_got_makes_no_difference():
    typed = replace(WANTED, gpu="0000:3b:00.0", sources={"gpu": "typed"})
    assert differences(existing(), typed) == ({}, {})
