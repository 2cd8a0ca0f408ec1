# SPDX-License-Identifier: Apache-2.0
"""Resolution of a profile name: exactly one type, or an error with suggestions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values import A4C, T2Q, T4Q, a100, assigned, claim, snapshot, t4, vm
from vgpuctl.errors import InvalidInput, NoCapacity, NotFound, Refused
from vgpuctl.gpu.profiles import check_combination, find_types, require_one_profile
from vgpuctl.model.names import strip_board
from vgpuctl.value import replace


@pytest.mark.parametrize("text", ["A100-4C", "GRID A100-4C", "468"])
def test_the_profile_the_full_name_and_the_type_id_mean_the_same(text):
    gpu = a100()
    assert find_types(snapshot(gpu), (gpu,), text) == {gpu.address: A4C}


@pytest.mark.parametrize("text", ["a100-4c", "grid A100-4c", "4c"])
def test_capitals_make_no_difference_unless_two_types_differ_in_them_alone(text):
    gpu = a100()
    assert find_types(snapshot(gpu), (gpu,), text) == {gpu.address: A4C}
    other = replace(A4C, name="GRID A100-4c", profile="A100-4c", type_id="999")
    both = replace(gpu, types=(*gpu.types, other))
    assert find_types(snapshot(both), (both,), "A100-4c") == {gpu.address: other}
    assert find_types(snapshot(both), (both,), "A100-4C") == {gpu.address: A4C}
    with pytest.raises(InvalidInput, match="A100-4C or A100-4c"):
        find_types(snapshot(both), (both,), "a100-4C")


@given(st.text(max_size=12))
def test_nothing_but_an_exact_name_is_taken(text):
    gpu = a100()
    names = {x.lower() for t in gpu.types for x in (t.profile, t.name, t.type_id, strip_board(t.profile))}
    if names & set(text.lower().split("|")):
        return
    with pytest.raises(NotFound):
        find_types(snapshot(gpu), (gpu,), text)


def test_what_is_behind_the_model_means_it_on_every_model_that_has_it():
    one, two = a100(), t4(types=(T2Q, replace(T4Q, name="GRID T4-4C", profile="T4-4C")))
    observed = snapshot(one, two)
    assert {a: t.profile for a, t in find_types(observed, observed.gpus, "4C").items()} == {
        one.address: "A100-4C",
        two.address: "T4-4C",
    }
    assert {t.profile for t in find_types(observed, observed.gpus, "5C").values()} == {"A100-5C"}


def test_of_several_each_gpu_gives_the_first_that_it_knows():
    observed = snapshot(a100(), t4())
    result = find_types(observed, observed.gpus, "T4-4Q|A100-5C|A100-4C|T4-2Q")
    assert [t.profile for t in result.values()] == ["A100-5C", "T4-4Q"]


def test_where_one_profile_is_needed_an_open_model_is_refused_with_those_it_may_be():
    observed = snapshot(a100(), t4())
    assert require_one_profile(find_types(observed, observed.gpus, "2Q"), "2Q") == "T4-2Q"
    with pytest.raises(InvalidInput) as raised:
        require_one_profile(find_types(observed, observed.gpus, "A100-4C|T4-4Q"), "A100-4C|T4-4Q")
    assert raised.value.facts["names"] == ["A100-4C", "T4-4Q"]
    assert raised.value.hint == "name the model: A100-4C"


@pytest.mark.parametrize(
    ("gpus", "text", "near", "hint"),
    [
        ((a100(),), "4B", "4C", ""),
        ((a100(),), "A100-4Q", "A100-4C", "A100-4C"),
        ((a100(),), "zzzzzz", None, "list-profiles"),
        ((), "A100-4C", None, "list-gpus"),
    ],
    ids=["without a model", "near ones", "far from all", "a host without profiles"],
)
def test_a_name_that_nobody_knows_gets_near_ones_or_the_command_that_lists(gpus, text, near, hint):
    with pytest.raises(NotFound) as raised:
        find_types(snapshot(*gpus), gpus, text)
    assert near is None or raised.value.facts["near"][0] == near
    assert hint in str(raised.value.hint)


def test_a_short_name_of_two_types_is_refused_with_both_unless_a_full_name_or_one_gpu_settles_it():
    one, two = a100(), a100("0000:86:00.0", types=(replace(A4C, name="NVIDIA A100X-4C", type_id="700"),))
    with pytest.raises(InvalidInput) as raised:
        find_types(snapshot(one, two), (one, two), "A100-4C")
    assert raised.value.facts["names"] == ["GRID A100-4C", "NVIDIA A100X-4C"]
    assert "GRID A100-4C, NVIDIA A100X-4C" in str(raised.value)
    assert "--gpu" in str(raised.value.hint)
    assert set(find_types(snapshot(one, two), (one, two), "NVIDIA A100X-4C")) == {two.address}
    assert set(find_types(snapshot(one, two), (one,), "A100-4C")) == {one.address}


def test_a_profile_that_a_full_gpu_no_longer_lists_is_no_room_and_not_unknown():
    """Without NVML a vendor-specific GPU in use lists only types that can still be created."""
    silent = replace(A4C, framebuffer_mib=None, max_per_gpu=None)
    gpu = a100(types=())
    mine = vm(1, assigned(gpu, silent, 0))
    for text in ("A100-5C", "5C", "GRID A100-5C", "T4-4Q|GRID A100-5C"):
        with pytest.raises(NoCapacity) as raised:
            find_types(snapshot(gpu, vms=[mine]), (gpu,), text)
        assert "0000:3b:00.0 (1 vGPU)" in str(raised.value.hint)


def test_a_profile_of_another_board_stays_unknown_on_a_full_gpu():
    gpu = a100(types=())
    mine = assigned(gpu, A4C, 0)
    with pytest.raises(NotFound):
        find_types(snapshot(gpu, claims=[claim(mine, 1)], live={mine.carrier}), (gpu,), "T4-2Q")


@pytest.mark.parametrize(
    ("profiles", "named"),
    [
        (["A100-1-5CME", "A100-4C"], "A100-1-5CME"),
        (["T4-2B", "T4-2B"], "T4-2B"),
        (["T4-16A", "T4-2Q"], "T4-16A"),
        (["A100-4C", "T4-2Q"], "A100-4C, T4-2Q"),
        (["T4-2Q", "T4-4C"], "T4-2Q, T4-4C"),
        (["mtty-1", "A100-4C"], "A100-4C, mtty-1"),
    ],
)
def test_vgpus_that_may_not_share_a_vm_are_refused_by_name(profiles, named):
    with pytest.raises(Refused) as raised:
        check_combination(profiles)
    assert named in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize("profiles", [["T4-2B"], ["A100-4C", "A100-5C"], ["A100-4C"] * 16, ["mtty-1", "mtty-1"], []])
def test_vgpus_of_one_board_and_series_may_share_a_vm(profiles):
    check_combination(profiles)
