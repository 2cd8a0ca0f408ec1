# SPDX-License-Identifier: Apache-2.0
"""A GPU with MIG: a GPU instance for each vGPU, or for several of one size, and never one too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.values import a100, snapshot, taken
from vgpuctl.capacity.gpu_instances import choice
from vgpuctl.capacity.place import place
from vgpuctl.capacity.room import room
from vgpuctl.model.gpu import Backend, Gpu, Mode, VgpuType
from vgpuctl.model.partition import GiProfile, GpuInstance, Mig, Span
from vgpuctl.value import replace

ONE = GiProfile(19, "1g.10gb", 1, 9856, 7, tuple(Span(n, 1) for n in range(7)))
THREE = GiProfile(9, "3g.40gb", 3, 40192, 2, (Span(0, 4), Span(4, 4)))
TIME_SLICED = VgpuType("825", "NVIDIA H100-10C", "H100-10C", 10240, 8)
H1 = VgpuType("821", "NVIDIA H100-1-10C", "H100-1-10C", 10240, 7, gi_profile_id=19, max_per_gi=1)
H3 = VgpuType("823", "NVIDIA H100-3-40C", "H100-3-40C", 40960, 2, gi_profile_id=9, max_per_gi=1)
BIG = VgpuType("901", "NVIDIA DC-1-24Q", "DC-1-24Q", 24576, 4, gi_profile_id=19, max_per_gi=1)
HALF = VgpuType("902", "NVIDIA DC-1-12Q", "DC-1-12Q", 12288, 8, gi_profile_id=19, max_per_gi=2)
SMALL = VgpuType("903", "NVIDIA DC-1-2Q", "DC-1-2Q", 2048, 48, gi_profile_id=19, max_per_gi=12)


def instances(*profiles: int) -> tuple[GpuInstance, ...]:
    return tuple(GpuInstance(n + 3, p, Span(n, 1)) for n, p in enumerate(profiles))


def host(*profiles: int, types: tuple[VgpuType, ...] = (TIME_SLICED, H1, H3), on: bool = True, **more: object) -> Gpu:
    mig = Mig(on, on, (ONE, THREE), instances(*profiles))
    return a100(types=types, mig=mig, **{"mode": Mode.MIG_VGPU if on else Mode.VGPU, "vfs": 48, **more})


def test_each_type_has_as_much_room_as_the_gpu_has_instances_of_its_profile():
    gpu = host(19, 19, 19, 9)
    assert [room(gpu, (), t).free for t in (H1, H3)] == [3, 1]
    assert len(room(gpu, (), H1).functions) == 3


def test_the_rules_of_a_gpu_without_mig_do_not_hold():
    gpu = host(19, 19, 9)
    assert room(gpu, (taken(gpu, H3, 0),), H1).free == 2


def test_a_type_of_the_other_mode_has_no_room_and_the_way_there_is_named():
    found = room(host(19), (), TIME_SLICED)
    assert (found.free, found.functions) == (0, ())
    assert found.reasons[0].endswith("vgpuctl set-mig 0000:3b:00.0 --off")
    off = room(host(on=False), (), H1)
    assert off.free == 0
    assert off.reasons == (
        "MIG is off, and H100-1-10C needs a GPU instance: vgpuctl set-mig 0000:3b:00.0 --for H100-1-10C:1",
    )
    assert room(host(on=False), (), TIME_SLICED).free == 8


def test_no_instance_of_the_profile_and_none_free_are_told_apart():
    assert "needs a GPU instance 3g.40gb, and its instances are: 2 1g.10gb" in room(host(19, 19), (), H3).reasons[0]
    assert "its instances are: none" in room(host(), (), H3).reasons[0]
    gpu = host(19, 19)
    full = room(gpu, (taken(gpu, H1, 0, gi_id=3), taken(gpu, H1, 1, present=False)), H1)
    assert full.free == 0
    assert full.reasons == ("all 2 GPU instances 1g.10gb are in use: vdi-000, vdi-001",)


def test_an_instance_takes_several_of_one_size_where_the_driver_says_so():
    gpu = host(19, 19, types=(BIG, HALF, SMALL))
    assert [room(gpu, (), t).free for t in (BIG, HALF, SMALL)] == [2, 4, 24]
    one = (taken(gpu, HALF, 0, gi_id=3),)
    assert [room(gpu, one, t).free for t in (BIG, HALF, SMALL)] == [1, 3, 12]


def test_where_the_instance_is_not_known_the_worst_is_counted_and_the_driver_knows_better():
    gpu = host(19, 19, types=(BIG, HALF, SMALL), backend=Backend.MDEV_VF)
    two = (taken(gpu, HALF, 0), taken(gpu, HALF, 1))
    assert [(room(gpu, two, t).free, room(gpu, two, t).at_least) for t in (HALF, SMALL)] == [(None, 2), (None, 1)]
    away = tuple(replace(v, present=False) for v in two)
    assert [room(gpu, away, t).sure for t in (HALF, SMALL)] == [2, 0]


def test_one_that_has_an_instance_to_itself_is_counted_exactly_whichever_it_is():
    gpu = host(19, 19, 9, types=(H1, H3), backend=Backend.MDEV_VF)
    there = (taken(gpu, H1, 0),)
    assert [room(gpu, there, t).free for t in (H1, H3)] == [1, 1]


def test_a_device_of_an_unknown_type_may_be_in_any_instance():
    gpu = host(19, types=(H1,))
    assert room(gpu, (taken(gpu, None, 0, type_id="4711", present=False),), H1).free == 0


def test_a_driver_that_does_not_tell_what_backs_a_type_decides_alone():
    bare = replace(H1, gi_profile_id=None, max_per_gi=None)
    assert room(host(19, types=(bare,)), (), bare).free is None


def test_where_nvml_does_not_tell_the_instances_only_trying_tells():
    gpu = host(types=(H1, H3), mode=Mode.VGPU)
    quiet = replace(gpu, mig=None)
    found = room(quiet, (taken(quiet, H3, 0),), H1)
    assert (found.free, len(found.functions)) == (None, 47)
    assert "asked by root it does" in found.reasons[0]


def test_several_in_one_vm_take_an_instance_each():
    gpu = host(19, 19, 9)
    slots = place(snapshot(gpu), [("H100-1-10C", 2)], None)
    assert len({s.function for s in slots}) == 2
    assert [s.placement_id for s in slots] == [None, None]


SIZES = (BIG, HALF, SMALL)
PLACED = st.lists(st.tuples(st.sampled_from(SIZES), st.integers(0, 2), st.booleans()), max_size=6)


def fill(found: list[tuple[VgpuType, int, bool]]) -> list[tuple[VgpuType, int, bool]]:
    """Leave out what the driver would have refused: another size in the instance, or one too many."""
    there: list[tuple[VgpuType, int, bool]] = []
    for kind, number, told in found:
        inside = [k for k, n, _ in there if n == number]
        if all(k == kind for k in inside) and len(inside) < (kind.max_per_gi or 1):
            there.append((kind, number, told))
    return there


@given(PLACED)
def test_the_count_is_exact_when_every_instance_is_known_and_never_too_big_otherwise(found):
    gpu = host(19, 19, 19, types=SIZES, backend=Backend.MDEV_VF)
    there = fill(found)
    vgpus = [
        taken(gpu, kind, n, gi_id=number + 3 if told else None, present=False)
        for n, (kind, number, told) in enumerate(there)
    ]
    for wanted in SIZES:
        most = wanted.max_per_gi or 1
        inside = [[k for k, n, _ in there if n == number] for number in range(3)]
        true = sum(most - len(i) for i in inside if all(k == wanted for k in i))
        seen = room(gpu, vgpus, wanted)
        assert seen.sure <= true
        assert seen.free == true or not all(told for _, _, told in there)
        assert seen.free in (None, true) or not seen.functions


def test_what_is_promised_counts_exactly_where_vgpuctl_chooses_the_instance():
    gpu = host(19, 19, types=(BIG, HALF, SMALL))
    there = (taken(gpu, HALF, 0, gi_id=4), taken(gpu, HALF, 1, present=False))
    assert [room(gpu, there, t).free for t in (BIG, HALF, SMALL)] == [1, 2, 12]
    untold = replace(gpu, fixed_places=True)
    assert [room(untold, there, t).sure for t in (BIG, HALF, SMALL)] == [0, 2, 0]


def test_one_more_joins_those_of_its_size_and_leaves_empty_instances_alone():
    gpu = host(19, 19, 19, 9, types=(BIG, HALF, SMALL))
    there = [taken(gpu, HALF, 0, gi_id=5), taken(gpu, SMALL, 1, gi_id=4), taken(gpu, HALF, 2, present=False)]
    assert choice(gpu, gpu.mig, there, HALF) == (5, 3)
    assert choice(gpu, gpu.mig, there, SMALL) == (4, 3)
    assert choice(gpu, gpu.mig, there, BIG) == ()
    assert choice(replace(gpu, backend=Backend.MDEV_VF), gpu.mig, there, HALF) == ()


@given(PLACED, st.lists(st.sampled_from(SIZES), max_size=5), st.randoms(use_true_random=False))
def test_the_count_of_promises_is_what_is_left_once_they_are_made_in_any_order(found, promises, random):
    gpu = host(19, 19, 19, types=SIZES)
    made = [taken(gpu, kind, n, gi_id=number + 3) for n, (kind, number, _) in enumerate(fill(found))]
    waiting = []
    for kind in promises:
        if room(gpu, (*made, *waiting), kind).free:
            waiting.append(taken(gpu, kind, len(made) + len(waiting), present=False))
    counted = [room(gpu, (*made, *waiting), t).free for t in SIZES]
    random.shuffle(waiting)
    for vgpu in waiting:
        kind = next(t for t in SIZES if t.profile == vgpu.profile)
        empty = (i.gi_id for i in gpu.mig.instances if all(v.gi_id != i.gi_id for v in made))
        best = next(iter(choice(gpu, gpu.mig, made, kind)), None) or next(empty)  # one that needs all of it
        made.append(replace(vgpu, present=True, gi_id=best))
    assert [room(gpu, made, t).free for t in SIZES] == counted
