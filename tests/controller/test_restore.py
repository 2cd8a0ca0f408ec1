# SPDX-License-Identifier: Apache-2.0
"""A lost database: backups, restores into either kind, imports from hosts' records, and copies that hosts refuse."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url, select

from tests.agent.conftest import RunningAgent
from tests.controller.conftest import IMAGE, Server, add_host, add_image, add_pool, opened, wait_until
from tests.controller.test_engine import ADMIN, is_ready, phase, starts, vms, with_pool, working
from tests.controller.test_people import SteppedClock
from tests.controller.test_store import with_desktops
from vgpuctl.agent.protocol import Fenced
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.backup import EVENT_JUMP, read_backup, renew_incarnation, restore_backup, write_backup
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.rows import About
from vgpuctl.controller.database.store import DatabaseReplaced, Store, migrate, open_store, upgrade
from vgpuctl.controller.engine import connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import JournalLimits, PoolKind, PoolState, Role
from vgpuctl.controller.times import time_text
from vgpuctl.errors import InvalidInput, Locked, Refused

KEPT_TABLES = ("image", "person", "pool")


@pytest.fixture(params=["sqlite", "postgresql"])
def other_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Another empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/other.db"
    server: Server = request.getfixturevalue("postgresql")
    name = f"other_{os.getpid()}_{abs(hash(str(tmp_path)))}"
    server.run(f"CREATE DATABASE {name}")
    return server.url(name)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """The backup of a small fleet."""
    url = f"sqlite:///{tmp_path}/backed-up.db"
    upgrade(url)
    with opened(url) as store:
        with_desktops(store, 2)
    path = tmp_path / "fleet.gz"
    write_backup(url, path)
    return path


def rows(store: Store, table: str) -> list[dict[str, object]]:
    wanted = schema.metadata.tables[table]
    with store.database.read() as connection:
        return [dict(row) for row in connection.execute(select(wanted).order_by(*wanted.primary_key)).mappings()]


def test_a_backup_restores_into_either_kind_of_database(store: Store, url: str, other_url: str, tmp_path: Path) -> None:
    with_desktops(store, 3)
    store.desktops.assign("office", "ada", "test")
    store.tokens.add("ansible", Role.ADMIN, "d" * 64, None, "test")
    path = tmp_path / "fleet.gz"
    written = write_backup(url, path)
    assert read_backup(path) == written
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"d" * 64 not in gzip.decompress(path.read_bytes()), "no digest of a token"
    assert [entry.name for entry in tmp_path.glob(".fleet.gz*")] == []
    restored = restore_backup(other_url, path, "test", replace=False)
    assert (restored.former, restored.incarnation != restored.former) == (store.incarnation, True)
    with opened(other_url) as other:
        assert {name: rows(other, name) for name in KEPT_TABLES} == {name: rows(store, name) for name in KEPT_TABLES}
        *entries, added = other.journal.list()
        assert [event.text for event in entries] == [event.text for event in store.journal.list()]
        last = store.journal.list()[-1].id
        assert (added.kind, added.actor, added.actor_kind) == ("restored", "test", "local")
        assert added.text == f"from the backup fleet.gz of {time_text(written.at)}, whose last event has the id {last}"
        assert added.id >= last + EVENT_JUMP, "a reader of the former database has none that is as high"
        before = {one.name: one for one in store.desktops.list()}
        after = {one.name: one for one in other.desktops.list()}
        grown = {name: after[name].generation - before[name].generation for name in before}
        assert grown == {"office-001": 0, "office-002": 1, "office-003": 1}, "who has none counts as dirty"
        assert after["office-001"].user == "ada"
        assert other.tokens.list() == ()
        assert other.restored.state().former == (store.incarnation,)
        assert all(host.held is not None and "confirm-restore" in host.held for host in other.hosts.list())
        other.journal.add("test", "a new entry has an id of its own", "test", About())
        assert [one.id for one in other.journal.list(added.id)] == [added.id + 1]


def test_events_after_a_restore_have_ids_that_nobody_has_read(store: Store, url: str, tmp_path: Path) -> None:
    _, host_id, _ = with_desktops(store, 1)
    store.hosts.drop_lease(host_id, store.holder)
    path = tmp_path / "fleet.gz"
    write_backup(url, path)
    add_image(store, "newer")
    read = store.journal.list()[-1].id
    store.close()
    restore_backup(url, path, "root", replace=True)
    if url.startswith("sqlite"):
        assert {
            stat.S_IMODE(one.stat().st_mode) for one in Path(make_url(url).database or "").parent.glob("*.db*")
        } == {0o600}
    with opened(url) as restored:
        assert [(one.kind, one.id) for one in restored.journal.list(read)] == [("restored", read + 1)]
        add_image(restored, "another")
    renew_incarnation(url, "root")
    with opened(url) as renewed:
        known, added = renewed.journal.list(read + 1)
        assert (added.kind, added.actor, added.id) == ("restored", "root", known.id + EVENT_JUMP)
        assert added.text.endswith(f", whose last event has the id {known.id}")
        assert renewed.restored.state().taken_at == known.at


def test_ids_that_a_restore_leaves_out_delete_no_entries(tmp_path: Path) -> None:
    """A journal has at most so many entries, however far apart the ids of the first and the last are."""
    url = f"sqlite:///{tmp_path}/old.db"
    upgrade(url)
    clock = SteppedClock()
    with closing(open_store(url, clock=clock)) as store:
        for name in "abc":
            add_image(store, name)
    renew_incarnation(url, "test")
    with opened(url) as store:
        store.journal.prune(JournalLimits(days=100_000, entries=4))
        assert len(store.journal.list()) == 4
        store.journal.prune(JournalLimits(days=100_000, entries=3))
        assert len(store.journal.list()) == 3


def test_a_restore_needs_an_empty_database_that_no_controller_uses(url: str, backup: Path) -> None:
    upgrade(url)
    with opened(url) as store:
        add_image(store, "another")
    with pytest.raises(Refused, match="1 in image") as refused:
        restore_backup(url, backup, "test", replace=False)
    assert "--replace" in str(refused.value.hint)
    store = open_store(url, alone=True)
    host = add_host(store, "gpu09")
    store.hosts.take_lease(host.id, store.holder, 60.0)
    with pytest.raises(Locked):
        restore_backup(url, backup, "test", replace=True)
    store.hosts.drop_lease(host.id, store.holder)
    store.close()
    first = restore_backup(url, backup, "test", replace=True)
    with opened(url) as restored:
        restored.tokens.add("ansible", Role.ADMIN, "d" * 64, None, "test")
        restored.people.put("ada", "test")
        restored.personal_tokens.add("ada", "laptop", "e" * 64, 30, "ada")
        assert [image.name for image in restored.images.list()] == ["office"]
        second = renew_incarnation(url, "test")
        assert (restored.tokens.list(), restored.personal_tokens.list()) == ((), ()), "some were deleted since"
        assert second.former == first.incarnation
        with pytest.raises(DatabaseReplaced, match=second.incarnation):
            restored.check()
        assert restored.restored.state().former == tuple(sorted({first.former, first.incarnation}))


def test_a_restore_replaces_tables_of_an_older_version(url: str, backup: Path) -> None:
    """As after an update of the program, before upgrade-db."""
    database = Database(url)
    with database.write() as connection:
        migrate(connection, "0006")
    database.close()
    restore_backup(url, backup, "test", replace=True)
    with opened(url) as restored:
        assert [image.name for image in restored.images.list()] == ["office"]


def lines(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def changed(line: bytes, **values: object) -> bytes:
    document = json.loads(line)
    document["row"] |= values
    return json.dumps(document).encode() + b"\n"


DAMAGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "no head": lambda given: given[1:],
    "no end": lambda given: given[:-1],
    "a row is missing": lambda given: [*given[:2], *given[3:]],
    "more after the end": lambda given: [*given, given[1]],
    "no JSON": lambda given: [*given[:2], b"{\n", *given[2:]],
    "another table": lambda given: [given[0], given[1].replace(b'"meta"', b'"pg_shadow"'), *given[2:]],
    "another column": lambda given: [changed(one, colour="red") if b'"image"' in one[:20] else one for one in given],
    "another type": lambda given: [changed(one, retired="no") if b'"image"' in one[:20] else one for one in given],
    "no spec": lambda given: [changed(one, spec='{"kind": 7}') if b'"pool"' in one[:20] else one for one in given],
    "no such image": lambda given: [
        one.replace(b'"image":1,', b"") if b'"end"' in one[:6] else one for one in given if b'"image"' not in one[:20]
    ],
    "a newer version": lambda given: [given[0].replace(b'"0008"', b'"9999"'), *given[1:]],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_backup_changes_nothing(url: str, backup: Path, damage: str) -> None:
    good = lines(backup)
    backup.write_bytes(gzip.compress(b"".join(DAMAGES[damage](good))))
    upgrade(url)
    with opened(url) as store:
        with pytest.raises((InvalidInput, Refused)):
            restore_backup(url, backup, "test", replace=True)
        store.check()
        assert store.restored.state().begun_at is None


@pytest.mark.parametrize(
    "content",
    [b"", b"text", gzip.compress(b"x" * 100), gzip.compress(b"{}\n")[:-4]],
    ids=["empty", "text", "no lines", "cut off"],  # what gzip makes has the time in it
)
def test_what_is_no_backup_is_said(url: str, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="cannot be restored"):
        restore_backup(url, path, "test", replace=True)


def test_a_backup_while_a_controller_works_is_whole(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    with_pool(own_store, agent, spare=2, maximum=2)
    with working(own_store):
        wait_until(is_ready(own_store, 2), "two desktops")
        written = write_backup(f"sqlite:///{tmp_path}/fleet.db", tmp_path / "fleet.gz")
    assert (written.rows["desktop"], written.rows["pool"]) == (2, 1)


@pytest.fixture
def restored(own_store: Store, agent: RunningAgent, tmp_path: Path) -> Iterator[Store]:
    """A restored database: since the backup office-002 became bob's, and office-003 was made."""
    with_pool(own_store, agent, spare=1, maximum=3)
    path = tmp_path / "fleet.gz"
    with working(own_store) as service:
        wait_until(is_ready(own_store, 1), "a desktop")
        service.assign(ADMIN, "office", "ada")
        wait_until(lambda: own_store.desktops.find("office-001").handed_out, "ada's desktop")
        wait_until(is_ready(own_store, 2), "a spare")
        write_backup(f"sqlite:///{tmp_path}/fleet.db", path)
        service.assign(ADMIN, "office", "bob")
        wait_until(lambda: own_store.desktops.find("office-002").handed_out, "bob's desktop")
        wait_until(is_ready(own_store, 3), "another spare")
    url = f"sqlite:///{tmp_path}/restored.db"
    restore_backup(url, path, "test", replace=False)
    with opened(url) as store:
        yield store


