# SPDX-License-Identifier: Apache-2.0
"""Desktops that leave a draining host as they are: which do, and what hosts do while they move."""

from __future__ import annotations

import pytest

from tests.rooms import counted_gpu, room_of
from tests.unit.controller.planning.fleets import HOST, IMAGE, NOW, desktop_of, plan_of, pool_of, ready_report, vm_of
from vgpuctl.controller.model import Desktop, FleetHost, FleetHostState, HostImage
from vgpuctl.controller.planning.fleet_room import FleetRoom
from vgpuctl.controller.planning.host_choice import choose_host
from vgpuctl.controller.planning.host_plan import MoveVm, StartVm, StopVm
from vgpuctl.controller.planning.moves import may_begin_move, why_not_move
from vgpuctl.controller.planning.phase import MOVE_CODE
from vgpuctl.controller.planning.pool_plan import plan_pool
from vgpuctl.model.image_copy import CopyState
from vgpuctl.value import replace

POOL, FIXED = pool_of("dedicated"), pool_of("fixed", maximum=1)
DRAINED = replace(HOST, state=FleetHostState.DRAINING)
LIVE = replace(DRAINED, moves_live=True)
TARGET = FleetHost("h2", "host-2", "ssh://fleet@host-2", boot_id="boot-2", seen_at=NOW)
USED = desktop_of(
    user="ada",
    generation=2,
    handed_out=True,
    assigned_at=NOW - 900,
    report=ready_report(generation=2, dirty=True, user="ada"),
)
MOVING = replace(USED, moving_to="h2")
SPARE = desktop_of(report=ready_report())


def used(**report: object) -> Desktop:
    return replace(USED, report=replace(USED.report, **report))


@pytest.mark.parametrize(
    ("desktop", "pool", "host", "expected"),
    [
        (USED, POOL, LIVE, True),
        (USED, POOL, DRAINED, False),
        (USED, POOL, replace(LIVE, state=FleetHostState.ACTIVE), False),
        (SPARE, POOL, LIVE, False),
        (SPARE, FIXED, LIVE, True),
        (MOVING, POOL, LIVE, False),
        (replace(USED, absent=True), POOL, LIVE, False),
        (replace(USED, not_before=NOW + 1), POOL, LIVE, False),
        (replace(USED, report=None), POOL, LIVE, False),
        (replace(USED, generation=3), POOL, LIVE, False),
        (replace(USED, restart_at=NOW - 1), POOL, LIVE, False),
        (used(exists=False), POOL, LIVE, False),
        (used(state="stopped"), POOL, LIVE, True),
        (used(state="paused"), POOL, LIVE, False),
        (used(state="unknown"), POOL, LIVE, False),
        (used(code="not-marked"), POOL, LIVE, False),
        (used(code=MOVE_CODE), POOL, LIVE, True),
    ],
)
def test_which_desktops_leave(desktop, pool, host, expected):
    assert may_begin_move(desktop, pool, host, NOW) is expected


def room(free: int) -> FleetRoom:
    return FleetRoom({"h1": room_of(counted_gpu(A16_2B=(5, 8))), "h2": room_of(counted_gpu(A16_2B=(free, 8)))})


@pytest.mark.parametrize(
    ("state", "free", "why"),
    [
        (CopyState.READY, 1, None),
        (CopyState.READY, 0, "host-2: no free A16-2B (of 8)"),
        (CopyState.COPYING, 1, "host-2: its image is not there"),
        (None, 1, "host-2: its image is not there"),
    ],
)
def test_where_a_desktop_can_go(state, free, why):
    images = {} if state is None else {"h2": HostImage("h2", IMAGE.id, IMAGE.path, copied=True, state=state)}
    choice = choose_host(USED, POOL, (LIVE, TARGET), room(free), images, {}, NOW, moves=True)
    if why is None:
        assert (choice.host, choice.profile) == (TARGET, "A16-2B")
        return
    assert choice.host is None
    assert "host-1: draining" in choice.reason, "its own host is none"
    assert why in choice.reason


def test_a_desktop_keeps_its_profile():
    """A pool may offer others, or none of it any more."""
    pool = pool_of("dedicated", profiles=("A16-4B", "A16-2B"))
    rooms = FleetRoom({"h2": room_of(counted_gpu(A16_4B=(4, 4), A16_2B=(0, 8)))})
    images = {"h2": HostImage("h2", IMAGE.id, IMAGE.path, copied=True, state=CopyState.READY)}
    assert choose_host(USED, pool, (TARGET,), rooms, images, {}, NOW, moves=True).host is None


