# SPDX-License-Identifier: Apache-2.0
"""What people had: hours from what hosts report, each once, and refusals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from tests.controller.conftest import opened
from tests.controller.test_people import SteppedClock
from tests.controller.test_quotas import ADMIN, VGPU, set_quota, with_pools
from tests.controller.test_store import report_all
from tests.controller.thin_host import ThinHost, ThinLink
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.backup import restore_backup, write_backup
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.database.use_rows import DAY_SECONDS, USE_DAYS
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.hosts.use_meter import UseMeter, measure
from vgpuctl.controller.model import CallerKind, Desktop, DesktopReport, FleetCaller, MeasuredUse, Right
from vgpuctl.controller.routes import CALLS
from vgpuctl.errors import InvalidInput, NoCapacity, VgpuctlError
from vgpuctl.model.results.usage import VgpuUsageResult
from vgpuctl.model.usage import EngineUse, VgpuUse
from vgpuctl.value import replace

HOUR = 3600.0
DAY = 20_000
"""2024-10-04, in days since 1970."""


@pytest.fixture
def clock() -> SteppedClock:
    clock = SteppedClock()
    clock.seconds = DAY * DAY_SECONDS
    return clock


@pytest.fixture
def timed(tmp_path: Path, clock: SteppedClock) -> Iterator[Store]:
    """A store with desktops of two pools, each with a user, at a time that tests move."""
    url = f"sqlite:///{tmp_path}/timed.db"
    upgrade(url)
    store = open_store(url, clock=clock)
    with_pools(store, 2)
    store.people.put("ada", "test", groups=["staff", "cad"])
    store.people.put("bob", "test", groups=["staff"])
    store.desktops.assign("office", "ada", "test")
    store.desktops.assign("lab", "bob", "test")
    yield store
    store.close()


def report(store: Store, name: str, **more: Any) -> None:
    """Report a desktop as its host has it now."""
    desktop = store.desktops.find(name)
    usual = {"exists": True, "state": "running", "generation": desktop.generation, "user": desktop.user, "ready": True}
    lease = store.hosts.take_lease(desktop.host_id or "", store.holder, 1e9)
    assert lease is not None
    new = DesktopReport(**{**usual, "vgpus": (VGPU,), **more})
    assert store.desktops.report(desktop.host_id or "", store.holder, lease.epoch, {desktop.id: new})


def work_four_hours(store: Store, clock: SteppedClock) -> None:
    """Let ada be assigned for 4 hours: on for 3, the last two of them known, and logged on for one."""
    for more in ({"guest_users": ("ada",)}, {"guest_users": ()}, {"state": "stopped", "vgpus": ()}):
        clock.seconds += HOUR
        report(store, "office-001", **more)
    clock.seconds += HOUR
    store.desktops.release("office-001", "test")


def use_of(store: Store, by: str, **given: str) -> dict[str | None, tuple[float, float, float | None, float, int]]:
    rows = FleetService(store, lambda host: pytest.fail(str(host))).show_use(ADMIN, by, **given).data
    return {
        one.name: (one.assigned_hours, one.on_hours, one.logged_on_hours, one.gpu_gib_hours, one.idle) for one in rows
    }


def test_hours_are_of_what_hosts_reported(timed: Store, clock: SteppedClock) -> None:
    work_four_hours(timed, clock)
    ada, bob = (4.0, 3.0, 1.0, 12.0, 0), (4.0, 4.0, None, 16.0, 0)
    assert use_of(timed, "person") == {"ada": ada, "bob": bob}
    assert use_of(timed, "pool") == {"office": ada, "lab": bob}
    assert use_of(timed, "pool", pool="lab") == {"lab": bob}
    assert use_of(timed, "group") == {"cad": ada, "staff": (8.0, 7.0, 1.0, 28.0, 0)}
    report(timed, "lab-001", guest_users=())
    assert use_of(timed, "person")["bob"][4] == 1, "on, and nobody is logged on"
    clock.seconds += 10 * DAY_SECONDS
    assert use_of(timed, "person")["bob"][0] == 244.0, "what goes on counts up to now"
    assert use_of(timed, "person")["ada"] == ada
    timed.people.put("bob", "test", groups=[])
    assert use_of(timed, "group")[None][0] == 244.0


def test_only_what_is_in_the_time_that_is_asked_for_counts(timed: Store, clock: SteppedClock) -> None:
    work_four_hours(timed, clock)
    clock.seconds += 2 * DAY_SECONDS - 4 * HOUR
    begin = DAY * DAY_SECONDS

    def hours(since: float, until: float) -> dict[str, tuple[float, float]]:
        rows = timed.use.sums("person", begin + since * HOUR, begin + until * HOUR)
        return {one.name: (one.assigned_seconds / HOUR, one.logged_on_seconds / HOUR) for one in rows}

    assert hours(0, 1) == {"ada": (1, 0), "bob": (1, 0)}
    assert hours(1.5, 3) == {"ada": (1.5, 0.5), "bob": (1.5, 0)}
    assert hours(4, 5) == {"bob": (1, 0)}
    assert hours(-5, 0) == {}
    assert hours(47, 1000) == {"bob": (1, 0)}, "not beyond now"
    assert sum(hours(one, one + 1)["bob"][0] for one in range(48)) == 48
    assert use_of(timed, "person", since="2024-10-05", until="2024-10-06") == {"bob": (24.0, 24.0, None, 96.0, 0)}
    assert use_of(timed, "person", since="2024-10-04")["ada"][0] == 4.0


def test_a_start_of_the_controller_changes_nothing(timed: Store, clock: SteppedClock, tmp_path: Path) -> None:
    clock.seconds += HOUR
    again = open_store(f"sqlite:///{tmp_path}/timed.db", clock=clock)
    again.use.repair()
    report(again, "office-001")
    clock.seconds += HOUR
    assert use_of(again, "person")["ada"][:2] == (2.0, 2.0)
    with again.database.read() as connection:
        assert len(connection.execute(select(schema.use_span.c.id)).all()) == 2, "nothing is new"
    again.close()


def test_what_an_older_program_left_is_repaired(store: Store) -> None:
    with_pools(store, 2)
    first, _ = store.desktops.assign("office", "ada", "test")
    second, _ = store.desktops.assign("lab", "bob", "test")
    span, desktop = schema.use_span, schema.desktop

    def open_ones() -> list[tuple[str, str]]:
        with store.database.read() as connection:
            rows = connection.execute(select(span.c.desktop, span.c.person).where(span.c.until_at.is_(None)))
            return sorted((row.desktop, row.person) for row in rows)

    with store.database.write() as connection:
        connection.execute(delete(span))
    for _ in range(2):
        store.use.repair()
        assert open_ones() == [(second.name, "bob"), (first.name, "ada")]
    with store.database.write() as connection:
        connection.execute(delete(desktop).where(desktop.c.id == first.id))
        connection.execute(update(desktop).where(desktop.c.id == second.id).values(user="eve"))
    store.use.repair()
    assert open_ones() == [(second.name, "eve")]


def test_two_controllers_count_nothing_twice(url: str) -> None:
    upgrade(url)
    with opened(url) as store, opened(url) as other:
        with_pools(store, 6, "office")
        host = store.hosts.find("gpu01")
        epoch = store.hosts.leases()[host.id].epoch
        users = ("ada", "bob", "eve")

        def act(number: int) -> None:
            one = store if number % 2 else other
            with suppress(NoCapacity):
                one.desktops.assign("office", users[number % 3], "test")
            report_all(store, host.id, epoch, vgpus=(VGPU,), guest_users=("x",) * (number % 2))
            assert report_all(other, host.id, epoch, guest_users=()) is False, "it has no lease"
            for desktop in one.desktops.list(user=users[number % 3])[: number % 4]:
                one.desktops.release(desktop.name, "test")

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(act, range(60)))
        span = schema.use_span
        with store.database.read() as connection:
            rows = connection.execute(select(span).order_by(span.c.desktop_id, span.c.began_at, span.c.id)).all()
        assert sum(row.until_at is None for row in rows) == sum(one.user is not None for one in store.desktops.list())
        for before, after in itertools.pairwise(rows):
            if before.desktop_id == after.desktop_id:
                assert before.until_at is not None
                assert before.until_at <= after.began_at
        assert len(rows) > 10


def test_old_spans_and_counts_go(timed: Store, clock: SteppedClock) -> None:
    work_four_hours(timed, clock)
    timed.use.refuse("office", "ada", "no-capacity")
    assert not timed.use.prune()
    assert use_of(timed, "person").keys() == {"ada", "bob"}
    clock.seconds += (USE_DAYS + 1) * DAY_SECONDS
    assert not timed.use.prune()
    rows = timed.use.sums("person", 0.0, clock.seconds)
    assert [(one.name, one.refused) for one in rows] == [("bob", {})], "what goes on stays"


def test_refusals_are_counted_by_reason(store: Store) -> None:
    with_pools(store, 1)
    fleet = FleetService(store, lambda host: pytest.fail(str(host)))
    store.pools.set_state("lab", store.pools.find("lab").state.PAUSED, "new storage", "test")

    def ask(call: str, caller: FleetCaller = ADMIN, **arguments: Any) -> None:
        with suppress(VgpuctlError):
            CALLS[call].on(fleet, caller, arguments)

    eve = FleetCaller("eve", None, CallerKind.PERSON, {"office": Right.USE})
    ask("assign", pool="office", user="ada")
    for _ in range(3):
        ask("assign", pool="office", user="bob")
    ask("assign", pool="lab", user="bob")
    ask("take-desktop", eve, pool="office")
    ask("take-desktop", eve, pool="lab")  # he may not
    ask("assign", pool="none", user="bob")
    with store.changes.dry_run():
        ask("assign", pool="office", user="bob")
    store.desktops.set_power("office-001", "test", on=False)
    set_quota(store, "ada", running=0)
    ask("start-desktop", name="office-001")
    refused = {one.name: one.refused for one in fleet.show_use(ADMIN, "person").data}
    assert refused == {
        "ada": {"quota-reached": 1}, "bob": {"no-capacity": 3, "refused": 1}, "eve": {"no-capacity": 1},
    }  # fmt: skip
    assert "assigned" in {one.kind for one in store.journal.list()}
    assert not {"no-capacity", "refused"} & {one.kind for one in store.journal.list()}, "no entries of refusals"
    by_pool = {one.name: one.refused for one in fleet.show_use(ADMIN).data}
    assert by_pool == {"office": {"no-capacity": 4, "quota-reached": 1}, "lab": {"refused": 1}}
    manager = FleetCaller("mia", None, CallerKind.PERSON, {"lab": Right.MANAGE, "office": Right.OPERATE})
    assert {one.name for one in fleet.show_use(manager).data} == {"lab"}
    assert {one.name for one in fleet.show_use(manager, "person").data} == {"bob"}
    assert fleet.show_use(manager, "person", pool="office").data == ()


def test_pages_of_many(store: Store) -> None:
    fleet = FleetService(store, lambda host: pytest.fail(str(host)))
    for number in range(5):
        store.use.refuse("office", f"user{number}", "no-capacity")
    assert [one.name for one in fleet.show_use(ADMIN, "person", limit=2).data] == ["user0", "user1"]
    assert [one.name for one in fleet.show_use(ADMIN, "person", after="user3").data] == ["user4"]


@pytest.mark.parametrize(
    "given",
    [
        {"by": "host"}, {"since": "yesterday"}, {"until": "2026-13-01"}, {"since": "2026-02-01", "until": "2026-01-01"},
        {"since": "2020-01-01", "until": "2026-01-01"}, {"limit": 0}, {"since": "9999-12-31"},
    ],
)  # fmt: skip
def test_times_that_are_none(own_store: Store, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        FleetService(own_store, lambda host: pytest.fail(str(host))).show_use(ADMIN, **given)


def test_a_restored_database_counts_nothing_that_nobody_saw(timed: Store, clock: SteppedClock, tmp_path: Path) -> None:
    clock.seconds += HOUR
    store_url = f"sqlite:///{tmp_path}/timed.db"
    write_backup(store_url, tmp_path / "backup")
    restore_backup(f"sqlite:///{tmp_path}/other.db", tmp_path / "backup", "test", replace=False)
    with opened(f"sqlite:///{tmp_path}/other.db") as other, other.database.read() as connection:
        spans = connection.execute(select(schema.use_span)).all()
        assert len(spans) == 2
        assert None not in {one.until_at for one in spans}


def test_what_is_really_used_is_added_to_the_assignment(timed: Store, clock: SteppedClock) -> None:
    office = timed.desktops.find("office-001")
    work_four_hours(timed, clock)
    key = (office.id, "ada")
    one = MeasuredUse(HOUR, 0.5 * HOUR, HOUR, 1024 * HOUR, 1500)
    timed.use.add_measured({key: one, ("gone", "bob"): one, (office.id, "bob"): one})
    timed.use.add_measured({key: MeasuredUse(memory_known_seconds=HOUR, memory_mib_seconds=2048 * HOUR)})
    timed.use.add_measured({key: MeasuredUse(busy_known_seconds=HOUR)})
    timed.use.add_measured({})
    rows = {
        one.name: one for one in FleetService(timed, lambda host: pytest.fail(str(host))).show_use(ADMIN, "person").data
    }

    def used(name: str) -> tuple[object, ...]:
        row = rows[name]
        return row.gpu_used_gib_hours, row.gpu_known_hours, row.gpu_used_percent, row.gpu_peak_mib

    assert used("ada") == (3.0, 2.0, 25.0, 1500)
    assert used("bob") == (None, 0.0, None, None), "not known is not 0, and ada's desktop is not bob's"


def test_of_a_long_span_what_was_measured_counts_by_time(timed: Store, clock: SteppedClock) -> None:
    begin, lab = DAY * DAY_SECONDS, timed.desktops.find("lab-001")
    clock.seconds += 4 * HOUR
    timed.use.add_measured({(lab.id, "bob"): MeasuredUse(4 * HOUR, HOUR, 4 * HOUR, 400 * HOUR, 7)})
    (half,) = timed.use.sums("person", begin + HOUR, begin + 3 * HOUR, pool="lab")
    assert half.measured == MeasuredUse(2 * HOUR, 0.5 * HOUR, 2 * HOUR, 200 * HOUR, 7)


def test_each_database_adds_it_up(store: Store) -> None:
    with_pools(store, 2)
    desktop, _ = store.desktops.assign("office", "ada", "test")
    key, now = (desktop.id, "ada"), store.now()
    for peak in (None, 700, 500):
        store.use.add_measured({key: MeasuredUse(2.0, 1.0, 2.0, 1400.0, peak)})
    with store.database.write() as connection:
        connection.execute(update(schema.use_span).values(began_at=now - 10, until_at=now))
    assert store.use.sums("person", now - 10, now)[0].measured == MeasuredUse(6.0, 3.0, 6.0, 4200.0, 700)
    assert store.use.sums("group", now - 5, now)[0].measured == MeasuredUse(3.0, 1.5, 3.0, 2100.0, 700)


def usage_row(uuid: str, sm: float | None, used_mib: int | None, *, is_read: bool = True) -> VgpuUsageResult:
    use = VgpuUse("gpu", (), engines=EngineUse(sm=sm), memory_used_bytes=None if used_mib is None else used_mib << 20)
    return VgpuUsageResult(
        "vm", uuid, None, 0, "c", "gpu", None, None, None, None, None, True, None, {}, True, None, None, None, None,
        None, use if is_read else None,
    )  # fmt: skip


def test_a_reading_says_what_desktops_with_users_used() -> None:
    ada, bob, free = (
        Desktop(name, "p", name, "m", "i", user=user) for name, user in (("a", "ada"), ("b", "bob"), ("c", None))
    )
    rows = [usage_row("a", 0.5, 100), usage_row("a", 0.25, 50), usage_row("c", 1, 1), usage_row("x", 1, 1)]
    known = MeasuredUse(60.0, 45.0, 60.0, 9000.0, 150)
    assert measure(rows, (ada, bob, free), 60.0) == {("a", "ada"): known}
    assert measure([usage_row("b", None, 10)], (bob,), 60.0) == {("b", "bob"): MeasuredUse(0, 0, 60.0, 600.0, 10)}
    partly = [usage_row("b", 1, 10), usage_row("b", 1, 1, is_read=False)]
    assert measure(partly, (bob,), 60.0) == {("b", "bob"): MeasuredUse()}, "of one of its vGPUs nothing is known"


def test_the_meter_asks_once_a_minute_and_stores_seldom(timed: Store, clock: SteppedClock, tmp_path: Path) -> None:
    lab = timed.desktops.find("lab-001")
    host = ThinHost("gpu01", tmp_path / "thin", 1, 1)
    link: Any = ThinLink(host)
    meter = UseMeter(timed)

    def read(seconds: float, sm: float | None, *, gap: float | None = None) -> None:
        clock.seconds += seconds
        at = host.usage.time + (seconds if gap is None else gap)
        host.usage = replace(host.usage, time=at, vgpus=(usage_row(lab.id, sm, 1024),))
        meter.read(link, (lab,))

    def stored() -> MeasuredUse:
        (one,) = timed.use.sums("pool", 0.0, clock.seconds + 1, pool="lab")
        return one.measured

    for _ in range(3):
        read(20.0, 0.5)
    assert host.calls["top"] == 1
    read(60.0, 0.5)
    assert stored() == MeasuredUse(), "it is kept until there is more"
    read(60.0, 0.5, gap=0.0)
    read(3000.0, None)
    assert stored() == MeasuredUse(60.0, 30.0, 210.0, 210.0 * 1024, 1024), "one reading says nothing of an hour"
    read(60.0, 1.0)
    meter.store()
    meter.store()
    assert stored() == MeasuredUse(120.0, 90.0, 270.0, 270.0 * 1024, 1024)
