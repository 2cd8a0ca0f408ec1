# SPDX-License-Identifier: Apache-2.0
"""What a look at a host costs when nothing happens, counted; and that it misses nothing all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.controller.conftest import IMAGE, add_host, add_image, add_pool, facts, opened, wait_until
from tests.controller.test_scale import ready, working
from tests.controller.thin_host import ThinCalls, ThinHosts, ThinVgpu, ThinVm
from vgpuctl.controller.clock import SteppedClock
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.host_rows import SEEN_SECONDS
from vgpuctl.controller.database.host_view import HostView
from vgpuctl.controller.database.store import DatabaseNewer, DatabaseReplaced, Store, open_store, upgrade
from vgpuctl.controller.hosts.image_sender import ImageSender
from vgpuctl.controller.hosts.runner import HostRunner
from vgpuctl.controller.hosts.share import HostShare
from vgpuctl.controller.model import DesktopReport, FleetHost, HostImage, NewDesktop, PoolChanges, PoolState
from vgpuctl.errors import NotFound
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.image_copy import CopyState
from vgpuctl.value import replace

DESKTOPS = 8
WRITES = ("INSERT", "UPDATE", "DELETE")


class Counts:
    """The statements and transactions of a store since it was asked last."""

    def __init__(self, store: Store) -> None:
        self.statements: list[str] = []
        self.transactions = 0
        event.listen(store.database.engine, "before_cursor_execute", self._note_statement)
        event.listen(store.database.engine, "begin", self._note_transaction)

    def _note_statement(self, _: object, __: object, statement: str, *___: object) -> None:
        if not statement.startswith("BEGIN"):
            self.statements.append(statement)

    def _note_transaction(self, _: object) -> None:
        self.transactions += 1

    def take(self) -> tuple[int, int, list[str]]:
        """Return how many transactions and statements there were, and the statements that write."""
        writes = [one for one in self.statements if one.split(None, 1)[0] in WRITES or "FOR NO KEY UPDATE" in one]
        result = self.transactions, len(self.statements), writes
        self.statements, self.transactions = [], 0
        return result


def quiet_runner(store: Store, directory: Path) -> HostRunner:
    """Return the loop of a host with desktops that are all ready; it does not run by itself."""
    hosts = ThinHosts(directory / "hosts")
    host = add_host(store, hosts.add("gpu01").name)
    add_image(store)
    add_pool(store, maximum=DESKTOPS, spare=DESKTOPS, starts_per_host=DESKTOPS)
    with working(store, hosts):
        wait_until(lambda: ready(store) == DESKTOPS, "the desktops")
    share = HostShare(store.clock)
    share.set_hosts(1)
    runner = HostRunner(store, host, hosts.link, ImageSender(), share)
    for _ in range(3):  # it takes the host, has it obey, and looks
        assert runner._turn() is not None
    return runner


def test_a_quiet_look_is_one_transaction_of_four_statements(store: Store, tmp_path: Path) -> None:
    runner = quiet_runner(store, tmp_path)
    counts = Counts(store)
    for _ in range(3):
        assert (runner._turn() or 0) > 10, "nothing is to do soon"
        assert counts.take() == (1, 4, [])
    runner._room_read_at = 0.0
    runner._turn()
    assert counts.take() == (2, 5, []), "what the host has room for is compared now and then"


def test_a_look_at_a_host_of_another_controller_is_one_statement(store: Store, tmp_path: Path) -> None:
    runner = quiet_runner(store, tmp_path)
    store.hosts.drop_lease(runner.host_id, store.holder)
    assert store.hosts.take_lease(runner.host_id, "another", 300.0) is not None
    runner._turn()
    counts = Counts(store)
    runner._turn()
    assert counts.take() == (1, 1, [])


def test_a_busy_look_writes_and_reads_the_pools_again(store: Store, tmp_path: Path) -> None:
    runner = quiet_runner(store, tmp_path)
    counts = Counts(store)
    add_pool(store, maximum=DESKTOPS, spare=0, starts_per_host=DESKTOPS)
    counts.take()
    runner._turn()
    assert counts.take() == (1, 6, []), "pools and images again, once"
    runner._turn()
    assert counts.take() == (1, 4, [])
    store.desktops.assign("office", "ada", "test")
    runner._turn()
    wait_until(lambda: not runner._calls.running, "its mark")
    counts.take()
    runner._turn()
    _, _, writes = counts.take()
    assert any("UPDATE desktop" in one for one in writes), "its report"


@pytest.fixture
def host(store: Store) -> FleetHost:
    result = add_host(store)
    assert store.hosts.take_lease(result.id, store.holder, 300.0) is not None
    return result


def view(store: Store, host: FleetHost) -> HostView:
    result = store.view_host(host.id)
    assert result is not None
    return result


def test_a_view_has_all_that_a_look_needs(store: Store, host: FleetHost) -> None:
    image, pool = add_image(store), add_pool(store)
    other = add_host(store, "gpu02")
    before = view(store, host)
    assert before.host == store.hosts.find("gpu01")
    assert (before.incarnation, before.version) == (store.incarnation, store.version)
    assert (before.pools, before.images) == ({pool.id: pool}, {image.id: image})
    assert (before.restored, before.stop_at) == (store.restored.state(), None)
    lease = before.own_lease(store.holder)
    assert lease == store.hosts.leases()[host.id]
    assert abs(before.now - store.now()) < 60
    copy = HostImage(host.id, image.id, image.path, True, CopyState.READY)
    for one in (copy, replace(copy, host_id=other.id)):
        store.host_images.put(one)
    store.hosts.begin_maintenance("gpu01", 5, "test")
    after = view(store, host)
    assert after.host_images == (copy,)
    assert after.stop_at == store.hosts.stop_at(host.id)
    assert view(store, other).lease is None
    assert view(store, other).is_free
    store.hosts.remove("gpu02", "test")
    assert store.view_host(other.id) is None


def test_who_does_not_have_the_host_gets_no_more_than_that(store: Store, host: FleetHost) -> None:
    add_image(store)
    add_pool(store)
    others = store.views.read(host.id, "another")
    assert others is not None
    assert not others.is_free
    assert others.own_lease("another") is None
    assert (others.desktops, others.pools, others.images) == ((), {}, {})
    store.hosts.drop_lease(host.id, store.holder)
    assert view(store, host).is_free
    assert view(store, host).pools == {}


@pytest.fixture
def second(url: str, store: Store) -> Iterator[Store]:
    """Another controller's store on the same database."""
    with opened(url) as result:
        yield result


