"""The expected allocation on few GPUs, against trying every order of the requests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gpu.test_kinds import A40, H100_MIG, grown
from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.placement.ahead import Ahead
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.least_waste import LeastWaste

KINDS = (A40, H100_MIG)


def expected(kinds: tuple[GpuKind, ...], gpus: list[GpuGroup], chances: Mapping[str, float], requests: int) -> float:
    """Return what is given out on average when each request is placed as well as can be, or left out for more."""
    if not requests:
        return 0.0
    total = 0.0
    for profile, chance in chances.items():
        after = [
            kinds[group.kind_index].sizes[profile]
            + expected(
                kinds, [*gpus[:n], GpuGroup(group.kind_index, move.state_after), *gpus[n + 1 :]], chances, requests - 1
            )
            for n, group in enumerate(gpus)
            for move in kinds[group.kind_index].placements(group.state, profile)
        ]
        total += chance * max([*after, expected(kinds, gpus, chances, requests - 1)])
    return total


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_the_choice_is_one_after_which_the_next_requests_get_the_most(data: st.DataObject) -> None:
    gpus = [GpuGroup(i, grown(KINDS[i], data)) for i in data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=2))]
    fleet = Fleet(KINDS, gpus)
    chances = {"1g": 0.5, "3g": 0.25, "8Q": 0.25}
    choices = sorted(
        fleet.choices(data.draw(st.sampled_from(sorted(chances)))), key=lambda c: (c.gpu, c.placement.place)
    )
    if not choices:
        return
    chosen = Ahead(KINDS, chances, lambda _: 1.0).best(fleet, choices, 2, 10**6)
    values = []
    for c in choices:
        after = [GpuGroup(g.kind_index, c.placement.state_after) if n == c.gpu else g for n, g in enumerate(gpus)]
        values.append(expected(KINDS, after, chances, 2))
    assert values[choices.index(chosen)] == pytest.approx(max(values))


def test_no_gpu_is_taken_for_one_size_just_to_have_no_room_for_another() -> None:
    fleet = Fleet(KINDS, [GpuGroup(0, (0, 0)), GpuGroup(0, (1024, 1))])
    choices = sorted(fleet.choices("1B"), key=lambda c: -c.gpu)
    chosen = Ahead(KINDS, {"1B": 0.99, "8Q": 0.01}, lambda _: 0.0).best(fleet, choices, 62, 10**6)
    assert chosen.gpu == 1


def test_what_cannot_be_tried_in_full_is_judged_by_the_worth_of_what_is_left() -> None:
    fleet = Fleet(KINDS, [GpuGroup(1, 0), GpuGroup(1, 0)])
    choices = sorted(fleet.choices("1g"), key=lambda c: c.placement.place)
    most = Ahead(KINDS, {"1g": 1.0}, lambda group: float(group.state)).best(fleet, choices, 9, 0)
    assert most.placement.place == 64


def test_on_one_gpu_with_mig_a_small_instance_leaves_room_for_half_a_gpu() -> None:
    fleet = Fleet([H100_MIG], [GpuGroup(0, 0)])
    choice = LeastWaste({"1g": 3.0, "3g": 2.0, "4g": 1.0}).choose(fleet, "1g")
    assert choice is not None
    assert choice.placement.place >= 16
    fleet.add_vgpu(choice.gpu, choice.placement)
    assert H100_MIG.count_remaining(fleet.group_of(0).state, "4g") == 1
