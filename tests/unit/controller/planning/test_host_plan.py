# SPDX-License-Identifier: Apache-2.0
"""What a host does next about one desktop, and what is reported of it."""

from __future__ import annotations

import pytest

from tests.unit.controller.planning.fleets import (
    DATABASE,
    HOST,
    NEW_IMAGE,
    NOW,
    desktop_of,
    mark_of,
    plan_of,
    pool_of,
    ready_report,
    vm_of,
)  # fmt: skip
from vgpuctl.controller.model import Desktop, DesktopReport, FleetHostState, Logon, ReadyWhen
from vgpuctl.controller.planning.host_look import HostVm
from vgpuctl.controller.planning.host_plan import (
    AllowLogon,
    DeleteVm,
    HostPlan,
    MakeVm,
    MarkVm,
    RefreshVm,
    StartVm,
    StopVm,
)
from vgpuctl.controller.planning.logons import others_logged_on
from vgpuctl.controller.planning.phase import phase_of
from vgpuctl.controller.planning.restored import compare
from vgpuctl.value import replace

POOL = pool_of()
USED = desktop_of(user="ada", generation=2, handed_out=True, assigned_at=NOW - 900)
USED_REPORT = ready_report(generation=2, dirty=True, user="ada")


def kinds(plan: HostPlan) -> list[str]:
    return [type(action).__name__ for action in plan.actions]


def seen(desktop: Desktop, **changes) -> Desktop:
    return replace(desktop, report=ready_report(**changes))


def used(**changes) -> Desktop:
    return replace(USED, report=replace(USED_REPORT, **changes))


@pytest.mark.parametrize(
    ("desktop", "vm", "expected"),
    [
        (desktop_of(), None, [MakeVm]),
        (desktop_of(absent=True), None, []),
        (desktop_of(not_before=NOW + 1), None, []),
        (desktop_of(image_id="image-9"), None, []),
        (desktop_of(profile=None), None, []),
        (seen(desktop_of()), None, []),
        (desktop_of(report=DesktopReport(False, code="no-capacity"), errors=1), None, [MakeVm]),
        (desktop_of(), {}, []),
        (desktop_of(), {"state": "stopped"}, [StartVm]),
        (desktop_of(), {"state": "crashed"}, [StartVm]),
        (desktop_of(), {"state": "unknown"}, []),
        (desktop_of(power_on=False), {}, [StopVm]),
        (desktop_of(power_on=False), {"state": "stopped"}, []),
        (desktop_of(absent=True), {}, [DeleteVm]),
        (desktop_of(absent=True, user="ada"), {"state": "stopped"}, [DeleteVm]),
        (desktop_of(), {"mark": mark_of(desktop_of(), dirty=True)}, [RefreshVm]),
        (desktop_of(generation=2), {"mark": mark_of(desktop_of())}, [RefreshVm]),
        (desktop_of(generation=3), {"mark": mark_of(USED)}, [RefreshVm]),
        (desktop_of(generation=3), {"mark": mark_of(USED), "guest_users": ("ada",)}, [RefreshVm]),
        (desktop_of(), {"guest_users": ("eve",)}, [MarkVm]),
        (desktop_of(), {"guest_users": ("eve",), "mark": mark_of(desktop_of(), dirty=True)}, []),
        (desktop_of(), {"image": "/images/old"}, [RefreshVm]),
        (desktop_of(), {"image": None}, []),
        (USED, {"mark": mark_of(desktop_of())}, [MarkVm]),
        (USED, {"mark": mark_of(desktop_of()), "guest_users": ("eve",)}, [RefreshVm]),
        (USED, {}, []),
        (USED, {"image": "/images/old"}, []),
        (USED, {"state": "stopped"}, [StartVm]),
        (USED, {"mark": mark_of(USED, generation=1, user="eve")}, [RefreshVm]),
        (USED, {"mark": mark_of(USED, generation=1, user="eve", dirty=False)}, [RefreshVm]),
        (USED, {"mark": mark_of(USED, generation=1, user=None)}, [RefreshVm]),
        (replace(USED, power_on=False), {}, [StopVm]),
    ],
)  # fmt: skip
def test_the_next_action(desktop, vm, expected):
    vms = [] if vm is None else [vm_of(desktop, **vm)]
    assert kinds(plan_of([desktop], vms, POOL)) == [kind.__name__ for kind in expected]


NEW = {"off_after_setup": True, "guest_users": None}
KEPT = {"off_after_setup": True, "prepared": True}
SET_UP = {**NEW, "state": "stopped", "stop_reason": "shutdown"}


