# SPDX-License-Identifier: Apache-2.0
"""Which desktops a pool has after a tick."""

from __future__ import annotations

import itertools
import sys

import pytest

from tests.unit.controller.planning.fleets import HOST, IMAGE, NEW_IMAGE, NOW, desktop_of, pool_of, ready_report
from vgpuctl.controller.model import Desktop, DesktopReport, FleetHostState, PoolChanges, Schedule
from vgpuctl.controller.planning.back_off import error_times, next_try, wait_after
from vgpuctl.controller.planning.pool_plan import plan_pool
from vgpuctl.errors import Failed
from vgpuctl.value import replace

LOGGED_OFF = ready_report(generation=2, dirty=True, user="ada", logged_on_seen=True, logged_off=True)
USED = desktop_of(user="ada", generation=2, report=replace(LOGGED_OFF, logged_off=False))
LOST = DesktopReport(False, generation=1)


def ready(number: int, **changes) -> Desktop:
    return desktop_of(number, report=ready_report(), **changes)


def tick(pool, desktops, image=IMAGE, hosts=None, now=NOW) -> PoolChanges:
    numbers = itertools.count(1)
    return plan_pool(pool, desktops, image, now, lambda: f"52:54:00:01:00:{next(numbers):02x}", hosts or {"h1": HOST})


def test_a_new_pool_gets_its_spares_with_names_and_addresses():
    changes = tick(pool_of(spare=3), [])
    assert [(new.name, new.mac[-2:]) for new in changes.create] == [("d-001", "01"), ("d-002", "02"), ("d-003", "03")]
    assert len(tick(pool_of("fixed", maximum=4), []).create) == 4
    assert tick(pool_of(spare=3), [], None) == tick(pool_of(spare=3), [], replace(IMAGE, retired=True)) == PoolChanges()


@pytest.mark.parametrize("case", ["ready", "not ready", "too many", "leaving", "released"])
def test_a_pool_of_thousands_costs_as_much_per_desktop_as_a_small_one(case):
    calls = dict.fromkeys((100, 400), 0)
    for count in calls:
        row = {
            "ready": ready(1),
            "not ready": desktop_of(1, report=ready_report(ready=False)),
            "too many": ready(1),
            "leaving": ready(1),
            "released": replace(USED, report=LOGGED_OFF),
        }[case]
        rows = [replace(row, id=f"id-{n}", name=f"d-{n:03}", user=row.user and f"{row.user}{n}") for n in range(count)]
        pool = pool_of(spare=1 if case == "too many" else count, maximum=count)
        host = replace(HOST, state=FleetHostState.DRAINING) if case == "leaving" else HOST

        def note(_frame, event, _argument, count=count):
            calls[count] += event in ("call", "c_call")

        sys.setprofile(note)
        try:
            tick(pool, rows, NEW_IMAGE, {"h1": host})
        finally:
            sys.setprofile(None)
    assert calls[400] < 5 * calls[100], calls


def test_free_numbers_are_used_again_and_addresses_are_not_repeated():
    rows = [ready(1), ready(3, absent=True)]
    assert [new.name for new in tick(pool_of(spare=4), rows).create] == ["d-002", "d-004", "d-005"]
    with pytest.raises(Failed, match="no unused MAC address"):
        plan_pool(pool_of(spare=2), [ready(1)], IMAGE, NOW, lambda: ready(1).mac)


def test_maximum_counts_every_row():
    used = [replace(USED, id=f"u{n}", name=f"d-{n:03}") for n in range(1, 8)]
    rows = [*used, ready(8, absent=True), ready(9)]
    assert [new.name for new in tick(pool_of(spare=5, maximum=10), rows).create] == ["d-010"]
    assert tick(pool_of(spare=5, maximum=9), rows).create == ()


