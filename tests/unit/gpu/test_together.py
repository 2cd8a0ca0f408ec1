"""Whether vGPUs of several sizes fit between what is on a GPU, against trying every place."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.gpu.gpu_kind import GpuKind
from vgpuctl.gpu.slice_kind import Footprint, Shape, SliceKind, Together

SLICES = 9
shapes = st.tuples(st.integers(1, 4), st.sets(st.integers(0, SLICES - 1), min_size=1)).map(
    lambda drawn: (drawn[0], tuple(sorted(start for start in drawn[1] if start + drawn[0] <= SLICES)))
)
requests = st.dictionaries(shapes, st.integers(0, 3), min_size=1, max_size=4)


def every_place(free: int, wanted: Counter[Shape]) -> bool:
    """Return whether they fit, by trying every placement of each."""
    if not wanted:
        return True
    shape = min(wanted)
    places = [((1 << shape[0]) - 1) << start for start in shape[1]]
    return any(every_place(free & ~place, wanted - Counter([shape])) for place in places if not place & ~free)


@given(st.integers(0, (1 << SLICES) - 1), st.lists(requests, min_size=1, max_size=4))
def test_they_fit_whenever_some_placement_takes_them(free: int, asked: list[dict[Shape, int]]) -> None:
    together = Together(free)
    for wanted in asked:
        assert together.fit(wanted) == every_place(free, +Counter(wanted))


def mixed(slices: int = 96, functions: int = 48) -> GpuKind:
    """Return a GPU with mixed sizes as an RTX PRO 6000 has them, a slice for each GiB."""
    sizes = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
    takes = {f"{n}Q": Footprint(tuple(range(0, slices - n + 1, n)), n, ((0, 1),)) for n in sizes}
    mib = {f"{n}Q": n * 1024 for n in sizes}
    return SliceKind("mixed", slices * 1024, mib, takes, slices=slices, pools=(functions,))


def test_what_does_not_fit_on_a_large_gpu_is_known_without_trying_every_place_of_each() -> None:
    """Trying every placement of 24 vGPUs on 96 slices would never end in practice."""
    kind = mixed()
    assert kind.fits(kind.empty, {"2Q": 24, "48Q": 1})
    assert not kind.fits(kind.empty, {"2Q": 25, "48Q": 1})
    assert not kind.fits(kind.empty, {"2Q": 8, "3Q": 8, "4Q": 1, "6Q": 2, "8Q": 1, "16Q": 1, "24Q": 1})
    few = mixed(functions=6)
    assert few.fits(few.empty, {"2Q": 5, "48Q": 1})
    assert not few.fits(few.empty, {"2Q": 6, "48Q": 1})
