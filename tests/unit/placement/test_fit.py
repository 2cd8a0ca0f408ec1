# SPDX-License-Identifier: Apache-2.0
"""Several profiles on observed GPUs: slots if they fit, reasons if they do not, and no guess.

Several profiles on several GPUs: whether they fit together, and the fewest that are too many.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import examples
from tests.unit.gpu.test_gpu_instances import H1
from tests.unit.gpu.test_gpu_instances import host as instances_host
from tests.unit.gpu.test_kinds import A40, H100_MIG, UNEVEN
from tests.unit.gpu.test_mixed_size import gpu as mixed
from tests.unit.placement.fleets import SMALL, filled, fit
from tests.values import A4C, A5C, T4Q, a100, assigned, snapshot, t4, taken, vm
from vgpuctl.errors import NotFound
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.placement.fit import Joint, check_fit, fit_together, largest_mib, none_beside, total_left
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.value import replace


def test_each_gets_a_gpu_when_all_fit():
    one, two = a100(), a100("0000:86:00.0")
    result = check_fit(snapshot(one, two), (one, two), [("A100-4C", 4), ("A100-5C", 3), ("A100-4C", 6)])
    assert result.fits is True
    assert result.requested == {"A100-4C": 10, "A100-5C": 3}
    by_gpu = {(s.gpu.address, s.profile) for s in result.planned}
    assert len(result.planned) == 13
    assert len(by_gpu) == 2


def test_the_fewest_that_are_too_many_are_named_with_what_each_gpu_has_room_for():
    gpu = a100()
    result = check_fit(snapshot(gpu, vms=[vm(1, assigned(gpu, A4C))]), (gpu,), [("A100-4C", 3), ("A100-5C", 2)])
    assert result.fits is False
    assert result.excess == (("A100-5C", 2),)
    (barrier,) = result.rooms
    assert "it has 1 of another size" in barrier.room.reasons[0]


def test_on_a_mixed_size_gpu_each_gets_a_placement_and_no_two_overlap():
    gpu = mixed()
    types = sorted((t for t in gpu.types if t.placement_ids), key=lambda t: t.placement_size or 0)[:2]
    result = check_fit(snapshot(gpu), (gpu,), [(t.profile, 2) for t in types])
    assert result.fits is True
    sizes = {t.profile: t.placement_size or 0 for t in types}
    covered = [n for s in result.planned for n in range(s.placement_id or 0, (s.placement_id or 0) + sizes[s.profile])]
    assert len(covered) == len(set(covered)) == 2 * sum(sizes.values())


def test_fit_is_unknown_without_a_maximum():
    gpu = a100(types=(replace(A4C, max_per_gpu=None), A5C))
    result = check_fit(snapshot(gpu), (gpu,), [("A100-4C", 3)])
    assert result.fits is None
    assert "not known" in str(result.reason)


def test_a_cordoned_gpu_takes_nothing_and_says_so():
    gpu = replace(a100(), cordoned=True)
    result = check_fit(snapshot(gpu), (gpu,), [("A100-4C", 1)])
    assert result.fits is False
    assert "it is cordoned" in result.rooms[0].room.reasons[0]


def test_a_profile_of_any_model_counts_the_gpus_of_all():
    gpus = (a100(), t4(types=(replace(T4Q, name="GRID T4-4C", profile="T4-4C"),)))
    result = check_fit(snapshot(*gpus), gpus, [("4C", 13), ("GRID A100-4C", 1)])
    assert result.fits is True
    assert result.requested == {"4C": 13, "A100-4C": 1}
    assert Counter((s.gpu.address, s.profile) for s in result.planned) == {
        (gpus[0].address, "A100-4C"): 10,
        (gpus[1].address, "T4-4C"): 4,
    }
    few = check_fit(snapshot(*gpus), gpus, [("4C", 15)])
    assert (few.fits, few.excess) == (False, (("4C", 1),))
    assert [b.room.free for b in few.rooms] == [10, 4]


def test_a_profile_that_no_gpu_knows_is_refused():
    with pytest.raises(NotFound, match="A100-9C"):
        check_fit(snapshot(a100(), t4()), (a100(), t4()), [("A100-4C", 1), ("A100-9C", 1)])


def test_a_gpu_with_more_recorded_vgpus_than_instances_leaves_the_others_countable() -> None:
    """Its instances were made differently after the VMs were recorded."""
    over = instances_host(19, 19, 9)
    second = instances_host(9, 19)
    second = replace(second, address="0000:5e:00.0", functions=a100("0000:5e:00.0", second.types, vfs=48).functions)
    recorded = tuple(taken(over, H1, n, present=False) for n in range(3))
    result = check_fit(snapshot(over, second, vgpus=recorded), (over, second), [("H100-3-40C", 3), ("H100-1-10C", 2)])
    assert (result.fits, dict(result.excess)) == (False, {"H100-3-40C": 1, "H100-1-10C": 1})


def drawn(data: st.DataObject, fleet: Fleet, most: int) -> Counter[str]:
    """Return some profiles that the fleet knows, or not."""
    profiles = sorted({p for kind in fleet.kinds for p in kind.sizes} | {"none"})
    return Counter(data.draw(st.lists(st.sampled_from(profiles), min_size=1, max_size=most)))


def placed_on(joint: Joint) -> Counter[str]:
    """Return how many of each profile found a GPU."""
    return sum((Counter(counts) for counts in joint.by_gpu.values()), Counter())


@settings(deadline=None, max_examples=examples(200))
@given(data=st.data())
def test_as_many_fit_as_some_places_take(data: st.DataObject) -> None:
    fleet, _ = data.draw(filled(3))
    wanted = drawn(data, fleet, 5)
    joint = fit_together(fleet, wanted)
    assert joint.why_not_proven is None
    assert placed_on(joint) + Counter(joint.excess) == wanted
    for gpu, counts in joint.by_gpu.items():
        group = fleet.group_of(gpu)
        assert fleet.kind_of(group).fits(group.state, counts)
    items = sorted(wanted.elements())
    some = chain.from_iterable(combinations(items, n) for n in range(len(items), -1, -1))
    most = next(len(part) for part in some if fit(fleet, Counter(part)))
    assert sum(joint.excess.values()) == len(items) - most
    with_most_mib = max(
        sum(largest_mib(fleet, p) for p in part) for part in combinations(items, most) if fit(fleet, Counter(part))
    )
    assert sum(largest_mib(fleet, p) * n for p, n in placed_on(joint).items()) == with_most_mib


def test_a_host_of_sixteen_gpus_is_known() -> None:
    gpus = [GpuGroup(0, (0, 0))] * 8 + [GpuGroup(1, 0)] * 8
    fleet = Fleet([A40, H100_MIG], gpus)
    wanted = {"1B": 64, "2Q": 48, "8Q": 24, "1g": 16, "2g": 8, "3g": 8}
    assert not fit_together(fleet, wanted).excess
    assert fit_together(fleet, {**wanted, "8Q": 25}).excess == {"8Q": 1}
    assert fit_together(fleet, {"8Q": 49, "2Q": 1}).excess == {"2Q": 1, "8Q": 1}


def test_gpus_with_fewer_vfs_than_small_vgpus_fit_are_filled_one_by_one() -> None:
    """Together the two have four VFs. But one is full with the large vGPU, and the other has VFs for two small ones."""
    footprints = {"1S": Footprint(tuple(range(4)), 1, ((0, 1),)), "4S": Footprint((0,), 4, ((0, 1),))}
    few = SliceKind("few", 4096, {"1S": 1024, "4S": 4096}, footprints, slices=4, pools=(2,))
    fleet = Fleet([few], [GpuGroup(0, few.empty)] * 2)
    assert fit_together(fleet, {"1S": 3, "4S": 1}).excess == {"1S": 1}
    assert fit_together(fleet, {"1S": 5}).excess == {"1S": 1}


def test_many_more_than_fit_on_sixteen_gpus_are_counted_exactly() -> None:
    """Each GPU is of one size at a time: six, five and five of them."""
    sizes = {"2B": 2048, "4A": 4096, "8C": 8192}
    kind = EqualSizeKind("RTX PRO 6000", 98304, sizes, {"2B": 32, "4A": 24, "8C": 12})
    fleet = Fleet([kind], [GpuGroup(0, (0, 0))] * 16)
    joint = fit_together(fleet, {"2B": 171, "4A": 128, "8C": 64})
    assert joint.why_not_proven is None
    assert joint.excess == {"4A": 8, "8C": 4}


def test_profiles_that_take_the_same_are_one_and_the_last_by_name_are_too_many() -> None:
    sizes = dict.fromkeys(("8A", "8B", "8C", "8Q"), 8192)
    kind = EqualSizeKind("RTX PRO 6000", 98304, sizes, dict.fromkeys(sizes, 12))
    fleet = Fleet([kind], [GpuGroup(0, (0, 0))] * 16)
    joint = fit_together(fleet, dict.fromkeys(sizes, 48))
    assert joint.by_gpu[0] == {"8A": 12}
    assert joint.by_gpu[15] == {"8Q": 12}
    assert fit_together(fleet, {**dict.fromkeys(sizes, 48), "8C": 49}).excess == {"8Q": 1}


def test_of_one_size_those_with_the_lower_maximum_come_first() -> None:
    """The GPU takes two 4C and four 4Q: a 4C beside two others is one too many, a 4Q is not."""
    fleet = Fleet([UNEVEN], [GpuGroup(0, (0, 0))])
    assert not fit_together(fleet, {"4C": 2, "4Q": 2}).excess
    assert fit_together(fleet, {"4C": 3, "4Q": 1}).excess == {"4C": 1}


def test_one_that_no_gpu_knows_is_too_many_alone() -> None:
    joint = fit_together(Fleet([SMALL], [GpuGroup(0, (0, 0))]), {"9Z": 2, "1B": 1})
    assert (joint.excess, joint.by_gpu, joint.why_not_proven) == ({"9Z": 2}, {0: {"1B": 1}}, None)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_none_is_left_of_what_the_most_of_another_excludes(data: st.DataObject) -> None:
    fleet, _ = data.draw(filled(2, 3))
    profiles = sorted({p for kind in fleet.kinds for p in kind.sizes})
    profile = data.draw(st.sampled_from(profiles))
    number = total_left(fleet, profile)
    excluded = none_beside(fleet, profile, profiles)
    assert list(excluded) == [
        p for p in profiles if p != profile and fit_together(fleet, {profile: number, p: 1}).excess
    ]


def test_without_the_solver_what_a_simple_order_places_is_known_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    fleet = Fleet([H100_MIG], [GpuGroup(0, 0b0000_0001)])
    easy = fit_together(fleet, {"3g": 1, "1g": 2})
    assert (easy.excess, easy.why_not_proven) == ({}, None)
    alone = fit_together(fleet, {"3g": 2, "7g": 1})
    assert (alone.excess, alone.why_not_proven) == ({"3g": 1, "7g": 1}, None)
    hard = fit_together(fleet, {"3g": 2, "1g": 2})
    assert hard.excess == {"3g": 1}
    assert "highspy" in str(hard.why_not_proven)