@pytest.mark.parametrize(
    ("desktop", "vm", "expected"),
    [
        (desktop_of(), NEW, []),
        (desktop_of(), SET_UP, ["PrepareVm"]),
        (seen(desktop_of()), SET_UP, ["PrepareVm"]),
        (desktop_of(power_on=False), SET_UP, []),
        (desktop_of(), {**SET_UP, "stop_reason": "destroyed"}, ["RefreshVm from the image"]),
        (desktop_of(), {**SET_UP, "stop_reason": None}, ["RefreshVm from the image"]),
        (desktop_of(), {**SET_UP, "state": "unknown"}, []),
        (desktop_of(power_on=False), NEW, ["StopVm at once"]),
        (desktop_of(), {**NEW, "guest_users": ("eve",)}, ["MarkVm"]),
        (desktop_of(generation=3), {**KEPT, "mark": mark_of(USED)}, ["RefreshVm"]),
        (desktop_of(generation=3), {**NEW, "mark": mark_of(USED)}, ["RefreshVm from the image"]),
        (desktop_of(image_id="image-2"), KEPT, ["RefreshVm from the image"]),
        (desktop_of(), {**KEPT, "state": "stopped"}, ["StartVm"]),
        (USED, {**SET_UP, "mark": mark_of(USED, dirty=False)}, ["PrepareVm"]),
        (USED, {**NEW, "mark": mark_of(USED, dirty=False)}, []),
        (used(logged_on_seen=True, dirty=False), {**SET_UP, "mark": mark_of(USED, dirty=False)},
         ["RefreshVm from the image"]),
        (USED, {**KEPT, "mark": mark_of(USED, dirty=False)}, ["MarkVm"]),
    ],
)  # fmt: skip
def test_a_guest_that_sets_itself_up(desktop, vm, expected):
    plan = plan_of([desktop], [vm_of(desktop, **vm)], POOL)
    shown = [
        type(action).__name__
        + (" from the image" if isinstance(action, RefreshVm) and action.from_image else "")
        + (" at once" if isinstance(action, StopVm) and action.at_once else "")
        for action in plan.actions
    ]
    assert shown == expected
    report = plan.reports[desktop.id]
    assert (report.ready, report.preparing) == (False, True) or "prepared" in vm
    assert plan.powered_off == ()


def test_a_guest_that_was_kept_in_the_middle_of_its_setup_begins_again():
    """It goes on with its setup after each refresh, and shuts down then, though nobody was there."""
    desktop = seen(desktop_of(), state="stopped", running_since=None, crashes=(NOW - 600,))
    (action,) = plan_of(
        [desktop], [vm_of(desktop, **{**KEPT, "state": "stopped", "stop_reason": "shutdown"})], POOL
    ).actions
    assert (type(action), action.from_image) == (RefreshVm, True)
    (action,) = plan_of(
        [desktop], [vm_of(desktop, **{**KEPT, "state": "stopped", "stop_reason": "failed"})], POOL
    ).actions
    assert type(action) is StartVm


def test_a_user_who_logs_on_while_his_desktop_sets_itself_up_lets_it_begin_again_once():
    desktop = used(logged_on_seen=True, dirty=False)
    vm = vm_of(desktop, **{**SET_UP, "mark": mark_of(USED, dirty=False)})
    (action,) = plan_of([desktop], [vm], POOL).actions
    assert action.mark.user is None
    again = replace(vm, mark=action.mark)
    later = replace(desktop, report=plan_of([desktop], [again], POOL).reports[desktop.id])
    assert kinds(plan_of([later], [again], POOL)) == ["PrepareVm"]


MOVED = desktop_of(user="ada", generation=3, report=DesktopReport(False, disks=("/srv/a.qcow2",), moved=True))
COPY = {"mark": mark_of(USED), "state": "running"}


def test_a_moved_desktop_is_made_with_its_disks_and_never_from_what_its_former_host_has():
    assert kinds(plan_of([MOVED], [], POOL)) == ["MakeVm"]
    plan = plan_of([MOVED], [vm_of(MOVED, **COPY)], POOL)
    report = plan.reports[MOVED.id]
    assert (plan.actions, report.code, report.disks) == ((), "old-copy", ("/srv/a.qcow2",))
    assert "delete-vm d-001 --keep-disks" in report.hint
    blocked = replace(MOVED, report=report)
    assert plan_of([blocked], [vm_of(MOVED, **COPY)], POOL).actions == (), "at each look"
    gone = plan_of([blocked], [], POOL)
    assert (kinds(gone), gone.reports[MOVED.id].disks) == (["MakeVm"], ("/srv/a.qcow2",))


