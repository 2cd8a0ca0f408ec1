# SPDX-License-Identifier: Apache-2.0
"""A claim is reached if all its figures are. Without runs, a claim is neither reached nor missed."""

from __future__ import annotations

import pytest

from tests.bench.placement import table
from tests.bench.placement.claims import Claim, claims, losses
from tests.bench.placement.runs import ARRIVALS, MIGRATION, OURS, UNRANKED, Row


def results(**percents: tuple[str, float]) -> table.Results:
    """Return rows of A40 and A16 with 16 GPUs. Each value is (policy, percent at 100 %); 130 % has a point more."""
    return table.by_key(
        Row("a40-a16", 16, ARRIVALS, load, seed, policy, str(percent + more), "1 1 1 1")
        for policy, percent in percents.values()
        for load, more in ((100, 0), (130, 1))
        for seed in (1, 2)
    )


def over_fgd(result: table.Results) -> Claim:
    return next(c for c in claims(result) if c.says == "A40 and A16, VDI mix, 16 GPUs: at least 3 over FGD")


@pytest.mark.parametrize(("ours", "reached"), [(93.0, True), (92.9, False)])
def test_a_claim_over_fgd_compares_with_its_better_variant(ours: float, reached: bool) -> None:
    result = over_fgd(results(a=(OURS, ours), b=("fgd", 85.0), c=("fgd-best-fit", 90.0)))
    assert result.reached is reached
    assert f"{ours - 90:+.2f}" in result.measured


def test_a_claim_without_runs_is_neither_reached_nor_missed() -> None:
    assert over_fgd(results(a=("fgd", 85.0))).reached is None
    assert {c.reached for c in claims({})} == {None}


def test_losses_name_ranked_peers_only() -> None:
    result = results(a=(OURS, 90.0), b=("depth", 91.0), c=("best-fit", 90.4), d=(UNRANKED, 99.0), e=(MIGRATION, 96.0))
    assert [(c.policy, c.load, c.difference.mean) for c in losses(result, ARRIVALS)] == [
        ("depth", 100, -1.0),
        ("depth", 130, -1.0),
    ]
    never_behind, *_ = claims(result)
    assert never_behind.reached is False
    assert "-1.00 ± 0.00 against depth" in never_behind.measured
