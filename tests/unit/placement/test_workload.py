# SPDX-License-Identifier: Apache-2.0
"""Generated requests: in the configured number and sizes, at the times of their pattern."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.unit.placement.test_kinds import H100_MIG
from tests.unit.placement.test_profile_resolution import A16, CALLED, KINDS, gib
from vgpuctl.errors import NotFound
from vgpuctl.placement import workload, workload_mixes
from vgpuctl.placement.trace_request import ProfileSelector, TraceRequest
from vgpuctl.placement.workload import DAY, HOUR, WorkloadPart, WorkloadSize

FLEET_MIB = 64 << 20
PARTS = workload_mixes.desktop_mix(KINDS, CALLED)


def asked_at(requests: list[TraceRequest], seconds: float) -> int:
    """Return the framebuffer requested at a time."""
    mib = {part.selector: part.mib for part in PARTS}
    there = (r for r in requests if r.arrival_seconds <= seconds < (r.departure_seconds or float("inf")))
    return sum(mib[r.selector] for r in there)


@pytest.mark.parametrize("pattern", [workload.generate_vdi_day, workload.generate_ai, workload.generate_churn])
def test_the_same_seed_makes_the_same_requests(pattern: workload.Pattern) -> None:
    size = WorkloadSize(2, FLEET_MIB // 64)
    first, again, other = (list(pattern(Random(seed), PARTS, size)) for seed in (5, 5, 6))
    assert first == again != other
    assert all(0 <= r.arrival_seconds <= (r.departure_seconds or 2 * DAY) <= 2 * DAY for r in first)


def test_a_day_of_desktops() -> None:
    requests = list(workload.generate_vdi_day(Random(1), PARTS, WorkloadSize(1, FLEET_MIB)))
    names = {r.name for r in requests}
    mean = sum(p.weight * p.mib for p in PARTS) / 100
    assert len(names) == round(FLEET_MIB / mean)
    first = {}
    for r in requests:
        first.setdefault(r.name, r.arrival_seconds)
    storm = sum(8 * HOUR <= at <= 9.5 * HOUR for at in first.values()) / len(first)
    assert 0.88 < storm < 0.92
    shares = Counter(r.selector.profile for r in {r.name: r for r in requests}.values())
    assert shares["1B"] / len(names) == pytest.approx(0.4, abs=0.02)
    assert shares["8Q"] / len(names) == pytest.approx(0.05, abs=0.01)
    assert asked_at(requests, 11.5 * HOUR) == pytest.approx(FLEET_MIB, rel=0.03)
    assert asked_at(requests, 12.5 * HOUR) < 0.75 * FLEET_MIB
    assert asked_at(requests, 14.5 * HOUR) == pytest.approx(FLEET_MIB, rel=0.05)
    assert asked_at(requests, 7 * HOUR) == asked_at(requests, 23 * HOUR) == 0


def test_churn_keeps_the_load_on_average() -> None:
    requests = list(workload.generate_churn(Random(1), PARTS, WorkloadSize(7, FLEET_MIB, load=0.8)))
    later = [asked_at(requests, DAY * (2 + n / 4)) for n in range(20)]
    assert sum(later) / len(later) == pytest.approx(0.8 * FLEET_MIB, rel=0.05)


def test_ai_comes_in_the_afternoon() -> None:
    requests = list(workload.generate_ai(Random(1), PARTS, WorkloadSize(10, FLEET_MIB)))
    hours = Counter(int(r.arrival_seconds % DAY // HOUR) for r in requests)
    assert hours[15] > 2 * hours[3]


@pytest.mark.parametrize("pattern", [workload.generate_ai, workload.generate_churn])
def test_a_number_of_requests_is_that_number(pattern: workload.Pattern) -> None:
    assert len(list(pattern(Random(1), PARTS, WorkloadSize(1, FLEET_MIB, count=77)))) == 77


def test_the_mixes_are_in_the_words_of_the_fleet() -> None:
    assert {p.selector.profile: p.weight for p in PARTS} == {"1B": 40, "2B": 35, "4Q": 20, "8Q": 5}
    ai = {p.selector.profile: (p.weight, p.mib) for p in workload_mixes.ai_mix([A16], CALLED[:1])}
    assert ai == {"A16-2B": (40, 2048), "A16-4C": (30, 4096), "A16-8Q": (20, 8192), "A16-16C": (10, 16384)}
    with pytest.raises(NotFound, match="no GPU of A16, L40S offers a GPU instance"):
        workload_mixes.mig_mix(KINDS, CALLED)
    with pytest.raises(NotFound, match="offers a desktop of 8 GiB"):
        workload_mixes.desktop_mix([gib("T", 4, "T-1B", "T-4Q")], [bool])
    assert workload_mixes.custom_mix({"8Q": 2.0}, KINDS, CALLED, 3.0) == (
        WorkloadPart(ProfileSelector("8Q"), 2.0, 8192, 3.0),
    )
    assert H100_MIG.sizes


def test_without_the_series_a_profile_of_another_serves() -> None:
    mix = workload_mixes.desktop_mix([gib("P", 24, "P-2C", "P-4Q", "P-8Q")], [bool])
    assert [(p.selector.profile, p.weight) for p in mix] == [("P-2C", 40), ("P-2C", 35), ("P-4Q", 20), ("P-8Q", 5)]
