# SPDX-License-Identifier: Apache-2.0
"""The store, on both databases: every change is whole or not at all, and no two get the same desktop."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, event, text

from tests.controller.conftest import SPEC, Server, add_host, add_image, add_pool, opened
from tests.controller.thin_host import KIND
from tests.rooms import room_of
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import LINE, Database, DatabaseUnreachable
from vgpuctl.controller.database.journal_rows import KnownAnswer
from vgpuctl.controller.database.store import DatabaseNewer, DatabaseOlder, Store, open_store, upgrade
from vgpuctl.controller.engine import unused_mac
from vgpuctl.controller.model import (
    LEAST_EVENT_DAYS,
    AgentFacts,
    CallerKind,
    Desktop,
    DesktopReport,
    FleetHostState,
    JournalLimits,
    NewDesktop,
    Pool,
    PoolChanges,
    PoolState,
    Realm,
    Role,
    StoredRoom,
)
from vgpuctl.controller.planning.phase import is_assignable
from vgpuctl.controller.planning.pool_spec import parse_pool
from vgpuctl.errors import Exists, InvalidInput, Locked, NoCapacity, NotAllowed, NotFound, Refused, Stale
from vgpuctl.model.host_room import NO_ROOM
from vgpuctl.value import replace

ROOM = room_of((KIND, KIND.empty), memory_mib=65536, cpus=64, storage_mib={"default": 500_000})


def numbered(count: int, first: int = 1) -> PoolChanges:
    return PoolChanges(
        tuple(
            NewDesktop(f"office-{n:03}", f"52:54:00:00:{n >> 8:02x}:{n & 255:02x}") for n in range(first, first + count)
        )
    )


def with_desktops(store: Store, count: int, **spec: object) -> tuple[Pool, str, int]:
    """Return a pool with desktops that are ready on one host, the host's id, and the epoch of its lease."""
    add_image(store)
    pool = add_pool(store, maximum=max(count, 6), **spec)
    host = add_host(store)
    store.desktops.tick(pool.id, lambda *_: numbered(count))
    store.rooms.set(host.id, ROOM)
    for number, desktop in enumerate(store.desktops.unplaced(), 1):
        assert store.desktops.place(desktop.id, host.id, "A100-4C", number)
    lease = store.hosts.take_lease(host.id, store.holder, 60.0)
    assert lease is not None
    report_all(store, host.id, lease.epoch)
    return pool, host.id, lease.epoch


def report_all(store: Store, host_id: str, epoch: int, **more: object) -> bool:
    """Report each desktop as its host has it once it did what is wanted."""
    reports = {
        one.id: DesktopReport(
            exists=True, state="running", generation=one.generation, user=one.user, dirty=one.user is not None,
            ready=True, **more,
        )
        for one in store.desktops.of_host(host_id)
    }  # fmt: skip
    return store.desktops.report(host_id, store.holder, epoch, reports)


def test_the_migrations_make_the_tables_of_the_schema(store: Store) -> None:
    with store.database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, schema.metadata) == []


def test_a_database_of_another_version_is_refused(url: str) -> None:
    with pytest.raises(DatabaseOlder, match="has no tables yet"):
        open_store(url)
    assert upgrade(url)
    assert not upgrade(url)
    database = Database(url)
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    for act in (open_store, upgrade):
        with pytest.raises(DatabaseNewer, match="version 9999"):
            act(url)


def test_a_second_controller_on_one_file_is_refused(tmp_path: object) -> None:
    url = f"sqlite:///{tmp_path}/fleet.db"
    upgrade(url)
    first = open_store(url, alone=True)
    with pytest.raises(Locked, match="another controller"):
        open_store(url, alone=True)
    first.close()
    open_store(url, alone=True).close()