def test_spares_are_those_that_can_take_a_user_soon():
    pool = pool_of(spare=2)
    for row in (
        ready(1, power_on=False), ready(1, errors=3), ready(1, host_id="h9", user="eve"),
        desktop_of(1, report=ready_report(ready=False, running_since=NOW - 3600)),
    ):  # fmt: skip
        assert len(tick(pool, [row, ready(2)]).create) == 1, row
    for row in (desktop_of(1), desktop_of(1, host_id=None), desktop_of(1, report=ready_report(ready=False))):
        assert tick(pool, [row, ready(2)]) == PoolChanges()
    silent = {"h1": replace(HOST, seen_at=NOW - 300)}
    assert tick(pool, [ready(1), ready(2)], hosts=silent) == PoolChanges()
    assert len(tick(pool, [ready(1), ready(2)], hosts={"h1": replace(HOST, seen_at=NOW - 601)}).create) == 2


def test_shrinking_takes_what_is_of_least_use_and_never_a_used_one():
    rows = [
        ready(1), ready(2), desktop_of(3, report=ready_report(ready=False)), desktop_of(4), desktop_of(5, host_id=None),
        desktop_of(6, generation=3, report=LOGGED_OFF), replace(USED, id="u"),
    ]  # fmt: skip
    for spare, retired in ((5, ["id-5"]), (4, ["id-5", "id-4"]), (2, ["id-5", "id-4", "id-6", "id-3"])):
        assert list(tick(pool_of(spare=spare), rows).retire) == retired
    assert "id-2" in tick(pool_of(spare=1), rows).retire
    assert set(tick(pool_of(spare=0, maximum=1), rows).retire) == {row.id for row in rows} - {"u"}
    fixed = tick(pool_of("fixed", maximum=2), [ready(1), ready(2), ready(3)])
    assert (fixed.retire, fixed.create) == (("id-3",), ())


def test_a_schedule_decides_the_spares():
    pool = pool_of(spare=1, schedules=(Schedule(tuple(range(7)), 0, 1440, 4),))
    assert len(tick(pool, []).create) == 4


@pytest.mark.parametrize(
    ("kind", "row", "released"),
    [
        ("floating", USED, False),
        ("floating", replace(USED, report=LOGGED_OFF), True),
        ("dedicated", replace(USED, report=LOGGED_OFF), False),
        ("floating", replace(USED, report=LOGGED_OFF, generation=4), False),
        ("dedicated", replace(USED, lease_until=NOW), True),
        ("dedicated", replace(USED, lease_until=NOW + 1), False),
    ],
)
def test_a_user_loses_his_desktop(kind, row, released):
    changes = tick(pool_of(kind, spare=1), [row])
    assert changes.release == (("id-1",) if released else ())
    assert changes.retire == ()
    assert len(changes.create) == (0 if released else 1), "a released one is a spare after its refresh"


def used(number: int, since: float, host: str = "h1", **changes) -> Desktop:
    """Return a desktop of ada's, with a report of her assignment."""
    report = ready_report(generation=2, dirty=True, user="ada", **changes)
    return desktop_of(number, user="ada", generation=2, assigned_at=NOW - since, host_id=host, report=report)


TWO_HOSTS = {"h1": HOST, "h2": replace(HOST, id="h2", name="host-2")}
ONE_SILENT = {**TWO_HOSTS, "h2": replace(TWO_HOSTS["h2"], seen_at=NOW - 46)}


@pytest.mark.parametrize(
    ("older", "newer", "hosts", "released"),
    [
        ({}, {}, TWO_HOSTS, ("id-1",)),
        ({"logged_on_seen": True}, {}, TWO_HOSTS, ("id-2",)),
        ({"logged_on_seen": True}, {"logged_on_seen": True}, TWO_HOSTS, ("id-1",)),
        ({"logged_on_seen": True, "guest_users": ("ada",)}, {"logged_on_seen": True}, TWO_HOSTS, ("id-2",)),
        ({"guest_users": ("ada",)}, {"guest_users": ("ada",)}, TWO_HOSTS, ()),
        ({"logged_on_seen": True}, {}, ONE_SILENT, ()),
        ({}, {}, {"h1": HOST}, ()),
        ({"logged_on_seen": True, "logged_off": True}, {}, TWO_HOSTS, ("id-1",)),
    ],
)
def test_who_got_another_desktop_keeps_the_one_he_uses_when_all_hosts_answer(older, newer, hosts, released):
    rows = [used(1, 900, "h2", superseded=True, **older), used(2, 60, **newer)]
    assert tick(pool_of(spare=0, maximum=2), rows, hosts=hosts).release == released