def test_nothing_is_changed_before_a_restore_is_confirmed(restored: Store, agent: RunningAgent) -> None:
    before = vms(agent)
    with working(restored) as service:
        wait_until(lambda: service.show_host(ADMIN, "gpu01").data.seen is not None, "a look at the host")
        wait_until(lambda: phase(service, "office-002") == "failed", "the contradiction is seen")
        shown = service.show_restore(ADMIN).data
        assert [(one.desktop, one.user) for one in shown.kept] == [("office-002", "bob")]
        assert [one.desktop for one in shown.unknown] == ["office-003"]
        assert (shown.waits, shown.silent) == (True, {})
        assert shown.taken is not None
        assert shown.taken <= (shown.begun or "")
        with pytest.raises(Refused, match="confirmed"):
            service.refuse_unconfirmed("assign")
        service.refuse_unconfirmed("ensure-pool")
    assert vms(agent) == before


def test_a_confirmed_restore_goes_on(restored: Store, agent: RunningAgent) -> None:
    before = vms(agent)
    add_pool(restored, spare=2, maximum=3)  # else office-002, of which the database says that it is free, is enough
    with working(restored) as service:
        service.import_desktops(ADMIN)
        service.confirm_restore(ADMIN)
        wait_until(lambda: vms(agent)["office-001"].desktop.incarnation == restored.incarnation, "ada's record")
        wait_until(lambda: phase(service, "office-001") == "assigned", "ada's desktop")
        wait_until(lambda: phase(service, "office-002") == "failed", "bob's is kept from everybody")
        wait_until(lambda: phase(service, "office-003") == "ready", "the spare that only the host had")
        assert restored.desktops.find("office-002").report.code == "other-user"
        assert "accept-desktop office-002" in (service.show_desktop(ADMIN, "office-002").data.hint or "")
        assert vms(agent)["office-002"].desktop == before["office-002"].desktop
        assert vms(agent)["office-001"].generation > before["office-001"].generation, "its mark alone"
        assert service.assign(ADMIN, "office", "ada").data.name == "office-001"
        assert service.accept_desktop(ADMIN, "office-002").data.user == "bob"
        wait_until(lambda: phase(service, "office-002") == "assigned", "bob's desktop")
        with pytest.raises(Refused, match="does not contradict"):
            service.accept_desktop(ADMIN, "office-002")
        with pytest.raises(Refused, match="confirmed already"):
            service.confirm_restore(ADMIN)
        wait_until(
            lambda: {vm.desktop.incarnation for vm in vms(agent).values()} == {restored.incarnation}, "all records"
        )
    assert vms(agent)["office-003"].desktop.generation > before["office-003"].desktop.generation, "it counted as dirty"
    wait_until(lambda: starts(agent, "office-003") == 2, "the spare was refreshed")
    assert starts(agent, "office-001") == 1, "ada's was never stopped"


