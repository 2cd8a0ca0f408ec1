# SPDX-License-Identifier: Apache-2.0
"""The peers' policies do what their programs' documentation says. The same requests give the same results."""

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
    """Return the GPU on which each profile is placed; None if it is refused."""
    chooser = POLICIES[policy](setting, 1)
    positions = [placed(fleet, chooser, profile) for profile in profiles]
    return [position[0] if position else None for position in positions]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != UNRANKED])
@pytest.mark.parametrize("name", ["a40-a10", "h100-mig-uniform", "ada-2-24"])
def test_ranked_policies_admit_everything_that_fits(policy: str, name: str) -> None:
    setting = BY_NAME[name]
    fleet, chooser = fleet_of(setting, 4), POLICIES[policy](setting, 1)
    for profile in arrivals(setting, 4, 1).profiles:
        room = any(fleet.choices(profile))
        assert (placed(fleet, chooser, profile) is not None) == room


def test_xen_depth_fills_gpus_and_xen_breadth_spreads() -> None:
    assert goes_to("xen-depth", fleet_of(TWO_MODELS, 4), TWO_MODELS, "8Q", "8Q", "8Q") == [2, 2, 3]
    assert goes_to("xen-breadth", fleet_of(TWO_MODELS, 4), TWO_MODELS, "8Q", "8Q", "8Q") == [0, 1, 0]


def test_least_loaded_and_least_vram_choose_the_emptiest_gpu() -> None:
    assert goes_to("least-loaded", fleet_of(TWO_MODELS, 2), TWO_MODELS, "2B", "2B", "2B", "2B") == [0, 1, 0, 0]
    assert goes_to("least-vram", fleet_of(TWO_MODELS, 2), TWO_MODELS, "8Q", "8Q", "8Q") == [0, 1, 0]


def test_hami_chooses_a_node_before_a_gpu_in_it() -> None:
    assert goes_to("hami-binpack", fleet_of(ONE_MODEL, 8), ONE_MODEL, "8Q", "8Q", "4Q") == [0, 0, 1]
    assert goes_to("hami-default", fleet_of(ONE_MODEL, 8), ONE_MODEL, "8Q", "8Q", "8Q") == [0, 1, 2]
    assert goes_to("hami-spread", fleet_of(ONE_MODEL, 8), ONE_MODEL, "8Q", "8Q", "8Q") == [0, 4, 1]


def test_a_card_with_an_assigned_type_takes_no_other() -> None:
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


def test_requests_add_up_to_the_load_and_are_reproducible() -> None:
    setting = BY_NAME["h100-mig"]
    requests = arrivals(setting, 16, 3)
    sizes = sizes_gib(setting)
    for load in LOADS:
        requested_gib = sum(sizes[p] for p in requests.profiles[: requests.until[load]])
        assert load - 100 / 16 < 100 * requested_gib / (16 * 80) <= load
    assert arrivals(setting, 16, 3) == requests
    assert arrivals(setting, 16, 4) != requests
    assert list(visits(setting, 4, 100, 1)) == list(visits(setting, 4, 100, 1))


@pytest.mark.parametrize("workload", [ARRIVALS, CHURN])
def test_a_run_is_reproducible(workload: str) -> None:
    run = Run("a40-a16", 8, workload, 100, 1, "random")
    assert rows_of(run) == rows_of(run)


def test_churn_never_uses_more_than_the_fleet_has() -> None:
    for load in (60, 130):
        offered, admitted = (
            float(rows_of(Run("h100-mig", 8, CHURN, load, 1, p))[0].framebuffer_percent) for p in ("offered", "depth")
        )
        assert admitted <= min(100, offered) + 1e-9
