"""Several profiles on several GPUs: whether they fit together, and the fewest that are too many."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import examples
from tests.unit.gpu.test_kinds import A40, H100_MIG, UNEVEN
from tests.unit.placement.fleets import FEW_VFS, filled, fit
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.placement.fit import Joint, fit_together, largest_mib, none_beside, total_left
from vgpuctl.placement.fleet import Fleet, GpuGroup


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
    fleet = Fleet([FEW_VFS], [GpuGroup(0, FEW_VFS.empty)] * 2)
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
