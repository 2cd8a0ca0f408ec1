# SPDX-License-Identifier: Apache-2.0
"""How many fit: the numbers and their reasons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values import A4C, A5C, T2Q, T4Q, a100, changed, t4, taken, with_mdevs
from vgpuctl.gpu.division import MAX_TIME_SLICED
from vgpuctl.gpu.room import compute_room, divide
from vgpuctl.model.gpu import Backend, Ownership, VgpuType
from vgpuctl.value import replace


def test_an_empty_gpu_takes_the_maximum_of_the_type():
    result = compute_room(a100(), (), A4C)
    assert (result.free, len(result.functions), result.reasons) == (10, 10, ())


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


@pytest.mark.parametrize(
    ("numbers", "missing", "free"), [((12, 6), ["big"], 10), ((12, 6), ["small"], 11), ((9, 0), ["big"], 0)]
)
def test_types_with_an_unknown_pool_share_are_never_overcounted(numbers, missing, free):
    small, big = VgpuType("x-1", "x-1", "small"), VgpuType("x-2", "x-2", "big")
    plain = t4(available={"x-1": numbers[0], "x-2": numbers[1]})
    gpu = replace(plain, types=(small, big), vendor_id="19e5", driver="x")
    kinds = {"small": small, "big": big}
    away = [taken(gpu, kinds[name], n, present=False) for n, name in enumerate(missing)]
    assert compute_room(gpu, away, small).free == free


def test_a_full_gpu_names_its_number_and_holders_shortened_in_the_middle():
    gpu = a100()
    result = compute_room(gpu, [taken(gpu, A4C, n) for n in range(1, 11)], A4C)
    assert result.free == 0
    assert "10 of 10 in use" in result.reasons[0]
    assert "vdi-001, vdi-002 … vdi-010 (10)" in result.reasons[0]


def test_an_unmanaged_holder_has_its_carrier():
    gpu = a100()
    foreign = taken(gpu, A5C, 0, owner=Ownership.UNMANAGED, vm=None, vm_uuid=None)
    assert f"unmanaged {foreign.carrier}" in compute_room(gpu, [foreign], A4C).reasons[0]


def test_without_a_maximum_the_number_is_unknown_and_one_may_be_tried():
    silent = replace(A4C, framebuffer_mib=None, max_per_gpu=None)
    result = compute_room(a100(types=(silent,)), (), silent)
    assert result.free is None
    assert result.has_room
    assert len(result.functions) == 16


def test_without_a_maximum_a_gpu_that_offers_nothing_has_no_room():
    silent = replace(A4C, max_per_gpu=None)
    gpu = replace(a100(), functions=tuple(replace(f, available_instances={}) for f in a100().functions))
    result = compute_room(gpu, (), silent)
    assert result.free == 0
    assert "none of its 16 free VFs offers A100-4C now" in result.reasons[0]


def test_a_vf_that_cannot_be_read_is_named_and_never_offered():
    gpu = changed(a100(), 0, problem="its vGPU types cannot be read: Input/output error", available_instances=None)
    result = compute_room(gpu, (), A4C)
    assert gpu.functions[0].address not in result.functions
    assert any(gpu.functions[0].address in r for r in result.reasons)


def test_an_mdev_that_nobody_claims_occupies_its_vf():
    gpu = with_mdevs(a100(backend=Backend.MDEV_VF), 2, ("u", A4C.type_id))
    assert gpu.functions[2].address not in compute_room(gpu, (), A4C).functions


def test_a_pf_has_the_drivers_count_less_missing_devices():
    gpu = t4(available={T2Q.type_id: 5})
    used = [taken(gpu, T2Q, 0, carrier=f"u{n}") for n in range(3)]
    assert compute_room(gpu, used, T2Q).free == 5
    missing = [taken(gpu, T2Q, 0, carrier=f"m{n}", present=False) for n in range(2)]
    assert compute_room(gpu, [*used, *missing], T2Q).free == 3


def test_a_pf_never_takes_more_than_the_maximum_whatever_the_driver_says():
    gpu = t4(available={T2Q.type_id: 8})
    used = [taken(gpu, T2Q, 0, carrier=f"u{n}") for n in range(6)]
    assert compute_room(gpu, used, T2Q).free == 2


def test_a_pf_with_another_size_is_locked():
    gpu = t4()
    assert compute_room(gpu, [taken(gpu, T4Q)], T2Q).free == 0


def test_a_pf_whose_driver_does_not_list_the_type_says_so():
    assert compute_room(t4(available={}), (), T2Q).reasons == ("its driver does not offer T4-2Q",)


def test_a_pf_that_cannot_be_read_has_no_room():
    result = compute_room(changed(t4(), 0, problem="broken"), (), T2Q)
    assert (result.free, result.reasons) == (0, ("0000:5e:00.0: broken",))


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


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"backend": None, "functions": (), "vfs_total": 16}, "its VFs are off (0 of 16 enabled)"),
        ({"backend": Backend.SRIOV_VF}, "it offers no vGPUs: its backend is sriov-vf"),
    ],
)
def test_a_gpu_without_vgpus_says_why(changes, text):
    assert compute_room(replace(a100(), **changes), (), A4C).reasons == (text,)


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
