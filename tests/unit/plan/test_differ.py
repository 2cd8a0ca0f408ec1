# SPDX-License-Identifier: Apache-2.0
"""Only what was typed is compared with a VM that exists."""

from __future__ import annotations

import pytest

from tests.values import A4C, A5C, a100, promised, vm
from tests.worlds import wish
from vgpuctl.model.scheduler import Policy
from vgpuctl.model.wish import NewDisk, Where
from vgpuctl.plan.differ import differences, kept_spec
from vgpuctl.spec.fields import WHERE
from vgpuctl.value import replace

KEPT = ("os", "template", "hotplug_slots", "vgpu_params", "disk")
FIELDS = ("profile", "memory", "vcpus", "network", *WHERE[:-1], *KEPT)
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
        ({"where": Where(gpus=("0000:86:00.0",))}, "gpu"),
        ({"where": Where(not_gpus=("A16",))}, "not_gpu"),
        ({"where": Where(numa_node=1)}, "numa_node"),
        ({"where": Where(spread_group="exam")}, "spread_group"),
        ({"where": Where(scheduler=Policy.FIXED_SHARE)}, "scheduler"),
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
    typed = replace(WANTED, where=Where(gpus=("0000:3b:00.0",)), sources={"gpu": "typed"})
    assert differences(existing(), typed) == ({}, {})


def by(*texts, gpu=None, **more):
    """Return a wish that types these profiles, each once or several times."""
    counts = {text: texts.count(text) for text in texts}
    sources = {"profile": "typed", **({"gpu": "typed"} if gpu else {})}
    return wish(name="vdi-001", profiles=tuple(counts.items()), gpu=gpu, sources=sources, **more)


@pytest.mark.parametrize("made", ["A100-4C", "GRID A100-4C", "468"])
def test_a_profile_is_the_same_as_it_was_typed_and_by_its_short_name(made):
    found = existing(by(made))
    for again in {made, "A100-4C", "GRID A100-4C"}:
        assert differences(found, by(again)) == ({}, {}), again
    for other in ("A100-5C", "GRID A100-5C", "469", "GRID A100-4C-X"):
        assert list(differences(found, by(other))[0]) == ["profile"], other
    before, after = differences(found, by(made, made))
    assert (before["profile"], after["profile"]) == ({"A100-4C": 1}, {"A100-4C": 2})


def test_a_profile_of_any_model_is_the_one_that_the_vm_got():
    found, types = existing(by("4C")), a100().types
    for again in ("4C", "A100-4C", "T4-4Q|A100-4C"):
        assert differences(found, by(again), types=types) == ({}, {}), again
    assert differences(existing(by("A100-4C")), by("4C"), types=types) == ({}, {})
    assert differences(found, by("5C"), types=types)[1]["profile"] == {"5C": 1}


def test_a_driver_that_hides_types_of_a_gpu_in_use_makes_no_difference():
    for made in ("A100-4C", "4C", "468"):
        for again in ("4C", "T4-4Q|A100-4C", "NVIDIA T4-4Q|GRID A100-4C"):
            assert differences(existing(by(made)), by(again)) == ({}, {}), (made, again)
    assert differences(existing(by("A100-4C")), by("5C"))[1]["profile"] == {"5C": 1}


def test_two_full_names_with_the_same_last_word_are_two_profiles():
    assert differences(existing(by("GRID A100-4C")), by("NVIDIA A100-4C"))[1]["profile"] == {"NVIDIA A100-4C": 1}


def test_the_order_of_several_profiles_makes_no_difference():
    made = by("GRID A100-4C", "469")
    found = vm(1, promised(a100(), A4C), promised(a100(), A5C, 1))
    found = replace(found, promise=replace(found.promise, spec=kept_spec(made)))
    assert differences(found, by("469", "A100-4C")) == ({}, {})
    assert differences(found, by("469", "469"))[0]


def test_a_record_that_kept_no_texts_is_compared_by_its_profile():
    rebuilt = vm(1, promised(a100(), A4C))
    assert rebuilt.promise.spec == "{}"
    assert differences(rebuilt, by("GRID A100-4C", gpu="0000:3b:00.0")) == ({}, {})
    before, after = differences(rebuilt, by("A100-5C", gpu="0000:86:00.0"))
    assert (before["gpu"], after["gpu"]) == ("0000:3b:00.0", "0000:86:00.0")
    assert "profile" in before


def test_a_model_is_the_same_as_it_was_typed_or_when_it_means_the_vms_gpu():
    here = frozenset({"0000:3b:00.0"})
    assert differences(existing(by("A100-4C", gpu="A100")), by("A100-4C", gpu="A100")) == ({}, {})
    without = existing(by("A100-4C"))
    assert differences(without, by("A100-4C", gpu="A100"), here) == ({}, {})
    before, after = differences(without, by("A100-4C", gpu="T4"), frozenset({"0000:5e:00.0"}))
    assert (before, after) == ({"gpu": "0000:3b:00.0"}, {"gpu": "T4"})
