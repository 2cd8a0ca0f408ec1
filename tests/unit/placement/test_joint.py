"""Several profiles on several GPUs: whether they fit together, and the fewest that are too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.placement.fleets import SMALL, filled, fit
from tests.unit.placement.test_kinds import A40, H100_MIG
from vgpuctl.placement.equal_size import EqualSizeKind
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.gpu_kind import State
from vgpuctl.placement.joint import joint, none_beside, too_many, total_left


def drawn(data: st.DataObject, fleet: Fleet, most: int) -> Counter[str]:
    """Return some profiles that the fleet knows, or not."""
    profiles = sorted({p for kind in fleet.kinds for p in kind.sizes} | {"none"})
    return Counter(data.draw(st.lists(st.sampled_from(profiles), min_size=1, max_size=most)))


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_they_fit_where_some_places_take_them_all(data: st.DataObject) -> None:
    fleet, _ = data.draw(filled(3))
    wanted = drawn(data, fleet, 5)
    answer = joint(fleet, wanted)
    assert answer.fits is fit(fleet, wanted)
    if answer.fits:
        assert sum((Counter(some) for some in answer.where.values()), Counter()) == wanted
        for gpu, some in answer.where.items():
            group = fleet.group_of(gpu)
            assert fleet.kind_of(group).fits(group.state, some)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_the_reason_why_not_is_the_fewest_that_are_too_many(data: st.DataObject) -> None:
    fleet, _ = data.draw(filled(2))
    wanted = drawn(data, fleet, 5)
    if fit(fleet, wanted):
        return
    items = sorted(wanted.elements())
    some = chain.from_iterable(combinations(items, n) for n in range(1, len(items) + 1))
    fewest = next(len(few) for few in some if not fit(fleet, Counter(few)))
    result = too_many(fleet, wanted)
    assert result.fewest
    assert sum(result.few.values()) == fewest
    assert not Counter(result.few) - wanted
    assert not fit(fleet, Counter(result.few))


def test_an_answer_that_would_take_too_long_is_not_known() -> None:
    fleet = Fleet([H100_MIG], [GpuGroup(0, 0)] * 4)
    wanted = {"3g": 5, "2g": 2, "1g": 4, "1g+me": 4}  # as many slices as there are; but two 3g leave no room for a +me
    assert joint(fleet, wanted).fits is False
    assert joint(fleet, wanted, tries=2).fits is None
    some = too_many(fleet, wanted, tries=20)
    assert not some.fewest
    assert joint(fleet, some.few).fits is not True


def test_a_host_of_sixteen_gpus_is_known() -> None:
    gpus = [GpuGroup(0, (0, 0))] * 8 + [GpuGroup(1, 0)] * 8
    fleet = Fleet([A40, H100_MIG], gpus)
    wanted = {"1B": 64, "2Q": 48, "8Q": 24, "1g": 16, "2g": 8, "3g": 8}
    assert joint(fleet, wanted).fits is True
    assert joint(fleet, {**wanted, "8Q": 25}).fits is False
    assert too_many(fleet, {"8Q": 49, "2Q": 1}) == ({"8Q": 43, "2Q": 1}, True)


class Counting(EqualSizeKind):
    """A GPU that counts the checks whether several fit on it."""

    asked = 0

    def fits(self, state: State, wanted: Mapping[str, int]) -> bool:
        self.asked += 1
        return super().fits(state, wanted)


def test_many_more_than_fit_on_sixteen_gpus_is_refused_cheaply() -> None:
    """Before, sets were computed again for each waiting number, and the excess by removing one by one: 11,420,786."""
    sizes = {"2B": 2048, "4A": 4096, "8C": 8192}
    kind = Counting("RTX PRO 6000", 98304, sizes, {"2B": 32, "4A": 24, "8C": 12})
    fleet = Fleet([kind], [GpuGroup(0, (0, 0))] * 16)
    wanted = {"2B": 171, "4A": 128, "8C": 64}
    assert joint(fleet, wanted).fits is False
    assert too_many(fleet, wanted) == ({"2B": 129, "4A": 121, "8C": 61}, False)
    assert kind.asked < 100_000


def test_profiles_that_take_the_same_are_one_and_the_last_by_name_goes_first() -> None:
    sizes = dict.fromkeys(("8A", "8B", "8C", "8Q"), 8192)
    kind = Counting("RTX PRO 6000", 98304, sizes, dict.fromkeys(sizes, 12))
    fleet = Fleet([kind], [GpuGroup(0, (0, 0))] * 16)
    answer = joint(fleet, dict.fromkeys(sizes, 48))
    assert answer.where[0] == {"8Q": 12}
    assert answer.where[15] == {"8A": 12}
    assert joint(fleet, {**dict.fromkeys(sizes, 48), "8C": 49}).fits is False
    assert kind.asked < 1_000


def test_one_that_no_gpu_knows_is_too_many_alone() -> None:
    assert too_many(Fleet([SMALL], [GpuGroup(0, (0, 0))]), {"9Z": 2, "1B": 1}) == ({"9Z": 1}, True)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_none_is_left_of_what_the_most_of_another_excludes(data: st.DataObject) -> None:
    fleet, _ = data.draw(filled(2, 3))
    profiles = sorted({p for kind in fleet.kinds for p in kind.sizes})
    profile = data.draw(st.sampled_from(profiles))
    number = total_left(fleet, profile)
    excluded = none_beside(fleet, profile, profiles)
    assert list(excluded) == [
        p for p in profiles if p != profile and joint(fleet, {profile: number, p: 1}).fits is False
    ]
