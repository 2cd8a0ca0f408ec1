# SPDX-License-Identifier: Apache-2.0
"""Where vGPUs go: all or none, where the requested policy puts them, and the joint count over GPUs."""

from __future__ import annotations

import pytest

from tests.hosts import request
from tests.values import A4C, A5C, ME, T4Q, a100, assigned, changed, snapshot, t4, taken, vm
from vgpuctl.config.arguments import PLACEMENT_POLICIES
from vgpuctl.errors import InvalidInput, NoCapacity, NotFound, Refused, Stuck
from vgpuctl.gpu.profiles import find_types
from vgpuctl.model.gpu import Backend, GpuMode
from vgpuctl.model.request import GpuConstraints, PlacementSpec
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import StuckWrite
from vgpuctl.operations.plans.choose import choose_vgpus
from vgpuctl.placement.constraints import select_gpus
from vgpuctl.placement.vm_placement import list_rooms, place_vgpus, sum_free
from vgpuctl.value import field_names, replace


class Counting(Snapshot):
    """A snapshot that counts how often the search reads the vGPUs of a GPU."""

    observations = 0

    def taken_on(self, address):
        Counting.observations += 1
        return tuple(v for v in self.vgpus if v.gpu == address)


def _filled(address: str, wanted, number: int, first: int = 1):
    gpu = a100(address)
    vms = [vm(first + n, assigned(gpu, wanted, n)) for n in range(number)]
    return gpu, vms


def test_all_or_none():
    used, vms = _filled("0000:05:00.0", A4C, 8)
    with pytest.raises(NoCapacity) as raised:
        place_vgpus(snapshot(used, vms=vms), [("A100-4C", 3)], None)
    assert "3 × A100-4C" in str(raised.value)


def test_profiles_that_do_not_fit_together_have_their_own_numbers():
    with pytest.raises(NoCapacity) as raised:
        place_vgpus(snapshot(a100()), [("A100-4C", 2), ("A100-5C", 1)], None)
    assert raised.value.facts["details"] == [
        "0000:3b:00.0: room for 10 × A100-4C alone, not together with the others",
        "0000:3b:00.0: room for 8 × A100-5C alone, not together with the others",
    ]
    with pytest.raises(NoCapacity) as raised:
        place_vgpus(snapshot(a100()), [("A100-4C", 11), ("A100-5C", 9)], None)
    assert [row["reasons"] for row in raised.value.facts["gpus"]] == [["room for 10 of 11"], ["room for 8 of 9"]]


def test_no_capacity_names_what_where_numbers_holders_and_a_hint():
    used, vms = _filled("0000:3b:00.0", A4C, 10)
    with pytest.raises(NoCapacity) as raised:
        place_vgpus(snapshot(used, vms=vms), [("A100-4C", 1)], None)
    error = raised.value
    assert str(error) == "no room for A100-4C on 0000:3b:00.0"
    assert error.hint == "vgpuctl explain A100-4C"
    (gpu,) = error.facts["gpus"]
    assert (gpu["gpu"], gpu["free"]) == ("0000:3b:00.0", 0)
    assert "10 of 10 in use" in error.facts["details"][0]
    assert "vdi-001" in error.facts["details"][0]


@pytest.mark.parametrize("wanted", ["0000:3b:00.0", "3b:00.0", "00000000:3B:00.0", "A100", "NVIDIA A100-PCIE-40GB"])
def test_a_gpu_is_selected_by_address_in_both_forms_or_by_model(wanted):
    observed = snapshot(a100(), t4())
    assert [g.address for g in select_gpus(observed, wanted)] == ["0000:3b:00.0"]


def test_a_gpu_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(NotFound) as raised:
        select_gpus(snapshot(a100(), t4()), "0000:99:00.0")
    assert "0000:3b:00.0 (NVIDIA A100-PCIE-40GB), 0000:5e:00.0 (Tesla T4)" in str(raised.value.hint)


def test_what_is_no_gpu_is_chosen_only_by_its_address():
    nic = replace(a100("0000:01:00.0"), is_display_class=False, model="A100 lookalike", backend=Backend.SRIOV_VF)
    observed = snapshot(nic, t4())
    assert [g.address for g in select_gpus(observed, None)] == ["0000:5e:00.0"]
    assert [g.address for g in select_gpus(observed, "0000:01:00.0")] == ["0000:01:00.0"]


