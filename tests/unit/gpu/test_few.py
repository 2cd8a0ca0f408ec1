"""What runs of free slices are worth with few vGPUs, against trying every set of places."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vgpuctl.gpu.few import Few, Place
from vgpuctl.gpu.slice_kind import Footprint, SliceKind

SLICES = 7
RUNS = [[], [(0, 7)], [(0, 3), (4, 7)], [(0, 1), (2, 5), (6, 7)]]
places = st.dictionaries(
    st.tuples(st.integers(0, SLICES - 1), st.integers(1, 4)).filter(lambda p: sum(p) <= SLICES),
    st.integers(1, 9),
    min_size=3,
    max_size=10,
)


def brute(result: dict[tuple[int, int], int], runs: list[tuple[int, int]], most: int) -> int:
    """Return the worth of the best set of places that are in the runs and apart."""
    inside = [
        (b, b + size, worth) for (b, size), worth in result.items() if any(s <= b and b + size <= e for s, e in runs)
    ]
    best = 0
    for number in range(1, most + 1):
        for chosen in combinations(inside, number):
            if all(a[1] <= b[0] or b[1] <= a[0] for a, b in combinations(chosen, 2)):
                best = max(best, sum(worth for *_, worth in chosen))
    return best


@given(places, st.lists(st.tuples(st.sampled_from(RUNS), st.integers(0, 5)), min_size=1, max_size=6))
@example({(0, 1): 3, (1, 1): 3, (0, 2): 9}, [([(0, 7)], 5)])  # one that is worth more than two
def test_it_is_the_best_of_all_sets_that_are_few_enough_in_whatever_order_one_asks(result, asked) -> None:
    ending: list[list[Place]] = [[] for _ in range(SLICES + 1)]
    for (begin, size), worth in result.items():
        ending[begin + size].append((begin, float(worth), f"{begin}+{size}"))
    few = Few(ending)
    for runs, most in asked:
        assert few.worth(runs, most) == brute(result, runs, most)


@pytest.mark.parametrize("functions", [3, 0])
def test_a_gpu_that_has_lost_functions_under_its_vgpus_has_room_for_none(functions: int) -> None:
    takes = {"4": Footprint((0, 4, 8), 4, ((0, 1),))}
    kind = SliceKind("mixed", 12288, {"4": 4096}, takes, slices=12, pools=(3,))
    state = kind.empty
    for _ in range(2):
        (move, *_) = kind.placements(state, "4")
        state = move.state_after
    fewer = SliceKind("mixed", 12288, {"4": 4096}, takes, slices=12, pools=(functions,))
    assert fewer.best_filling({"4": 5.0}).value(state) == (5.0 if functions else 0.0)
