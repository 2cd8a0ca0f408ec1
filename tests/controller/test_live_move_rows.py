# SPDX-License-Identifier: Apache-2.0
"""Which desktops of a drained host move where, and what the database has of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import event, text

from tests.controller.conftest import Server, add_host, opened, wait_until
from tests.controller.test_engine import ADMIN
from tests.controller.test_store import ROOM, report_all, with_desktops
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.store import Store, migrate, upgrade
from vgpuctl.controller.engine import connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.leaving import begin_moves
from vgpuctl.controller.model import Desktop, FleetHost, FleetHostState, HostImage
from vgpuctl.errors import InvalidInput, Refused
from vgpuctl.model.desktop import Fence
from vgpuctl.model.image_copy import CopyState
from vgpuctl.value import replace


def with_users(store: Store, count: int, **spec: object) -> Fence:
    """Have so many desktops in use on gpu01, which is drained live; return the fence of its lease."""
    _, host_id, epoch = with_desktops(store, count, kind="dedicated", **spec)
    for number in range(count):
        store.desktops.assign("office", f"user{number}", "test")
    report_all(store, host_id, epoch)
    store.hosts.change("gpu01", "test", state=FleetHostState.DRAINING, moves_live=True)
    return Fence(store.incarnation, epoch, store.holder)


def add_target(store: Store, name: str, *, has_image: bool = True) -> FleetHost:
    host = add_host(store, name)
    store.rooms.set(host.id, ROOM)
    (image,) = store.images.list()
    if has_image:
        store.host_images.put(HostImage(host.id, image.id, image.path, copied=False, state=CopyState.READY))
    return host


def begun_moves(store: Store) -> dict[str, str]:
    """Do what a tick does; return the names of the hosts to which desktops move."""
    begin_moves(store)
    names = {host.id: host.name for host in store.hosts.list()}
    return {one.name: names[one.moving_to] for one in store.desktops.list() if one.moving_to is not None}


def moving(store: Store, target: FleetHost) -> Desktop:
    """Have the first desktop move to a host."""
    (desktop, *_) = store.desktops.list()
    assert store.live_moves.begin(desktop, target.id, store.rooms.list()[0][target.id].version)
    return store.desktops.find(desktop.name)


def why(store: Store, name: str = "office-001") -> str | None:
    return FleetService(store, connect_host).show_desktop(ADMIN, name).data.why


def kinds(store: Store) -> list[str]:
    return [one.kind for one in store.journal.list() if one.kind.startswith("desktop-")]


def test_two_of_a_host_move_at_a_time(store: Store) -> None:
    fence = with_users(store, 4)
    target = add_target(store, "gpu02")
    assert begun_moves(store) == {"office-001": "gpu02", "office-002": "gpu02"}
    assert begun_moves(store) == {"office-001": "gpu02", "office-002": "gpu02"}
    coming = [one for one in store.rooms.list()[1] if one.host_id == target.id]
    assert [(one.name, one.profile) for one in coming] == [("office-001", "A100-4C"), ("office-002", "A100-4C")]
    store.live_moves.arrive(store.desktops.find("office-002"), fence, target, "alive")
    assert begun_moves(store) == {"office-001": "gpu02", "office-003": "gpu02"}
    assert why(store) == "moving to gpu02"


def test_two_controllers_begin_no_third_move(postgresql: Server) -> None:
    """One begins two moves while the other one waits for the host's row, and begins none."""
    postgresql.run("CREATE DATABASE live_moves")
    url = postgresql.url("live_moves")
    upgrade(url)
    waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with opened(url) as store, opened(url) as other, ThreadPoolExecutor(1) as threads:
        with_users(store, 3)
        target = add_target(store, "gpu02")
        version, third = other.rooms.list()[0][target.id].version, other.desktops.find("office-003")
        with store.database.write() as connection:
            connection.execute(text("SELECT id FROM host WHERE name = 'gpu01' FOR UPDATE"))
            moves = text("UPDATE desktop SET moving_to = :host WHERE name <> 'office-003'")
            connection.execute(moves, {"host": target.id})
            begun = threads.submit(other.live_moves.begin, third, target.id, version)
            wait_until(lambda: begun.done() or connection.execute(waits).scalar_one() == 1, "the other one waits")
        assert begun.result() is False