def test_nobody_loses_what_he_may_have_a_dedicated_desktop_or_another_users():
    rows = [used(1, 900, "h2", superseded=True), used(2, 60)]
    assert tick(pool_of("dedicated", spare=0, maximum=2), rows, hosts=TWO_HOSTS).release == ()
    assert tick(pool_of(spare=0, maximum=2, per_user=2), rows, hosts=TWO_HOSTS).release == ()
    fewer = [used(1, 900, "h2"), used(2, 60)]
    assert tick(pool_of(spare=0, maximum=2), fewer, hosts=TWO_HOSTS).release == (), "per_user was 2 before"
    others = [used(1, 900, "h2", superseded=True), replace(used(2, 60), user="bob")]
    assert tick(pool_of(spare=0, maximum=2), others, hosts=TWO_HOSTS).release == ()


def test_what_is_lost_is_replaced_unless_it_is_somebodys():
    lost = replace(USED, report=replace(LOST, generation=2))
    floating = tick(pool_of(spare=0), [lost])
    assert (floating.release, floating.retire) == (("id-1",), ("id-1",))
    assert tick(pool_of("dedicated", spare=0), [lost]) == PoolChanges()
    assert tick(pool_of("dedicated", spare=1), [desktop_of(report=LOST)]).retire == ("id-1",)
    fixed = tick(pool_of("fixed", maximum=1), [desktop_of(report=LOST)])
    assert (fixed.retire, fixed.create) == (("id-1",), ()), "the next one is made when the row is gone"
    not_made = DesktopReport(False, code="no-capacity", error="no room")
    assert tick(pool_of(spare=1), [desktop_of(report=not_made, errors=1)]) == PoolChanges()


def test_what_contradicts_the_database_is_left_to_people():
    row = desktop_of(report=ready_report(code="record-newer", ready=False))
    assert tick(pool_of(spare=0, maximum=1), [row]).retire == ()


@pytest.mark.parametrize(("state", "retired"), [("cordoned", ("id-3",)), ("draining", ("id-2", "id-3"))])
def test_desktops_leave_a_host(state, retired):
    hosts = {"h1": replace(HOST, state=FleetHostState(state))}
    rows = [USED, ready(2), desktop_of(3)]
    changes = tick(pool_of(spare=2), rows, hosts=hosts)
    assert changes.retire == retired
    assert len(changes.create) == len(retired)


def test_paused_and_draining_pools():
    rows = [replace(USED, report=LOGGED_OFF), ready(2)]
    assert tick(pool_of(spare=5, state="paused"), rows) == PoolChanges(release=("id-1",))
    assert tick(pool_of(spare=5, state="draining"), [*rows, ready(3, absent=True)]).retire == ("id-1", "id-2")


def failing(number: int, errors: int, seconds_ago: float) -> Desktop:
    report = DesktopReport(False, code="failed", error="the disk is full")
    return desktop_of(number, errors=errors, not_before=next_try(errors, NOW - seconds_ago), report=report)


def test_three_errors_in_twenty_minutes_pause_the_pool():
    pool = pool_of(spare=9)
    assert tick(pool, [failing(1, 1, 10), failing(2, 1, 20)]).pause is None
    paused = tick(pool, [failing(1, 1, 10), failing(2, 1, 20), failing(3, 1, 1199)])
    assert paused == PoolChanges(pause="3 errors in 20 minutes; the last one of d-001: the disk is full")
    assert tick(pool, [failing(1, 1, 10), failing(2, 1, 20), failing(3, 1, 1200)]).pause is None
    assert tick(pool, [failing(1, 3, 10)]).pause is not None
    late = [desktop_of(n, report=ready_report(ready=False, running_since=NOW - 1000)) for n in (1, 2, 3)]
    assert tick(pool, late).pause == "3 errors in 20 minutes; the last one of d-001 was not ready in 15 minutes"