@pytest.mark.parametrize(
    ("vm", "former", "expected"),
    [
        (COPY, (), ["StopVm"]),
        ({**COPY, "state": "stopped"}, (), []),
        ({**COPY, "state": "stopped", "should_run": True}, (), ["StopVm"]),
        ({"mark": mark_of(MOVED)}, (), []),
        ({**COPY, "mark": mark_of(USED, incarnation="db-0")}, (), []),
        ({**COPY, "mark": mark_of(USED, incarnation="db-0")}, ("db-0",), ["StopVm"]),
    ],
)  # fmt: skip
def test_a_copy_on_the_former_host_is_stopped(vm, former, expected):
    row = replace(MOVED, host_id="h2")
    plan = plan_of([], [vm_of(MOVED, **vm)], POOL, elsewhere=(row,), former_incarnations=former)
    assert kinds(plan) == expected
    assert all(action.at_once and action.force for action in plan.actions)
    assert plan_of([], [vm_of(MOVED, **vm)], POOL, replace(HOST, held="why"), elsewhere=(row,)).actions == ()


def test_a_desktop_that_was_moved_after_the_backup_is_listed():
    row, moved = seen(USED), vm_of(USED, mark=mark_of(USED, generation=3))
    other = replace(HOST, id="h2", name="host-2")
    (kept,) = compare({row.id: row}, [(other, moved), (HOST, vm_of(USED))], (DATABASE,)).kept
    assert (kept.host, kept.why.startswith("it was moved to host-2 after this backup")) == ("host-2", True)


def test_a_guest_that_crashes_while_it_sets_itself_up_has_failed_after_three_times():
    crashes = tuple(NOW - 60 * number for number in (1, 4, 7))
    desktop = seen(desktop_of(), crashes=crashes, preparing=True)
    plan = plan_of([desktop], [vm_of(desktop, **{**SET_UP, "stop_reason": "crashed"})], POOL)
    assert (plan.actions, plan.reports[desktop.id].code) == ((), "crashes")


def test_the_phase_says_that_a_guest_sets_itself_up():
    desktop = seen(desktop_of(), ready=False, preparing=True)
    assert phase_of(desktop, POOL, HOST, NOW - 599 + 60).word == "preparing"
    late = phase_of(desktop, POOL, replace(HOST, seen_at=NOW + 900), NOW + 900)
    assert (late.word, late.why) == (
        "failed",
        "its guest has not set itself up and shut down 15 minutes after its start",
    )


DOMAIN, LOCAL = pool_of(logon=Logon.DOMAIN), pool_of(logon=Logon.LOCAL)
SPARE = seen(desktop_of(), let_in="nobody")
ADAS = {"domain": used(let_in="domain:ada"), "local": used(let_in="local:ada")}

FREED = replace(ADAS["domain"], user=None, generation=3)


@pytest.mark.parametrize(
    ("desktop", "vm", "pool", "expected"),
    [
        (seen(desktop_of()), {}, DOMAIN, "nobody"),
        (SPARE, {}, DOMAIN, None),
        (seen(desktop_of()), {"guest_users": None}, DOMAIN, None),
        (seen(desktop_of()), {"state": "paused"}, DOMAIN, None),
        (seen(desktop_of()), {"guest_users": ("eve",)}, DOMAIN, None),
        (used(let_in="nobody"), {}, DOMAIN, "domain:ada"),
        (used(let_in="nobody"), {}, LOCAL, "local:ada"),
        (used(let_in="domain:eve"), {}, DOMAIN, "domain:ada"),
        (ADAS["domain"], {}, DOMAIN, None),
        (ADAS["domain"], {"guest_users": ("eve",)}, DOMAIN, None),
        (ADAS["domain"], {}, LOCAL, "local:ada"),
        (replace(USED, report=replace(USED_REPORT, dirty=False, let_in="domain:ada")), {}, DOMAIN, None),
        (ADAS["domain"], {}, POOL, None),
        (ADAS["local"], {"state": "stopped"}, LOCAL, None),
        (FREED, {"mark": mark_of(USED)}, pool_of(logon=Logon.DOMAIN, state="paused"), "nobody"),
    ],
)  # fmt: skip
def test_whom_a_helper_is_asked_to_let_in(desktop, vm, pool, expected):
    plan = plan_of([desktop], [vm_of(desktop, **vm)], pool)
    asked = [action.let_in for action in plan.actions if isinstance(action, AllowLogon)]
    assert asked == ([] if expected is None else [expected])
    report = plan.reports[desktop.id]
    if expected is not None:
        assert report.logon_due
        assert not report.ready


def test_a_released_desktop_is_refreshed_and_only_if_that_waits_locked():
    assert kinds(plan_of([FREED], [vm_of(FREED, mark=mark_of(USED))], DOMAIN)) == ["RefreshVm"]
    locked, paused = replace(FREED, report=replace(FREED.report, let_in="nobody")), pool_of(state="paused")
    assert plan_of([locked], [vm_of(locked, mark=mark_of(USED))], paused).actions == ()


