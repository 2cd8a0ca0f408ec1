# SPDX-License-Identifier: Apache-2.0
"""The numbers of a GPU are those of its room and of what can be placed; unknown values have no number."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gpu.test_gpu_instances import BIG, H1, H3, HALF, SMALL, TIME_SLICED, host
from tests.unit.gpu.test_mixed_size import Q8
from tests.unit.gpu.test_mixed_size import gpu as mixed
from tests.values import A4C, A5C, a100, changed, snapshot, t4, taken
from vgpuctl.errors import NoCapacity
from vgpuctl.gpu.division import GpuNumbers
from vgpuctl.gpu.room import divide
from vgpuctl.model.gpu import Gpu, Vgpu, VgpuType
from vgpuctl.placement.vm_placement import place_vgpus
from vgpuctl.value import replace

A4Q = replace(A4C, type_id="500", name="GRID A100-4Q", profile="A100-4Q")
V4 = VgpuType("i915-GVTg_V5_4", "GVTg_V5_4", "GVTg_V5_4", 128, pool_units=2)
V8 = VgpuType("i915-GVTg_V5_8", "GVTg_V5_8", "GVTg_V5_8", 64, pool_units=1)
SHARED = (BIG, HALF, SMALL, H3)


def parent(units: int = 8, *types: VgpuType) -> Gpu:
    """Return an mdev parent that is not from NVIDIA, with this many free units in its pool."""
    types = types or (V4, V8)
    numbers = {t.type_id: units // (t.pool_units or 1) for t in types}
    return replace(t4(available=numbers), types=types, vendor_id="8086", driver="i915", model="Iris")


GPUS = {
    "same size": a100(types=(A4C, A4Q, A5C)),
    "few VFs": a100(vfs=3),
    "one type": a100(types=(A4C, A4Q, A5C), has_single_type=True),
    "card": t4(),
    "mixed sizes": mixed(),
    "mixed sizes, few VFs": mixed(vfs=3),
    "instances": host(19, 19, 9, 19),
    "shared instances": host(19, 9, 19, types=SHARED),
    "units": parent(),
    "no MIG": host(on=False),
}


def numbers_of(gpu: Gpu, there: Sequence[Vgpu]) -> GpuNumbers | None:
    return divide(gpu, there).numbers(gpu.types)


def grown(gpu: Gpu, data: st.DataObject) -> tuple[Gpu, tuple[Vgpu, ...]]:
    """Return a GPU and vGPUs on it, each assigned to the slot of `place`, on an instance that accepts it."""
    there: list[Vgpu] = []
    for number, wanted in enumerate(data.draw(st.lists(st.sampled_from(gpu.types), max_size=10))):
        try:
            (slot,) = place_vgpus(snapshot(gpu, vgpus=tuple(there)), [(wanted.profile, 1)], None)
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
def test_what_fits_in_numbers_is_what_is_placed(name: str, data: st.DataObject) -> None:
    gpu, there = grown(GPUS[name], data)
    known = numbers_of(gpu, there)
    profile = data.draw(st.sampled_from(sorted(known.kind.sizes)))
    number = data.draw(st.integers(1, 12))
    try:
        placed = len(place_vgpus(snapshot(gpu, vgpus=there), [(profile, number)], None))
    except NoCapacity:
        placed = 0
    assert known.kind.fits(known.state, {profile: number}) == (placed == number)


@pytest.mark.parametrize("name", GPUS)
@settings(max_examples=40)
@given(data=st.data())
def test_with_everything_that_is_counted_taken_away_a_gpu_is_empty(name: str, data: st.DataObject) -> None:
    gpu, there = grown(GPUS[name], data)
    known = numbers_of(gpu, there)
    state = known.state
    assert len(known.allocated) == len(there)
    for counted in known.allocated:
        state = known.kind.remove(state, counted.profile, counted.place)
    assert state == known.kind.empty


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
    assert numbers_of(gpu, (taken(gpu, gpu.types[0], 0, **vgpu),)) is None


def test_vgpus_that_share_a_place_or_an_instance_as_they_move_make_their_gpu_unknown() -> None:
    there = (taken(mixed(), Q8, 0, placement_id=0), taken(mixed(), Q8, 1, placement_id=16, target_placement_id=0))
    assert numbers_of(mixed(), there[:1]) is not None
    assert numbers_of(mixed(), there) is None
    gpu = host(19, 19, types=SHARED)
    both = (taken(gpu, HALF, 0, gi_id=3), taken(gpu, SMALL, 1, gi_id=3))
    assert numbers_of(gpu, both[:1]) is not None
    assert numbers_of(gpu, both) is None


def test_a_profile_that_the_driver_does_not_offer_has_no_room_in_numbers() -> None:
    gpu = host(19, 9)
    for number in range(len(gpu.functions)):
        gpu = changed(gpu, number, available_instances={H3.type_id: 1})
    known = numbers_of(gpu, ())
    assert [known.kind.count_remaining(known.state, t.profile) for t in (H1, H3, TIME_SLICED)] == [0, 1, 0]