def crashed(number: int, seconds_ago: float) -> Desktop:
    times = tuple(NOW - seconds_ago - n for n in (30, 20, 10, 0))
    text = "gpu01: it stopped by itself 4 times in 20 minutes"
    report = ready_report(ready=False, state="stopped", code="crashes", error=text, crashes=times, running_since=None)
    return desktop_of(number, report=report)


def test_desktops_that_crash_are_replaced_and_three_of_them_pause_the_pool():
    pool = pool_of(spare=2)
    one = tick(pool, [crashed(1, 10), ready(2)])
    assert ([new.name for new in one.create], one.retire, one.pause) == (["d-003"], (), None)
    assert tick(pool, [crashed(1, 10), crashed(2, 20), ready(3), ready(4)]).pause is None
    three = [crashed(1, 10), crashed(2, 20), crashed(3, 30)]
    assert tick(pool, three).pause == (
        "3 errors in 20 minutes; the last one of d-001: gpu01: it stopped by itself 4 times in 20 minutes"
    )
    assert tick(pool, [crashed(1, 10), crashed(2, 20), crashed(3, 1200)]).pause is None


def test_a_new_image_whose_desktops_crash_is_rolled_out_no_further():
    pool = pool_of(spare=4, maximum=5, max_unavailable=2, image=NEW_IMAGE.name)
    failed = [replace(crashed(n, 10), image_id=NEW_IMAGE.id) for n in (1, 2)]
    others = [ready(3), ready(4), ready(5, user="ada")]
    assert tick(pool, [*failed, *others], NEW_IMAGE) == PoolChanges()
    running = [desktop_of(n, image_id=NEW_IMAGE.id, report=ready_report(image=NEW_IMAGE.path)) for n in (1, 2)]
    assert tick(pool, [*running, *others], NEW_IMAGE) == PoolChanges(move_image=("id-3", "id-4"))


def test_waits_double_up_to_five_minutes():
    assert [wait_after(errors) for errors in (0, 1, 2, 3, 6, 7, 99)] == [0, 5, 10, 20, 160, 300, 300]
    assert error_times(failing(1, 3, 0)) == (NOW, NOW - 10, NOW - 15)
    assert error_times(desktop_of()) == ()


def old(number: int, **changes) -> Desktop:
    return ready(number, **changes)


def test_a_new_image_goes_to_unused_ones_a_few_at_a_time():
    rows = [old(n) for n in range(1, 6)]
    pool = pool_of(spare=5, max_unavailable=2)
    assert tick(pool, rows, NEW_IMAGE).move_image == ("id-1", "id-2")
    moving = [replace(row, image_id=NEW_IMAGE.id) for row in rows[:2]] + rows[2:]
    assert tick(pool, moving, NEW_IMAGE).move_image == ()
    done = [replace(moving[0], report=ready_report(image=NEW_IMAGE.path)), *moving[1:]]
    assert tick(pool, done, NEW_IMAGE).move_image == ("id-3",)
    assert tick(pool_of(spare=5, max_unavailable=0), rows, NEW_IMAGE).move_image == ()
    not_ready = [desktop_of(6), desktop_of(7, report=ready_report(ready=False))]
    assert tick(pool_of(spare=7), [*rows, *not_ready], NEW_IMAGE).move_image == ("id-6", "id-7")


def test_a_used_desktop_gets_the_new_image_at_its_log_off():
    assert tick(pool_of(spare=0), [USED], NEW_IMAGE).move_image == ()
    ended = tick(pool_of(spare=1), [replace(USED, report=LOGGED_OFF)], NEW_IMAGE)
    assert (ended.release, ended.move_image) == (("id-1",), ("id-1",))
    assert tick(pool_of("dedicated"), [USED], NEW_IMAGE).move_image == (), "his disk stays his"
    assert tick(pool_of("dedicated", on_logoff="refresh"), [USED], NEW_IMAGE).move_image == ("id-1",)