def test_what_was_let_in_holds_for_one_disk():
    desktop = ADAS["domain"]
    refreshed = {"mark": mark_of(USED, dirty=False)}
    assert plan_of([desktop], [vm_of(desktop, **refreshed)], DOMAIN).reports["id-1"].let_in is None
    other = {"image": NEW_IMAGE.path}
    assert plan_of([desktop], [vm_of(desktop, **other)], DOMAIN).reports["id-1"].let_in is None
    off = plan_of([desktop], [vm_of(desktop, state="stopped", guest_users=None)], DOMAIN).reports["id-1"]
    assert (off.let_in, off.logon_due) == ("domain:ada", False), "its rules are on the disk"
    assigned = replace(USED, report=ready_report(let_in="nobody"))
    report = plan_of([assigned], [vm_of(assigned)], DOMAIN).reports["id-1"]
    assert (report.let_in, report.logon_due, report.ready, report.running_since) == ("nobody", True, False, NOW)


def test_a_pool_without_logon_makes_disks_again_that_let_nobody_in():
    assert kinds(plan_of([SPARE], [vm_of(SPARE)], POOL)) == ["RefreshVm"]
    assert not plan_of([SPARE], [vm_of(SPARE)], POOL).reports["id-1"].ready
    adas = used(let_in="nobody")
    assert kinds(plan_of([adas], [vm_of(adas)], POOL)) == ["RefreshVm"]


def test_a_guest_without_a_helper_is_never_ready():
    desktop = seen(desktop_of(), ready=False, logon_due=True, running_since=NOW - 60)
    silent = vm_of(desktop, guest_users=None)
    plan = plan_of([desktop], [silent], DOMAIN)
    assert (plan.actions, plan.reports["id-1"].code) == ((), None)
    starting = phase_of(replace(desktop, report=plan.reports["id-1"]), DOMAIN, HOST, NOW)
    assert (starting.word, "guest helper" in starting.why) == ("starting", True)
    late = plan_of([desktop], [silent], DOMAIN, now=NOW + 900).reports["id-1"]
    assert (late.code, late.ready) == ("no-helper", False)
    failed = phase_of(replace(desktop, report=late), DOMAIN, replace(HOST, seen_at=NOW + 900), NOW + 900)
    assert failed.word == "failed"
    assert "no guest helper reports who is logged on, which logon: domain of pool desk needs" in failed.why
    assert "vgpuctl print-helper" in failed.why
    back = plan_of([replace(desktop, report=late)], [vm_of(desktop)], DOMAIN, now=NOW + 910)
    assert (kinds(back), back.reports["id-1"].code) == (["AllowLogon"], None)


@pytest.mark.parametrize(
    ("former", "guest", "seconds"),
    [
        ({"ready": False, "running_since": NOW - 90}, True, 90.0),
        ({"ready": False, "running_since": NOW - 90, "boot_seconds": 40.0}, True, 90.0),
        ({"ready": False, "running_since": NOW - 90, "boot_seconds": 40.0}, False, 40.0),
        ({"ready": True, "running_since": NOW - 90, "boot_seconds": 40.0}, True, 40.0),
        ({"ready": True, "running_since": None, "boot_seconds": 40.0}, True, 40.0),
        ({"ready": False, "running_since": NOW - 90, "logon_due": True}, True, None),
    ],
    ids=["ready now", "once more", "not yet", "ready before", "booted unseen", "only a user was let in"],
)
def test_how_long_a_start_took(former, guest, seconds):
    pool = replace(POOL, spec=replace(POOL.spec, ready_when=ReadyWhen.GUEST))
    desktop = seen(desktop_of(), **former)
    report = plan_of([desktop], [vm_of(desktop, guest_answers=guest, guest_users=() if guest else None)], pool)
    assert report.reports["id-1"].boot_seconds == seconds


def test_the_log_on_of_another_is_known():
    report = replace(USED_REPORT, guest_users=("eve", "ADA"))
    assert others_logged_on("CORP\\ada", replace(report, user="CORP\\ada")) == ("eve",)
    assert others_logged_on("ada@corp.example", replace(report, user="ada@corp.example")) == ("eve",)
    assert others_logged_on("ada", replace(report, user="bob")) == ()
    assert others_logged_on(None, report) == others_logged_on("ada", None) == ()


