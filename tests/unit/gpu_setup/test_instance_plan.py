# SPDX-License-Identifier: Apache-2.0
"""GPU instances: fitting ones are placed, others refused with what would fit, and existing ones stay if possible."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import examples
from vgpuctl.errors import InvalidInput, NoCapacity
from vgpuctl.gpu_setup.instance_plan import (
    choose_gi_profiles,
    find_gi_profiles,
    has_exactly,
    instance_names,
    plan_instances,
)
from vgpuctl.model.gpu import GiProfile, GpuInstance, MigState, PlacementSpan, VgpuType
from vgpuctl.value import replace


def profile(number, name, slices, maximum, starts, size):
    return GiProfile(number, name, slices, 0, maximum, tuple(PlacementSpan(start, size) for start in starts))


H100 = MigState(
    True,
    True,
    (
        profile(19, "1g.10gb", 1, 7, range(7), 1),
        profile(20, "1g.10gb+me", 1, 1, range(7), 1),
        profile(15, "1g.20gb", 1, 4, (0, 2, 4, 6), 2),
        profile(14, "2g.20gb", 2, 3, (0, 2, 4), 2),
        profile(9, "3g.40gb", 3, 2, (0, 4), 4),
        profile(5, "4g.40gb", 4, 1, (0,), 4),
        profile(0, "7g.80gb", 7, 1, (0,), 8),
    ),
)
A30 = MigState(
    True,
    True,
    (
        profile(14, "1g.6gb", 1, 4, range(4), 1),
        profile(21, "1g.6gb+me", 1, 1, range(4), 1),
        profile(5, "2g.12gb", 2, 2, (0, 2), 2),
        profile(6, "2g.12gb+me", 2, 1, (0,), 2),
        profile(0, "4g.24gb", 4, 1, (0,), 4),
    ),
)
"""NVIDIA's MIG user guide and `nvidia-smi mig -lgipp`: H100 80GB and A30."""


def wanted(mig, *names):
    return find_gi_profiles(mig, names, "g")


def having(mig, *pairs):
    """Return the GPU with instances of these profiles at these starts, numbered from 1."""
    there = []
    for number, (name, start) in enumerate(pairs, start=1):
        (kind,) = wanted(mig, name)
        span = next(s for s in kind.placements if s.start == start)
        there.append(GpuInstance(number, kind.profile_id, span))
    return replace(mig, instances=tuple(there))


def fits(profiles):
    """Return whether these fit on one GPU, by trying every combination."""
    for spans in product(*(p.placements for p in profiles)):
        pairs = ((a, b) for n, a in enumerate(spans) for b in spans[n + 1 :])
        if not any(a.overlaps(b) for a, b in pairs):
            break
    else:
        return False
    return all(sum(p == q for q in profiles) <= p.max_instances for p in profiles)


def after(mig, arrangement):
    """Return the spans and profiles of a GPU as an arrangement leaves it."""
    stay = [(i.profile_id, i.placement) for i in mig.instances if i not in arrangement.destroy]
    return stay + [(m.profile.profile_id, m.span) for m in arrangement.create]


