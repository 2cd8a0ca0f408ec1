# SPDX-License-Identifier: Apache-2.0
"""The other policies do what their sources say, a sample gives the committed results, and these give the pages."""

from __future__ import annotations

import pytest

from tests.bench.placement import page, results
from tests.bench.placement.__main__ import main, sample_rows
from tests.bench.placement.cards import card
from tests.bench.placement.fleets import MIG, SETTINGS, VDI_PAIR
from tests.bench.placement.goals import goals
from tests.bench.placement.peers import BestFit, Fgd, FirstFit, choices
from tests.bench.placement.requests import LOADS, arrivals, visits
from tests.bench.placement.runs import (
    ARRIVALS,
    CHURN,
    FIRST_FIT,
    OURS,
    POLICIES,
    Cell,
    Chooser,
    Row,
    measure,
    place,
    rows_of,
)
from vgpuctl.placement.fleet import Fleet, GpuGroup

A40, MIG_CARD = card("A40"), card("H100 MIG")


def goes_to(policy: Chooser, fleet: Fleet, *profiles: str) -> list[int | None]:
    """Return the GPU on which each profile is placed; None if it is refused."""
    placed = [place(fleet, policy, profile) for profile in profiles]
    return [where[0] if where else None for where in placed]


def test_first_fit_and_best_fit_choose_by_address_and_by_free_framebuffer() -> None:
    states = [A40.empty, (8192, 2), (4096, 11)]
    fleet = Fleet([A40], [GpuGroup(0, state) for state in states])
    assert goes_to(FirstFit(), fleet, "4Q", "8Q") == [0, 1]
    fleet = Fleet([A40], [GpuGroup(0, state) for state in states])
    assert goes_to(BestFit(), fleet, "4Q", "4Q", "8Q", *["8Q"] * 4) == [2, 0, 1, 1, 1, 1, None]


def test_fragmentation_is_what_the_demand_cannot_use() -> None:
    gradient = Fgd({"1g": 1, "7g": 3})
    assert gradient.fragmentation(MIG_CARD, MIG_CARD.empty) == 0
    assert gradient.fragmentation(MIG_CARD, 0b1) == 0.75 * 70 * 1024
    assert Fgd({"3g": 1}).fragmentation(MIG_CARD, 0b11) == 0
    assert Fgd({"3g": 1, "gone": 1}).fragmentation(MIG_CARD, 0) == 40 * 1024


@pytest.mark.parametrize("name", [name for name, s in SETTINGS.items() if s.group in (MIG, VDI_PAIR)])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_admits_everything_that_fits(policy: str, name: str) -> None:
    setting = SETTINGS[name]
    fleet, chooser = setting.fleet(4), POLICIES[policy](setting)
    for profile in arrivals(setting, 4, 1)[0]:
        room = any(choices(fleet, profile))
        assert (place(fleet, chooser, profile) is not None) == room


def test_requests_add_up_to_the_load_and_are_the_same_in_both_orders_of_addresses() -> None:
    setting = SETTINGS["A40+A16, VDI"]
    profiles, until = arrivals(setting, 16, 3)
    for load in LOADS:
        asked = sum(setting.sizes[p] for p in profiles[: until[load]])
        assert load - 5 < 100 * asked / setting.framebuffer_mib(16) <= load
    assert arrivals(SETTINGS["A16+A40, VDI"], 16, 3) == (profiles, until)
    assert arrivals(setting, 16, 4)[0] != profiles
    assert list(visits(setting, 4, 100, 1)) == list(visits(SETTINGS["A16+A40, VDI"], 4, 100, 1))


@pytest.mark.parametrize("workload", [ARRIVALS, CHURN])
def test_a_cell_is_reproducible_and_never_uses_more_than_there_is(workload: str) -> None:
    rows = measure(Cell("H100 MIG, weighted", 2, workload), most_seeds=2)
    assert rows == measure(Cell("H100 MIG, weighted", 2, workload), most_seeds=2)
    assert {(row.load, row.policy) for row in rows} == {(load, policy) for load in LOADS for policy in POLICIES}
    assert all(0 < row.percent <= 100 for row in rows)


def test_differences_are_taken_seed_by_seed() -> None:
    cell = Cell("A40, VDI", 2, ARRIVALS)
    shares = {(100, OURS): [90.0, 94.0, 80.0], (100, FIRST_FIT): [89.0, 91.0, 78.0]}
    assert list(rows_of(cell, shares)) == [
        Row(*cell, 100, OURS, 3, 88.0, 0.0, 0.0),
        Row(*cell, 100, FIRST_FIT, 3, 86.0, 2.0, 0.577),
    ]


def test_a_sample_gives_the_committed_results() -> None:
    """After a change of a policy, run `python -m tests.bench.placement --again`."""
    assert sorted(sample_rows()) == results.read(results.SAMPLE)


def test_the_pages_follow_from_the_committed_results() -> None:
    """If a page is out of date, run `python -m tests.bench.placement --page`."""
    rows = results.read(results.CSV)
    assert page.REPORT.read_text() == page.report(rows, results.head(results.CSV))


def test_what_was_not_measured_is_no_goal_that_was_reached() -> None:
    assert {goal.reached for goal in goals({})} == {None}


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "--hours" in capsys.readouterr().out