def test_one_without_a_place_says_why_and_that_is_written_once(store: Store) -> None:
    with_users(store, 1)
    add_target(store, "gpu02", has_image=False)
    add_target(store, "gpu03")
    store.hosts.change("gpu03", "test", state=FleetHostState.CORDONED)
    before, statements = kinds(store), list[str]()
    event.listen(store.database.engine, "before_cursor_execute", lambda c, cur, text, *_: statements.append(text))
    for writes in (1, 0):
        statements.clear()
        assert begun_moves(store) == {}
        assert sum(one.startswith("UPDATE") for one in statements) == writes
        reason = "no host can take it: gpu01: draining; gpu02: its image is not there; gpu03: cordoned"
        assert why(store) == reason
    assert kinds(store) == before
    store.hosts.change("gpu03", "test", state=FleetHostState.ACTIVE)
    assert begun_moves(store) == {"office-001": "gpu03"}


@pytest.mark.parametrize(
    "state", [FleetHostState.ACTIVE, FleetHostState.CORDONED, FleetHostState.DRAINING, FleetHostState.MAINTENANCE]
)
def test_another_state_begins_no_more_moves(store: Store, state: FleetHostState) -> None:
    with_users(store, 1)
    target = add_target(store, "gpu02")
    if state is FleetHostState.MAINTENANCE:
        store.hosts.begin_maintenance("gpu01", None, "test")
    else:
        store.hosts.change("gpu01", "test", state=state)
    assert not store.hosts.find("gpu01").moves_live
    assert begun_moves(store) == {}
    version = store.rooms.list()[0][target.id].version
    assert not store.live_moves.begin(store.desktops.list()[0], target.id, version), "whoever chose it before"


@pytest.mark.parametrize("change", ["held = 'it is another machine'", "seen_at = 1.0"])
def test_a_host_that_is_held_or_silent_loses_nothing(store: Store, change: str) -> None:
    with_users(store, 1)
    add_target(store, "gpu02")
    with store.database.write() as connection:
        connection.exec_driver_sql(f"UPDATE host SET {change} WHERE name = 'gpu01'")
    assert begun_moves(store) == {}


def test_what_ends_a_move(store: Store) -> None:
    fence = with_users(store, 1)
    target = add_target(store, "gpu02")
    desktop = moving(store, target)
    live = store.live_moves
    assert live.is_open(desktop)
    for former in (replace(fence, epoch=fence.epoch - 1), replace(fence, holder="another")):
        live.arrive(desktop, former, target, "alive")
        live.stay(desktop, former)
        live.fail(desktop, former, "it failed", None, stays=True)
        assert store.desktops.find(desktop.name) == desktop, "who lost the host decides nothing"
    live.fail(desktop, fence, "gpu01: no answer", None, stays=False)
    waiting = store.desktops.find(desktop.name)
    assert (waiting.moving_to, waiting.errors) == (target.id, 0)
    assert 0 < waiting.not_before - store.now() <= 5
    assert why(store) == "moving to gpu02; gpu01: no answer"
    live.fail(desktop, fence, "gpu01: it cannot move", "fix it", stays=True)
    stayed = store.desktops.find(desktop.name)
    assert (stayed.host_id, stayed.moving_to) == (desktop.host_id, None)
    assert stayed.report is not None
    assert (stayed.report.refused_by, stayed.report.hint) == ((target.id,), "fix it")
    assert 50 < stayed.not_before - store.now() <= 60
    assert kinds(store).count("desktop-delayed") == 1, "the journal has it once"
    live.arrive(desktop, fence, target, "alive")
    assert store.desktops.find(desktop.name) == stayed, "the move has ended"