def test_a_clean_mark_follows_a_refresh_and_a_dirty_one_lets_a_user_in():
    freed = desktop_of(generation=3)
    (refresh,) = plan_of([freed], [vm_of(freed, mark=mark_of(USED))], POOL).actions
    assert (refresh.mark.generation, refresh.mark.dirty, refresh.mark.user) == (3, False, None)
    assert (refresh.vm_name, refresh.if_generation) == ("d-001", 5)
    (mark,) = plan_of([USED], [vm_of(USED, mark=mark_of(desktop_of()))], POOL).actions
    assert (mark.mark.generation, mark.mark.dirty, mark.mark.user) == (2, True, "ada")
    (refresh,) = plan_of([USED], [vm_of(USED, mark=mark_of(USED, generation=1, user="eve"))], POOL).actions
    assert (refresh.mark.dirty, refresh.mark.user) == (False, None), "the user is let in only after the refresh"


@pytest.mark.parametrize(
    ("vms", "code"),
    [
        (lambda d: [vm_of(d), vm_of(d, name="copy")], "duplicate-uuid"),
        (lambda d: [vm_of(d), vm_of(d, name="copy", uuid="other")], "duplicate-uuid"),
        (lambda d: [vm_of(d, uuid="other", mark=None)], "name-taken"),
        (lambda d: [vm_of(d, mark=None)], "not-marked"),
        (lambda d: [vm_of(d, mark=mark_of(d, id="other"))], "not-marked"),
        (lambda d: [vm_of(d, mark=mark_of(d, incarnation="db-0"))], "other-controller"),
        (lambda d: [vm_of(d, mark=mark_of(d, generation=9))], "record-newer"),
        (lambda d: [vm_of(d, mark=mark_of(d, user="eve", dirty=True))], "other-user"),
    ],
)
@pytest.mark.parametrize("desktop", [desktop_of(), desktop_of(absent=True), USED])
def test_what_contradicts_the_database_is_not_touched(vms, code, desktop):
    plan = plan_of([desktop], vms(desktop), POOL)
    report = plan.reports[desktop.id]
    if code == "name-taken" and desktop.absent:
        assert (report.exists, report.code) == (False, None), "the VM of that name is another's, and the row may go"
    else:
        assert report.code == code
        assert report.error
        assert not report.ready
    assert plan.actions == ()


def test_a_code_goes_with_its_reason():
    taken = plan_of([desktop_of()], [vm_of(desktop_of(), uuid="x", mark=None)], POOL).reports["id-1"]
    plan = plan_of([desktop_of(report=taken)], [], POOL)
    assert plan.reports["id-1"].code is None
    assert kinds(plan) == ["MakeVm"]
    newer = plan_of([desktop_of()], [vm_of(desktop_of(), mark=mark_of(desktop_of(), generation=9))], POOL).reports[
        "id-1"
    ]
    assert plan_of([desktop_of(report=newer)], [vm_of(desktop_of())], POOL).reports["id-1"].code is None


def test_vms_without_rows_are_named_and_left():
    stray = vm_of(desktop_of(7))
    unmanaged = HostVm("db", "uuid-db", "running")
    other = vm_of(desktop_of(8), mark=mark_of(desktop_of(8), incarnation="db-0"))
    plan = plan_of([], [stray, unmanaged, other], POOL)
    assert (plan.actions, plan.strays) == ((), ("d-007",))
    away = desktop_of(7, host_id="h2", absent=True)
    assert plan_of([away], [stray], POOL).actions == (), "the row is of another host"


@pytest.mark.parametrize("state", ["cordoned", "draining"])
def test_a_host_that_is_not_active_gets_nothing_new(state):
    host = replace(HOST, state=FleetHostState(state))
    assert plan_of([desktop_of()], [], POOL, host).actions == ()
    stopped = vm_of(desktop_of(), state="stopped")
    assert kinds(plan_of([desktop_of()], [stopped], POOL, host)) == (["StartVm"] if state == "cordoned" else [])
    assert kinds(plan_of([USED], [vm_of(USED, state="stopped")], POOL, host)) == ["StartVm"]
    gone = desktop_of(absent=True)
    assert kinds(plan_of([gone], [vm_of(gone)], POOL, host)) == ["DeleteVm"]


def test_nothing_is_done_on_a_held_host_and_reports_go_on():
    host = replace(HOST, held="the driver changed")
    gone = desktop_of(2, absent=True)
    plan = plan_of([desktop_of(), gone], [vm_of(gone)], POOL, host)
    assert plan.actions == ()
    assert plan.reports[gone.id].exists


def test_a_paused_pool_starts_nothing_but_lets_its_user_in_and_deletes():
    pool = pool_of(state="paused")
    gone, dirty, off = desktop_of(2, absent=True), desktop_of(3, generation=4), desktop_of(4)
    rows = [desktop_of(), gone, dirty, off, replace(USED, id="id-5", name="d-005")]
    vms = [vm_of(gone), vm_of(dirty, mark=mark_of(USED, id="id-3")), vm_of(off, state="stopped")]
    vms.append(vm_of(rows[4], mark=mark_of(desktop_of(5))))
    assert kinds(plan_of(rows, vms, pool)) == ["MarkVm", "DeleteVm"]