def test_a_lost_database_is_imported_from_its_hosts(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    with_pool(own_store, agent, spare=1, maximum=2)
    with working(own_store) as service:
        wait_until(is_ready(own_store, 1), "a desktop")
        service.assign(ADMIN, "office", "ada")
        wait_until(lambda: own_store.desktops.find("office-001").handed_out, "ada's desktop")
        wait_until(is_ready(own_store, 2), "a spare")
    url = f"sqlite:///{tmp_path}/new.db"
    upgrade(url)
    with opened(url) as store, working(store) as service:
        with pytest.raises(Fenced) as refused:
            service.add_host(ADMIN, "gpu01", f"agent:{agent.path}")
        assert "--lost-controller" in str(refused.value.hint)
        service.add_host(ADMIN, "gpu01", f"agent:{agent.path}", lost_controller=True)
        imported = service.import_desktops(ADMIN).data
        assert (imported.desktops, imported.pools) == (("office-001", "office-002"), ("office",))
        assert imported.problems == ()
        assert not service.import_desktops(ADMIN).changed
        pool = store.pools.find("office")
        assert (pool.state, pool.spec.names, pool.spec.profiles) == (PoolState.PAUSED, "office-{:03}", ("A100-4C",))
        assert store.desktops.find("office-001").mac == own_store.desktops.find("office-001").mac
        service.confirm_restore(ADMIN)
        wait_until(lambda: store.desktops.find("office-001").handed_out, "ada has hers again")
        with pytest.raises(Refused, match="imported") as waiting:
            service.resume_pool(ADMIN, "office")
        assert "ensure-pool office -f FILE" in str(waiting.value.hint)
        (image,) = store.images.list()
        assert image.path == IMAGE
        add_pool(store, spare=1, maximum=2, image=image.name)
        assert store.pools.find("office").spec.kind is PoolKind.FLOATING
        service.resume_pool(ADMIN, "office")
        wait_until(lambda: phase(service, "office-002") == "ready", "the spare, refreshed")
        assert service.assign(ADMIN, "office", "ada").data.name == "office-001"
        with pytest.raises(Refused, match="its kind cannot change"):
            add_pool(store, kind="dedicated", image=image.name)
    wait_until(lambda: starts(agent, "office-002") == 2, "the spare was refreshed")
    assert starts(agent, "office-001") == 1, "ada's was never stopped"


def copy_of(postgresql: Server, name: str) -> str:
    """Return the URL of a copy of a database, made as an admin makes it."""
    postgresql.run(f"CREATE DATABASE {name}_copy")
    url = postgresql.url(name)
    dump = shutil.which("pg_dump") or str(postgresql.program("pg_dump"))
    done = subprocess.run([dump, "--dbname", url], capture_output=True, check=True)
    psql = shutil.which("psql") or str(postgresql.program("psql"))
    words = [psql, "--quiet", "-v", "ON_ERROR_STOP=1", "--dbname", postgresql.url(f"{name}_copy")]
    subprocess.run(words, input=done.stdout, check=True, stdout=subprocess.DEVNULL)
    return postgresql.url(f"{name}_copy")


def hand_out(service: FleetService, store: Store, user: str, desktop: str) -> None:
    """Give a user a desktop, as soon as it is ready, and wait until its host has confirmed that."""
    wait_until(lambda: phase(service, desktop) == "ready", "a spare")
    service.assign(ADMIN, "office", user)
    wait_until(lambda: store.desktops.find(desktop).handed_out, "the assignment")


def test_yesterdays_dump_is_refused_by_hosts(postgresql: Server, agent: RunningAgent) -> None:
    postgresql.run("CREATE DATABASE yesterday")
    url = postgresql.url("yesterday")
    upgrade(url)
    with opened(url) as store:
        with_pool(store, agent, spare=1, maximum=2)
        with working(store):
            wait_until(is_ready(store, 1), "a desktop")
    copy = copy_of(postgresql, "yesterday")
    for user, desktop in (("ada", "office-001"), ("bob", "office-002")):  # by a controller that was started again
        with opened(url) as store, working(store) as service:
            hand_out(service, store, user, desktop)
    before = vms(agent)
    with opened(copy) as store, working(store) as service:
        wait_until(lambda: service.show_host(ADMIN, "gpu01").data.held is not None, "the hold")
        held = service.show_host(ADMIN, "gpu01").data.held or ""
        assert "the lease of this host has gone on" in held
        assert "vgpuctl controller restore --in-place" in held
        assert "vgpuctl controller accept-host gpu01" in held
    assert vms(agent) == before
    renew_incarnation(copy, "test")
    with opened(copy) as store, working(store) as service:
        service.confirm_restore(ADMIN)
        wait_until(lambda: service.show_host(ADMIN, "gpu01").data.held is None, "it is adopted")
        wait_until(lambda: phase(service, "office-001") == "failed", "ada's is kept")
    with opened(url) as store, working(store) as service:
        wait_until(lambda: service.show_host(ADMIN, "gpu01").data.held is not None, "the former one is refused")
        assert "for good" in (service.show_host(ADMIN, "gpu01").data.held or "")


def test_a_copy_beside_the_real_database_is_found_by_newer_records(
    own_store: Store, agent: RunningAgent, tmp_path: Path
) -> None:
    with_pool(own_store, agent, spare=1, maximum=2)
    copy = f"sqlite:///{tmp_path}/copy.db"
    with working(own_store) as service:
        wait_until(is_ready(own_store, 1), "a desktop")
    with sqlite3.connect(tmp_path / "fleet.db") as real, sqlite3.connect(tmp_path / "copy.db") as copied_file:
        real.backup(copied_file)
    with working(own_store) as service:
        service.assign(ADMIN, "office", "ada")
        wait_until(lambda: own_store.desktops.find("office-001").handed_out, "ada's desktop")
        lease = next(iter(own_store.hosts.leases().values()))
        mark = vms(agent)["office-001"].desktop
        with opened(copy) as store:
            host = store.hosts.find("gpu01")
            store.hosts.take_lease(host.id, "stolen", 0.0, lease.epoch)
            with working(store) as copied:
                wait_until(lambda: copied.show_host(ADMIN, "gpu01").data.held is not None, "the copy's hold")
                assert "office-001 on gpu01 is newer than the database" in (
                    copied.show_host(ADMIN, "gpu01").data.held or ""
                )
        assert vms(agent)["office-001"].desktop == mark, "the copy changed nothing"
        service.release(ADMIN, "office-001")
        wait_until(lambda: service.show_host(ADMIN, "gpu01").data.held is not None, "the real one's hold")
        assert "accept-host gpu01" in (service.show_host(ADMIN, "gpu01").data.held or "")
        service.accept_host(ADMIN, "gpu01")
        wait_until(lambda: "ada" not in [vm.desktop.user for vm in vms(agent).values()], "the real one works")


def test_importing_where_nothing_is_to_import(own_store: Store, agent: RunningAgent) -> None:
    service = FleetService(own_store, connect_host)
    assert not service.import_desktops(ADMIN).changed
    service.add_host(ADMIN, "gpu01", f"agent:{agent.path}")
    assert not service.import_desktops(ADMIN).changed
    assert own_store.restored.state().begun_at is None
