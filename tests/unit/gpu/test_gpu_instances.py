# SPDX-License-Identifier: Apache-2.0
"""A GPU with MIG: a GPU instance for each vGPU, or for several of one size, never over the limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.values import a100, taken
from vgpuctl.gpu.gpu_instances import rank_instances
from vgpuctl.gpu.room import compute_room
from vgpuctl.model.gpu import GiProfile, Gpu, GpuInstance, GpuMode, MigState, PlacementSpan, VgpuType
from vgpuctl.value import replace

ONE = GiProfile(19, "1g.10gb", 1, 9856, 7, tuple(PlacementSpan(n, 1) for n in range(7)))
THREE = GiProfile(9, "3g.40gb", 3, 40192, 2, (PlacementSpan(0, 4), PlacementSpan(4, 4)))
TIME_SLICED = VgpuType("825", "NVIDIA H100-10C", "H100-10C", 10240, 8)
H1 = VgpuType("821", "NVIDIA H100-1-10C", "H100-1-10C", 10240, 7, gi_profile_id=19, max_per_gi=1)
H3 = VgpuType("823", "NVIDIA H100-3-40C", "H100-3-40C", 40960, 2, gi_profile_id=9, max_per_gi=1)
BIG = VgpuType("901", "NVIDIA DC-1-24Q", "DC-1-24Q", 24576, 4, gi_profile_id=19, max_per_gi=1)
HALF = VgpuType("902", "NVIDIA DC-1-12Q", "DC-1-12Q", 12288, 8, gi_profile_id=19, max_per_gi=2)
SMALL = VgpuType("903", "NVIDIA DC-1-2Q", "DC-1-2Q", 2048, 48, gi_profile_id=19, max_per_gi=12)


def instances(*profiles: int) -> tuple[GpuInstance, ...]:
    return tuple(GpuInstance(n + 3, p, PlacementSpan(n, 1)) for n, p in enumerate(profiles))


def host(*profiles: int, types: tuple[VgpuType, ...] = (TIME_SLICED, H1, H3), on: bool = True, **more: object) -> Gpu:
    mig = MigState(on, on, (ONE, THREE), instances(*profiles))
    return a100(types=types, mig=mig, **{"mode": GpuMode.MIG_VGPU if on else GpuMode.VGPU, "vfs": 48, **more})


def test_a_type_of_the_other_mode_has_no_room_and_the_way_there_is_named():
    result = compute_room(host(19), (), TIME_SLICED)
    assert (result.free, result.functions) == (0, ())
    assert result.reasons[0].endswith("vgpuctl set-mig 0000:3b:00.0 --off")
    off = compute_room(host(on=False), (), H1)
    assert off.free == 0
    assert off.reasons == (
        "MIG is off, and H100-1-10C needs a GPU instance: vgpuctl set-mig 0000:3b:00.0 --for H100-1-10C:1",
    )
    assert compute_room(host(on=False), (), TIME_SLICED).free == 8


def test_no_instance_and_no_free_instance_have_other_reasons():
    assert (
        "needs a GPU instance 3g.40gb, and its instances are: 2 1g.10gb"
        in compute_room(host(19, 19), (), H3).reasons[0]
    )
    assert "its instances are: none" in compute_room(host(), (), H3).reasons[0]
    gpu = host(19, 19)
    full = compute_room(gpu, (taken(gpu, H1, 0, gi_id=3), taken(gpu, H1, 1, present=False)), H1)
    assert full.free == 0
    assert full.reasons == ("all 2 GPU instances 1g.10gb are in use: vdi-000, vdi-001",)


def test_an_instance_takes_several_of_one_size_where_the_driver_says_so():
    gpu = host(19, 19, types=(BIG, HALF, SMALL))
    assert [compute_room(gpu, (), t).free for t in (BIG, HALF, SMALL)] == [2, 4, 24]
    one = (taken(gpu, HALF, 0, gi_id=3),)
    assert [compute_room(gpu, one, t).free for t in (BIG, HALF, SMALL)] == [1, 3, 12]


def test_where_the_instance_is_not_known_the_worst_is_counted_and_the_driver_knows_better():
    gpu = host(19, 19, types=(BIG, HALF, SMALL), has_fixed_placements=True)
    two = (taken(gpu, HALF, 0), taken(gpu, HALF, 1))
    assert [(compute_room(gpu, two, t).free, compute_room(gpu, two, t).at_least) for t in (HALF, SMALL)] == [
        (None, 2),
        (None, 1),
    ]
    away = tuple(replace(v, present=False) for v in two)
    assert [compute_room(gpu, away, t).guaranteed for t in (HALF, SMALL)] == [2, 0]


def test_a_driver_that_does_not_tell_what_backs_a_type_decides_alone():
    bare = replace(H1, gi_profile_id=None, max_per_gi=None)
    assert compute_room(host(19, types=(bare,)), (), bare).free is None


def test_where_nvml_does_not_tell_the_instances_only_trying_tells():
    gpu = host(types=(H1, H3), mode=GpuMode.VGPU)
    quiet = replace(gpu, mig=None)
    result = compute_room(quiet, (taken(quiet, H3, 0),), H1)
    assert (result.free, len(result.functions)) == (None, 47)
    assert "only to root" in result.reasons[0]


SIZES = (BIG, HALF, SMALL)
PLACED = st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 2), st.booleans()), max_size=6)


def fill(results: list[tuple[VgpuType, int, bool]]) -> list[tuple[VgpuType, int, bool]]:
    """Skip what the driver would refuse: another size in the instance, or one too many."""
    there: list[tuple[VgpuType, int, bool]] = []
    for kind, number, reported in results:
        inside = [k for k, n, _ in there if n == number]
        if all(k == kind for k in inside) and len(inside) < (kind.max_per_gi or 1):
            there.append((kind, number, reported))
    return there


@given(PLACED)
def test_the_count_is_exact_when_every_instance_is_known_and_never_too_big_otherwise(results):
    gpu = host(19, 19, 19, types=SIZES, has_fixed_placements=True)
    there = fill(results)
    vgpus = [
        taken(gpu, kind, n, gi_id=number + 3 if reported else None, present=False)
        for n, (kind, number, reported) in enumerate(there)
    ]
    for wanted in SIZES:
        most = wanted.max_per_gi or 1
        inside = [[k for k, n, _ in there if n == number] for number in range(3)]
        true = sum(most - len(i) for i in inside if all(k == wanted for k in i))
        seen = compute_room(gpu, vgpus, wanted)
        assert seen.guaranteed <= true
        assert seen.free == true or not all(reported for _, _, reported in there)
        assert seen.free in (None, true) or not seen.functions


def test_one_more_joins_those_of_its_size_and_leaves_empty_instances_alone():
    gpu = host(19, 19, 19, 9, types=(BIG, HALF, SMALL))
    there = [taken(gpu, HALF, 0, gi_id=5), taken(gpu, SMALL, 1, gi_id=4), taken(gpu, HALF, 2, present=False)]
    assert rank_instances(gpu, gpu.mig, there, HALF) == (5, 3)
    assert rank_instances(gpu, gpu.mig, there, SMALL) == (4, 3)
    assert rank_instances(gpu, gpu.mig, there, BIG) == ()
    assert rank_instances(replace(gpu, has_fixed_placements=True), gpu.mig, there, HALF) == ()


@given(PLACED, st.lists(st.sampled_from(SIZES), max_size=5), st.randoms(use_true_random=False))
def test_missing_devices_count_as_if_created_in_any_order(results, records, random):
    gpu = host(19, 19, 19, types=SIZES)
    made = [taken(gpu, kind, n, gi_id=number + 3) for n, (kind, number, _) in enumerate(fill(results))]
    waiting = []
    for kind in records:
        if compute_room(gpu, (*made, *waiting), kind).free:
            waiting.append(taken(gpu, kind, len(made) + len(waiting), present=False))
    counted = [compute_room(gpu, (*made, *waiting), t).free for t in SIZES]
    random.shuffle(waiting)
    for vgpu in waiting:
        kind = next(t for t in SIZES if t.profile == vgpu.profile)
        empty = (i.gi_id for i in gpu.mig.instances if all(v.gi_id != i.gi_id for v in made))
        best = next(iter(rank_instances(gpu, gpu.mig, made, kind)), None) or next(empty)  # it needs a whole instance
        made.append(replace(vgpu, present=True, gi_id=best))
    assert [compute_room(gpu, made, t).free for t in SIZES] == counted


def test_instances_of_one_vgpu_are_counted_without_the_framebuffer():
    unsized = replace(H1, framebuffer_mib=None)
    gpu = host(19, 19, types=(TIME_SLICED, unsized, H3))
    rooms = [compute_room(gpu, [taken(gpu, unsized, n, gi_id=n + 3) for n in range(used)], unsized) for used in (0, 2)]
    assert [room.free for room in rooms] == [2, 0]
