# SPDX-License-Identifier: Apache-2.0
"""Restarts that somebody asked for: when they are done, and that they are no log-off."""

from __future__ import annotations

import pytest

from tests.unit.controller.planning.fleets import HOST, NOW, desktop_of, plan_of, pool_of, ready_report, vm_of
from vgpuctl.controller.model import Desktop, DesktopReport, FleetHostState
from vgpuctl.controller.planning.host_plan import RestartVm
from vgpuctl.controller.planning.phase import is_assignable, is_in_motion, phase_of
from vgpuctl.controller.planning.restarts import RESTART_SECONDS, restart_problem, wants_restart, why_not_restart
from vgpuctl.value import replace

POOL = pool_of()
USED = desktop_of(user="ada", generation=2, handed_out=True, assigned_at=NOW - 9000)
LOGGED_ON = ready_report(generation=2, dirty=True, user="ada", logged_on_seen=True, guest_users=("ada",))
WANTED = replace(USED, restart_at=NOW - 5, report=LOGGED_ON)
OFF = {"state": "stopped", "guest_users": None}


def kinds(desktop: Desktop, pool=POOL, host=HOST, now: float = NOW, **vm) -> list[str]:
    plan = plan_of([desktop], [vm_of(desktop, **vm)], pool, host, now)
    return [type(action).__name__ for action in plan.actions]


def after(views: list[tuple[float, tuple[str, ...] | None]], desktop: Desktop = USED) -> DesktopReport:
    report = LOGGED_ON
    for seconds, users in views:
        row = replace(desktop, report=report)
        report = plan_of([row], [vm_of(desktop, guest_users=users)], POOL, now=NOW + seconds).reports["id-1"]
    return report


@pytest.mark.parametrize(
    ("desktop", "vm", "expected"),
    [
        (WANTED, {"guest_users": ("ada",)}, ["RestartVm"]),
        (replace(WANTED, report=None), {}, ["RestartVm"]),
        (replace(WANTED, power_on=False), {}, ["StopVm"]),
        (replace(WANTED, restart_error="it failed"), {}, []),
        (replace(WANTED, restart_at=NOW - RESTART_SECONDS), {}, []),
        (replace(WANTED, restart_at=None), {}, []),
        (WANTED, {"state": "paused"}, []),
        (WANTED, OFF, ["StartVm"]),
        (desktop_of(restart_at=NOW, report=ready_report()), {}, ["RestartVm"]),
        (desktop_of(restart_at=NOW, generation=2, report=ready_report()), {"mark": None}, []),
    ],
)  # fmt: skip
def test_when_it_is_done(desktop, vm, expected):
    assert kinds(desktop, **vm) == expected


def test_what_is_more_urgent_comes_first():
    left = replace(WANTED, report=replace(LOGGED_ON, logged_off=True))
    assert kinds(left, pool_of("dedicated", on_logoff="refresh")) == ["RefreshVm"]
    assert kinds(left) == [], "a floating one whose user is gone is released"
    assert kinds(desktop_of(restart_at=NOW, report=ready_report()), pool_of("fixed")) == ["RestartVm"]
    assert kinds(WANTED, host=replace(HOST, held="another machine")) == []
    assert kinds(WANTED, host=replace(HOST, state=FleetHostState.MAINTENANCE), guest_users=("ada",)) == []


def test_each_has_a_name_of_its_own():
    def plan(desktop: Desktop) -> RestartVm:
        (action,) = plan_of([desktop], [vm_of(desktop)], POOL).actions
        assert isinstance(action, RestartVm)
        return action

    first, again = plan(WANTED), plan(replace(WANTED, report=None))
    assert (first.key, first.at_once) == (again.key, False)
    assert plan(replace(WANTED, restart_at=NOW - 4)).key != first.key
    assert plan(replace(WANTED, restart_at_once=True)).at_once


