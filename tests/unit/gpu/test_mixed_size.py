# SPDX-License-Identifier: Apache-2.0
"""Mixed sizes on one GPU: counts are exact, and the chosen placement id loses the fewest others."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import examples
from tests.values import a100, snapshot, taken
from vgpuctl.gpu.division import MAX_TIME_SLICED, Remaining
from vgpuctl.gpu.mixed_size import MixedSize, is_placement_free, pack_vgpus
from vgpuctl.gpu.room import compute_room
from vgpuctl.model.gpu import Backend, Gpu, PlacementSpan, Vgpu, VgpuType
from vgpuctl.placement.vm_placement import place_vgpus
from vgpuctl.value import replace


def kind(name: str, size: int, ids: tuple[int, ...] | None, type_id: str | None = None) -> VgpuType:
    number = type_id or str(sum(name.encode()))
    return VgpuType(number, f"NVIDIA {name}", name, size * 1024, 32, placement_ids=ids, placement_size=size)


A40 = tuple(
    kind(f"A40-{size}Q", size, ids)
    for size, ids in (
        (48, (0,)),
        (24, (0, 24)),
        (16, (0, 32)),
        (12, (0, 12, 24, 36)),
        (8, (0, 16, 24, 40)),
        (4, (0, 8, 12, 20, 24, 32, 36, 44)),
    )
)
Q48, Q24, Q16, Q12, Q8, Q4 = A40


def gpu(*types: VgpuType, vfs: int = 16, **more: object) -> Gpu:
    return a100(types=types or A40, vfs=vfs, **{"mixed_size": True, **more})


def remaining(host: Gpu, there: Sequence[Vgpu], wanted: VgpuType) -> Remaining:
    return MixedSize(host, there).remaining(wanted, is_confirmed=False)


def on(host: Gpu, wanted: VgpuType, number: int, at: int | None, **more: object):
    return taken(host, wanted, number, placement_id=at, **more)


def test_other_sizes_are_no_lock_and_take_away_only_what_they_overlap():
    host = gpu()
    there = (on(host, Q24, 0, 0),)
    assert {t.profile: compute_room(host, there, t).free for t in A40} == {
        "A40-48Q": 0, "A40-24Q": 1, "A40-16Q": 1, "A40-12Q": 2, "A40-8Q": 2, "A40-4Q": 4,
    }  # fmt: skip
    assert compute_room(host, there, Q48).reasons == (
        "it has mixed sizes, but none of its 1 places for A40-48Q is free: 1 overlap with it, held by vdi-000",
    )


def test_without_the_drivers_list_of_places_only_trying_tells():
    bare = replace(Q24, placement_ids=None)
    assert compute_room(gpu(bare, Q8), (), bare).free is None
    assert MixedSize(gpu(bare), ()).max_when_empty(bare) is None


def test_no_more_than_32_of_all_sizes():
    small = kind("X-1Q", 1, tuple(range(40)))
    host = gpu(small, vfs=48)
    there = [on(host, small, n, n) for n in range(MAX_TIME_SLICED - 1)]
    assert compute_room(host, there, small).free == 1
    assert pack_vgpus(host, there, [small, small]) is None
    full = [*there, on(host, small, 31, 31)]
    assert compute_room(host, full, small).reasons[0].startswith("32 of 32 in use (the maximum for a GPU): vdi-000")


def test_the_id_taken_costs_the_least_room():
    host = gpu()
    assert pack_vgpus(host, (), [Q8]) == (16,)  # like every id it blocks a Q24 and the Q48, but no Q16
    assert pack_vgpus(host, (on(host, Q12, 0, 0),), [Q8]) == (16,)  # in the half that is already fragmented
    assert pack_vgpus(host, (on(host, Q12, 0, 0), on(host, Q8, 1, 16)), [Q8]) == (24,)
    assert pack_vgpus(host, (on(host, Q12, 0, 36),), [Q12]) == (24,)


def test_a_record_counts_at_its_target_and_a_device_at_both():
    host = gpu()
    moving = on(host, Q24, 0, 0, target_placement_id=24)
    assert compute_room(host, (moving,), Q24).free == 0
    assert not is_placement_free(host, (moving,), Q24, 0)
    assert not is_placement_free(host, (moving,), Q24, 24)
    assert is_placement_free(host, (on(host, Q24, 0, 24, present=False),), Q24, 0)


def test_a_device_is_not_on_its_way_to_a_place_that_its_driver_does_not_know_any_more():
    host = gpu()
    renumbered = on(host, Q24, 0, 0, target_placement_id=22)
    assert is_placement_free(host, (renumbered,), Q24, 24)
    assert compute_room(host, (renumbered,), Q24).free == 1


def test_what_is_at_an_unknown_place_is_taken_to_be_at_the_worst_and_the_driver_knows_better():
    host = gpu(backend=Backend.MDEV_VF)
    assert remaining(host, (on(host, Q4, 0, None),), Q24).free == 1
    two = (on(host, Q4, 0, None), on(host, Q4, 1, None))
    assert remaining(host, two, Q24).free == 0
    seen = compute_room(host, two, Q24)  # it is available, and both are created
    assert (seen.free, seen.at_least, seen.guaranteed) == (None, 1, 1)
    assert "at least 1: the placement of the vGPUs of vdi-000, vdi-001 is not known" in seen.reasons
    records = tuple(replace(v, present=False) for v in two)
    assert compute_room(host, records, Q24).free == 0


@pytest.mark.parametrize("backend", [Backend.MDEV_VF, Backend.VENDOR_VF])
def test_vgpus_go_where_the_driver_puts_them_where_it_has_no_file_for_it(backend):
    host = gpu(backend=backend)
    assert [s.placement_id for s in place_vgpus(snapshot(host), [("A40-12Q", 2)], None)] == [0, 12]
    host = gpu(backend=backend, has_fixed_placements=True)
    assert [s.placement_id for s in place_vgpus(snapshot(host), [("A40-12Q", 2)], None)] == [None, None]


ids = st.sets(st.integers(0, 11), min_size=1, max_size=5).map(lambda s: tuple(sorted(s)))
kinds = st.lists(st.tuples(st.integers(1, 5), ids), min_size=1, max_size=4).map(
    lambda results: tuple(kind(f"X{n}-{size}Q", size, where, str(n)) for n, (size, where) in enumerate(results))
)


def fitting(kind_: VgpuType, spans_: list[PlacementSpan]) -> list[PlacementSpan]:
    places = [PlacementSpan(start, kind_.placement_size or 0) for start in kind_.placement_ids or ()]
    return [p for p in places if not any(p.overlaps(s) for s in spans_)]


def brute_most(kind_: VgpuType, spans_: list[PlacementSpan]) -> int:
    free = fitting(kind_, spans_)
    for number in range(len(free), 0, -1):
        for some in itertools.combinations(free, number):
            if not any(a.overlaps(b) for a, b in itertools.combinations(some, 2)):
                return number
    return 0


def arrangements(kinds_: list[VgpuType], spans_: list[PlacementSpan]) -> list[list[PlacementSpan]]:
    """Return every way to place these vGPUs with these spans occupied."""
    if not kinds_:
        return [[]]
    ways = []
    for place_ in fitting(kinds_[0], spans_):
        ways += [[place_, *rest] for rest in arrangements(kinds_[1:], [*spans_, place_])]
    return ways


def made(host: Gpu, data) -> tuple[list, list[PlacementSpan]]:
    """Draw vGPUs of a GPU that do not overlap."""
    there, covered = [], []
    for _ in range(data.draw(st.integers(0, 3))):
        one = data.draw(st.sampled_from(host.types))
        free = fitting(one, covered)
        if free:
            place_ = data.draw(st.sampled_from(free))
            there.append(on(host, one, len(there), place_.start))
            covered.append(place_)
    return there, covered


@settings(max_examples=examples(300), deadline=None)
@given(kinds, st.data())
def test_the_count_is_the_largest_set_of_places_that_brute_force_finds(types, data):
    host = gpu(*types)
    there, covered = made(host, data)
    for wanted in types:
        assert remaining(host, there, wanted).free == brute_most(wanted, covered)


@settings(max_examples=examples(300), deadline=None)
@given(kinds, st.data())
def test_what_is_at_unknown_places_is_never_counted_too_small(types, data):
    host = gpu(*types)
    there, covered = made(host, data)
    unknown = [data.draw(st.sampled_from(types)) for _ in range(data.draw(st.integers(1, 2)))]
    hidden = [on(host, one, 8 + n, None) for n, one in enumerate(unknown)]
    ways = arrangements(unknown, covered)
    for wanted in types:
        result = remaining(host, [*there, *hidden], wanted).free
        worst = min((brute_most(wanted, [*covered, *way]) for way in ways), default=0)
        assert not ways or result <= worst


@settings(max_examples=examples(300), deadline=None)
@given(kinds, st.data())
def test_all_are_placed_exactly_when_brute_force_places_them_and_none_overlaps(types, data):
    host = gpu(*types)
    there, covered = made(host, data)
    wanted = [data.draw(st.sampled_from(types)) for _ in range(data.draw(st.integers(1, 4)))]
    result = pack_vgpus(host, there, wanted)
    assert (result is not None) == bool(arrangements(wanted, covered))
    if result is not None:
        placed = [PlacementSpan(at, one.placement_size or 0) for at, one in zip(result, wanted, strict=True)]
        assert not any(a.overlaps(b) for a, b in itertools.combinations([*covered, *placed], 2))
        assert all(at in (one.placement_ids or ()) for at, one in zip(result, wanted, strict=True))


def test_no_more_than_32_where_places_are_not_known_either():
    bare = replace(Q24, placement_ids=None)
    host = gpu(bare, vfs=48)
    full = [on(host, bare, n, None) for n in range(MAX_TIME_SLICED)]
    assert compute_room(host, full, bare).free == 0