def test_what_another_controller_changes_of_pools_and_images_is_seen(
    store: Store, second: Store, host: FleetHost
) -> None:
    def check() -> None:
        seen = view(store, host)
        assert list(seen.pools.values()) == list(second.pools.list())
        assert sorted(seen.images) == sorted(one.id for one in second.images.list())
        assert all(seen.images[one.id] == one for one in second.images.list())

    check()
    add_image(second)
    check()
    add_pool(second)
    check()
    add_pool(second, maximum=7)
    check()
    second.images.put(replace(second.images.find("office"), version="2"), "test")
    check()
    second.pools.set_state("office", PoolState.PAUSED, "a test", "test")
    check()
    second.pools.set_state("office", PoolState.ACTIVE, None, "test")
    check()
    gone = second.pools.delete("office", "test")
    check()
    assert second.pools.forget(gone.id)
    check()
    add_pool(second)
    check()
    second.pools.forget(second.pools.delete("office", "test").id)
    second.images.delete("office", "test")
    check()
    assert view(store, host).pools == {}


def test_a_database_that_was_upgraded_or_restored_is_noticed_by_a_look(store: Store, host: FleetHost) -> None:
    meta = schema.meta
    with store.database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseNewer):
        store.view_host(host.id)
    with store.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{store.version}'")
        connection.execute(meta.update().where(meta.c.key == "incarnation").values(value="another"))
    with pytest.raises(DatabaseReplaced):
        store.view_host(host.id)


