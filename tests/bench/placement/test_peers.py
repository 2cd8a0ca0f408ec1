# SPDX-License-Identifier: Apache-2.0
"""Peers' policies do what their programs' documents say, and the same requests give the same results."""

from __future__ import annotations

import pytest

from tests.bench.placement.fgd import Fgd
from tests.bench.placement.figures import A16, A40, H100_MIG
from tests.bench.placement.fleets import BY_NAME, Setting, fleet_of
from tests.bench.placement.requests import LOADS, arrivals, sizes_gib, visits
from tests.bench.placement.runs import ARRIVALS, CHURN, POLICIES, UNRANKED, Run, placed, rows_of
from vgpuctl.placement.fleet import Fleet

TWO_MODELS = Setting("", "", (A40, A16), {"1B": 1, "2B": 1, "4Q": 1, "8Q": 1})
ONE_MODEL = Setting("", "", (A40,), {"1B": 1, "2B": 1, "4Q": 1, "8Q": 1})
MIG = Setting("", "", (H100_MIG,), {"1g": 1, "3g": 1, "7g": 1})


def goes_to(policy: str, fleet: Fleet, setting: Setting, *profiles: str) -> list[int | None]:
    """Return the GPU that each is placed on."""
    chooser = POLICIES[policy](setting, 1)
    found = [placed(fleet, chooser, profile) for profile in profiles]
    return [where[0] if where else None for where in found]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != UNRANKED])
@pytest.mark.parametrize("name", ["a40-a10", "h100-mig-uniform", "ada-2-24"])
def test_what_is_ranked_admits_whatever_fits(policy: str, name: str) -> None:
    setting = BY_NAME[name]
    fleet, chooser = fleet_of(setting, 4), POLICIES[policy](setting, 1)
    for profile in arrivals(setting, 4, 1).profiles:
        room = any(fleet.choices(profile))
        assert (placed(fleet, chooser, profile) is not None) == room


def test_least_capacity_for_the_type_is_filled_first_and_most_capacity_first_spreads() -> None:
    assert goes_to("xen-depth", fleet_of(TWO_MODELS, 4), TWO_MODELS, "8Q", "8Q", "8Q") == [2, 2, 3]
    assert goes_to("xen-breadth", fleet_of(TWO_MODELS, 4), TWO_MODELS, "8Q", "8Q", "8Q") == [0, 1, 0]


def test_the_emptiest_by_share_of_functions_and_by_framebuffer() -> None:
    assert goes_to("least-loaded", fleet_of(TWO_MODELS, 2), TWO_MODELS, "2B", "2B", "2B", "2B") == [0, 1, 0, 0]
    assert goes_to("least-vram", fleet_of(TWO_MODELS, 2), TWO_MODELS, "8Q", "8Q", "8Q") == [0, 1, 0]


def test_a_node_is_chosen_before_a_gpu_in_it() -> None:
    assert goes_to("hami-binpack", fleet_of(ONE_MODEL, 8), ONE_MODEL, "8Q", "8Q", "4Q") == [0, 0, 1]
    assert goes_to("hami-default", fleet_of(ONE_MODEL, 8), ONE_MODEL, "8Q", "8Q", "8Q") == [0, 1, 2]
    assert goes_to("hami-spread", fleet_of(ONE_MODEL, 8), ONE_MODEL, "8Q", "8Q", "8Q") == [0, 4, 1]


def test_a_card_that_was_given_one_type_takes_no_other() -> None:
    assert goes_to(UNRANKED, fleet_of(ONE_MODEL, 4), ONE_MODEL, "8Q", "1B", "8Q") == [3, 0, 3]
    assert goes_to(UNRANKED, fleet_of(ONE_MODEL, 4), ONE_MODEL, *["8Q"] * 7)[-1] is None


def test_fragmentation_is_what_the_demand_cannot_use() -> None:
    fleet = fleet_of(MIG, 1)
    kind = fleet.kinds[0]
    gradient = Fgd({"1g": 1, "7g": 3})
    assert gradient.fragmentation(kind, kind.empty) == 0
    assert gradient.fragmentation(kind, 0b1) == 0.75 * 70 * 1024
    assert Fgd({"3g": 1}).fragmentation(kind, 0b11) == 0
    assert Fgd({"3g": 1}, finer=True).fragmentation(kind, 0b11) == 20 * 1024


def test_requests_are_as_much_as_the_load_says_and_the_same_every_time() -> None:
    setting = BY_NAME["h100-mig"]
    made = arrivals(setting, 16, 3)
    sizes = sizes_gib(setting)
    for load in LOADS:
        asked = sum(sizes[p] for p in made.profiles[: made.until[load]])
        assert load - 100 / 16 < 100 * asked / (16 * 80) <= load
    assert arrivals(setting, 16, 3) == made
    assert arrivals(setting, 16, 4) != made
    assert list(visits(setting, 4, 100, 1)) == list(visits(setting, 4, 100, 1))


@pytest.mark.parametrize("workload", [ARRIVALS, CHURN])
def test_a_run_gives_the_same_rows_again(workload: str) -> None:
    run = Run("a40-a16", 8, workload, 100, 1, "random")
    assert rows_of(run) == rows_of(run)


def test_in_churn_no_more_is_in_use_than_there_is() -> None:
    for load in (60, 130):
        offered, got = (
            float(rows_of(Run("h100-mig", 8, CHURN, load, 1, p))[0].framebuffer_percent) for p in ("offered", "depth")
        )
        assert got <= min(100, offered) + 1e-9
