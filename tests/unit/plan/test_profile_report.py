# SPDX-License-Identifier: Apache-2.0
"""What list-profiles and explain tell of GPUs as observed."""

from __future__ import annotations

from tests.values import A4C, A5C, a100, promised, snapshot, t4, vm
from vgpuctl.plan.profile_report import explain_value, profile_values
from vgpuctl.plan.report import gpu_details
from vgpuctl.value import replace


def test_profiles_are_sorted_by_size_and_full_ones_left_out():
    gpu = a100()
    used = [vm(n, promised(gpu, A4C, n)) for n in range(3)]
    assert [v["profile"] for v in profile_values(snapshot(gpu, vms=used), (gpu,), everything=False)] == ["A100-4C"]
    both = profile_values(snapshot(gpu, vms=used), (gpu,), everything=True)
    assert [(v["profile"], v["free"]) for v in both] == [("A100-4C", 7), ("A100-5C", 0)]


def test_different_type_ids_of_one_profile_are_null():
    one, two = a100(), a100("0000:86:00.0", types=(replace(A4C, type_id="999"),))
    (value,) = [
        v for v in profile_values(snapshot(one, two), (one, two), everything=False) if v["profile"] == "A100-4C"
    ]
    assert (value["type_id"], value["free"]) == (None, 20)


def test_explain_and_show_gpu_take_their_numbers_from_the_same_function():
    gpu = a100()
    look = snapshot(gpu, vms=[vm(1, promised(gpu, A5C))])
    explained = explain_value(look, (gpu,), "A100-5C")
    (shown,) = [t for t in gpu_details(look, gpu)["types"] if t["profile"] == "A100-5C"]
    assert explained["free"] == shown["free"] == 7


def test_a_profile_excludes_those_of_which_none_fits_beside_the_most_of_it():
    one, two = a100(), a100("0000:86:00.0", types=(A4C,))
    values = {v["profile"]: v["excludes"] for v in profile_values(snapshot(one, two), (one, two), everything=True)}
    assert values == {"A100-4C": ["A100-5C"], "A100-5C": []}


def test_what_is_excluded_is_not_known_where_a_maximum_is_not():
    gpu = a100(types=(replace(A4C, max_per_gpu=None), A5C))
    assert {v["excludes"] is None for v in profile_values(snapshot(gpu), (gpu,), everything=True)} == {True}


def test_explain_names_the_rule_and_the_fewest_in_the_way_of_one_more():
    gpu, other = a100(), t4()
    look = snapshot(gpu, other, vms=[vm(n, promised(gpu, A5C, n)) for n in range(2)])
    value = explain_value(look, (gpu, other), "A100-4C")
    first, second = value["gpus"]
    assert first["rule"] == "all vGPUs on it have the same framebuffer size"
    assert len(first["in_the_way"]) == 2
    assert second["in_the_way"] is None
    assert value["moves"] is None


def test_explain_says_which_vms_would_have_to_move():
    one, two = a100(), a100("0000:86:00.0")
    vms = [vm(0, promised(one, A5C, 0)), vm(1, promised(two, A5C, 0))]
    value = explain_value(snapshot(one, two, vms=vms), (one, two), "A100-4C")
    (move,) = value["moves"]
    assert {move["from_gpu"], move["to_gpu"]} == {one.address, two.address}
    pinned = frozenset(v.uuid for v in vms)
    assert explain_value(snapshot(one, two, vms=vms), (one, two), "A100-4C", pinned)["moves"] is None
    assert explain_value(snapshot(one, two, vms=vms), (one, two), "A100-5C")["moves"] == []
