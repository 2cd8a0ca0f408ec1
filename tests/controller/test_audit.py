# SPDX-License-Identifier: Apache-2.0
"""The journal says who, from where, before and after; nobody changes it, and no secret is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from tests.controller.conftest import SPEC, Server, add_host, add_image, add_pool, opened
from tests.controller.controllers import Controller, running_controller
from tests.controller.test_access import PASSWORD, sign_in
from tests.controller.test_people import ELSEWHERE, HOME, SteppedClock, entitle
from tests.controller.test_store import add_events, report_all, with_desktops
from vgpuctl.controller.database.engine import Database, DatabaseUnreachable
from vgpuctl.controller.database.journal_rows import JournalGuard
from vgpuctl.controller.database.place_rows import DAY_SECONDS, MOST_PLACES, PLACE_DAYS
from vgpuctl.controller.database.store import Store, migrate, open_store, upgrade
from vgpuctl.controller.model import (
    DesktopReport,
    FieldChange,
    FleetHost,
    FleetHostState,
    JournalLimits,
    PoolKind,
    PoolSpec,
    Realm,
    Right,
    Role,
)
from vgpuctl.controller.planning.changed_fields import MAX_CHARACTERS, MAX_FIELDS, changed_fields
from vgpuctl.controller.routes import API
from vgpuctl.controller.sessions import PasswordSignIn, TooManyTries, WrongPassword, hash_password

DOCS = Path(__file__).parents[2] / "docs"
GOOD = "correct horse battery"


def last_changes(store: Store) -> dict[str, tuple[str | None, str | None]]:
    """Return what the last entry says was changed."""
    return {one.field: (one.before, one.after) for one in store.journal.list()[-1].changed}


def test_changes_are_in_the_journal_before_and_after(store: Store) -> None:
    add_image(store)
    assert last_changes(store)["path"] == (None, "/srv/images/ubuntu-24.04.qcow2")
    add_pool(store)
    add_pool(store, spare=3, vm={"memory": "8GiB"})
    assert last_changes(store) == {"spare": ("2", "3"), "vm.memory": (None, "8GiB")}
    add_host(store)
    store.hosts.change("gpu01", "test", state=FleetHostState.CORDONED, labels={"site": "b"})
    assert last_changes(store) == {"state": ("active", "cordoned"), "labels.site": (None, "b")}
    store.people.put("ada", "test", groups=["staff"])
    store.people.put("ada", "test", groups=["navy", "staff"], disabled=True)
    assert last_changes(store) == {"groups": ('["staff"]', '["navy", "staff"]'), "disabled": ("false", "true")}
    entitle(store, "ada", Right.USE, "office")
    entitle(store, "ada", Right.MANAGE, "office")
    assert last_changes(store) == {"right": ("use", "manage")}
    store.entitlements.delete("ada", "office", "test")
    assert last_changes(store) == {"right": ("manage", None)}
    store.tokens.add("ci", Role.VIEWER, "d" * 64, None, "test")
    store.tokens.delete("ci", "test")
    assert last_changes(store) == {"name": ("ci", None), "role": ("viewer", None)}
    store.people.set_password("ada", "$argon2id$secret", "test")
    journal = repr(store.journal.list())
    assert "d" * 64 not in journal
    assert "argon2" not in journal


def test_what_an_entry_shows_of_a_change_is_bounded() -> None:
    many = {f"l{number}": "x" * 1000 for number in range(1000)}
    changes = changed_fields(None, FleetHost(id="i", name="h", address="local", labels=many))
    assert len(changes) == MAX_FIELDS
    assert max(len(one.after or "") for one in changes) == MAX_CHARACTERS


def test_what_can_hold_a_secret_is_not_shown() -> None:
    vm = {"cloud_init": "password: hunter2", "network_config": "psk: hunter2", "memory": 1024}
    spec = PoolSpec(PoolKind.FLOATING, "office", "office-{}", 3, vm=vm)
    changes = changed_fields(None, spec)
    assert "hunter2" not in repr(changes)
    assert FieldChange("vm.cloud_init", None, "(not shown)") in changes
    assert FieldChange("vm.memory", None, "1024") in changes


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE event SET actor = 'eve'",
        "UPDATE event SET at = 0",
        "DELETE FROM event",
        "DELETE FROM event WHERE kind = 'image-added'",
        "INSERT INTO event (id, at, kind, text, actor) SELECT id, 0, 'x', 'x', 'x' FROM event",
    ],
)
def test_the_journal_is_only_added_to(store: Store, statement: str) -> None:
    add_image(store)
    before = store.journal.list()
    with pytest.raises((IntegrityError, DatabaseUnreachable)), store.database.write() as connection:
        connection.execute(text(statement))
    assert store.journal.list() == before


def test_a_forged_id_or_time_is_no_way_around(store: Store) -> None:
    add_image(store)
    before = store.journal.list()
    with store.database.write() as connection:
        connection.execute(
            text("INSERT INTO event (id, at, kind, text, actor) VALUES (9000000, 0, 'x', 'forged', 'x')")
        )
    with pytest.raises((IntegrityError, DatabaseUnreachable)), store.database.write() as connection:
        connection.execute(text("DELETE FROM event WHERE id < 9000000"))
    assert [one for one in store.journal.list() if one.text != "forged"] == list(before)


def test_replacing_an_entry_is_no_way_around(own_store: Store) -> None:
    add_image(own_store)
    before = own_store.journal.list()
    with pytest.raises(IntegrityError), own_store.database.write() as connection:
        connection.execute(
            text("REPLACE INTO event (id, at, kind, text, actor) SELECT id, 0, 'x', 'x', 'x' FROM event")
        )
    assert own_store.journal.list() == before


def test_triggers_that_are_gone_or_changed_are_seen(own_store: Store) -> None:
    assert own_store.journal.broken_triggers() == ()
    empty = "CREATE TRIGGER event_no_delete BEFORE DELETE ON event BEGIN SELECT 1; END"
    with own_store.database.write() as connection:
        for statement in ("DROP TRIGGER event_no_update", "DROP TRIGGER event_no_delete", empty):
            connection.execute(text(statement))
    assert own_store.journal.broken_triggers() == ("event_no_delete", "event_no_update")


def test_the_journal_of_another_role(postgresql: Server) -> None:
    """The script of the page does what it says."""
    for statement in ("CREATE ROLE desk LOGIN", "CREATE DATABASE desk OWNER desk"):
        postgresql.run(statement)
    url = postgresql.url("desk")
    own_url = url.replace("fleet@", "desk@")
    upgrade(own_url)
    with opened(own_url) as store:
        before = store.journal.guard()
        assert before is not None
        assert (before.user, before.owner, before.may_change, before.triggers) == ("desk", "desk", True, 2)
    page = (DOCS / "howto/fleet-journal.md").read_text()
    script = re.search(r"```sql\n(.*?)```", page, re.DOTALL)
    assert script is not None
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(re.sub(r"\bfleet\b", "desk", script[1]).encode())
    with opened(own_url) as store:
        assert store.journal.guard() == JournalGuard("desk", "vgpuctl_journal", False, True, 2)
        postgresql.run("GRANT vgpuctl_journal TO desk")
        assert store.journal.guard() == JournalGuard("desk", "vgpuctl_journal", True, True, 2)
        postgresql.run("REVOKE vgpuctl_journal FROM desk")
        add_image(store)
        add_events(store, [100.0, 0.0])
        store.journal.prune(JournalLimits())
        kept = [one.text for one in store.journal.list()]
        assert kept[-1] == "0.0"
        for statement in (
            "UPDATE event SET actor = 'eve'", "DELETE FROM event WHERE at > 1000", "TRUNCATE event", "DROP TABLE event",
            "ALTER TABLE event DISABLE TRIGGER ALL", "DROP FUNCTION vgpuctl_keep_event() CASCADE",
            "DROP SCHEMA public CASCADE", "DROP TRIGGER event_no_change ON event",
            "CREATE OR REPLACE FUNCTION vgpuctl_keep_event() RETURNS trigger LANGUAGE sql AS 'SELECT 1'",
        ):  # fmt: skip
            with pytest.raises(DatabaseUnreachable), store.database.write() as connection:
                connection.execute(text(statement))
        assert [one.text for one in store.journal.list()] == kept


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    with running_controller(tmp_path_factory.mktemp("audit") / "controller") as one:
        yield one


def test_a_token_a_person_and_the_socket_do_not_look_alike(controller: Controller) -> None:
    run, data = controller.run, controller.data
    owner = data("show-fleet")["caller"]
    secret_file = controller.directory / "secret"
    secret_file.write_text(PASSWORD)
    run("ensure-person", owner)
    run("set-password", owner, "--password-file", str(secret_file))
    run("entitle", owner, "admin")
    secret = run("add-token", owner, "--role", "admin").stdout.strip()
    for number, headers in enumerate(({"Authorization": f"Bearer {secret}"}, sign_in(controller, owner))):
        given = {"groups": [f"g{number}"]}
        assert controller.request("PUT", f"{API}/people/x{number}", given, **headers)[0] == 200
    run("ensure-image", "office", "--path", "/srv/a.qcow2")
    (controller.directory / "spec.json").write_text(str(SPEC).replace("'", '"'))
    assert run("ensure-pool", "office", "-f", str(controller.directory / "spec.json")).returncode == 0
    events = data("list-events")
    whos = {(one["actor"], one["actor_kind"], one["address"]) for one in events if one["actor"] != "controller"}
    assert whos == {(owner, "local", "socket"), (owner, "token", "127.0.0.1"), (owner, "person", "127.0.0.1")}
    assert {one["actor_kind"] for one in events if one["actor"] == "controller"} <= {"controller"}
    (changed,) = (one for one in events if one["text"].startswith("x1: g1"))
    assert {"field": "groups", "before": None, "after": '["g1"]'} in changed["changed"]
    assert changed["actor_kind"] == "person"
    wide = run("list-events", "-o", "wide").stdout
    assert 'groups: nothing -> ["g1"]' in wide
    for kept in (PASSWORD, secret):
        assert kept not in repr(events)
    page = controller.request("GET", "/journal?kind=person-added", **sign_in(controller, owner))[1]["text"]
    assert "groups: nothing → [&#34;g1&#34;]" in page
    assert "person, 127.0.0.1" in page


def test_entries_of_an_older_program_stay(url: str) -> None:
    database = Database(url)
    with database.write() as connection:
        migrate(connection, "0005")
        connection.execute(
            text("INSERT INTO event (at, kind, text, actor) VALUES (1, 'pool-added', 'office', 'ansible')")
        )
        connection.execute(text("INSERT INTO meta VALUES ('incarnation', 'x')"))
    database.close()
    assert upgrade(url)
    with opened(url) as store:
        (entry,) = store.journal.list()
        assert (entry.actor, entry.actor_kind, entry.address, entry.changed) == ("ansible", None, None, ())
        add_image(store)
        assert [one.kind for one in store.journal.list()] == ["pool-added", "image-added"]


def timed_store(tmp_path: Path, clock: SteppedClock) -> Store:
    url = f"sqlite:///{tmp_path}/timed.db"
    upgrade(url)
    return open_store(url, clock=clock)


def test_the_same_sign_in_is_one_entry_a_day(tmp_path: Path) -> None:
    clock = SteppedClock()
    store = timed_store(tmp_path, clock)

    def entries() -> list[str | None]:
        return [one.address for one in store.journal.find(kind="signed-in", person="ada")]

    def sign_in_at(address: str) -> None:
        PasswordSignIn(store).begin("ada", Realm.OIDC, address)

    for _ in range(5):
        sign_in_at(HOME)
    assert entries() == [HOME]
    sign_in_at(ELSEWHERE)
    assert entries() == [ELSEWHERE, HOME]
    clock.seconds += DAY_SECONDS - 1
    sign_in_at(HOME)
    assert entries() == [ELSEWHERE, HOME]
    clock.seconds += 1
    sign_in_at(HOME)
    assert entries() == [HOME, ELSEWHERE, HOME]
    assert {one.actor_kind for one in store.journal.find(kind="signed-in")} == {"person"}
    for number in range(MOST_PLACES + 5):
        clock.seconds += 1
        sign_in_at(f"198.51.100.{number}")
    assert not store.places.has("ada", HOME), "the latest ones are remembered"
    assert store.places.has("ada", "198.51.100.24")
    clock.seconds += PLACE_DAYS * DAY_SECONDS
    assert not store.places.has("ada", "198.51.100.0")
    store.places.prune()
    sign_in_at(HOME)
    store.people.delete("ada", "test")
    assert not store.places.has("ada", HOME)


def test_nobody_locks_the_owner_out_after_a_start_or_at_another_controller(url: str) -> None:
    upgrade(url)
    with opened(url) as store, opened(url) as other:
        store.people.put("ada", "test")
        store.people.set_password("ada", hash_password(GOOD), "test")
        for one in store, other:
            if one is store:
                PasswordSignIn(one).sign_in("Ada".lower(), GOOD, HOME)
                store.people.set_password("ada", hash_password(GOOD), "test")  # her sessions are over
            fresh = PasswordSignIn(one)
            for number in range(60):
                with pytest.raises((WrongPassword, TooManyTries)):
                    fresh.sign_in("ada", "wrong password here", f"198.51.{number}.1")
            with pytest.raises(TooManyTries):
                fresh.sign_in("ada", GOOD, "203.0.113.1")
            assert fresh.sign_in("ada", GOOD, HOME).name == "ada"


def test_entries_about_a_desktop_are_about_its_pool(store: Store) -> None:
    _, host_id, epoch = with_desktops(store, 2)
    store.desktops.assign("office", "ada", "test")
    report_all(store, host_id, epoch)
    store.restarts.want("office-001", "ada", at_once=True)
    store.desktops.note_opened(store.desktops.find("office-001"), "test")
    store.desktops.set_power("office-001", "ada", on=False)
    for name in ("office-001", "office-002"):
        store.desktops.delete(name, "test")
    gone = {one.id: DesktopReport(exists=False) for one in store.desktops.of_host(host_id)}
    store.desktops.report(host_id, store.holder, epoch, gone)
    about = {one.kind: one.pool for one in store.journal.list() if one.desktop is not None}
    assert set(about) >= {"handed-out", "restart", "desktop-opened", "power", "desktop-deleting", "desktop-deleted"}
    assert set(about.values()) == {"office"}
