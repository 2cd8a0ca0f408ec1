# SPDX-License-Identifier: Apache-2.0
"""The profile of each kind that serves a request, and kinds that share its name."""

from __future__ import annotations

from collections import Counter

import pytest

from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.placement.profile_resolution import rename_profiles, resolve_profile


def gib(name: str, total: int, *profiles: str) -> EqualSizeKind:
    """Return a kind whose profiles are sized by their names."""
    sizes = {p: int("".join(c for c in p.rpartition("-")[2] if c.isdigit())) * 1024 for p in profiles}
    return EqualSizeKind(name, total * 1024, sizes, {p: total * 1024 // mib for p, mib in sizes.items()})


A16 = gib("A16", 16, "A16-1B", "A16-2B", "A16-4Q", "A16-4C", "A16-8Q", "A16-16Q", "A16-16C")
L40S = gib("L40S", 48, "L40S-1B", "L40S-2B", "L40S-4Q", "L40S-8Q", "L40S-12C", "L40S-24C", "L40S-48C")
KINDS = (A16, L40S)


@pytest.mark.parametrize(
    ("text", "name", "profiles"),
    [
        ("2B", "2B", ("A16-2B", "L40S-2B")),
        ("A16-2B", "A16-2B", ("A16-2B", None)),
        ("a16-2b", "A16-2B", ("A16-2B", None)),
        ("4C", "A16-4C", ("A16-4C", None)),
        ("A16-4C|L40S-12C", "A16-4C|L40S-12C", ("A16-4C", "L40S-12C")),
        ("L40S-12C|A16-4C", "A16-4C|L40S-12C", ("A16-4C", "L40S-12C")),
    ],
)
def test_what_serves_a_request(text: str, name: str, profiles: tuple[str | None, ...]) -> None:
    result = resolve_profile(text, KINDS)
    assert result is not None
    assert (result.name, result.profiles) == (name, profiles)
    assert resolve_profile(result.name, KINDS) == result


def test_requests_with_different_results_have_different_names() -> None:
    kinds = (gib("X", 8, "X-1B", "X-2B"), gib("Y", 8, "X-1B"), gib("Z", 8, "X-2B"))
    small, large = (resolve_profile(text, kinds) for text in ("X-1B|X-2B", "X-2B|X-1B"))
    assert small is not None
    assert large is not None
    assert (small.profiles, large.profiles) == (("X-1B", "X-1B", "X-2B"), ("X-2B", "X-1B", "X-2B"))
    assert small.name != large.name


def test_an_unoffered_profile_resolves_to_none() -> None:
    assert resolve_profile("A16-3B", KINDS) is None


def test_a_kind_with_other_names_is_the_same_kind() -> None:
    resolved = [resolve_profile(text, KINDS) for text in ("2B", "A16-2B", "8Q", "L40S-12C")]
    kind = rename_profiles(KINDS, [result for result in resolved if result is not None])[0]
    assert {name: kind.sizes[name] for name in ("2B", "A16-2B", "8Q")} == {"2B": 2048, "A16-2B": 2048, "8Q": 8192}
    assert {A16.footprint(p) for p in A16.sizes} == {kind.footprint(name) for name in kind.sizes}
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
