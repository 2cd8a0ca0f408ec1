# SPDX-License-Identifier: Apache-2.0
"""What stops on a host in maintenance, and when."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.controller.planning.fleets import HOST, NOW, desktop_of, plan_of, pool_of, ready_report, vm_of
from vgpuctl.controller.model import Desktop, FleetHostState, Image
from vgpuctl.controller.planning.driver_check import check_drivers
from vgpuctl.controller.planning.host_plan import HostAction, MarkVm, StopVm
from vgpuctl.value import replace

CLOSED = replace(HOST, state=FleetHostState.MAINTENANCE)


def plan(kind: str, desktop: Desktop, stop_at: float | None = None, **vm: Any) -> HostAction | None:
    actions = plan_of([desktop], [vm_of(desktop, **vm)], pool_of(kind), CLOSED, stop_at=stop_at).actions
    assert len(actions) <= 1
    return actions[0] if actions else None


def used(**report: Any) -> Desktop:
    return desktop_of(user="ada", report=ready_report(user="ada", dirty=True, **report))


@pytest.mark.parametrize("kind", ["floating", "dedicated"])
def test_one_that_is_nobodys_stops_at_once(kind: str) -> None:
    action = plan(kind, desktop_of(report=ready_report()))
    assert isinstance(action, StopVm)
    assert action.force, "nobody is in it, so it need not shut down by itself"


@pytest.mark.parametrize(
    ("report", "guest_users", "stops"),
    [
        ({}, ("ada",), False),
        ({}, None, False),
        ({}, (), True),
        ({"logged_on_seen": True}, (), False),
        ({"logged_on_seen": True, "empty_since": NOW - 60}, (), True),
    ],
)
def test_one_with_a_user_stops_when_nobody_is_logged_on(
    report: dict[str, Any], guest_users: tuple[str, ...] | None, stops: bool
) -> None:
    action = plan("dedicated", used(**report), guest_users=guest_users)
    assert isinstance(action, StopVm) is stops
    assert action is None or not getattr(action, "force", False)


def test_the_deadline_stops_it_whoever_is_logged_on() -> None:
    assert plan("dedicated", used(), NOW + 1, guest_users=("ada",)) is None
    action = plan("dedicated", used(), NOW, guest_users=("ada",))
    assert isinstance(action, StopVm)
    assert action.force


def test_what_a_fixed_pool_works_on_is_not_known() -> None:
    desktop = desktop_of(report=ready_report())
    assert plan("fixed", desktop, guest_users=()) is None
    assert isinstance(plan("fixed", desktop, NOW), StopVm)


def test_an_assignment_is_still_confirmed() -> None:
    desktop = desktop_of(user="ada", generation=2, report=ready_report())
    mark = replace(vm_of(desktop_of()).mark, generation=1)
    assert isinstance(plan("dedicated", desktop, guest_users=None, mark=mark), MarkVm)


def test_one_that_is_off_is_not_started_and_the_agent_does_not_start_it_either() -> None:
    desktop = desktop_of(report=ready_report(state="stopped", running_since=None))
    assert plan("dedicated", desktop, state="stopped") is None
    assert isinstance(plan("dedicated", desktop, state="stopped", should_run=True), StopVm)


def test_the_stop_is_not_the_users() -> None:
    desktop = used()
    vm = vm_of(desktop, state="stopped", guest_users=None)
    assert plan_of([desktop], [vm], pool_of("dedicated"), CLOSED).powered_off == ()
    assert plan_of([desktop], [vm], pool_of("dedicated")).powered_off == (desktop.id,)
    assert plan_of([desktop], [vm], pool_of("floating"), CLOSED).powered_off == ()
    desktop = used(logged_on_seen=True)
    report = plan_of([desktop], [vm], pool_of("floating"), CLOSED).reports[desktop.id]
    assert report.logged_off, "a floating desktop's user gets another one"


def test_a_stop_that_is_seen_while_it_runs_is_not_the_users_later() -> None:
    desktop = replace(used(), power_on=False)
    vm = vm_of(desktop, state="stopped", guest_users=None)
    during = plan_of([desktop], [vm], pool_of("dedicated"), in_flight=(desktop.id,)).reports[desktop.id]
    opened = replace(desktop, power_on=True, report=during)
    plan_after = plan_of([opened], [vm], pool_of("dedicated"))
    assert plan_after.powered_off == ()
    assert [type(action).__name__ for action in plan_after.actions] == ["StartVm"]


def test_the_drivers_of_guests_are_those_that_they_said_and_those_that_they_are_given() -> None:
    image = Image("image-1", "office", "1", "/images/office-1.qcow2", "linux")
    pool = replace(pool_of(), image_id="image-1")
    path = "/srv/drivers/NVIDIA-Linux-x86_64-580.65.06-grid.run"
    given = replace(pool, spec=replace(pool.spec, vm={"guest_driver": path}))
    seen = desktop_of(report=ready_report(driver="595.97"))

    def check(pool: Any, desktops: list[Desktop], host: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        result = check_drivers(host, desktops, {"p1": pool}, {"image-1": image})
        return result.too_new, result.unknown

    assert check(pool, [], "580.65.05") == ((), ("office",))
    assert check(given, [], "580.65.05") == ((), ())
    assert check(given, [seen], "580.65.05") == (("office has 595.97",), ())
    assert check(pool, [desktop_of(report=ready_report(driver="777.1"))], "580.65.05") == ((), ("office",))
