"""The best filling of a GPU, against trying everything that fits."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.gpu.test_kinds import KINDS, grown
from tests.unit.gpu.test_shared_instances import KIND as IN_INSTANCES
from vgpuctl.gpu.gpu_kind import GpuKind, State
from vgpuctl.gpu.slice_kind import Footprint, SliceKind

MIXED = SliceKind(
    "mixed",
    12288,
    {"1": 1024, "2": 2048, "4": 4096, "6": 6144},
    {
        "1": Footprint((0, 1, 4, 7, 9, 11), 1, ((0, 1),)),
        "2": Footprint((0, 4, 6, 10), 2, ((0, 1),)),
        "4": Footprint((0, 8), 4, ((0, 1),)),
        "6": Footprint((0, 6), 6, ((0, 1),)),
    },
    slices=12,
    pools=(4,),
)


def best_of_all(kind: GpuKind, state: State, worth: dict[str, float]) -> float:
    """Return the most that can be worth, by trying every number of every profile."""
    names = sorted(worth)
    numbers = product(*(range(kind.count_remaining(state, p) + 1) for p in names))
    return max(
        sum(n * worth[p] for p, n in zip(names, counts, strict=True))
        for counts in numbers
        if kind.fits(state, dict(zip(names, counts, strict=True)))
    )


@pytest.mark.parametrize("kind", [*KINDS, MIXED, IN_INSTANCES], ids=lambda k: k.name)
@given(data=st.data())
def test_the_best_filling_is_worth_what_the_best_of_all_that_fits_is(kind: GpuKind, data: st.DataObject) -> None:
    state = grown(kind, data)
    names = data.draw(st.lists(st.sampled_from(sorted(kind.sizes)), max_size=3, unique=True))
    worth = {p: float(data.draw(st.integers(0, 9))) for p in names}
    filling = kind.best_filling(worth)
    counts = filling.counts(state)
    assert filling.value(state) == best_of_all(kind, state, worth)
    assert sum(n * worth[p] for p, n in counts.items()) == filling.value(state)
    assert kind.fits(state, counts)


@settings(max_examples=20)
@given(data=st.data())
def test_a_filling_that_is_used_for_many_states_forgets_none_of_them(data: st.DataObject) -> None:
    worth = {"1": 3.0, "2": 5.0, "4": 8.0}
    filling = MIXED.best_filling(worth)
    for _ in range(5):
        state = grown(MIXED, data)
        assert filling.value(state) == best_of_all(MIXED, state, worth)


def test_what_has_no_worth_and_what_a_kind_does_not_offer_is_left_out() -> None:
    for kind in KINDS:
        assert kind.best_filling({"unknown": 5.0}).counts(kind.empty) == {}
        assert kind.best_filling(dict.fromkeys(kind.sizes, 0.0)).value(kind.empty) == 0