@pytest.mark.parametrize(
    ("views", "logged_off"),
    [
        ([(10, None), (60, ()), (900, ())], False),
        ([(10, None), (60, ()), (1860, ())], True),
        ([(10, ()), (30, None), (60, ()), (100, ())], False),
        ([(10, None), (60, ()), (90, ("ada",)), (100, ()), (130, ())], True),
        ([(10, ()), (40, ())], True),
    ],
)
def test_a_guest_that_boots_by_itself_is_no_log_off(views, logged_off):
    """Its agent forgets what a helper said when the guest boots: for a while nobody reports from it."""
    assert after(views).logged_off is logged_off


def test_a_restart_is_no_log_off():
    wanted = replace(USED, restart_at=NOW)
    report = after([(5, ()), (60, ()), (200, ())], wanted)
    assert (report.logged_off, report.empty_since, report.after_silence) == (False, None, True)
    assert not is_in_motion([USED], {"id-1": after([(10, None), (60, ())])}), "for half an hour, an event is enough"
    plan = plan_of([replace(wanted, report=LOGGED_ON)], [vm_of(wanted, **OFF)], POOL)
    assert (plan.powered_off, plan.reports["id-1"].logged_off) == ((), False), "it is started"


def test_it_is_shown():
    assert phase_of(WANTED, POOL, HOST, NOW).word == "restarting"
    spare = desktop_of(report=ready_report())
    assert is_assignable(spare, POOL, HOST, NOW)
    assert not is_assignable(replace(spare, restart_at=NOW), POOL, HOST, NOW)
    failed = replace(WANTED, restart_error="host-1: no")
    assert (phase_of(failed, POOL, HOST, NOW).word, restart_problem(failed, NOW)) == ("connected", "host-1: no")
    late = NOW - 5 + RESTART_SECONDS
    assert not wants_restart(WANTED, late)
    assert restart_problem(WANTED, late) == "its host did not do it within 10 minutes"
    assert restart_problem(USED, NOW) is None
    assert restart_problem(WANTED, NOW) is None


def test_what_cannot_be_restarted():
    assert why_not_restart("ready", HOST, None) is None
    assert why_not_restart("off", HOST, "ada") == "it is off, and only a desktop that runs and is ready can"
    for host in (replace(HOST, held="x"), replace(HOST, state=FleetHostState.MAINTENANCE)):
        assert why_not_restart("assigned", host, "ada") == "nothing is changed on its host just now"
    draining = replace(HOST, state=FleetHostState.DRAINING)
    assert why_not_restart("connected", draining, "ada") is None
    assert why_not_restart("ready", draining, None) == f"{HOST.name} is drained, and it is nobody's"
    spare = desktop_of(restart_at=NOW, report=ready_report())
    assert (kinds(spare, host=draining), kinds(WANTED, host=draining)) == ([], ["RestartVm"]), "as it is done"


def test_two_restart_at_a_time_after_what_other_users_wait_for():
    many = [replace(WANTED, id=f"id-{number}", name=f"d-{number:03}") for number in range(1, 6)]
    starts = replace(many[4], restart_at=None, report=None)
    rows = [*many[:4], starts]
    vms = [*map(vm_of, many[:4]), vm_of(starts, **OFF)]

    def begun(*in_flight: str) -> list[tuple[str, str]]:
        plan = plan_of(rows, vms, POOL, in_flight=in_flight)
        return [(type(action).__name__, action.desktop.id) for action in plan.actions]

    assert begun() == [("StartVm", "id-5"), ("RestartVm", "id-1"), ("RestartVm", "id-2")]
    assert begun("id-1") == [("StartVm", "id-5"), ("RestartVm", "id-2")]
    assert begun("id-1", "id-2") == [("StartVm", "id-5")]
    assert begun("id-5") == [("RestartVm", "id-1"), ("RestartVm", "id-2")]


def test_a_log_on_is_waited_for_half_an_hour_after_a_boot():
    booted = replace(USED, report=replace(LOGGED_ON, logged_on_seen=False, guest_users=(), running_since=NOW - 60))
    assert phase_of(booted, POOL, HOST, NOW).why == ""
    old = replace(booted, report=replace(LOGGED_ON, logged_on_seen=False, guest_users=(), running_since=NOW - 1800))
    assert "no log-on was seen in 30 minutes" in phase_of(old, POOL, HOST, NOW).why