def test_the_vgpus_of_one_vm_must_be_of_one_board():
    with pytest.raises(Refused):
        place_vgpus(snapshot(a100(), t4()), [("A100-4C", 1), ("T4-2Q", 1)], None)


def test_the_joint_count_is_the_sum_over_gpus_and_not_over_vfs():
    one, vms = _filled("0000:05:00.0", A4C, 3)
    two, other = _filled("0000:86:00.0", A5C, 1, first=50)
    observed = snapshot(one, two, a100("0000:af:00.0"), vms=[*vms, *other])
    types = find_types(observed, observed.gpus, "A100-4C")
    assert sum_free(list_rooms(observed, observed.gpus, types)) == 7 + 0 + 10


def test_the_joint_count_is_unknown_as_soon_as_one_gpu_cannot_say():
    silent = replace(A4C, framebuffer_mib=None, max_per_gpu=None)
    observed = snapshot(a100(), a100("0000:86:00.0", types=(silent,)))
    types = {g.address: g.types[0] for g in observed.gpus}
    assert sum_free(list_rooms(observed, observed.gpus, types)) is None


def test_a_gpu_with_a_stuck_write_takes_nothing_and_counts_for_nothing():
    write = StuckWrite(ME, "0000:3b:00.0", "/sys/x", "0")
    observed = snapshot(a100(), stuck_writes=(write,))
    types = find_types(observed, observed.gpus, "A100-4C")
    ((_, space),) = list_rooms(observed, observed.gpus, types)
    assert (space.free, space.reasons[0]) == (0, "a kernel write on it is blocked")
    assert sum_free(list_rooms(observed, observed.gpus, types)) == 0
    with pytest.raises(Stuck):
        place_vgpus(observed, [("A100-4C", 1)], None)
    other = a100("0000:86:00.0")
    assert place_vgpus(replace(observed, gpus=(*observed.gpus, other)), [("A100-4C", 1)], None)[0].gpu == other


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (
            a100("0000:86:00.0", backend=None, functions=(), types=(), vfs_enabled=0),
            "its VFs are off (0 of 16 enabled)",
        ),
        (changed(t4(types=()), 0, problem="its vGPU types cannot be read: EIO"), "its vGPU types cannot be read: EIO"),
        (t4(), "its driver does not offer this profile"),
    ],
    ids=["VFs off", "unreadable", "another model"],
)
def test_a_gpu_that_does_not_know_the_profile_says_why(other, reason):
    observed = snapshot(a100(), other)
    rooms = list_rooms(observed, observed.gpus, find_types(observed, observed.gpus, "A100-4C"))
    (room,) = [room for gpu, room in rooms if gpu.address == other.address]
    assert reason in room.reasons[0]


def test_many_vgpus_on_a_nearly_full_host_are_refused_without_trying_every_combination():
    gpus, vms = [], []
    for n in range(16):
        gpu, used = _filled(f"0000:{n + 16:02x}:00.0", A4C, 10 if n == 0 else 9, first=100 * n)
        gpus.append(gpu)
        vms += used
    observed = Counting(**{f: getattr(result, f) for result in [snapshot(*gpus, vms=vms)] for f in field_names(result)})
    with pytest.raises(NoCapacity):
        place_vgpus(observed, [("A100-4C", 16)], None)
    assert len(place_vgpus(observed, [("A100-4C", 15)], None)) == 15
    assert Counting.observations < 1000


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


def test_large_profiles_go_first_and_keep_the_requested_order():
    slots = place_vgpus(snapshot(EMPTY, ONE), [("A100-4C", 1), ("A100-5C", 2)], GpuConstraints(policy="first-fit"))
    assert [(s.vgpu_type.profile, s.gpu) for s in slots] == [("A100-4C", ONE), ("A100-5C", EMPTY), ("A100-5C", EMPTY)]


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
    gpus = [a100(a, types=(), backend=Backend.SRIOV_VF, mode=GpuMode.SRIOV) for a in ("0000:10:00.0", "0000:20:00.0")]
    observed = snapshot(*gpus, vgpus=(taken(gpus[0], None, 0),))
    wanted = request(mode="sriov", gpu=("A100",), placement=policy)
    (vgpu,) = choose_vgpus(observed, wanted, "1" * 8)
    assert vgpu.gpu == address