@pytest.mark.parametrize("vm", [{}, {"state": "paused"}, {"state": "stopped"}, {"guest_users": ("eve",)}, None])
def test_its_host_only_moves_it_and_reports_nothing(vm):
    vms = [] if vm is None else [vm_of(USED, **vm)]
    plan = plan_of([MOVING], vms, POOL, LIVE)
    assert plan.actions == (MoveVm(MOVING, vm_of(USED).mark, MOVING.name, target_id="h2", offline=False, begins=True),)
    assert (plan.reports, plan.powered_off, plan.strays, plan.raised) == ({}, (), (), {})


def test_one_that_was_off_moves_while_off():
    (move,) = plan_of([replace(MOVING, report=replace(USED.report, state="stopped"))], [], POOL, LIVE).actions
    assert move.offline


@pytest.mark.parametrize(
    ("desktop", "host"),
    [
        (MOVING, replace(LIVE, state=FleetHostState.ACTIVE, moves_live=False)),
        (MOVING, replace(LIVE, state=FleetHostState.MAINTENANCE, moves_live=False)),
        (MOVING, DRAINED),
        (replace(MOVING, absent=True), LIVE),
        (replace(MOVING, user=None, generation=3), LIVE),
    ],
)
def test_a_move_that_nobody_wants_any_more_is_only_ended(desktop, host):
    (move,) = plan_of([desktop], [vm_of(USED)], POOL, host).actions
    assert (type(move), move.begins) == (MoveVm, False)


@pytest.mark.parametrize(
    ("host", "more"),
    [(replace(LIVE, held="it is another machine"), {}), (LIVE, {"in_flight": (MOVING.id,)}), (LIVE, {"now": NOW - 1})],
)
def test_when_nothing_of_a_move_is_begun(host, more):
    desktop = replace(MOVING, not_before=NOW)
    assert plan_of([desktop], [], POOL, host, **more).actions == ()


@pytest.mark.parametrize("vm", [{}, {"state": "paused"}, {"state": "stopped", "should_run": True}])
def test_the_host_to_which_it_moves_leaves_it_alone(vm):
    """It is released meanwhile, so its VM is of an older generation there."""
    released = replace(MOVING, user=None, generation=3)
    plan = plan_of([], [vm_of(USED, **vm)], POOL, TARGET, elsewhere=[released])
    assert (plan.actions, plan.reports) == ((), {})
    (stop,) = plan_of([], [vm_of(USED)], POOL, TARGET, elsewhere=[replace(released, moving_to=None)]).actions
    assert stop.force, "as any copy of a desktop that is elsewhere"


def test_what_cannot_move_is_used_meanwhile():
    """Why it cannot is shown as long as it should leave, and keeps it from nothing."""
    desktop = used(code=MOVE_CODE, error="no room", refused_by=("h2",))
    desktop = replace(desktop, not_before=NOW + 60, power_on=False)
    plan = plan_of([desktop], [vm_of(desktop)], POOL, LIVE)
    assert [type(action) for action in plan.actions] == [StopVm]
    report = plan.reports[desktop.id]
    assert (report.code, report.error, report.refused_by) == (MOVE_CODE, "no room", ("h2",))
    report = plan_of([desktop], [vm_of(desktop)], POOL, replace(HOST, moves_live=False)).reports[desktop.id]
    assert (report.code, report.refused_by) == (None, ())


def test_a_fixed_pool_goes_on_while_it_waits_to_move():
    vms = [vm_of(SPARE, state="stopped", mark=replace(vm_of(SPARE).mark, dirty=False))]
    desktop = replace(SPARE, report=ready_report(state="stopped", running_since=None))
    assert [type(action) for action in plan_of([desktop], vms, FIXED, LIVE).actions] == [StartVm]
    assert plan_of([desktop], vms, FIXED, DRAINED).actions == ()


@pytest.mark.parametrize(
    ("desktop", "pool", "host", "retired"),
    [
        (SPARE, FIXED, LIVE, False),
        (SPARE, FIXED, DRAINED, True),
        (replace(SPARE, report=None), FIXED, LIVE, True),
        (SPARE, pool_of(spare=1), LIVE, True),
        (replace(SPARE, moving_to="h2"), pool_of(spare=1), LIVE, False),
    ],
)
def test_what_is_made_again_elsewhere(desktop, pool, host, retired):
    changes = plan_pool(pool, [desktop], IMAGE, NOW, lambda: "52:54:00:00:00:99", {"h1": host, "h2": TARGET})
    assert changes.retire == ((desktop.id,) if retired else ())


def test_one_that_has_come_before_its_host_was_lost():
    """It stays as it is, whatever its disks are; its host must be silent all the same."""
    lost = replace(LIVE, seen_at=NOW - 100)
    floating = pool_of()
    assert why_not_move(MOVING, floating, lost, NOW, has_come=True) is None
    text, _ = why_not_move(MOVING, floating, lost, NOW) or ("", "")
    assert "nothing on the disks" in text
    text, _ = why_not_move(MOVING, floating, LIVE, NOW, has_come=True) or ("", "")
    assert "answers" in text
