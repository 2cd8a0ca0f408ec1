# SPDX-License-Identifier: Apache-2.0
"""GPUs in numbers say what `room` and `place` say of them as observed; what is not known has no number."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.capacity.test_gpu_instances import BIG, H1, H3, HALF, SMALL, THREE, TIME_SLICED, host
from tests.unit.capacity.test_mixed_size import A40, Q8
from tests.unit.capacity.test_mixed_size import gpu as mixed
from tests.values import A4C, A5C, a100, changed, snapshot, t4, taken
from vgpuctl.capacity.kinds import PLAIN_VF, fleet_of, known_of
from vgpuctl.capacity.place import place
from vgpuctl.capacity.room import free_of_each, room
from vgpuctl.errors import NoCapacity
from vgpuctl.model.gpu import Backend, Gpu, Mode, Vgpu, VgpuType
from vgpuctl.model.vm import ProcessId, StuckWrite
from vgpuctl.value import replace

A4Q = replace(A4C, type_id="500", name="GRID A100-4Q", profile="A100-4Q")
V4 = VgpuType("i915-GVTg_V5_4", "GVTg_V5_4", "GVTg_V5_4", 128, units=2)
V8 = VgpuType("i915-GVTg_V5_8", "GVTg_V5_8", "GVTg_V5_8", 64, units=1)
SHARED = (BIG, HALF, SMALL, H3)


def parent(units: int = 8, *types: VgpuType) -> Gpu:
    """Return an mdev parent of another maker than NVIDIA, of whose pool so many units are free."""
    types = types or (V4, V8)
    numbers = {t.type_id: units // (t.units or 1) for t in types}
    return replace(t4(available=numbers), types=types, vendor_id="8086", driver="i915", model="Iris")


GPUS = {
    "same size": a100(types=(A4C, A4Q, A5C)),
    "few VFs": a100(vfs=3),
    "one type": a100(types=(A4C, A4Q, A5C), one_type=True),
    "card": t4(),
    "mixed sizes": mixed(),
    "mixed sizes, few VFs": mixed(vfs=3),
    "instances": host(19, 19, 9, 19),
    "shared instances": host(19, 9, 19, types=SHARED),
    "units": parent(),
    "no MIG": host(on=False),
}


def grown(gpu: Gpu, data: st.DataObject) -> tuple[Gpu, tuple[Vgpu, ...]]:
    """Return a GPU and vGPUs on it, each promised where `place` put it, and on an instance that takes it."""
    there: list[Vgpu] = []
    for number, wanted in enumerate(data.draw(st.lists(st.sampled_from(gpu.types), max_size=10))):
        try:
            (slot,) = place(snapshot(gpu, vgpus=tuple(there)), [(wanted.profile, 1)], None)
        except NoCapacity:
            continue
        at = slot.placement_id
        if at is not None:
            free = [n for n in wanted.placement_ids or () if fits_at(gpu, there, wanted, n)]
            at = data.draw(st.sampled_from(free))
        gi_id = data.draw(st.sampled_from(open_instances(gpu, there, wanted))) if gpu.mig and gpu.mig.enabled else None
        vgpu = taken(gpu, wanted, 0, function=slot.function, present=False, placement_id=at, gi_id=gi_id)
        there.append(replace(vgpu, carrier=f"carrier-{number}"))
    return gpu, tuple(there)


def fits_at(gpu: Gpu, there: list[Vgpu], wanted: VgpuType, start: int) -> bool:
    sizes = {t.profile: t.placement_size or 0 for t in gpu.types}
    end = start + (wanted.placement_size or 0)
    return all(end <= (v.placement_id or 0) or (v.placement_id or 0) + sizes[v.profile or ""] <= start for v in there)


def open_instances(gpu: Gpu, there: list[Vgpu], wanted: VgpuType) -> list[int]:
    assert gpu.mig is not None
    inside = {i.gi_id: [v for v in there if v.gi_id == i.gi_id] for i in gpu.mig.instances}
    return [
        i.gi_id
        for i in gpu.mig.instances
        if i.profile_id == wanted.gi_profile_id
        and len(inside[i.gi_id]) < (wanted.max_per_gi or 1)
        and all(v.framebuffer_mib == wanted.framebuffer_mib for v in inside[i.gi_id])
    ]


@pytest.mark.parametrize("name", GPUS)
@settings(max_examples=40)
@given(data=st.data())
def test_as_many_are_left_in_numbers_as_there_is_room_for(name: str, data: st.DataObject) -> None:
    gpu, there = grown(GPUS[name], data)
    known = known_of(gpu, there)
    assert known is not None
    for wanted in gpu.types:
        assert known.kind.left(known.state, wanted.profile) == room(gpu, there, wanted).free, wanted.profile


@pytest.mark.parametrize("name", GPUS)
@settings(max_examples=40)
@given(data=st.data())
def test_what_fits_in_numbers_is_what_is_placed(name: str, data: st.DataObject) -> None:
    gpu, there = grown(GPUS[name], data)
    known = known_of(gpu, there)
    assert known is not None
    profile = data.draw(st.sampled_from(sorted(known.kind.sizes)))
    number = data.draw(st.integers(1, 12))
    try:
        placed = len(place(snapshot(gpu, vgpus=there), [(profile, number)], None))
    except NoCapacity:
        placed = 0
    assert known.kind.fits(known.state, {profile: number}) == (placed == number)


@pytest.mark.parametrize("name", GPUS)
@settings(max_examples=40)
@given(data=st.data())
def test_with_everything_that_is_counted_taken_away_a_gpu_is_empty(name: str, data: st.DataObject) -> None:
    gpu, there = grown(GPUS[name], data)
    known = known_of(gpu, there)
    assert known is not None
    state = known.state
    assert len(known.counted) == len(there)
    for counted in known.counted:
        state = known.kind.without(state, counted.profile, counted.place)
    assert state == known.kind.empty


@pytest.mark.parametrize("name", GPUS)
@settings(max_examples=40)
@given(data=st.data())
def test_one_look_at_the_functions_says_what_room_says(name: str, data: st.DataObject) -> None:
    gpu, there = grown(GPUS[name], data)
    assert free_of_each(gpu, there, gpu.types) == {t.profile: room(gpu, there, t).free for t in gpu.types}


def test_gpus_that_are_alike_are_of_one_kind_in_one_group_in_the_order_of_their_addresses() -> None:
    gpus = [a100(f"0000:{n:02x}:00.0") for n in (0x5E, 0x3B, 0x81)]
    numbers = fleet_of(snapshot(*gpus), gpus)
    assert [g.address for g in numbers.gpus] == ["0000:3b:00.0", "0000:5e:00.0", "0000:81:00.0"]
    assert [n for _, n in numbers.fleet.groups()] == [3]
    two = snapshot(*gpus, vgpus=(taken(gpus[0], A4C),))
    numbers = fleet_of(two, gpus)
    assert len(numbers.fleet.kinds) == 1
    assert [numbers.fleet.vgpus(n) for n in range(3)] == [0, 1, 0]


def test_of_profiles_that_were_not_asked_for_the_rules_alone_speak() -> None:
    gpu = a100()
    for number in range(len(gpu.functions)):
        gpu = changed(gpu, number, available={A4C.type_id: 1})
    asked = fleet_of(snapshot(gpu), [gpu], asked=frozenset({"A100-4C"})).fleet
    read = fleet_of(snapshot(gpu), [gpu]).fleet
    (group, _), (same, _) = next(asked.groups()), next(read.groups())
    assert [asked.kind(group).left(group.state, p) for p in ("A100-4C", "A100-5C")] == [10, 8]
    assert [read.kind(same).left(same.state, p) for p in ("A100-4C", "A100-5C")] == [10, 0]


def test_a_gpu_that_is_closed_or_stuck_or_given_away_is_left_out_and_why_is_said() -> None:
    gpus = [
        a100("0000:01:00.0", cordoned=True),
        a100("0000:02:00.0", reserved_for=("lab-*",)),
        a100("0000:03:00.0"),
        a100("0000:04:00.0"),
    ]
    whole = taken(gpus[3], None, carrier=gpus[3].address, backend=Backend.PASSTHROUGH)
    write = StuckWrite(ProcessId(7, 1), gpus[2].address, "create", "x")
    seen = replace(snapshot(*gpus, vgpus=(whole,)), stuck=(write,))
    numbers = fleet_of(seen, gpus)
    assert len(numbers.fleet) == 0
    assert {a: why.split(";")[0] for a, why in numbers.left_out.items()} == {
        "0000:01:00.0": "it is cordoned",
        "0000:02:00.0": "host.yaml reserves it for VMs named lab-*",
        "0000:03:00.0": "a kernel write on it is stuck",
        "0000:04:00.0": "what fits on it is not known in numbers",
    }
    assert len(fleet_of(seen, gpus, "lab-1").fleet) == 1


@pytest.mark.parametrize(
    ("gpu", "vgpu"),
    [
        (a100(), {"framebuffer_mib": None, "profile": None, "type_id": None}),
        (mixed(), {"placement_id": None}),
        (host(19, 19, types=SHARED), {"gi_id": None}),
        (host(19, 19), {"profile": None, "type_id": None}),
    ],
)
def test_a_vgpu_of_no_known_size_or_place_makes_its_gpu_unknown(gpu: Gpu, vgpu: dict[str, object]) -> None:
    assert known_of(gpu, (taken(gpu, gpu.types[0], 0, **vgpu),)) is None


def test_vgpus_that_share_a_place_or_an_instance_as_they_move_make_their_gpu_unknown() -> None:
    there = (taken(mixed(), Q8, 0, placement_id=0), taken(mixed(), Q8, 1, placement_id=16, due_placement_id=0))
    assert known_of(mixed(), there[:1]) is not None
    assert known_of(mixed(), there) is None
    gpu = host(19, 19, types=SHARED)
    both = (taken(gpu, HALF, 0, gi_id=3), taken(gpu, SMALL, 1, gi_id=3))
    assert known_of(gpu, both[:1]) is not None
    assert known_of(gpu, both) is None


def test_a_profile_without_a_maximum_or_places_is_left_out_and_the_others_stay() -> None:
    dark = a100(types=(A4C, replace(A5C, max_per_gpu=None)))
    untold = mixed(*A40[:-2], replace(Q8, placement_ids=None))
    for gpu, missing in ((dark, "A100-5C"), (untold, "A40-8Q")):
        known = known_of(gpu, ())
        assert known is not None
        assert missing not in known.kind.sizes
        assert len(known.kind.sizes) == len(gpu.types) - 1


def test_a_profile_that_the_driver_does_not_offer_has_no_room_in_numbers() -> None:
    gpu = host(19, 9)
    for number in range(len(gpu.functions)):
        gpu = changed(gpu, number, available={H3.type_id: 1})
    known = known_of(gpu, ())
    assert known is not None
    assert [known.kind.left(known.state, t.profile) for t in (H1, H3, TIME_SLICED)] == [0, 1, 0]


def test_plain_vfs_are_counted() -> None:
    gpu = a100(types=(), backend=Backend.SRIOV_VF, mode=Mode.SRIOV, vfs=4)
    known = known_of(gpu, (taken(gpu, None, 0),))
    assert known is not None
    assert known.kind.left(known.state, PLAIN_VF) == 3


def test_types_of_a_pool_whose_units_are_not_told_take_the_part_their_number_allows() -> None:
    gpu = parent(8, replace(V4, units=None), replace(V8, units=None))
    gpu = changed(gpu, 0, available={V4.type_id: 2, V8.type_id: 5})
    known = known_of(gpu, ())
    assert known is not None
    assert [known.kind.left(known.state, p) for p in ("GVTg_V5_4", "GVTg_V5_8")] == [2, 5]
    assert known.kind.fits(known.state, Counter({"GVTg_V5_4": 1, "GVTg_V5_8": 2}))
    assert not known.kind.fits(known.state, Counter({"GVTg_V5_4": 1, "GVTg_V5_8": 3}))


def test_what_an_instance_takes_of_several_sizes_is_counted_together() -> None:
    gpu = host(19, 9, 19, types=SHARED)
    known = known_of(gpu, ())
    assert known is not None
    assert known.kind.fits(known.state, {"DC-1-24Q": 1, "DC-1-12Q": 2, "H100-3-40C": 1})
    assert not known.kind.fits(known.state, {"DC-1-24Q": 1, "DC-1-12Q": 1, "DC-1-2Q": 1})
    assert THREE.name in known.kind.name
