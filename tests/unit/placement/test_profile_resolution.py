# SPDX-License-Identifier: Apache-2.0
"""The profile of each kind that serves a selector, and kinds that share its name."""

from __future__ import annotations

from collections import Counter

import pytest

from vgpuctl.errors import NotFound
from vgpuctl.placement import workload_mixes
from vgpuctl.placement.equal_size import EqualSizeKind
from vgpuctl.placement.profile_resolution import (
    compute_slices_of,
    rename_profiles,
    resolve_selector,
    resolve_selectors,
    series_of,
    suggest_profiles,
)
from vgpuctl.placement.trace_request import ProfileSelector


def gib(name: str, total: int, *profiles: str) -> EqualSizeKind:
    """Return a kind whose profiles are sized by their names."""
    sizes = {p: int("".join(c for c in p.rpartition("-")[2] if c.isdigit())) * 1024 for p in profiles}
    return EqualSizeKind(name, total * 1024, sizes, {p: total * 1024 // mib for p, mib in sizes.items()})


A16 = gib("A16", 16, "A16-1B", "A16-2B", "A16-4Q", "A16-4C", "A16-8Q", "A16-16Q", "A16-16C")
L40S = gib("L40S", 48, "L40S-1B", "L40S-2B", "L40S-4Q", "L40S-8Q", "L40S-12C", "L40S-24C", "L40S-48C")
KINDS = (A16, L40S)
CALLED = ("A16".__eq__, "L40S".__eq__)


@pytest.mark.parametrize(
    ("profile", "letter", "number"),
    [("A16-2B", "B", 0), ("DC-1-10CME", "C", 1), ("1-10C", "C", 1), ("10C", "C", 0), ("i915-GVTg_V5_4", "", 0)],
)
def test_series_and_slices_with_and_without_the_model(profile: str, letter: str, number: int) -> None:
    assert (series_of(profile), compute_slices_of(profile)) == (letter, number)


@pytest.mark.parametrize(
    ("ask", "name", "profiles"),
    [
        (ProfileSelector("2B"), "2B", ("A16-2B", "L40S-2B")),
        (ProfileSelector("A16-2B"), "A16-2B", ("A16-2B", None)),
        (ProfileSelector("4C"), "A16-4C", ("A16-4C", None)),
        (ProfileSelector("A16-4C|L40S-12C"), "A16-4C|L40S-12C", ("A16-4C", "L40S-12C")),
        (ProfileSelector("2B", models=("L40S",)), "L40S-2B", (None, "L40S-2B")),
        (ProfileSelector(gpu_milli=250), "A16-4C|L40S-12C", ("A16-4C", "L40S-12C")),
        (ProfileSelector(gpu_milli=251), "A16-8Q|L40S-24C", ("A16-8Q", "L40S-24C")),
        (ProfileSelector(gpu_milli=1000), "A16-16C|L40S-48C", ("A16-16C", "L40S-48C")),
        (ProfileSelector(gpu_milli=1, models=("A16",)), "A16-1B", ("A16-1B", None)),
    ],
)
def test_what_serves_an_ask(ask: ProfileSelector, name: str, profiles: tuple[str | None, ...]) -> None:
    result = resolve_selector(ask, KINDS, CALLED)
    assert result is not None
    assert (result.name, result.profiles, result.is_model_known) == (name, profiles, True)
    if ask.models == ():
        again = resolve_selector(ProfileSelector(result.name), KINDS, CALLED)
        assert again == result


def test_a_model_that_is_not_here_restricts_nothing() -> None:
    result = resolve_selector(ProfileSelector("2B", models=("V100M32",)), KINDS, CALLED)
    assert result is not None
    assert (result.profiles, result.is_model_known) == (("A16-2B", "L40S-2B"), False)
    here = resolve_selector(ProfileSelector("2B", models=("V100M32", "A16")), KINDS, CALLED)
    assert here is not None
    assert (here.profiles, here.is_model_known) == (("A16-2B", None), True)


def test_an_unoffered_profile_is_refused_with_near_names() -> None:
    assert resolve_selector(ProfileSelector("A16-3B"), KINDS, CALLED) is None
    assert suggest_profiles("A16-2Q", KINDS) == ["A16-8Q", "A16-4Q", "A16-2B"]
    with pytest.raises(NotFound, match="no GPU of A16, L40S offers A16-3B") as caught:
        workload_mixes.require_profile(ProfileSelector("A16-3B"), KINDS, CALLED)
    assert "did you mean A16-" in str(caught.value.hint)


def test_demands_of_one_name_are_distinct() -> None:
    small, large = gib("A100 40", 40, "A100-4C"), gib("A100 80", 80, "A100-4C")
    called = ("A100 40".__eq__, "A100 80".__eq__)
    result = resolve_selectors(
        [ProfileSelector("A100-4C"), ProfileSelector("A100-4C", models=("A100 80",))], (small, large), called
    )
    names = [d.name for d in result.values() if d is not None]
    assert names == ["A100-4C", "A100-4C on A100 80"]


def test_a_kind_with_other_names_is_the_same_kind() -> None:
    result = resolve_selectors(
        [ProfileSelector("2B"), ProfileSelector("A16-2B"), ProfileSelector("8Q"), ProfileSelector("L40S-12C")],
        KINDS,
        CALLED,
    )
    kind = rename_profiles(KINDS, [d for d in result.values() if d is not None])[0]
    assert kind.sizes == {"2B": 2048, "A16-2B": 2048, "8Q": 8192}
    (move,) = kind.placements(kind.empty, "2B")
    assert move == A16.placements(A16.empty, "A16-2B")[0]
    assert (
        kind.count_remaining(move.state_after, "A16-2B"),
        kind.count_remaining(move.state_after, "8Q"),
        kind.count_remaining(move.state_after, "L40S-12C"),
    ) == (
        7,
        0,
        0,
    )
    assert kind.remove(move.state_after, "2B", move.place) == kind.empty
    assert kind.placements(kind.empty, "L40S-12C") == ()
    assert kind.fits(kind.empty, Counter({"2B": 4, "A16-2B": 4}))
    assert not kind.fits(kind.empty, Counter({"2B": 5, "A16-2B": 4}))
    assert not kind.fits(kind.empty, Counter({"L40S-12C": 1}))
    filling = kind.best_filling({"2B": 1.0, "A16-2B": 2.0, "8Q": 3.0, "L40S-12C": 99.0})
    assert (filling.value(kind.empty), dict(filling.counts(kind.empty))) == (16.0, {"A16-2B": 8})
