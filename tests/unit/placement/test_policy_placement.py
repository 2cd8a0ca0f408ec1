# SPDX-License-Identifier: Apache-2.0
"""The requested policy chooses, and what fits is always placed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gpu.test_mixed_size import A40
from tests.unit.gpu.test_mixed_size import gpu as mixed
from tests.values import A4C, A5C, T4Q, a100, assigned, snapshot, t4, taken, vm
from vgpuctl.config.arguments import PLACEMENT_POLICIES
from vgpuctl.errors import InvalidInput, NoCapacity
from vgpuctl.gpu.profiles import find_types
from vgpuctl.model.gpu import Backend, GpuMode
from vgpuctl.model.request import GpuConstraints, PlacementSpec
from vgpuctl.operations.plans.choose import choose_vgpus
from vgpuctl.placement.vm_placement import list_rooms, place_vgpus, sum_free
from vgpuctl.value import replace

EMPTY, ONE, TWO = (a100(f"0000:{n}0:00.0") for n in (1, 2, 3))


def snapshot_with(**more):
    """Return three GPUs with none, one and two vGPUs of one size."""
    vms = [vm(1, assigned(ONE, A4C, 1)), vm(2, assigned(TWO, A4C, 2)), vm(3, assigned(TWO, A4C, 3))]
    return replace(snapshot(EMPTY, ONE, TWO, vms=vms), **more)


@pytest.mark.parametrize(("policy", "gpu"), [("depth", TWO), ("breadth", EMPTY), ("first-fit", EMPTY)])
def test_each_policy_takes_its_gpu_typed_or_from_the_host_file(policy, gpu):
    (typed,) = place_vgpus(snapshot_with(), [("A100-4C", 1)], GpuConstraints(policy=policy))
    (text,) = place_vgpus(snapshot_with(placement_spec=PlacementSpec(policy)), [("A100-4C", 1)])
    assert typed.gpu == text.gpu == gpu
    (other,) = place_vgpus(
        snapshot_with(placement_spec=PlacementSpec(policy)), [("A100-4C", 1)], GpuConstraints(policy="depth")
    )
    assert other.gpu == TWO


def test_by_default_the_gpu_is_taken_where_the_least_is_lost():
    (slot,) = place_vgpus(snapshot_with(), [("A100-4C", 1)])
    assert slot.gpu == TWO  # the fullest; an empty GPU could still take another size
    assert place_vgpus(snapshot_with(), [("A100-4C", 1)], GpuConstraints(policy="least-waste")) == (slot,)


def test_a_few_vms_of_one_size_fill_one_gpu_and_keep_the_other_for_other_sizes():
    named = [replace(A4C, type_id=f"{n}", name=f"GRID A100-{n}C", profile=f"A100-{n}C") for n in (10, 20, 40)]
    most = zip(named, (10, 20, 40), strict=True)
    sizes = [replace(t, framebuffer_mib=n * 1024, max_per_gpu=40 // n) for t, n in most]
    gpus = [a100(f"0000:{n}0:00.0", types=(A4C, A5C, *sizes)) for n in (1, 2)]
    vms = []
    for number in range(10):
        (slot,) = place_vgpus(snapshot(*gpus, vms=vms), [("A100-4C", 1)])
        assert slot.gpu == gpus[0]
        vms.append(vm(number, assigned(gpus[0], A4C, number)))


def test_several_of_one_vm_go_one_after_the_other():
    slots = place_vgpus(snapshot_with(), [("A100-4C", 4)], GpuConstraints(policy="breadth"))
    assert [s.gpu for s in slots] == [EMPTY, EMPTY, ONE, EMPTY]
    assert len({s.function for s in slots}) == 4


def test_large_profiles_go_first_and_keep_the_requested_order():
    slots = place_vgpus(snapshot(EMPTY, ONE), [("A100-4C", 1), ("A100-5C", 2)], GpuConstraints(policy="first-fit"))
    assert [(s.vgpu_type.profile, s.gpu) for s in slots] == [("A100-4C", ONE), ("A100-5C", EMPTY), ("A100-5C", EMPTY)]


def test_what_a_policy_leaves_without_room_is_placed_all_the_same():
    """Breadth puts the two large ones on two GPUs; then a small one would find none."""
    slots = place_vgpus(snapshot(EMPTY, ONE), [("A100-5C", 2), ("A100-4C", 1)], GpuConstraints(policy="breadth"))
    assert len({s.gpu.address for s in slots if s.vgpu_type.profile == "A100-5C"}) == 1


def test_gpus_of_which_no_numbers_are_known_are_taken_last_fullest_first():
    silent = replace(A4C, max_per_gpu=None)
    dark = [a100(f"0000:{n}0:00.0", types=(silent,)) for n in (4, 5)]
    used = taken(dark[1], silent, 0)
    observed = snapshot(*dark, vgpus=(used,))
    assert place_vgpus(observed, [("A100-4C", 1)], GpuConstraints(policy="first-fit"))[0].gpu == dark[1]
    assert (
        place_vgpus(replace(observed, gpus=(*dark, a100("0000:90:00.0"))), [("A100-4C", 1)])[0].gpu.address
        == "0000:90:00.0"
    )


@pytest.mark.parametrize("policy", PLACEMENT_POLICIES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_whatever_fits_is_placed_by_every_policy(policy, data):
    gpus = [a100(f"0000:{n + 16:02x}:00.0", vfs=6) for n in range(3)]
    sizes = data.draw(st.lists(st.tuples(st.sampled_from([A4C, A5C]), st.integers(0, 6)), min_size=3, max_size=3))
    used = [taken(g, t, n, carrier=f"{g.address}-{n}") for g, (t, m) in zip(gpus, sizes, strict=True) for n in range(m)]
    observed = snapshot(*gpus, vgpus=tuple(used))
    count = data.draw(st.integers(1, 16))
    fits = sum_free(list_rooms(observed, gpus, find_types(observed, gpus, "A100-4C"))) or 0
    if fits < count:
        with pytest.raises(NoCapacity):
            place_vgpus(observed, [("A100-4C", count)], GpuConstraints(policy=policy))
    else:
        assert len(place_vgpus(observed, [("A100-4C", count)], GpuConstraints(policy=policy))) == count


@pytest.mark.parametrize("policy", PLACEMENT_POLICIES)
def test_on_a_mixed_size_gpu_each_vgpu_gets_a_place_that_is_free(policy):
    slots = place_vgpus(snapshot(mixed()), [("A40-24Q", 1), ("A40-4Q", 3)], GpuConstraints(policy=policy))
    spans = [range(s.placement_id, s.placement_id + (s.vgpu_type.placement_size or 0)) for s in slots]
    assert sum(len(s) for s in spans) == len({n for s in spans for n in s}) == 24 + 12


def test_the_default_takes_the_place_that_spoils_the_least():
    (slot,) = place_vgpus(snapshot(mixed()), [("A40-4Q", 1)])
    there = taken(mixed(), A40[5], 0, placement_id=slot.placement_id)
    assert place_vgpus(snapshot(mixed(), vgpus=(there,)), [("A40-24Q", 1)])
    after = place_vgpus(snapshot(mixed(), vgpus=(there,)), [("A40-4Q", 1)])
    assert abs((after[0].placement_id or 0) - (slot.placement_id or 0)) in (4, 8)


SMALL, LARGE = (
    t4("0000:40:00.0"),
    a100("0000:30:00.0", types=(replace(A4C, name="NVIDIA A100-4Q", profile="A100-4Q"), A5C)),
)


@pytest.mark.parametrize("policy", PLACEMENT_POLICIES)
def test_a_profile_of_any_model_is_placed_as_long_as_one_of_them_has_room(policy):
    observed, there = snapshot(SMALL, LARGE), []
    for number in range(14):
        (slot,) = place_vgpus(observed, [("4Q", 1)], GpuConstraints(policy=policy))
        carrier = slot.function if slot.gpu == LARGE else f"mdev-{number}"
        there.append(taken(slot.gpu, slot.vgpu_type, carrier=carrier, function=slot.function))
        left = 4 - sum(v.gpu == SMALL.address for v in there)
        small = replace(SMALL, functions=(replace(SMALL.functions[0], available_instances={T4Q.type_id: left}),))
        observed = snapshot(small, LARGE, vgpus=tuple(there))
    assert {v.profile for v in there} == {"T4-4Q", "A100-4Q"}
    with pytest.raises(NoCapacity, match="no room for 4Q"):
        place_vgpus(observed, [("4Q", 1)], GpuConstraints(policy=policy))


def test_several_vgpus_of_one_vm_have_to_name_their_model():
    with pytest.raises(InvalidInput, match="'4Q' may be A100-4Q or T4-4Q"):
        place_vgpus(snapshot(SMALL, LARGE), [("4Q", 2)])


@pytest.mark.parametrize(("policy", "address"), [("breadth", "0000:20:00.0"), ("depth", "0000:10:00.0")])
def test_a_plain_vf_goes_where_the_policy_says(policy, address):
    from tests.hosts import request

    gpus = [a100(a, types=(), backend=Backend.SRIOV_VF, mode=GpuMode.SRIOV) for a in ("0000:10:00.0", "0000:20:00.0")]
    observed = snapshot(*gpus, vgpus=(taken(gpus[0], None, 0),))
    wanted = request(mode="sriov", gpu=("A100",), placement=policy)
    (vgpu,) = choose_vgpus(observed, wanted, "1" * 8)
    assert vgpu.gpu == address