def test_when_a_host_was_seen_is_written_later_for_all_together(tmp_path: Path) -> None:
    clock = SteppedClock(1_000_000.0)
    url = f"sqlite:///{tmp_path}/fleet.db"
    upgrade(url)
    store = open_store(url, clock=clock)
    hosts = [add_host(store, name) for name in ("gpu01", "gpu02", "gpu03")]
    counts = Counts(store)

    def note(host: FleetHost, machine: str = "", problem: str | None = None) -> None:
        known = replace(store.hosts.find(host.name), problem=problem)
        store.hosts.note_seen(known, facts(machine or f"machine-{host.name}"), clock.now())

    def seen() -> list[float | None]:
        return [one.seen_at for one in store.hosts.list()]

    begin = clock.now()
    clock.advance(SEEN_SECONDS - 1)
    note(hosts[0])
    note(hosts[1])
    assert counts.take()[2] == []
    assert seen() == [begin] * 3
    store.hosts.store_seen()
    assert counts.take()[0] == 2, "one for reading, one for all hosts"
    assert seen() == [begin + SEEN_SECONDS - 1] * 2 + [begin]
    store.hosts.store_seen()
    assert counts.take() == (1, 1, []), "nothing new: only the test read"
    clock.advance(2)
    note(hosts[2])
    assert seen()[2] == clock.now(), "one that was not seen for long, at once"
    note(hosts[0], machine="new")
    assert store.hosts.find("gpu01").machine_id == "new", "and what it says of itself"
    note(hosts[1], problem="no route")
    assert seen() == [clock.now()] * 3, "and that it answers again"
    late = clock.now()
    note(hosts[1])
    clock.advance(5)
    with store.database.write() as connection:
        connection.execute(schema.host.update().values(seen_at=clock.now()))
    store.hosts.store_seen()
    assert seen() == [late + 5] * 3, "it never goes back"
    store.close()


def test_a_report_of_a_row_that_left_the_host_is_not_stored(store: Store, tmp_path: Path) -> None:
    runner = quiet_runner(store, tmp_path)
    before = view(store, store.hosts.find("gpu01"))
    one, two = before.desktops[:2]
    other = add_host(store, "gpu02")
    table = schema.desktop
    with store.database.write() as connection:
        connection.execute(table.update().where(table.c.id == one.id).values(host_id=other.id))
    lease = before.own_lease(store.holder)
    assert lease is not None
    reports = {row.id: DesktopReport(True, address="192.0.2.7") for row in (one, two)}
    assert store.desktops.report(runner.host_id, lease.holder, lease.epoch, reports, before.desktops)
    rows = {row.id: row for row in store.desktops.list()}
    assert rows[one.id].report == one.report
    assert rows[two.id].report == reports[two.id]
    assert not store.desktops.report(runner.host_id, lease.holder, lease.epoch - 1, {one.id: reports[one.id]}, (one,))


def test_a_host_that_does_not_say_its_room_is_looked_at_all_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an agent that is older than its controller; what it said before counts."""
    runner = quiet_runner(store, tmp_path)
    before = store.rooms.list()
    asked: list[str] = []

    def fail(calls: ThinCalls) -> None:
        asked.append("room")
        raise NotFound("there is no such call")

    monkeypatch.setattr(ThinCalls, "read_room", fail)
    runner._room_read_at = 0.0
    assert (runner._turn() or 0) > 10
    assert (runner._turn() or 0) > 10
    assert asked == ["room"], "not again at each look"
    assert store.rooms.list() == before


def test_the_room_has_a_new_desktop_before_its_report_is_stored(store: Store, tmp_path: Path) -> None:
    """Another controller had it made, and died: it would count neither as there nor as on its way."""
    runner = quiet_runner(store, tmp_path)
    pool = store.pools.find("office")
    new = NewDesktop("office-999", "52:54:00:00:ff:ff")
    store.desktops.tick(pool.id, lambda *_: PoolChanges((new,)))
    (desktop,) = store.desktops.unplaced()
    before = store.rooms.list()[0][runner.host_id]
    assert store.desktops.place(desktop.id, runner.host_id, "A100-4C", before.version)
    (host,) = runner._connect.__self__.hosts.values()
    mark = DesktopMark(desktop.id, "office", store.incarnation, 1)
    vgpus = (ThinVgpu(next(iter(host.taken()))),)
    host.vms[desktop.id] = ThinVm(desktop.name, desktop.id, "running", 1, mark, IMAGE, vgpus=vgpus)
    runner._turn()
    rooms, on_their_way = store.rooms.list()
    assert on_their_way == ()
    assert rooms[runner.host_id].room != before.room