def test_users_come_first_then_refreshes_then_spares_within_the_limits():
    spares = [desktop_of(number) for number in range(1, 6)]
    dirty = desktop_of(8, generation=2)
    user = replace(USED, id="id-9", name="d-009")
    vms = [vm_of(dirty, mark=mark_of(desktop_of(8))), vm_of(user, mark=mark_of(desktop_of(9)))]
    rows = [*spares, dirty, user]
    assert kinds(plan_of(rows, vms, POOL)) == ["MarkVm", "RefreshVm", "MakeVm", "MakeVm", "MakeVm"]
    assert kinds(plan_of(rows, vms, POOL, room=2)) == ["MarkVm", "RefreshVm"]
    assert kinds(plan_of(rows, vms, POOL, room=3, in_flight={"id-1", "id-2"})) == ["MarkVm"]
    assert kinds(plan_of(rows, vms, pool_of(starts_per_host=1))) == ["MarkVm", "RefreshVm"]
    assert plan_of(rows, vms, POOL, room=0).actions == ()


def test_guests_that_boot_count_as_starts():
    pool = pool_of(ready_when=ReadyWhen.GUEST, starts_per_host=2)
    rows = [desktop_of(number) for number in range(1, 5)]
    booting = [vm_of(row) for row in rows[:2]]
    assert kinds(plan_of(rows, booting, pool)) == []
    assert kinds(plan_of(rows, [booting[0], replace(booting[1], guest_answers=True)], pool)) == ["MakeVm"]
    late = [replace(row, report=ready_report(ready=False, running_since=NOW - 7200)) for row in rows[:2]]
    assert kinds(plan_of([*late, *rows[2:]], booting, pool)) == ["MakeVm", "MakeVm"]
    freed = replace(desktop_of(1, generation=3), report=USED_REPORT)
    one = pool_of(ready_when=ReadyWhen.GUEST, starts_per_host=1)
    assert kinds(plan_of([freed], [vm_of(freed, mark=mark_of(USED))], one)) == ["RefreshVm"], "it is its own start"


def test_what_is_in_flight_is_neither_planned_nor_forgotten():
    gone = desktop_of(absent=True)
    plan = plan_of([gone], [], POOL, in_flight={"id-1"})
    assert (plan.actions, plan.reports) == ((), {}), "its VM may still be made: the row must stay"
    assert plan_of([gone], [], POOL).reports["id-1"].exists is False
    half_made = vm_of(desktop_of(), mark=None)
    assert plan_of([desktop_of()], [half_made], POOL, in_flight={"id-1"}).reports == {}


def test_a_vm_that_is_gone_is_lost_and_not_made_again():
    plan = plan_of([used()], [], POOL)
    report = plan.reports["id-1"]
    assert (plan.actions, report.exists, report.generation, report.user) == ((), False, 2, "ada")
    assert plan_of([replace(USED, report=report)], [], POOL).actions == ()


def test_a_desktop_that_its_user_switches_off_stays_off_until_he_opens_it():
    off = vm_of(USED, state="stopped", guest_users=None)
    plan = plan_of([used()], [off], POOL)
    assert (plan.actions, plan.powered_off) == ((), ("id-1",))
    stays = replace(USED, power_on=False, report=plan.reports["id-1"])
    assert plan_of([stays], [off], POOL).actions == ()
    opened = plan_of([replace(stays, power_on=True)], [off], POOL)
    assert (kinds(opened), opened.powered_off) == (["StartVm"], ())


def test_a_reboot_of_the_host_is_no_user_who_switches_off():
    off = vm_of(USED, state="stopped", guest_users=None)
    plan = plan_of([used()], [off], POOL, replace(HOST, boot_id="boot-2"))
    assert (kinds(plan), plan.powered_off) == (["StartVm"], ())
    spare = plan_of([seen(desktop_of())], [vm_of(desktop_of(), state="stopped")], POOL)
    assert (kinds(spare), spare.powered_off) == (["StartVm"], ())
    flying = plan_of([used()], [off], POOL, in_flight={"id-1"})
    assert (flying.actions, flying.powered_off) == ((), ())


def test_that_a_user_has_another_desktop_is_remembered_as_long_as_this_one_is_his():
    for row, superseded in (
        (used(superseded=True), True),
        (replace(USED, report=ready_report(superseded=True)), True),
        (used(), False),
        (desktop_of(generation=3, report=replace(USED_REPORT, superseded=True)), False),
    ):
        assert plan_of([row], [vm_of(USED)], POOL).reports["id-1"].superseded is superseded, row


