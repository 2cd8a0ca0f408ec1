# SPDX-License-Identifier: Apache-2.0
"""A replay against one that builds the fleet again for every arrival and every moment."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.slice_kind import Footprint, SliceKind
from vgpuctl.model.results.simulation import SimulatedTotalsResult
from vgpuctl.placement.fleet import Fleet, GpuGroup, PlacementChoice
from vgpuctl.placement.policy import Breadth, Depth, FirstFit, PlacementPolicy
from vgpuctl.simulate.replay import Arrival, ReplayResult, replay_arrivals, report_replay

A16 = EqualSizeKind("A16", 16384, {"1B": 1024, "4Q": 4096, "8Q": 8192}, {"1B": 3, "4Q": 4, "8Q": 2})
H100_MIG = SliceKind(
    "H100", 81920, {"2g": 20480, "3g": 40960}, {"2g": Footprint((0, 2, 4), 2), "3g": Footprint((0, 4), 4)}, slices=8
)
KINDS = (A16, H100_MIG)
GPUS = [GpuGroup(0, A16.empty), GpuGroup(0, A16.empty), GpuGroup(1, H100_MIG.empty)]
PROFILES = sorted({p for kind in KINDS for p in kind.sizes})
Present = list[tuple[str, PlacementChoice]]


def fresh(present: Iterable[tuple[str, PlacementChoice]] = ()) -> Fleet:
    """Return the fleet with these vGPUs, put where they are."""
    fleet = Fleet(KINDS, GPUS)
    for profile, choice in present:
        group = fleet.group_of(choice.gpu)
        moves = fleet.kind_of(group).placements(group.state, profile)
        fleet.add_vgpu(choice.gpu, next(m for m in moves if m.place == choice.placement.place))
    return fleet


class Slow:
    """The same question, answered by keeping nothing but who was admitted and where."""

    def __init__(self, arrivals: list[Arrival], policy: PlacementPolicy) -> None:
        self.arrivals = arrivals
        self.where: list[list[PlacementChoice] | None] = []
        for number, arrival in enumerate(arrivals):
            there = self.present(arrival.seconds, number)
            chosen: list[PlacementChoice] = []
            for _ in range(arrival.vgpu_count):
                result = policy.choose(fresh([*there, *((arrival.profile, c) for c in chosen)]), arrival.profile)
                if result is None:
                    break
                chosen.append(result)
            self.where.append(chosen if len(chosen) == arrival.vgpu_count else None)

    def present(self, seconds: float, before: int | None = None) -> Present:
        """Return the vGPUs that are there at a time: of those that came before a number, or of all."""
        result: Present = []
        for arrival, chosen in zip(self.arrivals[:before], self.where, strict=False):
            gone = arrival.departure_seconds is not None and arrival.departure_seconds <= seconds
            if arrival.seconds <= seconds and not gone:
                result += [(arrival.profile, c) for c in chosen or ()]
        return result

    def totals(self, seconds: float) -> tuple[int, int]:
        """Return allocated framebuffer and busy GPUs, counted out."""
        present = self.present(seconds)
        return sum(mib(choice, profile) for profile, choice in present), len({choice.gpu for _, choice in present})


def mib(choice: PlacementChoice, profile: str) -> int:
    return KINDS[choice.group.kind_index].sizes[profile]


@st.composite
def some_arrivals(draw: st.DrawFn) -> list[Arrival]:
    result = []
    for _ in range(draw(st.integers(1, 14))):
        seconds = float(draw(st.integers(0, 20)))
        life = draw(st.none() | st.integers(0, 10))
        number = draw(st.sampled_from([1, 1, 1, 2, 3]))
        result.append(
            Arrival(seconds, None if life is None else seconds + life, draw(st.sampled_from(PROFILES)), number)
        )
    return sorted(result, key=lambda a: a.seconds)


def run(arrivals: list[Arrival], policy: PlacementPolicy) -> ReplayResult:
    return replay_arrivals(fresh(), [0] * len(GPUS), arrivals, policy)


@pytest.mark.parametrize("policy", [FirstFit(), Depth(), Breadth()], ids=lambda p: type(p).__name__)
@settings(max_examples=40)
@given(arrivals=some_arrivals())
def test_a_replay_equals_counting_everything_again(policy: PlacementPolicy, arrivals: list[Arrival]) -> None:
    slow, came = Slow(arrivals, policy), run(arrivals, policy)
    sums = [
        None if chosen is None else sum(mib(c, a.profile) for c in chosen)
        for a, chosen in zip(arrivals, slow.where, strict=True)
    ]
    assert list(came.admitted) == sums
    begin, end = arrivals[0].seconds, max(a.departure_seconds or a.seconds for a in arrivals)
    lives = [(a.seconds, end if a.departure_seconds is None else a.departure_seconds) for a in arrivals]
    area = sum(given * (gone - at) for given, (at, gone) in zip(sums, lives, strict=True) if given is not None)
    if end > begin:
        assert came.mean.allocated_mib == pytest.approx(area / (end - begin), abs=0.001)
    for moment in came.timeline[:: len(came.timeline) // 4 or 1]:
        assert (moment.allocated_mib, moment.busy_gpus) == slow.totals(moment.seconds)
    if all(at < gone for at, gone in lives):
        assert came.peak_mib == max(slow.totals(a.seconds)[0] for a in arrivals)


def test_a_request_for_several_is_admitted_whole_or_not_at_all() -> None:
    arrivals = [Arrival(0.0, None, "8Q", 3), Arrival(1.0, None, "8Q", 2), Arrival(2.0, None, "8Q", 1)]
    assert run(arrivals, FirstFit()).admitted == (3 * 8192, None, 8192)


def test_at_one_instant_who_goes_makes_room_for_who_comes() -> None:
    fleet = Fleet([A16], [GpuGroup(0, A16.empty)])
    arrivals = [Arrival(0.0, 5.0, "1B", 1), Arrival(5.0, 5.0, "8Q", 1), Arrival(5.0, None, "8Q", 2)]
    came = replay_arrivals(fleet, [0], arrivals, FirstFit())
    assert came.admitted == (1024, 8192, 16384)
    assert came.mean.allocated_mib == 1024


def test_refusals_with_and_without_free_framebuffer_are_distinct() -> None:
    fleet = Fleet([A16], [GpuGroup(0, A16.empty)])
    first, *others = Arrival(0.0, 1.0, "1B", 1), Arrival(0.0, None, "8Q", 1), Arrival(2.0, None, "8Q", 2)
    arrivals = [first, *others, Arrival(3.0, None, "8Q", 1)]
    came = replay_arrivals(fleet, [0], arrivals, FirstFit())
    assert came.admitted == (1024, None, 16384, None)
    assert came.refused_though_free == {1}


def test_what_was_there_before_counts_and_stays() -> None:
    fleet = Fleet([A16], [GpuGroup(0, (1024, 2)), GpuGroup(0, A16.empty)], [2, 0])
    came = replay_arrivals(fleet, [2048, 0], [Arrival(0.0, 10.0, "8Q", 2), Arrival(0.0, 10.0, "8Q", 1)], FirstFit())
    assert came.admitted == (16384, None)
    assert came.mean == SimulatedTotalsResult(2048 + 16384, 2)


def test_the_line_over_time_begins_at_the_first_and_ends_at_the_last_event() -> None:
    came = run([Arrival(100.0, 200.0, "1B", 1), Arrival(150.0, 340.0, "1B", 1)], FirstFit())
    assert (came.timeline[0].seconds, came.timeline[-1].seconds, len(came.timeline)) == (100.0, 340.0, 240)
    assert [m.allocated_mib for m in came.timeline[:1]] == [1024]
    assert came.timeline[-1].allocated_mib == 0
    alone = run([Arrival(100.0, None, "1B", 1)], FirstFit())
    assert [(m.seconds, m.allocated_mib) for m in alone.timeline] == [(100.0, 1024)]
    assert alone.mean.allocated_mib == 1024


def test_the_result_adds_up_by_profile() -> None:
    arrivals = [Arrival(0.0, 9.0, "8Q", 2), Arrival(1.0, None, "1B", 2), Arrival(2.0, None, "8Q", 3)]
    row = report_replay("first-fit", arrivals, run(arrivals, FirstFit()), KINDS)
    assert (row.policy, row.admitted, row.refused, row.refused_though_free) == ("first-fit", 2, 1, 1)
    assert (row.admitted_mib, row.peak_allocated_mib) == (2 * 8192 + 2 * 1024,) * 2
    small, large = row.profiles
    assert (small.profile, small.framebuffer_mib, small.requests, small.vgpus, small.admitted_mib) == (
        "1B", 1024, 1, 2, 2048,
    )  # fmt: skip
    assert (large.profile, large.requests, large.vgpus, large.admitted, large.refused) == ("8Q", 2, 5, 1, 1)
