# SPDX-License-Identifier: Apache-2.0
"""How many fit: the numbers and their reasons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.gpu.test_gpu_instances import host
from tests.values import A4C, A5C, T2Q, a100, changed, t4, taken, with_mdevs
from vgpuctl.gpu.division import MAX_TIME_SLICED, find_type, name_holders
from vgpuctl.gpu.room import compute_room, divide
from vgpuctl.model.gpu import Backend, Ownership, VgpuType
from vgpuctl.value import replace


def test_fewer_vfs_than_the_maximum_limit_the_number():
    assert compute_room(a100(vfs=7), (), A4C).free == 7


@given(st.sets(st.integers(0, 15), max_size=15))
def test_used_and_free_never_exceed_the_maximum_and_never_name_a_used_vf(numbers):
    gpu = a100()
    used = [taken(gpu, A4C, n) for n in numbers]
    result = compute_room(gpu, used, A4C)
    assert result.free == max(0, min(10 - len(used), 16 - len(used)))
    assert not {v.function for v in used} & set(result.functions)
    assert len(result.functions) == result.free


@given(st.integers(1, 9))
def test_a_missing_device_of_a_record_is_used(number):
    gpu = a100()
    there = [taken(gpu, A4C, n) for n in range(number)]
    missing = [replace(v, present=False) for v in there]
    assert compute_room(gpu, missing, A4C) == compute_room(gpu, there, A4C)


def test_another_size_locks_the_gpu_and_its_holder_is_named():
    gpu = a100()
    result = compute_room(gpu, [taken(gpu, A5C, 3)], A4C)
    assert result.free == 0
    assert not result.has_room
    assert result.reasons == ("it has 1 of another size: A100-5C (5 GiB), held by vdi-003",)


def test_a_driver_that_takes_one_type_names_who_has_another_of_the_same_size():
    t2b = replace(T2Q, type_id="nvidia-999", name="GRID T4-2B", profile="T4-2B")
    gpu = replace(t4(), has_single_type=True)
    assert compute_room(gpu, [taken(gpu, T2Q)], T2Q).has_room
    assert compute_room(replace(gpu, has_single_type=False), [taken(gpu, t2b, vm="vdi-003")], T2Q).has_room
    result = compute_room(gpu, [taken(gpu, t2b, vm="vdi-003")], T2Q)
    assert result.free == 0
    assert "it has 1 of another type: T4-2B, held by vdi-003; its driver, older than 550" in result.reasons[0]


def test_without_a_maximum_the_number_is_unknown_and_one_may_be_tried():
    silent = replace(A4C, framebuffer_mib=None, max_per_gpu=None)
    result = compute_room(a100(types=(silent,)), (), silent)
    assert result.free is None
    assert result.has_room
    assert len(result.functions) == 16


def test_a_vf_that_cannot_be_read_is_named_and_never_offered():
    gpu = changed(a100(), 0, problem="its vGPU types cannot be read: Input/output error", available_instances=None)
    result = compute_room(gpu, (), A4C)
    assert gpu.functions[0].address not in result.functions
    assert any(gpu.functions[0].address in r for r in result.reasons)


def test_an_mdev_that_nobody_claims_occupies_its_vf():
    gpu = with_mdevs(a100(backend=Backend.MDEV_VF), 2, ("u", A4C.type_id))
    assert gpu.functions[2].address not in compute_room(gpu, (), A4C).functions


def test_no_gpu_takes_more_than_thirty_two_time_sliced_vgpus():
    tiny = VgpuType("9", "GRID X-1B", "X-1B", 64, 64)
    assert compute_room(a100(types=(tiny,), vfs=48), (), tiny).free == MAX_TIME_SLICED


def test_a_gpu_given_away_whole_has_no_room():
    gpu = a100()
    whole = taken(gpu, None, 0, carrier=gpu.address, backend=Backend.PASSTHROUGH)
    assert compute_room(gpu, [whole], A4C).reasons == ("the whole GPU is assigned to vdi-000",)
    works = replace(whole, vm=None, command="vgpuctl set-mig 0000:3b:00.0 --off")
    assert compute_room(gpu, [works], A4C).reasons == ("'vgpuctl set-mig 0000:3b:00.0 --off' is setting it up",)
    killed = replace(works, owner=Ownership.LEAKED, reason="half set up: process 100 is gone")
    assert compute_room(gpu, [killed], A4C).reasons == (
        "it is half set up: process 100 is gone; vgpuctl reconcile-host",
    )


SILENT = replace(A4C, max_per_gpu=None)
FOREIGN = taken(a100(), A5C, 0, owner=Ownership.UNMANAGED, vm=None, vm_uuid=None)


@pytest.mark.parametrize(
    ("gpu", "there", "wanted", "reason"),
    [
        (a100(), [taken(a100(), A4C, n) for n in range(10)], A4C, "10 of 10 in use"),
        (a100(), [FOREIGN], A4C, f"unmanaged {FOREIGN.carrier}"),
        (
            replace(a100(), functions=tuple(replace(f, available_instances={}) for f in a100().functions)),
            (),
            SILENT,
            "none of its 16 free VFs offers A100-4C now",
        ),
        (t4(available={}), (), T2Q, "its driver does not offer T4-2Q"),
        (changed(t4(), 0, problem="broken"), (), T2Q, "0000:5e:00.0: broken"),
        (a100(backend=None, functions=(), vfs_total=16), (), A4C, "its VFs are off (0 of 16 enabled)"),
        (a100(backend=Backend.SRIOV_VF), (), A4C, "it offers no vGPUs: its backend is sriov-vf"),
    ],
)
def test_a_gpu_without_room_says_why(gpu, there, wanted, reason):
    result = compute_room(gpu, there, wanted)
    assert (result.free, result.functions) == (0, ())
    assert reason in result.reasons[0]


def test_without_a_maximum_nothing_fits_while_assigned_devices_are_missing():
    wanted = replace(A4C, max_per_gpu=None)
    gpu = a100(types=(wanted,))
    awaited = taken(gpu, wanted, 3, present=False, needs_device=True)
    result = compute_room(gpu, (awaited,), wanted)
    assert (result.free, result.functions) == (0, ())
    assert "vdi-003" in result.reasons[0]
    assert compute_room(gpu, (replace(awaited, needs_device=False),), wanted).free is None


def test_mixed_sizes_change_how_many_time_sliced_vgpus_fit_and_say_nothing_of_mig():
    sliced = replace(A4C, placement_ids=(0, 20), placement_size=4)
    backed = replace(A4C, type_id="474", profile="A100-1-5C", gi_profile_id=19, max_per_gpu=7)
    gpu = replace(a100(types=(sliced, backed)), mixed_size=True)
    assert [divide(gpu, ()).max_when_empty(kind) for kind in gpu.types] == [2, 7]


def test_few_holders_are_all_named_and_many_shortened_in_the_middle():
    gpu = a100()
    assert name_holders(()) == "nobody"
    assert name_holders([taken(gpu, A4C, n) for n in (2, 1)]) == "vdi-001, vdi-002"
    assert name_holders([taken(gpu, A4C, n) for n in range(5)]) == "vdi-000, vdi-001 … vdi-004 (5)"


def test_a_device_has_its_type_by_id_and_a_record_by_profile():
    gpu = a100()
    assert find_type(gpu, taken(gpu, A4C, profile=None)) == A4C
    assert find_type(gpu, taken(gpu, A4C, type_id=None)) == A4C
    assert find_type(gpu, taken(gpu, A4C, type_id="4711", profile=None)) is None


def test_every_way_to_divide_a_gpu_has_its_rule():
    gpus = [a100(), a100(has_single_type=True), a100(mixed_size=True), host(19), replace(t4(), vendor_id="8086")]
    words = [divide(gpu, ()).rule for gpu in gpus]
    assert None not in words
    assert len(set(words)) == len(words)
    assert divide(host(on=False), ()).rule == divide(a100(), ()).rule


def test_a_gpu_without_vgpus_has_no_rule():
    assert divide(replace(a100(), backend=None), ()).rule is None
    assert divide(replace(a100(), backend=Backend.PASSTHROUGH), ()).rule is None


@pytest.mark.parametrize(
    ("gpu", "word"),
    [
        (a100(), "same framebuffer size"),
        (a100(has_single_type=True), "older than 550"),
        (a100(mixed_size=True), "no two of them overlap"),
    ],
)
def test_the_rule_of_each_way_is_named(gpu, word):
    assert word in divide(gpu, ()).rule