def crashing(row: Desktop, times: list[float], pool=POOL) -> list[tuple[float, HostPlan]]:
    """Return the plans of a desktop that stops by itself at these times, and runs again two seconds after a start."""
    report = ready_report(running_since=NOW)
    plans: list[tuple[float, HostPlan]] = []
    waits, state, runs_at = [*times], "running", None
    for second in range(int(times[-1]) + 60):
        if runs_at is not None and second >= runs_at:
            state, runs_at = "running", None
        if waits and state == "running" and second >= waits[0]:
            state = "stopped"
            waits.pop(0)
        vm = vm_of(row, state=state, guest_users=None)
        plan = plan_of([replace(row, report=report)], [vm], pool, now=NOW + second)
        report = plan.reports[row.id]
        runs_at = second + 2 if plan.actions and runs_at is None else runs_at
        plans.append((second, plan))
    return plans


def starts(plans: list[tuple[float, HostPlan]]) -> list[float]:
    seconds = [second for second, plan in plans if kinds(plan) == ["StartVm"]]
    return [second for second in seconds if second - 1 not in seconds]


@pytest.mark.parametrize("pool", [POOL, pool_of("dedicated"), pool_of("fixed", spare=0)])
def test_what_stops_by_itself_is_started_three_times_later_each_time_and_has_failed_then(pool):
    plans = crashing(desktop_of(), [10, 20, 40, 60, 61], pool)
    assert starts(plans) == [10, 25, 50]
    report = plans[-1][1].reports["id-1"]
    assert (report.code, len(report.crashes), report.ready) == ("crashes", 4, False)
    assert report.error == f"{HOST.name}: it stopped by itself 4 times in 20 minutes"
    assert "vgpuctl controller start-desktop d-001" in (report.hint or "")
    failed = desktop_of(report=report)
    assert phase_of(failed, pool, HOST, NOW).word == "failed"
    later = plan_of([failed], [vm_of(failed, state="stopped", guest_users=None)], pool, now=NOW + 9999)
    assert (later.actions, later.reports["id-1"].code) == ((), "crashes"), "a person decides"
    by_hand = plan_of([failed], [vm_of(failed)], pool, now=NOW + 100).reports["id-1"]
    assert (by_hand.code, by_hand.ready) == (None, True)
    refreshed = replace(failed, image_id=NEW_IMAGE.id)
    rolled_out = plan_of([refreshed], [vm_of(refreshed, state="stopped", guest_users=None)], pool, now=NOW + 100)
    assert kinds(rolled_out) == ["RefreshVm"]


def test_what_stops_now_and_then_is_started_again_each_time():
    plans = crashing(desktop_of(), [10, 500, 1000, 1500, 2000, 2500, 3000])
    assert len(starts(plans)) == 7
    assert plans[-1][1].reports["id-1"].code is None


def test_what_an_action_or_a_reboot_left_off_did_not_stop_by_itself():
    for row, host, more in (
        (seen(desktop_of()), replace(HOST, boot_id="boot-2"), {}),
        (seen(desktop_of(errors=1)), HOST, {}),
        (seen(desktop_of(), code="busy"), HOST, {}),
        (seen(desktop_of()), HOST, {"in_flight": {"id-1"}}),
        (seen(desktop_of(power_on=False)), HOST, {}),
        (used(), HOST, {}),
    ):
        off = vm_of(row, state="stopped", guest_users=None)
        assert plan_of([row], [off], POOL, host, **more).reports["id-1"].crashes == (), row
    off = vm_of(desktop_of(), state="stopped", guest_users=None)
    assert plan_of([seen(desktop_of())], [off], POOL).reports["id-1"].crashes == (NOW,)


def after(views: list[tuple[float, tuple[str, ...] | None]], desktop: Desktop = USED, pool=POOL) -> DesktopReport:
    report = None
    for seconds, users in views:
        row = replace(desktop, report=report)
        report = plan_of([row], [vm_of(desktop, guest_users=users)], pool, now=NOW + seconds).reports["id-1"]
    assert report is not None
    return report


@pytest.mark.parametrize(
    ("views", "logged_off"),
    [
        ([(0, ()), (10, ()), (90, ())], False),
        ([(0, ("ada",)), (10, ())], False),
        ([(0, ("ada",)), (10, ()), (39, ())], False),
        ([(0, ("ada",)), (10, ()), (40, ())], True),
        ([(0, ("ada",)), (10, ()), (20, ("ada",)), (41, ()), (60, ())], False),
        ([(0, ("ada",)), (10, ()), (20, None), (45, ())], False),
        ([(0, ("ada",)), (10, None), (90, None)], False),
        ([(0, ("ada",)), (10, ()), (40, ()), (50, None)], True),
    ],
)
def test_a_log_off_is_seen_twice_after_a_log_on(views, logged_off):
    assert after(views).logged_off is logged_off


