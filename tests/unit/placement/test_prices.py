"""The prices of a fleet, against a linear program over every way to fill every GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gpu.test_kinds import A40, GVT, H100_MIG, KINDS, grown
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.placement.fleet import Fleet, GpuGroup
from vgpuctl.placement.prices import alike, demand_of, prices, sizes_of
from vgpuctl.placement.simplex import Simplex


def every_filling(kind: GpuKind, state: State, names: list[str]) -> Iterator[dict[str, int]]:
    """Return everything that fits together on a GPU."""
    for numbers in product(*(range(kind.count_remaining(state, p) + 1) for p in names)):
        counts = dict(zip(names, numbers, strict=True))
        if kind.fits(state, counts):
            yield counts


def value_of_program(fleet: Fleet, demand: Mapping[str, float]) -> float:
    """Return the most framebuffer that can be given out, with each GPU a row and each of its fillings a column."""
    names, sizes = sorted(demand), sizes_of(fleet.kinds)
    program = Simplex([demand[p] for p in names] + [1.0] * len(fleet))
    for gpu in range(len(fleet)):
        group = fleet.group_of(gpu)
        for counts in every_filling(fleet.kind_of(group), group.state, names):
            column = [float(counts[p]) for p in names] + [float(gpu == other) for other in range(len(fleet))]
            program.add(column, float(sum(counts[p] * sizes[p] for p in names)))
    program.solve()
    return program.value


@settings(max_examples=25)
@given(data=st.data())
def test_the_prices_prove_the_value_of_the_program(data: st.DataObject) -> None:
    """By duality: at the right prices, the bound they give is the program's value; at any others it is greater."""
    kind = data.draw(st.sampled_from(KINDS))
    fleet = Fleet([kind], [GpuGroup(0, grown(kind, data)) for _ in range(data.draw(st.integers(1, 3)))])
    names = sorted(kind.sizes)[:3]
    mix = {p: float(data.draw(st.integers(1, 5))) for p in names}
    sizes = {p: float(kind.sizes[p]) for p in names}
    demand = demand_of(fleet, mix)
    if not any(demand.values()):
        assert worth_of(fleet, sizes) == 0
        return
    now = prices(fleet, demand, {}, gap=0.0)
    bound = worth_of(fleet, now) + sum(demand[p] * (sizes[p] - now[p]) for p in names)
    assert bound == pytest.approx(value_of_program(fleet, demand), rel=1e-6)


def worth_of(fleet: Fleet, worth: Mapping[str, float]) -> float:
    """Return what all GPUs filled up are worth."""
    return sum(n * fleet.kind_of(group).best_filling(worth).value(group.state) for group, n in fleet.groups())


def test_prices_to_begin_with_change_nothing_but_the_work() -> None:
    fleet = Fleet([A40, H100_MIG, GVT], [GpuGroup(0, (0, 0)), GpuGroup(1, 0), GpuGroup(1, 0)])
    mix = {"1B": 3.0, "8Q": 1.0, "1g": 2.0, "3g": 1.0}
    demand, sizes = demand_of(fleet, mix), sizes_of(fleet.kinds)
    values = []
    for before in ({}, {"1B": 10.0, "8Q": 8000.0, "3g": 0.0}):
        now = prices(fleet, demand, before, gap=0.0)
        values.append(worth_of(fleet, now) + sum(demand[p] * (sizes[p] - now[p]) for p in mix))
    assert values[0] == pytest.approx(values[1])


def test_a_profile_that_wastes_a_gpu_is_worth_less_than_its_framebuffer() -> None:
    """32 1B take an A40 of 48 GiB: the fleet is worth more when they are few."""
    fleet = Fleet([A40], [GpuGroup(0, (0, 0))] * 8)
    now = prices(fleet, demand_of(fleet, {"1B": 1.0, "2B": 1.0}), {})
    assert now["2B"] * 24 == pytest.approx(now["1B"] * 32, rel=0.01)


def test_profiles_are_alike_while_as_many_of_each_fit_everywhere() -> None:
    assert alike(Fleet([A40], [GpuGroup(0, (0, 0))]), ["2Q", "2B", "8Q"]) == {"2B": "2B", "2Q": "2B", "8Q": "8Q"}
    old = EqualSizeKind("old", 4096, {"2B": 2048, "2Q": 2048}, {"2B": 2, "2Q": 2}, one_type=True)
    for state, same in (((0, 0), True), (("2Q", 1), False)):
        result = alike(Fleet([old], [GpuGroup(0, state)]), ["2Q", "2B"])
        assert (result["2Q"] == "2B") == same
