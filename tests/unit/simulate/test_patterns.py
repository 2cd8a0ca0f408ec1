# SPDX-License-Identifier: Apache-2.0
"""Generated requests: in the configured number and sizes, at the times of their pattern."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.unit.placement.test_profile_resolution import KINDS, gib
from vgpuctl.errors import NotFound
from vgpuctl.simulate import patterns
from vgpuctl.simulate.patterns import DAY, HOUR, DesktopShare, WorkloadSize
from vgpuctl.simulate.trace import TraceRequest

DESKTOPS = 25_000
SHARES = patterns.desktop_mix(KINDS)


def count_present(requests: list[TraceRequest], seconds: float) -> int:
    """Return the number of desktops at a time."""
    return sum(r.arrival_seconds <= seconds < (r.departure_seconds or float("inf")) for r in requests)


@pytest.mark.parametrize("pattern", patterns.PATTERNS.values())
def test_the_same_seed_makes_the_same_requests(pattern: patterns.Pattern) -> None:
    size = WorkloadSize(2, 400)
    first, again, other = (list(pattern(Random(seed), SHARES, size)) for seed in (5, 5, 6))
    assert first == again != other
    assert all(0 <= r.arrival_seconds <= (r.departure_seconds or 2 * DAY) <= 2 * DAY for r in first)


def test_a_day_of_desktops() -> None:
    requests = list(patterns.generate_vdi_day(Random(1), SHARES, WorkloadSize(1, DESKTOPS)))
    names = {r.name for r in requests}
    assert len(names) == DESKTOPS
    first = {}
    for r in requests:
        first.setdefault(r.name, r.arrival_seconds)
    storm = sum(8 * HOUR <= at <= 9.5 * HOUR for at in first.values()) / len(first)
    assert 0.88 < storm < 0.92
    shares = Counter(r.profile for r in {r.name: r for r in requests}.values())
    assert shares["1B"] / len(names) == pytest.approx(0.4, abs=0.02)
    assert shares["8Q"] / len(names) == pytest.approx(0.05, abs=0.01)
    assert count_present(requests, 11.5 * HOUR) == pytest.approx(DESKTOPS, rel=0.03)
    assert count_present(requests, 12.5 * HOUR) < 0.75 * DESKTOPS
    assert count_present(requests, 14.5 * HOUR) == pytest.approx(DESKTOPS, rel=0.05)
    assert count_present(requests, 7 * HOUR) == count_present(requests, 23 * HOUR) == 0


def test_churn_keeps_the_number_of_desktops_on_average() -> None:
    requests = list(patterns.generate_churn(Random(1), SHARES, WorkloadSize(7, 5000)))
    later = [count_present(requests, DAY * (2 + n / 4)) for n in range(20)]
    assert sum(later) / len(later) == pytest.approx(5000, rel=0.03)
    hours = Counter(int(r.arrival_seconds % DAY // HOUR) for r in requests)
    assert max(hours.values()) < 1.2 * min(hours.values())


def test_a_fleet_is_filled_by_the_mean_desktop() -> None:
    mean = sum(share.weight * share.mib for share in SHARES) / 100
    assert patterns.fill_fleet(SHARES, round(100 * mean)) == 100
    assert patterns.fill_fleet(SHARES, 1) == 1


def test_the_mixes_are_in_the_words_of_the_fleet() -> None:
    assert {share.profile: share.weight for share in SHARES} == {"1B": 40, "2B": 35, "4Q": 20, "8Q": 5}
    with pytest.raises(NotFound, match="offers a desktop of 8 GiB"):
        patterns.desktop_mix([gib("T", 4, "T-1B", "T-4Q")])
    assert patterns.custom_mix({"8Q": 2.0}, KINDS) == (DesktopShare("8Q", 2.0, 8192),)
    with pytest.raises(NotFound, match="no GPU of A16, L40S offers A16-3B") as caught:
        patterns.custom_mix({"A16-3B": 1.0}, KINDS)
    assert "did you mean A16-" in str(caught.value.hint)


def test_a_desktop_gets_no_gpu_instance() -> None:
    with_mig = gib("M", 24, "M-1-6Q", "M-8Q")
    assert {share.profile for share in patterns.desktop_mix([with_mig])} == {"M-8Q"}


def test_without_the_series_a_profile_of_another_serves() -> None:
    mix = patterns.desktop_mix([gib("P", 24, "P-2C", "P-4Q", "P-8Q")])
    assert [(share.profile, share.weight) for share in mix] == [("P-2C", 40), ("P-2C", 35), ("P-4Q", 20), ("P-8Q", 5)]
