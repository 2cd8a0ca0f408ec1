# SPDX-License-Identifier: Apache-2.0
"""How long a VM stands still when it moves, and the limits for that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values import MACHINE
from vgpuctl.model.results.migration import (
    EstimateResult,
    MigratingVgpuResult,
    MigrationHostResult,
    MigrationOfferResult,
    MigrationPlaceResult,
    PlacedVgpuResult,
)
from vgpuctl.operations.plans.migration_estimate import (
    LAST_PASS_MS,
    UNKNOWN_LIMIT_MS,
    choose_max_downtime,
    doubt_about_limit,
    downtime_steps,
    estimate_downtime,
)

HOST = MigrationHostResult("a", MACHINE, "x86_64")
GIB = 1 << 30


def estimate(
    *vgpus: tuple[int | None, int | None, int | None], network: int | None = None, placed: bool = True
) -> EstimateResult:
    """Return the estimate for vGPUs of these sizes, which are read and written at these speeds."""
    offered = tuple(
        MigratingVgpuResult(f"c{n}", "vendor-vf", "A100-4C", "g", "A100", state_bytes=size, read_bytes_per_second=read)
        for n, (size, read, _) in enumerate(vgpus)
    )
    places = tuple(
        PlacedVgpuResult(f"c{n}", f"d{n}", "A100-4C", "g", f"d{n}", write_bytes_per_second=write)
        for n, (_, _, write) in enumerate(vgpus)
    )
    offer = MigrationOfferResult("i", "vm", "u", "running", 1024, 1, "<domain/>", HOST, offered, ())
    place = MigrationPlaceResult("i", "vm", "u", HOST, places if placed else (), "<vm/>")
    return estimate_downtime(offer, place, network)


@pytest.mark.parametrize(
    ("vgpus", "network", "expected"),
    [
        ([], None, LAST_PASS_MS),
        ([(4 * GIB, 2 * GIB, 4 * GIB)], None, 2000 + LAST_PASS_MS),
        ([(4 * GIB, 2 * GIB, 1 * GIB)], None, 4000 + LAST_PASS_MS),
        ([(4 * GIB, 2 * GIB, 1 * GIB)], GIB // 2, 8000 + LAST_PASS_MS),
        ([(4 * GIB, None, None)], GIB, 4000 + LAST_PASS_MS),
        ([(GIB, GIB, GIB), (2 * GIB, GIB, GIB)], None, 3000 + LAST_PASS_MS),
        ([(0, GIB, GIB)], None, 1 + LAST_PASS_MS),
        ([(None, GIB, GIB)], GIB, None),
        ([(GIB, None, None)], None, None),
        ([(GIB, 0, 0)], 0, None),
        ([(GIB, GIB, GIB), (None, GIB, GIB)], GIB, None),
    ],
)
def test_the_slowest_part_of_each_vgpu_counts(
    vgpus: list[tuple[int | None, int | None, int | None]], network: int | None, expected: int | None
) -> None:
    result = estimate(*vgpus, network=network)
    assert result.downtime_ms == expected
    assert len(result.parts) == len(vgpus) + 1


def test_the_parts_say_what_was_reckoned() -> None:
    assert estimate((4 * GIB, 2 * GIB, None), placed=False).parts[0] == (
        "A100-4C on c0 of a: 4 GiB of state at 2 GiB/s (the driver reads): 2.0 s"
    )


@pytest.mark.parametrize(
    ("downtime", "limit"),
    [(None, UNKNOWN_LIMIT_MS), (300, 300), (301, 700), (2300, 4600), (2301, 4700), (1_000_000, 2_000_000)],
)
def test_the_limit_is_twice_the_estimate(downtime: int | None, limit: int) -> None:
    assert choose_max_downtime(EstimateResult(downtime)) == limit


@pytest.mark.parametrize(
    ("limit", "steps"),
    [(500_000, (31_250, 125_000, 500_000)), (4600, (300, 1150, 4600)), (300, (300,)), (500, (300, 500)), (1, (1,))],
)
def test_steps_rise_to_the_limit(limit: int, steps: tuple[int, ...]) -> None:
    assert downtime_steps(limit) == steps


@pytest.mark.parametrize(
    ("downtime", "limit", "says"), [(None, 1, False), (300, 300, False), (838, 837, True), (838, 838, False)]
)
def test_a_limit_below_the_estimate_is_doubted(downtime: int | None, limit: int, says: bool) -> None:
    doubt = doubt_about_limit(EstimateResult(downtime), limit)
    assert (doubt is not None) is says
    assert doubt is None or "0.8 s, and --max-downtime allows 0.837 s: use --max-downtime 1.7" in doubt


@given(st.integers(1, 10**9))
def test_steps_never_fall_and_end_with_the_limit(limit: int) -> None:
    steps = downtime_steps(limit)
    assert list(steps) == sorted(set(steps))
    assert steps[-1] == limit
    assert steps[0] >= 1
    assert len(steps) == 3 or limit <= 4 * LAST_PASS_MS


@given(
    st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 1 << 36), st.integers(1, 1 << 36)), max_size=4),
    st.integers(1, 1 << 36),
)
def test_a_slower_network_never_shortens_it(vgpus: list[tuple[int, int, int]], network: int) -> None:
    slow, fast = estimate(*vgpus, network=network), estimate(*vgpus, network=network * 2)
    assert slow.downtime_ms is not None
    assert fast.downtime_ms is not None
    assert slow.downtime_ms >= fast.downtime_ms >= LAST_PASS_MS
    assert choose_max_downtime(slow) >= slow.downtime_ms
