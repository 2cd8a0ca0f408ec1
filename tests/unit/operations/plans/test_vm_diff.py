# SPDX-License-Identifier: Apache-2.0
"""Only explicit fields are compared with an existing VM."""

from __future__ import annotations

import pytest

from tests.hosts import request
from tests.values import A4C, A5C, a100, assigned, vm
from vgpuctl.config.vm_request import CONSTRAINT_FIELDS
from vgpuctl.model.request import NewDisk
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.model.vm import Nic
from vgpuctl.operations.plans.vm_diff import diff_vm, request_fields_json
from vgpuctl.value import replace

KEPT = ("os", "template", "hotplug_slots", "vgpu_params", "disk")
FIELDS = ("profile", "memory", "vcpus", "networks", "hugepages", "cpu_pin", "display", *CONSTRAINT_FIELDS[:-1], *KEPT)
WANTED = request("A100-4C", name="vdi-001", sources=dict.fromkeys(FIELDS, "command-line"), disks=(NewDisk(1024),))


def existing(wanted=WANTED):
    result = vm(1, assigned(a100(), A4C), nics=(Nic(network="default", model="virtio", mac="52:54:00:00:00:01"),))
    return replace(result, record=replace(result.record, request_json=request_fields_json(wanted)))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"memory_mib": 2048}, "memory"),
        ({"vcpus": 2}, "vcpus"),
        ({"nics": (Nic(network="lab"),)}, "networks"),
        ({"nics": ()}, "networks"),
        ({"nics": (Nic(network="default", model="e1000e"),)}, "networks"),
        ({"nics": (Nic(network="default", mac="52:54:00:00:00:02"),)}, "networks"),
        ({"hugepages": "2MiB"}, "hugepages"),
        ({"cpu_pin": "auto"}, "cpu_pin"),
        ({"display": True}, "display"),
        ({"os": "generic"}, "os"),
        ({"template": "mine"}, "template"),
        ({"hotplug_slots": 0}, "hotplug_slots"),
        ({"vgpu_params": (("a", "1"),)}, "vgpu_params"),
        ({"profiles": (("A100-4C", 2),)}, "profile"),
        ({"gpu": ("0000:86:00.0",)}, "gpu"),
        ({"not_gpu": ("A16",)}, "not_gpu"),
        ({"numa_node": 1}, "numa_node"),
        ({"spread_group": "exam"}, "spread_group"),
        ({"scheduler": SchedulerPolicy.FIXED_SHARE}, "scheduler"),
    ],
)
def test_a_typed_field_that_differs_is_named_with_both_sides(changes, field):
    quiet = replace(WANTED, sources={**WANTED.sources, "disk": "default"}, **changes)
    before, after = diff_vm(existing(), quiet)
    assert list(before) == list(after) == [field]
    assert before[field] != after[field]
    assert diff_vm(existing(), replace(quiet, sources={})) == ({}, {})


def test_the_same_request_is_no_diff():
    assert diff_vm(existing(), replace(WANTED, sources={**WANTED.sources, "disk": "default"})) == ({}, {})


def test_a_gpu_that_is_typed_by_the_address_it_got_makes_no_difference():
    typed = replace(WANTED, gpu=("0000:3b:00.0",), sources={"gpu": "command-line"})
    assert diff_vm(existing(), typed) == ({}, {})


def by(*texts, gpu=None, **more):
    """Return a request with these explicit profiles, each once or several times."""
    counts = {text: texts.count(text) for text in texts}
    sources = {"profile": "command-line", **({"gpu": "command-line"} if gpu else {})}
    return request(name="vdi-001", profiles=tuple(counts.items()), gpu=gpu, sources=sources, **more)


@pytest.mark.parametrize("made", ["A100-4C", "GRID A100-4C", "468"])
def test_a_profile_is_the_same_as_it_was_typed_and_by_its_short_name(made):
    result = existing(by(made))
    for again in {made, "A100-4C", "GRID A100-4C"}:
        assert diff_vm(result, by(again)) == ({}, {}), again
    for other in ("A100-5C", "GRID A100-5C", "469", "GRID A100-4C-X"):
        assert list(diff_vm(result, by(other))[0]) == ["profile"], other
    before, after = diff_vm(result, by(made, made))
    assert (before["profile"], after["profile"]) == ({"A100-4C": 1}, {"A100-4C": 2})


def test_a_profile_of_any_model_is_the_one_that_the_vm_got():
    result, types = existing(by("4C")), a100().types
    for again in ("4C", "A100-4C", "T4-4Q|A100-4C"):
        assert diff_vm(result, by(again), types=types) == ({}, {}), again
    assert diff_vm(existing(by("A100-4C")), by("4C"), types=types) == ({}, {})
    assert diff_vm(result, by("5C"), types=types)[1]["profile"] == {"5C": 1}


def test_a_driver_that_hides_types_of_a_gpu_in_use_makes_no_difference():
    for made in ("A100-4C", "4C", "468"):
        for again in ("4C", "T4-4Q|A100-4C", "NVIDIA T4-4Q|GRID A100-4C"):
            assert diff_vm(existing(by(made)), by(again)) == ({}, {}), (made, again)
    assert diff_vm(existing(by("A100-4C")), by("5C"))[1]["profile"] == {"5C": 1}


def test_two_full_names_with_the_same_last_word_are_two_profiles():
    assert diff_vm(existing(by("GRID A100-4C")), by("NVIDIA A100-4C"))[1]["profile"] == {"NVIDIA A100-4C": 1}


def test_the_order_of_several_profiles_makes_no_difference():
    made = by("GRID A100-4C", "469")
    result = vm(1, assigned(a100(), A4C), assigned(a100(), A5C, 1))
    result = replace(result, record=replace(result.record, request_json=request_fields_json(made)))
    assert diff_vm(result, by("469", "A100-4C")) == ({}, {})
    assert diff_vm(result, by("469", "469"))[0]


def test_a_record_without_texts_is_compared_by_its_profile():
    rebuilt = vm(1, assigned(a100(), A4C))
    assert rebuilt.record.request_json == "{}"
    assert diff_vm(rebuilt, by("GRID A100-4C", gpu="0000:3b:00.0")) == ({}, {})
    before, after = diff_vm(rebuilt, by("A100-5C", gpu="0000:86:00.0"))
    assert (before["gpu"], after["gpu"]) == ("0000:3b:00.0", "0000:86:00.0")
    assert "profile" in before


def test_a_model_is_the_same_as_it_was_typed_or_when_it_means_the_vms_gpu():
    here = frozenset({"0000:3b:00.0"})
    assert diff_vm(existing(by("A100-4C", gpu="A100")), by("A100-4C", gpu="A100")) == ({}, {})
    without = existing(by("A100-4C"))
    assert diff_vm(without, by("A100-4C", gpu="A100"), here) == ({}, {})
    before, after = diff_vm(without, by("A100-4C", gpu="T4"), frozenset({"0000:5e:00.0"}))
    assert (before, after) == ({"gpu": "0000:3b:00.0"}, {"gpu": "T4"})
