# SPDX-License-Identifier: Apache-2.0
"""A promise is reached when all of its figures are, and nothing is said of what was not run."""

from __future__ import annotations

import pytest

from tests.bench.placement import table
from tests.bench.placement.claims import Claim, claims, losses
from tests.bench.placement.runs import ARRIVALS, MIGRATION, OURS, UNRANKED, Row


def results(**percents: tuple[str, float]) -> table.Results:
    """Return rows of A40 and A16 at 16 GPUs; each is (policy, percent at 100 %), and a point more at 130 %."""
    return table.by_key(
        Row("a40-a16", 16, ARRIVALS, load, seed, policy, str(percent + more), "1 1 1 1")
        for policy, percent in percents.values()
        for load, more in ((100, 0), (130, 1))
        for seed in (1, 2)
    )


def over_fgd(found: table.Results) -> Claim:
    return next(c for c in claims(found) if c.says == "A40 and A16, VDI mix, 16 GPUs: at least 3 over FGD")


@pytest.mark.parametrize(("ours", "reached"), [(93.0, True), (92.9, False)])
def test_a_claim_over_fgd_is_over_its_better_form(ours: float, reached: bool) -> None:
    found = over_fgd(results(a=(OURS, ours), b=("fgd", 85.0), c=("fgd-best-fit", 90.0)))
    assert found.reached is reached
    assert f"{ours - 90:+.2f}" in found.found


def test_what_was_not_run_is_neither_reached_nor_not() -> None:
    assert over_fgd(results(a=("fgd", 85.0))).reached is None
    assert {c.reached for c in claims({})} == {None}


def test_a_ranked_peer_that_has_more_is_named_and_an_unranked_one_is_not() -> None:
    found = results(a=(OURS, 90.0), b=("depth", 91.0), c=("best-fit", 90.4), d=(UNRANKED, 99.0), e=(MIGRATION, 96.0))
    assert [(c.policy, c.load, c.difference.mean) for c in losses(found, ARRIVALS)] == [
        ("depth", 100, -1.0),
        ("depth", 130, -1.0),
    ]
    never_behind, *_ = claims(found)
    assert never_behind.reached is False
    assert "-1.00 ± 0.00 against depth" in never_behind.found