@pytest.mark.parametrize("given", ["mysql://root:secret@db/x", "sqlite://", "postgresql://u:secret@", "::secret::"])
def test_another_database_is_refused_without_its_password(given: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Database(given)
    assert "secret" not in str(error.value)


def test_a_database_that_does_not_answer_is_an_error_without_its_password(tmp_path: object) -> None:
    with pytest.raises(DatabaseUnreachable) as error:
        open_store(f"postgresql://fleet:secret@/none?host={tmp_path}")
    assert "secret" not in str(error.value) + repr(error.value.facts)


def test_postgresql_may_be_started_again(postgresql: Server) -> None:
    postgresql.run("CREATE DATABASE again")
    url = postgresql.url("again")
    upgrade(url)
    with opened(url) as store:
        add_image(store)
        postgresql.stop()
        with pytest.raises(DatabaseUnreachable):
            store.images.list()
        postgresql.start()
        assert [image.name for image in store.images.list()] == ["office"]


def test_hosts(store: Store) -> None:
    add_host(store, "gpu02")
    host = add_host(store, "gpu01")
    assert [one.name for one in store.hosts.list()] == ["gpu01", "gpu02"]
    with pytest.raises(Exists, match="there is a host gpu01"):
        add_host(store, "gpu01", machine="other")
    with pytest.raises(Exists, match="in the fleet as host gpu01"):
        add_host(store, "gpu03", machine="machine-gpu01")
    first, draining = host.generation, FleetHostState.DRAINING
    changed = store.hosts.change("gpu01", "ada", state=draining, labels={"site": "b"}, if_generation=first)
    assert (changed.generation, changed.state, changed.labels) == (first + 1, "draining", {"site": "b"})
    with pytest.raises(Stale):
        store.hosts.change("gpu01", "ada", state=FleetHostState.ACTIVE, if_generation=first)
    store.hosts.hold(host.id, "another machine")
    assert store.hosts.find("gpu01").held == "another machine"
    store.hosts.remove("gpu02", "ada")
    with pytest.raises(NotFound):
        store.hosts.find("gpu02")
    kinds = [(event.kind, event.actor) for event in store.journal.list()]
    assert kinds[2:] == [("host-changed", "ada"), ("host-held", "controller"), ("host-removed", "ada")]
    store.hosts.remove("gpu01", "ada")
    assert add_host(store, "gpu01").generation > changed.generation, "who has seen the former one changes nothing"


def test_a_lease_has_one_holder(store: Store) -> None:
    host = add_host(store)
    first = store.hosts.take_lease(host.id, "one", 60.0)
    assert first is not None
    assert store.hosts.take_lease(host.id, "two", 60.0) is None
    again = store.hosts.take_lease(host.id, "one", 60.0)
    assert again is not None
    assert again.epoch == first.epoch
    store.hosts.drop_lease(host.id, "two")
    assert store.hosts.take_lease(host.id, "two", 60.0) is None
    store.hosts.drop_lease(host.id, "one")
    second = store.hosts.take_lease(host.id, "two", 60.0)
    assert second is not None
    assert second.epoch == first.epoch + 1
    store.hosts.renew_leases("one", 60.0)
    assert store.hosts.leases()[host.id].holder == "two"
    store.hosts.drop_lease(host.id, "two")
    third = store.hosts.take_lease(host.id, "two", 60.0)
    assert third is not None
    assert third.epoch == second.epoch + 1, "nobody knows what happened meanwhile"


def test_pools_and_images(store: Store) -> None:
    image = add_image(store)
    pool = add_pool(store)
    assert store.pools.find("office") == pool
    spec = parse_pool(SPEC, "spec")
    assert store.pools.put("office", spec, "ada")[1].changed is False
    with pytest.raises(InvalidInput, match="office-001 could be a desktop of this pool and of pool office"):
        store.pools.put("lab", spec, "ada")
    with pytest.raises(NotFound, match="there is no image none"):
        add_pool(store, "lab", names="lab-{}", image="none")
    with pytest.raises(Refused, match="its kind cannot change"):
        add_pool(store, kind="dedicated")
    with pytest.raises(Refused, match="is used by pools office"):
        store.images.delete("office", "ada")
    assert store.images.put(image, "ada")[1].changed is False
    paused = store.pools.set_state("office", PoolState.PAUSED, "new storage", "ada")
    assert (paused.state, paused.reason, paused.generation) == ("paused", "new storage", 2)
    store.pools.delete("office", "ada")
    assert store.pools.forget(pool.id)
    store.images.delete("office", "ada")
    assert store.images.list() == ()


def test_an_image_of_desktops_keeps_its_file(store: Store) -> None:
    with_desktops(store, 1)
    with pytest.raises(Refused, match="desktops are made of image office"):
        add_image(store, path="/srv/other.qcow2")


def test_a_user_gets_a_desktop_that_is_ready_and_clean(store: Store) -> None:
    pool, host_id, epoch = with_desktops(store, 2)
    desktop, is_new = store.desktops.assign("office", "ada", "test")
    assert (desktop.name, desktop.user, desktop.generation, is_new) == ("office-001", "ada", 2, True)
    assert not desktop.handed_out
    assert store.desktops.assign("office", "ada", "test")[1] is False
    report_all(store, host_id, epoch)
    assert store.desktops.find("office-001").handed_out
    assert store.desktops.assign("office", "bob", "test")[0].name == "office-002"
    with pytest.raises(NoCapacity, match="2 of 6 exist, 2 have users"):
        store.desktops.assign("office", "eve", "test")
    released, changed = store.desktops.release("office-001", "test")
    assert changed
    assert (released.user, released.generation, released.handed_out) == (None, 3, False)
    with pytest.raises(NoCapacity):
        store.desktops.assign("office", "eve", "test")
    report_all(store, host_id, epoch)
    assert store.desktops.assign("office", "eve", "test")[0].name == "office-001"
    assert pool.name == "office"


@pytest.mark.parametrize(
    "report",
    [
        {"dirty": True},
        {"ready": False},
        {"generation": 0},
        {"user": "eve"},
        {"code": "logged-on"},
        {"exists": False},
        {},
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "row", [{}, {"errors": 3}, {"power_on": False}, {"absent": True}, {"restart_at": 9e9}, {"restart_at": 1e9},
            {"restart_at": 9e9, "restart_error": "no"}],
)  # fmt: skip
def test_the_query_and_the_plan_agree_on_who_can_be_given_to_a_user(
    store: Store, report: dict[str, object], row: dict[str, object]
) -> None:
    pool, host_id, epoch = with_desktops(store, 1)
    (desktop,) = store.desktops.of_host(host_id)
    usual: dict[str, object] = {"exists": True, "state": "running", "generation": 1, "ready": True}
    store.desktops.report(host_id, store.holder, epoch, {desktop.id: DesktopReport(**{**usual, **report})})
    if row:
        with store.database.write() as connection:
            connection.execute(schema.desktop.update().values(**row))
    with store.database.write() as connection:
        now = store.database.now(connection)
    (desktop,) = store.desktops.of_host(host_id)
    can_be_given = not report and (not row or row in ({"restart_at": 1e9}, {"restart_at": 9e9, "restart_error": "no"}))
    assert is_assignable(desktop, pool, store.hosts.find("gpu01"), now) is can_be_given
    if can_be_given:
        assert store.desktops.assign("office", "ada", "test")[1]
    else:
        with pytest.raises(NoCapacity):
            store.desktops.assign("office", "ada", "test")


def test_a_desktop_of_a_host_that_is_held_or_silent_is_nobodys(store: Store) -> None:
    _, host_id, _ = with_desktops(store, 1)
    store.hosts.hold(host_id, "another machine")
    with pytest.raises(NoCapacity):
        store.desktops.assign("office", "ada", "test")
    store.hosts.hold(host_id, None)
    with store.database.write() as connection:
        connection.execute(schema.host.update().values(seen_at=store.database.now(connection) - 46))
    with pytest.raises(NoCapacity):
        store.desktops.assign("office", "ada", "test")


def silence(store: Store, *host_ids: str, seconds: float = 46.0) -> None:
    """Have these hosts not answered for so long."""
    with store.database.write() as connection:
        seen_at = store.database.now(connection) - seconds
        connection.execute(schema.host.update().where(schema.host.c.id.in_(host_ids)).values(seen_at=seen_at))


@pytest.mark.parametrize("kind", ["floating", "dedicated"])
def test_who_asks_again_while_his_host_is_silent(store: Store, kind: str) -> None:
    pool, host_id, epoch = with_desktops(store, 2, kind=kind)
    first, _ = store.desktops.assign("office", "ada", "test")
    report_all(store, host_id, epoch)
    silence(store, host_id)
    assert store.desktops.assign("office", "ada", "test") == (store.desktops.find(first.name), False), "none is ready"
    other = add_host(store, "gpu02")
    store.desktops.tick(pool.id, lambda *_: numbered(1, 3))
    (third,) = store.desktops.unplaced()
    store.rooms.set(other.id, ROOM)
    assert store.desktops.place(third.id, other.id, "A100-4C", 1)
    lease = store.hosts.take_lease(other.id, store.holder, 60.0)
    assert lease is not None
    report_all(store, other.id, lease.epoch)
    second, is_new = store.desktops.assign("office", "ada", "test")
    if kind == "dedicated":
        assert (second.id, is_new) == (first.id, False), "her files are there"
        return
    assert (second.name, second.user, is_new) == ("office-003", "ada", True)
    old = store.desktops.find(first.name)
    assert old.user == "ada", "nobody knows what happens there"
    assert old.report is not None
    assert (old.report.superseded, old.report.user) == (True, "ada")
    assert store.desktops.assign("office", "ada", "test") == (second, False)
    store.pools.set_state("office", PoolState.PAUSED, None, "test")
    assert store.desktops.assign("office", "ada", "test") == (second, False)
    silence(store, other.id)
    assert store.desktops.assign("office", "ada", "test")[1] is False, "a pause does not take hers away"
    silence(store, host_id, seconds=0.0)
    assert store.desktops.assign("office", "ada", "test")[0].name == first.name


def test_a_paused_pool_gives_no_desktop(store: Store) -> None:
    with_desktops(store, 1)
    store.pools.set_state("office", PoolState.PAUSED, "new storage", "test")
    with pytest.raises(Refused, match="new storage"):
        store.desktops.assign("office", "ada", "test")
    with pytest.raises(NotFound):
        store.desktops.assign("none", "ada", "test")


def test_reports_of_a_former_holder_are_not_stored(store: Store) -> None:
    _, host_id, epoch = with_desktops(store, 1)
    store.hosts.drop_lease(host_id, store.holder)
    assert store.hosts.take_lease(host_id, "other", 60.0)
    assert report_all(store, host_id, epoch, address="192.0.2.1") is False
    assert store.desktops.find("office-001").report.address is None


def test_a_host_without_a_change_costs_no_write(store: Store) -> None:
    _, host_id, epoch = with_desktops(store, 3)
    writes = count_writes(store)
    assert report_all(store, host_id, epoch, seen_at=5.0)
    store.rooms.set(host_id, ROOM)
    host = store.hosts.find("gpu01")
    facts = AgentFacts(host.machine_id or "", host.boot_id, host.driver, host.agent_version or "")
    store.hosts.note_seen(host, facts, store.now())
    store.desktops.tick(store.pools.find("office").id, lambda *_: PoolChanges())
    assert writes() == 0
    report_all(store, host_id, epoch, address="192.0.2.1")
    assert writes() > 0


def count_writes(store: Store) -> Callable[[], int]:
    """Return a function that says how many statements changed something since."""
    statements: list[str] = []
    event.listen(
        store.database.engine,
        "before_cursor_execute",
        lambda conn, cursor, statement, *_: statements.append(statement.split(None, 1)[0].upper()),
    )
    return lambda: sum(word in ("INSERT", "UPDATE", "DELETE") for word in statements)


def test_an_absent_desktop_is_forgotten_when_its_host_says_that_the_vm_is_gone(store: Store) -> None:
    _, host_id, epoch = with_desktops(store, 1)
    desktop = store.desktops.delete("office-001", "test")
    report_all(store, host_id, epoch)
    assert store.desktops.find("office-001").absent
    store.desktops.report(host_id, store.holder, epoch, {desktop.id: DesktopReport(exists=False)})
    assert store.desktops.list() == ()
    assert store.journal.list()[-1].kind == "desktop-deleted"


def versions(store: Store) -> dict[str, int]:
    return {host_id: one.version for host_id, one in store.rooms.list()[0].items()}


def test_of_two_that_counted_the_same_room_one_places(store: Store) -> None:
    add_image(store)
    pool = add_pool(store)
    host = add_host(store)
    store.desktops.tick(pool.id, lambda *_: numbered(2))
    store.rooms.set(host.id, ROOM)
    first, second = store.desktops.unplaced()
    assert store.desktops.place(first.id, host.id, "A100-4C", 1)
    assert not store.desktops.place(second.id, host.id, "A100-4C", 1)
    assert not store.desktops.place(first.id, host.id, "A100-4C", 2), "it has a host"
    assert not store.desktops.place(second.id, "none", "A100-4C", 1)
    with pytest.raises(Refused, match="gpu01 has desktops: office-001"):
        store.hosts.remove("gpu01", "test")
    store.desktops.unplace(first.id)
    assert len(store.desktops.unplaced()) == 2
    assert store.desktops.place(second.id, host.id, "A100-4C", 2)


def test_a_room_is_what_its_host_said_with_what_is_on_its_way(store: Store) -> None:
    add_image(store)
    pool, host = add_pool(store), add_host(store)
    store.desktops.tick(pool.id, lambda *_: numbered(2))
    assert store.rooms.list() == ({}, ())
    store.rooms.set(host.id, ROOM)
    assert store.rooms.list() == ({host.id: StoredRoom(ROOM, 1)}, ())
    writes = count_writes(store)
    store.rooms.set(host.id, ROOM)
    assert writes() == 0
    first, second = store.desktops.unplaced()
    assert store.desktops.place(first.id, host.id, "A100-4C", 1)
    assert store.desktops.place(second.id, host.id, "passthrough", 2)
    way = [(host.id, pool.id, "office-001", "A100-4C"), (host.id, pool.id, "office-002", "passthrough")]
    assert store.rooms.list() == ({host.id: StoredRoom(ROOM, 3)}, tuple(way))
    store.rooms.set(host.id, replace(ROOM, memory_mib=7))
    assert versions(store) == {host.id: 4}
    lease = store.hosts.take_lease(host.id, store.holder, 60.0)
    assert lease is not None
    report_all(store, host.id, lease.epoch)
    assert store.rooms.list()[1] == ()


def test_a_profile_is_refused_for_a_minute_or_until_its_gpus_change(store: Store) -> None:
    host = add_host(store)
    store.rooms.refuse(host.id, "A100-4C", "no room")  # it said nothing yet
    store.rooms.set(host.id, ROOM)
    store.rooms.refuse(host.id, "A100-4C", "no room")
    store.rooms.refuse(host.id, "A100-8C", "x" * 1000)
    store.rooms.set(host.id, ROOM)
    refused = {"A100-4C": "no room", "A100-8C": "x" * 300}
    assert store.rooms.list()[0][host.id] == StoredRoom(ROOM, 3, refused)
    store.rooms.set(host.id, replace(ROOM, memory_mib=7, storage_mib={}))
    assert store.rooms.list()[0][host.id].refused == refused, "that says nothing of why"
    store.rooms.set(host.id, replace(ROOM, gpus=()))
    assert store.rooms.list()[0][host.id].refused == {}
    store.rooms.refuse(host.id, "A100-4C", "no room")
    assert store.rooms.list()[0][host.id].refused == {"A100-4C": "no room"}
    with store.database.write() as connection:
        values = {"refused": '{"A100-4C": [1.0, "a"], "A100-8C": [1e12, "b"]}'}
        connection.execute(schema.host_room.update().values(**values))
    assert store.rooms.list()[0][host.id].refused == {"A100-8C": "b"}
    store.rooms.refuse(host.id, "VF", "c")
    assert store.rooms.list()[0][host.id].refused == {"A100-8C": "b", "VF": "c"}


def test_a_room_that_is_too_large_is_none(store: Store) -> None:
    host = add_host(store)
    store.rooms.set(host.id, replace(ROOM, storage_mib={f"pool-{n}": 1 for n in range(100_000)}))
    assert store.rooms.list()[0][host.id].room == NO_ROOM


def test_desktops_that_fit_nowhere_are_not_in_the_way_of_other_pools(store: Store) -> None:
    add_image(store)
    large = add_pool(store, "large", maximum=600, names="large-{:03}", kind="fixed", spare=None)
    small = add_pool(store, "small", maximum=1, names="small-{:03}", kind="fixed", spare=None)
    store.desktops.tick(large.id, lambda *_: replace(numbered(600), create=tuple(
        replace(one, name=f"large-{n:03}") for n, one in enumerate(numbered(600).create)
    )))  # fmt: skip
    store.desktops.tick(small.id, lambda *_: PoolChanges((NewDesktop("small-001", "52:54:00:01:00:00"),)))
    waiting = store.desktops.unplaced()
    assert Counter(one.pool_id for one in waiting) == {large.id: 500, small.id: 1}


def test_the_room_of_an_older_program_counts_as_none(store: Store) -> None:
    host = add_host(store)
    store.rooms.set(host.id, ROOM)
    with store.database.write() as connection:
        connection.execute(schema.host_room.update().values(room='{"free": 3}'))
    room = store.rooms.list()[0][host.id].room
    assert (room.gpus, room.memory_mib) == ((), None)


def test_who_waits_in_line_lets_others_pass(store: Store) -> None:
    inside, leave = threading.Semaphore(0), threading.Event()

    def read() -> None:
        store.database.wait_in_line()
        with store.database.read():
            inside.release()
            assert leave.wait(60)

    threads = [threading.Thread(target=read) for _ in range(2 * LINE)]
    for thread in threads:
        thread.start()
    for _ in range(LINE):
        assert inside.acquire(timeout=60)
    assert store.now() > 0, "a thread that is not in line"
    assert not inside.acquire(blocking=False), "no more than so many at a time"
    leave.set()
    for thread in threads:
        thread.join(60)
    for _ in range(LINE):
        assert inside.acquire(timeout=60)


def test_too_many_transactions_are_an_error_that_passes(store: Store) -> None:
    busy = create_engine(store.database.url, pool_size=1, max_overflow=0, pool_timeout=0.01)
    store.database.engine, own = busy, store.database.engine
    try:
        with store.database.read(), pytest.raises(DatabaseUnreachable, match="connections of this controller"):
            store.pools.list()
    finally:
        store.database.engine = own
        busy.dispose()
    assert store.pools.list() == ()


def test_a_mac_address_that_is_taken_is_not_given_again(store: Store) -> None:
    add_image(store)
    pool = add_pool(store)
    store.desktops.tick(pool.id, lambda *_: numbered(2))
    taken = store.desktops.macs()
    (first, second), made = sorted(taken), iter([*sorted(taken), "52:54:00:00:00:00", *sorted(taken)])
    assert unused_mac(taken, made.__next__) == "52:54:00:00:00:00"
    assert taken == {first, second, "52:54:00:00:00:00"}


def test_an_error_waits_longer_each_time_and_a_success_ends_that(store: Store) -> None:
    _, host_id, _ = with_desktops(store, 1)
    (desktop,) = store.desktops.of_host(host_id)
    waits = []
    for _ in range(3):
        store.desktops.note_error(desktop.id, "host-cannot", "no libvirt", "systemctl start libvirtd")
        waits.append(store.desktops.find("office-001").not_before - store.now())
    assert waits == sorted(waits)
    assert waits[-1] > 15
    assert store.desktops.find("office-001").errors == 3
    store.desktops.note_success(desktop.id)
    after = store.desktops.find("office-001")
    assert (after.errors, after.not_before, after.report.code) == (0, 0.0, None)


def test_what_waits_for_a_person_is_no_error_and_is_noted_once(store: Store) -> None:
    _, host_id, _ = with_desktops(store, 1)
    (desktop,) = store.desktops.of_host(host_id)
    for _ in range(20):
        store.desktops.note_error(desktop.id, "needs-blob", "no blob", "djoin", counts=False)
    waiting = store.desktops.find("office-001")
    assert (waiting.errors, waiting.report.code, waiting.report.hint) == (0, "needs-blob", "djoin")
    assert 55 < waiting.not_before - store.now() <= 60
    assert [entry.kind for entry in store.journal.list()].count("desktop-delayed") == 1


def test_resuming_a_pool_forgets_its_errors(store: Store) -> None:
    _, host_id, _ = with_desktops(store, 1)
    (desktop,) = store.desktops.of_host(host_id)
    store.desktops.note_error(desktop.id, "host-cannot", "no libvirt", None)
    store.pools.set_state("office", PoolState.PAUSED, None, "test")
    store.pools.set_state("office", PoolState.ACTIVE, None, "test")
    assert store.desktops.find("office-001").errors == 0


def crash(store: Store, host_id: str, epoch: int) -> Desktop:
    """Report that a desktop stopped too often."""
    (desktop,) = store.desktops.of_host(host_id)
    report = DesktopReport(
        exists=True, state="stopped", generation=1, code="crashes", error="4 times", crashes=(1.0, 2.0, 3.0, 4.0)
    )
    assert store.desktops.report(host_id, store.holder, epoch, {desktop.id: report})
    assert store.journal.list()[-1].kind == "desktop-failed"
    return store.desktops.find("office-001")


def test_who_starts_a_desktop_or_resumes_its_pool_forgets_its_crashes(store: Store) -> None:
    _, host_id, epoch = with_desktops(store, 1)
    crash(store, host_id, epoch)
    assert store.desktops.set_power("office-001", "test", on=True)[1]
    report = store.desktops.find("office-001").report
    assert report is not None
    assert (report.code, report.error, report.crashes) == (None, None, ())
    assert not store.desktops.set_power("office-001", "test", on=True)[1]
    crash(store, host_id, epoch)
    store.pools.set_state("office", PoolState.PAUSED, None, "test")
    store.pools.set_state("office", PoolState.ACTIVE, None, "test")
    report = store.desktops.find("office-001").report
    assert report is not None
    assert (report.code, report.crashes) == (None, ())


def test_a_report_of_before_does_not_undo_what_was_noted_since(store: Store) -> None:
    _, host_id, epoch = with_desktops(store, 1)
    looked_at = store.desktops.of_host(host_id)
    crash(store, host_id, epoch)
    running = DesktopReport(exists=True, state="running", generation=1, ready=True, address="192.0.2.1")
    stale = {looked_at[0].id: running}
    assert store.desktops.report(host_id, store.holder, epoch, stale, looked_at)
    report = store.desktops.find("office-001").report
    assert report is not None
    assert (report.code, report.address) == ("crashes", None)
    assert store.desktops.report(host_id, store.holder, epoch, stale, store.desktops.of_host(host_id))
    report = store.desktops.find("office-001").report
    assert report is not None
    assert report.address == "192.0.2.1"


def test_tokens_are_digests_that_expire(store: Store) -> None:
    store.tokens.add("ansible", Role.OPERATOR, "a" * 64, None, "root")
    store.tokens.add("old", Role.ADMIN, "b" * 64, -1.0, "root")
    with pytest.raises(Exists):
        store.tokens.add("ansible", Role.ADMIN, "c" * 64, None, "root")
    token = store.tokens.find("a" * 64)
    assert token is not None
    assert (token.name, token.role) == ("ansible", Role.OPERATOR)
    assert store.tokens.find("b" * 64) is None
    store.tokens.delete("ansible", "root")
    assert store.tokens.find("a" * 64) is None
    assert "a" * 64 not in str(store.journal.list())


def test_tokens_of_people(store: Store) -> None:
    store.people.put("ada", "root")
    tokens = store.personal_tokens
    for number in range(5):
        tokens.add("ada", f"t{number}", str(number) * 64, 30, "ada")
    with pytest.raises(Exists):
        tokens.add("ada", "t0", "a" * 64, 30, "ada")
    with pytest.raises(Refused, match="you have 5 tokens, and nobody has more"):
        tokens.add("ada", "t5", "a" * 64, 30, "ada")
    tokens.delete("ada", "t0", "ada")
    tokens.add("ada", "old", "a" * 64, 0, "ada")
    assert tokens.caller("a" * 64) is None, "it has expired"
    tokens.add("ada", "t5", "b" * 64, 30, "ada")
    assert [one.name for one in tokens.list("ada")] == ["t1", "t2", "t3", "t4", "t5"]
    caller = tokens.caller("b" * 64)
    assert caller is not None
    assert (caller.name, caller.kind, caller.token) == ("ada", CallerKind.PERSON, "t5")
    store.people.put("ada", "root", disabled=True)
    assert tokens.caller("b" * 64) is None
    store.people.put("ada", "root", disabled=False, realm=Realm.OIDC)
    assert tokens.list() == (), "who signs in elsewhere may be somebody else"
    tokens.add("ada", "t1", "c" * 64, 30, "ada")
    with pytest.raises(NotAllowed, match="ada has not signed in for 7 days"):
        tokens.caller("c" * 64)
    store.people.sign_in("ada", Realm.OIDC, "d" * 64, 60.0, "10.0.0.1", groups=("cad",))
    assert tokens.caller("c" * 64) is not None
    with store.database.write() as connection:
        connection.execute(schema.person.update().values(signed_in_at=store.database.now(connection) - 7 * 86400))
    with pytest.raises(NotAllowed):
        tokens.caller("c" * 64)
    store.people.delete("ada", "root")
    assert tokens.list() == ()
    assert not any(letter * 64 in str(store.journal.list()) for letter in "abc")


def test_a_key_belongs_to_one_request(store: Store) -> None:
    store.answers.keep("ansible", "k", KnownAnswer("d1", 200, "{}"))
    assert store.answers.find("ansible", "k", "d1") == KnownAnswer("d1", 200, "{}")
    assert store.answers.find("other", "k", "d2") is None
    with pytest.raises(Refused, match="belongs to another request"):
        store.answers.find("ansible", "k", "d2")


def test_the_journal_goes_on_after_an_entry(store: Store) -> None:
    for number in range(5):
        store.tokens.add(f"t{number}", Role.VIEWER, str(number) * 64, None, "root")
    last_two = store.journal.list(limit=2)
    assert [event.text for event in last_two] == ["t3: viewer", "t4: viewer"]
    assert [event.text for event in store.journal.list(after=last_two[0].id)] == ["t4: viewer"]


def add_events(store: Store, ages_days: list[float]) -> None:
    with store.database.write() as connection:
        now = store.database.now(connection)
        rows = [{"at": now - days * 86400, "kind": "k", "text": f"{days}", "actor": "test"} for days in ages_days]
        connection.execute(schema.event.insert(), rows)


def prune(store: Store, limits: JournalLimits) -> int:
    """Prune until there is nothing more; return in how many transactions."""
    return next(count for count in range(1, 100) if not store.journal.prune(limits))


def test_old_events_go_a_thousand_at_a_time(store: Store) -> None:
    assert prune(store, JournalLimits()) == 1, "there are none"
    add_events(store, [100.0] * 2500 + [91.0, 89.0, 1.0])
    assert prune(store, JournalLimits()) == 3
    assert [event.text for event in store.journal.list()] == ["89.0", "1.0"]
    assert prune(store, JournalLimits(days=LEAST_EVENT_DAYS)) == 1
    assert [event.text for event in store.journal.list()] == ["1.0"]


def test_of_many_events_the_oldest_go_but_all_of_the_last_days_stay(store: Store) -> None:
    add_events(store, [60.0, 50.0, 8.0, *[1.0] * 20])
    assert prune(store, JournalLimits(entries=21)) == 1
    assert [event.text for event in store.journal.list()][:3] == ["8.0", "1.0", "1.0"]
    assert prune(store, JournalLimits(entries=5)) == 1
    assert [event.text for event in store.journal.list()] == ["1.0"] * 20
    now = store.now()
    with store.database.write() as connection:
        statement = schema.event.insert().values(at=now - LEAST_EVENT_DAYS * 86400 - 0.5, kind="k", text="x", actor="t")
        connection.execute(statement)
    assert prune(store, JournalLimits(days=LEAST_EVENT_DAYS)) == 1, "the triggers have whole seconds"


def test_the_last_entry_stays_so_that_ids_grow(store: Store) -> None:
    add_events(store, [200.0, 200.0])
    last = store.journal.list()[-1].id
    prune(store, JournalLimits())
    (kept,) = store.journal.list()
    assert (kept.text, kept.id) == ("200.0", last)


def test_what_contradicts_the_database_is_handed_out_to_nobody(store: Store) -> None:
    _, host_id, epoch = with_desktops(store, 1)
    store.desktops.assign("office", "ada", "test")
    report_all(store, host_id, epoch)
    assert store.desktops.find("office-001").handed_out
    report_all(store, host_id, epoch, code="record-newer", error="its generation is newer")
    assert not store.desktops.find("office-001").handed_out


def test_two_hundred_users_with_two_tabs_get_120_desktops(url: str) -> None:
    upgrade(url)
    with opened(url) as store, opened(url) as other:
        with_desktops(store, 120)
        granted: Counter[str] = Counter()
        refused: list[str] = []
        lock = threading.Lock()

        def ask(number: int) -> None:
            user = f"user{number % 200}"
            try:
                desktop, _ = (store if number % 2 else other).desktops.assign("office", user, "test")
            except NoCapacity:
                with lock:
                    refused.append(user)
                return
            with lock:
                granted[f"{user} {desktop.name}"] += 1

        with ThreadPoolExecutor(16) as threads:
            list(threads.map(ask, range(400)))
        users = [key.split()[0] for key in granted]
        names = [key.split()[1] for key in granted]
        assert len(granted) == len(set(users)) == len(set(names)) == 120
        assert not set(refused) & set(users), "who has a desktop is never told that none is free"


def test_several_controllers_never_make_too_many_desktops(url: str) -> None:
    upgrade(url)
    with opened(url) as store:
        add_image(store)
        pool = add_pool(store, maximum=20, spare=20)

    def plan(_: Pool, desktops: tuple[Desktop, ...], __: float) -> PoolChanges:
        taken = {one.name for one in desktops}
        free = [n for n in range(1, 21) if f"office-{n:03}" not in taken][:3]
        return PoolChanges(tuple(new for n in free for new in numbered(1, n).create))

    def tick(_: int) -> None:
        with opened(url) as own:
            for _ in range(5):
                own.desktops.tick(pool.id, plan)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(tick, range(4)))
    with opened(url) as store:
        assert [one.name for one in store.desktops.list()] == [f"office-{n:03}" for n in range(1, 21)]