def test_another_host_is_tried_first(store: Store) -> None:
    fence = with_users(store, 1)
    first, second = add_target(store, "gpu02"), add_target(store, "gpu03")
    for target in (first, second):
        store.live_moves.fail(moving(store, target), fence, "gpu01: it cannot move", None, stays=True)
        assert begun_moves(store) == {}, "not again at once"
        with store.database.write() as connection:
            connection.exec_driver_sql("UPDATE desktop SET not_before = 0.0")
        refused = (first.id,) if target is first else (first.id, second.id)
        report = store.desktops.find("office-001").report
        assert report is not None
        assert report.refused_by == refused
        names = list(begun_moves(store).values())
        assert names == ["gpu03"] or target is second, "if all have refused it, any of them"
        assert len(names) == 1
        store.live_moves.stay(store.desktops.find("office-001"), fence)


def test_a_desktop_that_arrived_is_its_users(store: Store) -> None:
    fence = with_users(store, 1)
    target = add_target(store, "gpu02")
    desktop = moving(store, target)
    store.live_moves.arrive(desktop, fence, target, "alive; it stood still for 1.2 s")
    after = store.desktops.find(desktop.name)
    assert after.report is not None
    assert (after.host_id, after.moving_to, after.user, after.report.boot_id) == (
        target.id, None, "user0", target.boot_id,
    )  # fmt: skip
    (entry,) = [one for one in store.journal.list() if one.kind == "desktop-moved"]
    assert (entry.text, entry.host, entry.user, entry.actor) == (
        "office-001 from gpu01 to gpu02, alive; it stood still for 1.2 s", "gpu02", "user0", "controller",
    )  # fmt: skip


def test_a_host_to_which_a_desktop_moves_is_not_removed(store: Store) -> None:
    with_users(store, 1)
    moving(store, add_target(store, "gpu02"))
    with pytest.raises(Refused, match="gpu02 has desktops: office-001"):
        store.hosts.remove("gpu02", "test")


def test_live_excludes_maintenance(own_store: Store) -> None:
    add_host(own_store)
    service = FleetService(own_store, connect_host)
    with pytest.raises(InvalidInput, match="live or maintenance"):
        service.drain_host(ADMIN, "gpu01", live=True, maintenance=True)
    shown = service.drain_host(ADMIN, "gpu01", live=True)
    assert (shown.changed, shown.data.state, shown.data.moves_live) == (True, "draining", True)
    assert not service.drain_host(ADMIN, "gpu01", live=True).changed
    assert not service.drain_host(ADMIN, "gpu01").data.moves_live
    (*_, entry) = [one for one in own_store.journal.list() if one.kind == "host-changed"]
    assert [(one.field, one.before, one.after) for one in entry.changed] == [("moves_live", "true", "false")]


def test_a_database_of_the_version_before_keeps_its_desktops(url: str) -> None:
    database = Database(url)
    with database.write() as connection:
        migrate(connection, "0007")
        for statement in (
            "INSERT INTO meta (key, value) VALUES ('incarnation', 'db-1')",
            "INSERT INTO image (id, name, version, path, os, retired, generation) "
            "VALUES ('i1', 'office', '1', '/images/1', 'linux', false, 1)",
            "INSERT INTO pool (id, name, spec, image_id, state, generation, paused_by_errors) "
            "VALUES ('p1', 'office', '{}', 'i1', 'active', 1, false)",
            "INSERT INTO host (id, name, address, labels, state, generation) "
            "VALUES ('h1', 'gpu01', 'local', '{}', 'draining', 1)",
            "INSERT INTO desktop (id, pool_id, name, mac, image_id, host_id, power_on, absent, generation, handed_out, "
            "not_before, errors, created_at, can_take, reported_generation) "
            "VALUES ('d1', 'p1', 'office-001', '52:54:00:00:00:01', 'i1', 'h1', true, false, 1, false, 0, 0, 0, false, "
            "0)",
        ):
            connection.execute(text(statement))
    database.close()
    assert upgrade(url)
    with opened(url) as store:
        (host,), (desktop,) = store.hosts.list(), store.desktops.list()
        assert (host.moves_live, desktop.host_id, desktop.moving_to) == (False, "h1", None)
        with store.database.write() as connection:
            if store.database.is_sqlite:
                assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
            references = text("UPDATE desktop SET moving_to = 'none'")
            with pytest.raises(Exception, match=r"(?i)foreign key"):
                connection.execute(references)
            connection.rollback()