@settings(max_examples=examples(150), deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("mig", [H100, A30])
def test_the_plan_matches_every_combination(mig, data):
    names = st.lists(st.sampled_from([p.name for p in mig.profiles]), min_size=1, max_size=5)
    kinds = wanted(mig, *data.draw(names))
    before = wanted(mig, *data.draw(names))
    there = mig
    if fits(before):
        made = plan_instances(mig, before, frozenset(), "g").create
        there = replace(
            mig, instances=tuple(GpuInstance(n, m.profile.profile_id, m.span) for n, m in enumerate(made, start=1))
        )
    if not fits(kinds):
        with pytest.raises(NoCapacity):
            plan_instances(there, kinds, frozenset(), "g")
        return
    result = plan_instances(there, kinds, frozenset(), "g")
    now = after(there, result)
    assert sorted(number for number, _ in now) == sorted(p.profile_id for p in kinds)
    assert not any(a.overlaps(b) for n, (_, a) in enumerate(now) for _, b in now[n + 1 :])
    sizes = [m.span.size for m in result.create]
    assert sizes == sorted(sizes, reverse=True)
    if has_exactly(there, kinds):
        assert (result.destroy, result.create) == ((), ())


def test_the_published_limits_hold():
    for names in (("1g.10gb",) * 7, ("3g.40gb", "3g.40gb"), ("4g.40gb", "3g.40gb"), ("2g.20gb",) * 3 + ("1g.10gb",)):
        plan_instances(H100, wanted(H100, *names), frozenset(), "g")
    for names in (("1g.10gb",) * 8, ("4g.40gb",) * 2, ("7g.80gb", "1g.10gb"), ("1g.10gb+me",) * 2):
        with pytest.raises(NoCapacity):
            plan_instances(H100, wanted(H100, *names), frozenset(), "g")


def test_existing_instances_stay_if_they_fit_used_ones_first():
    there = having(H100, ("1g.10gb", 0), ("1g.10gb", 4), ("1g.10gb", 5))
    result = plan_instances(there, wanted(H100, "4g.40gb", "1g.10gb"), frozenset(), "g")
    assert [i.gi_id for i in result.destroy] == [1, 3]
    result = plan_instances(there, wanted(H100, "4g.40gb", "1g.10gb"), frozenset({3}), "g")
    assert [i.gi_id for i in result.destroy] == [1, 2]
    moved = plan_instances(there, wanted(H100, "4g.40gb", "1g.10gb"), frozenset({1}), "g")
    assert 1 in [i.gi_id for i in moved.destroy], "it is where the larger one has to be"
    assert (m := moved.create[0]).profile.name == "4g.40gb"
    assert m.span == PlacementSpan(0, 4)


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        (
            ("4g.40gb", "3g.40gb", "1g.10gb"),
            "1g.10gb does not fit on g next to 4g.40gb, 3g.40gb, which take 8 memory slices:"
            " its possible placements are 0:1, 1:1, 2:1, 3:1, 4:1, 5:1, 6:1",
            None,
        ),
        (("4g.40gb", "4g.40gb"), "g can have 1 of 4g.40gb, not 2", "next to 4g.40gb there is room for 3g.40gb or 2g"),
        (
            ("3g.40gb", "2g.20gb", "2g.20gb", "1g.10gb", "1g.10gb"),
            "1g.10gb does not fit on g next to 3g.40gb, 2 of 2g.20gb",
            None,
        ),
    ],
)
def test_a_refusal_says_which_does_not_fit_and_what_would(names, message, hint):
    with pytest.raises(NoCapacity) as raised:
        plan_instances(H100, wanted(H100, *names), frozenset(), "g")
    assert raised.value.message.startswith(message)
    assert hint is None or str(raised.value.hint).startswith(hint)


def test_names_are_those_of_this_gpu_and_numbers_are_nvidias():
    assert [p.profile_id for p in wanted(H100, "19", "1g.10gb+me", "9")] == [19, 20, 9]
    with pytest.raises(InvalidInput, match=r"g has no GPU instance profile 1g\.5gb") as raised:
        wanted(H100, "1g.5gb")
    assert "1g.10gb" in str(raised.value.hint)
    assert instance_names(having(H100, ("1g.10gb", 6), ("3g.40gb", 0))) == ("3g.40gb", "1g.10gb")
    assert instance_names(replace(H100, instances=(GpuInstance(1, 99, PlacementSpan(0, 1)),))) == ("99",)


TYPES = (
    VgpuType("1", "NVIDIA H100-1-10C", "H100-1-10C", 10240, 7, gi_profile_id=19, max_per_gi=1),
    VgpuType("2", "NVIDIA H100-10C", "H100-10C", 10240, 8),
    VgpuType("3", "NVIDIA DC-1-2Q", "DC-1-2Q", 2048, 48, gi_profile_id=19, max_per_gi=12),
    VgpuType("4", "NVIDIA DC-1-3Q", "DC-1-3Q", 3072, 32, gi_profile_id=77, max_per_gi=8),
)


def test_vgpus_say_which_instances_they_need():
    assert choose_gi_profiles(H100, (("H100-1-10C", 3),), TYPES, "g") == ("1g.10gb",) * 3
    assert choose_gi_profiles(H100, (("DC-1-2Q", 13), ("H100-1-10C", 1)), TYPES, "g") == ("1g.10gb",) * 3
    for name, reported in (
        ("H100-10C", "time-sliced profile"),
        ("H100-9C", "no vGPU profile"),
        ("DC-1-3Q", "profile 77"),
    ):
        with pytest.raises(InvalidInput, match=reported):
            choose_gi_profiles(H100, ((name, 1),), TYPES, "g")
