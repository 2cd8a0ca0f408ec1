# SPDX-License-Identifier: Apache-2.0
"""Requests that are made up: as many and as large as asked for, at the times of their pattern."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.unit.placement.test_demand import A16, CALLED, KINDS, gib
from tests.unit.placement.test_kinds import H100_MIG
from vgpuctl.errors import NotFound
from vgpuctl.placement import generate, mixes
from vgpuctl.placement.generate import DAY, HOUR, Part, Size
from vgpuctl.placement.requests import Ask, Request

FLEET_MIB = 64 << 20
PARTS = mixes.desktops(KINDS, CALLED)


def asked_at(requests: list[Request], seconds: float) -> int:
    """Return the framebuffer that is asked for at a time."""
    mib = {part.ask: part.mib for part in PARTS}
    there = (r for r in requests if r.arrival_seconds <= seconds < (r.departure_seconds or float("inf")))
    return sum(mib[r.ask] for r in there)


@pytest.mark.parametrize("pattern", [generate.vdi_day, generate.ai, generate.churn])
def test_the_same_seed_makes_the_same_requests(pattern: generate.Pattern) -> None:
    size = Size(2, FLEET_MIB // 64)
    first, again, other = (list(pattern(Random(seed), PARTS, size)) for seed in (5, 5, 6))
    assert first == again != other
    assert all(0 <= r.arrival_seconds <= (r.departure_seconds or 2 * DAY) <= 2 * DAY for r in first)


def test_a_day_of_desktops() -> None:
    requests = list(generate.vdi_day(Random(1), PARTS, Size(1, FLEET_MIB)))
    names = {r.name for r in requests}
    mean = sum(p.weight * p.mib for p in PARTS) / 100
    assert len(names) == round(FLEET_MIB / mean)
    first = {}
    for r in requests:
        first.setdefault(r.name, r.arrival_seconds)
    storm = sum(8 * HOUR <= at <= 9.5 * HOUR for at in first.values()) / len(first)
    assert 0.88 < storm < 0.92
    shares = Counter(r.ask.profile for r in {r.name: r for r in requests}.values())
    assert shares["1B"] / len(names) == pytest.approx(0.4, abs=0.02)
    assert shares["8Q"] / len(names) == pytest.approx(0.05, abs=0.01)
    assert asked_at(requests, 11.5 * HOUR) == pytest.approx(FLEET_MIB, rel=0.03)
    assert asked_at(requests, 12.5 * HOUR) < 0.75 * FLEET_MIB
    assert asked_at(requests, 14.5 * HOUR) == pytest.approx(FLEET_MIB, rel=0.05)
    assert asked_at(requests, 7 * HOUR) == asked_at(requests, 23 * HOUR) == 0


def test_churn_keeps_the_load_on_average() -> None:
    requests = list(generate.churn(Random(1), PARTS, Size(7, FLEET_MIB, load=0.8)))
    later = [asked_at(requests, DAY * (2 + n / 4)) for n in range(20)]
    assert sum(later) / len(later) == pytest.approx(0.8 * FLEET_MIB, rel=0.05)


def test_ai_comes_in_the_afternoon() -> None:
    requests = list(generate.ai(Random(1), PARTS, Size(10, FLEET_MIB)))
    hours = Counter(int(r.arrival_seconds % DAY // HOUR) for r in requests)
    assert hours[15] > 2 * hours[3]


@pytest.mark.parametrize("pattern", [generate.ai, generate.churn])
def test_a_number_of_requests_is_that_number(pattern: generate.Pattern) -> None:
    assert len(list(pattern(Random(1), PARTS, Size(1, FLEET_MIB, number=77)))) == 77


def test_the_mixes_are_in_the_words_of_the_fleet() -> None:
    assert {p.ask.profile: p.weight for p in PARTS} == {"1B": 40, "2B": 35, "4Q": 20, "8Q": 5}
    ai = {p.ask.profile: (p.weight, p.mib) for p in mixes.ai([A16], CALLED[:1])}
    assert ai == {"A16-2B": (40, 2048), "A16-4C": (30, 4096), "A16-8Q": (20, 8192), "A16-16C": (10, 16384)}
    with pytest.raises(NotFound, match="no GPU of A16, L40S offers a GPU instance"):
        mixes.mig(KINDS, CALLED)
    with pytest.raises(NotFound, match="offers a desktop of 8 GiB"):
        mixes.desktops([gib("T", 4, "T-1B", "T-4Q")], [bool])
    assert mixes.given({"8Q": 2.0}, KINDS, CALLED, 3.0) == (Part(Ask("8Q"), 2.0, 8192, 3.0),)
    assert H100_MIG.sizes


def test_without_the_series_a_profile_of_another_serves() -> None:
    mix = mixes.desktops([gib("P", 24, "P-2C", "P-4Q", "P-8Q")], [bool])
    assert [(p.ask.profile, p.weight) for p in mix] == [("P-2C", 40), ("P-2C", 35), ("P-4Q", 20), ("P-8Q", 5)]