def test_a_log_on_counts_for_its_assignment_alone():
    report = after([(0, ("ada",)), (10, ()), (40, ())])
    again = replace(USED, generation=4, report=report)
    fresh = plan_of([again], [vm_of(again)], POOL, now=NOW + 50).reports["id-1"]
    assert (fresh.logged_on_seen, fresh.empty_since, fresh.logged_off) == (False, None, False)


def test_who_shuts_a_floating_desktop_down_has_logged_off():
    off = vm_of(USED, state="stopped", guest_users=None)
    plan = plan_of([used(logged_on_seen=True)], [off], POOL)
    assert (plan.reports["id-1"].logged_off, plan.powered_off, plan.actions) == (True, (), ())


@pytest.mark.parametrize(("on_logoff", "expected"), [("keep", []), ("stop", ["StopVm"]), ("refresh", ["RefreshVm"])])
def test_a_dedicated_desktop_after_its_user_logged_off(on_logoff, expected):
    pool = pool_of("dedicated", on_logoff=on_logoff)
    row = used(logged_on_seen=True, empty_since=NOW - 60, logged_off=True)
    plan = plan_of([row], [vm_of(USED)], pool)
    assert kinds(plan) == expected
    if on_logoff == "stop":
        off = plan_of([replace(row, report=plan.reports["id-1"])], [vm_of(USED, state="stopped")], pool)
        assert (off.actions, off.powered_off) == ((), ("id-1",))
    if on_logoff == "refresh":
        assert (plan.actions[0].mark.dirty, plan.actions[0].mark.user) == (False, "ada")
        fresh = vm_of(USED, mark=plan.actions[0].mark)
        after_refresh = plan_of([replace(row, report=plan.reports["id-1"])], [fresh], pool, now=NOW + 60)
        assert kinds(after_refresh) == ["MarkVm"]
        assert after_refresh.reports["id-1"].logged_off is False


def test_a_stranger_makes_a_spare_dirty_until_its_refresh():
    spare = desktop_of()
    first = plan_of([spare], [vm_of(spare, guest_users=("eve",))], POOL).reports["id-1"]
    assert (first.dirty, first.code) == (True, "logged-on")
    left = plan_of([replace(spare, report=first)], [vm_of(spare)], POOL)
    assert (left.reports["id-1"].dirty, kinds(left)) == (True, ["MarkVm"])
    marked = vm_of(spare, mark=left.actions[0].mark)
    refresh = plan_of([replace(spare, report=left.reports["id-1"])], [marked], POOL)
    assert kinds(refresh) == ["RefreshVm"]
    clean = plan_of([replace(spare, report=refresh.reports["id-1"])], [vm_of(spare)], POOL)
    assert (clean.reports["id-1"].dirty, clean.reports["id-1"].code, clean.actions) == (False, None, ())


def test_a_fixed_pool_has_users_nobody_minds():
    pool = pool_of("fixed")
    plan = plan_of([desktop_of()], [vm_of(desktop_of(), guest_users=("root",))], pool)
    assert (plan.actions, plan.reports["id-1"].dirty, plan.reports["id-1"].code) == ((), False, None)
    moved = desktop_of(image_id=NEW_IMAGE.id)
    assert kinds(plan_of([moved], [vm_of(moved)], pool)) == ["RefreshVm"]


def test_the_last_error_stays_while_it_counts():
    row = desktop_of(errors=1, report=ready_report(code="no-capacity", error="no room", hint="do this"))
    assert plan_of([row], [vm_of(row)], POOL).reports["id-1"].code == "no-capacity"
    assert plan_of([replace(row, errors=0)], [vm_of(row)], POOL).reports["id-1"].code is None


def test_an_error_that_waits_for_a_person_stays_until_the_refresh_is_done():
    waiting = ready_report(code="needs-blob", error="no blob", hint="djoin")
    former = vm_of(desktop_of())
    for row in (desktop_of(generation=2, report=waiting), desktop_of(not_before=NOW + 30, report=waiting)):
        assert plan_of([row], [former], POOL).reports["id-1"].code == "needs-blob"
    done = desktop_of(report=waiting)
    assert plan_of([done], [vm_of(done)], POOL).reports["id-1"].code is None


def test_a_refresh_starts_the_boot_time_again():
    row = replace(desktop_of(generation=3), report=USED_REPORT)
    assert plan_of([row], [vm_of(row)], POOL).reports["id-1"].running_since == NOW
    moved = seen(desktop_of(image_id=NEW_IMAGE.id))
    assert plan_of([moved], [vm_of(moved, image=NEW_IMAGE.path)], POOL).reports["id-1"].running_since == NOW
    same = seen(desktop_of())
    assert plan_of([same], [vm_of(same)], POOL).reports["id-1"].running_since == NOW - 600
