# SPDX-License-Identifier: Apache-2.0
"""Which profile of each kind serves an ask, and kinds that have one name for it."""

from __future__ import annotations

from collections import Counter

import pytest

from vgpuctl.errors import NotFound
from vgpuctl.placement import mixes
from vgpuctl.placement.demand import demand, demands, near, series, serving, slices
from vgpuctl.placement.one_size import OneSize
from vgpuctl.placement.requests import Ask


def gib(name: str, total: int, *profiles: str) -> OneSize:
    """Return a kind whose profiles are sized by their names."""
    sizes = {p: int("".join(c for c in p.rpartition("-")[2] if c.isdigit())) * 1024 for p in profiles}
    return OneSize(name, total * 1024, sizes, {p: total * 1024 // mib for p, mib in sizes.items()})


A16 = gib("A16", 16, "A16-1B", "A16-2B", "A16-4Q", "A16-4C", "A16-8Q", "A16-16Q", "A16-16C")
L40S = gib("L40S", 48, "L40S-1B", "L40S-2B", "L40S-4Q", "L40S-8Q", "L40S-12C", "L40S-24C", "L40S-48C")
KINDS = (A16, L40S)
CALLED = ("A16".__eq__, "L40S".__eq__)


@pytest.mark.parametrize(
    ("profile", "letter", "number"),
    [("A16-2B", "B", 0), ("DC-1-10CME", "C", 1), ("1-10C", "C", 1), ("10C", "C", 0), ("i915-GVTg_V5_4", "", 0)],
)
def test_series_and_slices_are_told_with_the_model_and_without(profile: str, letter: str, number: int) -> None:
    assert (series(profile), slices(profile)) == (letter, number)


@pytest.mark.parametrize(
    ("ask", "name", "profiles"),
    [
        (Ask("2B"), "2B", ("A16-2B", "L40S-2B")),
        (Ask("A16-2B"), "A16-2B", ("A16-2B", None)),
        (Ask("4C"), "A16-4C", ("A16-4C", None)),
        (Ask("A16-4C|L40S-12C"), "A16-4C|L40S-12C", ("A16-4C", "L40S-12C")),
        (Ask("2B", models=("L40S",)), "L40S-2B", (None, "L40S-2B")),
        (Ask(gpu_milli=250), "A16-4C|L40S-12C", ("A16-4C", "L40S-12C")),
        (Ask(gpu_milli=251), "A16-8Q|L40S-24C", ("A16-8Q", "L40S-24C")),
        (Ask(gpu_milli=1000), "A16-16C|L40S-48C", ("A16-16C", "L40S-48C")),
        (Ask(gpu_milli=1, models=("A16",)), "A16-1B", ("A16-1B", None)),
    ],
)
def test_what_serves_an_ask(ask: Ask, name: str, profiles: tuple[str | None, ...]) -> None:
    found = demand(ask, KINDS, CALLED)
    assert found is not None
    assert (found.name, found.profiles, found.restricted) == (name, profiles, True)
    if ask.models == ():
        again = demand(Ask(found.name), KINDS, CALLED)
        assert again == found


def test_a_model_that_is_not_here_restricts_nothing() -> None:
    found = demand(Ask("2B", models=("V100M32",)), KINDS, CALLED)
    assert found is not None
    assert (found.profiles, found.restricted) == (("A16-2B", "L40S-2B"), False)
    here = demand(Ask("2B", models=("V100M32", "A16")), KINDS, CALLED)
    assert here is not None
    assert (here.profiles, here.restricted) == (("A16-2B", None), True)


def test_what_nobody_offers_is_told_with_what_may_have_been_meant() -> None:
    assert demand(Ask("A16-3B"), KINDS, CALLED) is None
    assert near("A16-2Q", KINDS) == ["A16-8Q", "A16-4Q", "A16-2B"]
    with pytest.raises(NotFound, match="no GPU of A16, L40S offers A16-3B") as caught:
        mixes.served(Ask("A16-3B"), KINDS, CALLED)
    assert "did you mean A16-" in str(caught.value.hint)


def test_two_demands_of_one_name_are_told_apart() -> None:
    small, large = gib("A100 40", 40, "A100-4C"), gib("A100 80", 80, "A100-4C")
    called = ("A100 40".__eq__, "A100 80".__eq__)
    found = demands([Ask("A100-4C"), Ask("A100-4C", models=("A100 80",))], (small, large), called)
    names = [d.name for d in found.values() if d is not None]
    assert names == ["A100-4C", "A100-4C on A100 80"]


def test_a_kind_with_other_names_is_the_same_kind() -> None:
    found = demands([Ask("2B"), Ask("A16-2B"), Ask("8Q"), Ask("L40S-12C")], KINDS, CALLED)
    kind = serving(KINDS, [d for d in found.values() if d is not None])[0]
    assert kind.sizes == {"2B": 2048, "A16-2B": 2048, "8Q": 8192}
    (move,) = kind.moves(kind.empty, "2B")
    assert move == A16.moves(A16.empty, "A16-2B")[0]
    assert (kind.left(move.after, "A16-2B"), kind.left(move.after, "8Q"), kind.left(move.after, "L40S-12C")) == (
        7,
        0,
        0,
    )
    assert kind.without(move.after, "2B", move.place) == kind.empty
    assert kind.moves(kind.empty, "L40S-12C") == ()
    assert kind.fits(kind.empty, Counter({"2B": 4, "A16-2B": 4}))
    assert not kind.fits(kind.empty, Counter({"2B": 5, "A16-2B": 4}))
    assert not kind.fits(kind.empty, Counter({"L40S-12C": 1}))
    filling = kind.filling({"2B": 1.0, "A16-2B": 2.0, "8Q": 3.0, "L40S-12C": 99.0})
    assert (filling.worth(kind.empty), dict(filling.counts(kind.empty))) == (16.0, {"A16-2B": 8})
