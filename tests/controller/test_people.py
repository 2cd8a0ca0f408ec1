# SPDX-License-Identifier: Apache-2.0
"""People, what they may do, and their sessions, on each kind of database."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path

import pytest
from sqlalchemy import insert, select, text
from starlette.requests import Request

from tests.controller.conftest import add_image, add_pool, opened
from tests.controller.test_store import with_desktops
from vgpuctl.controller.callers import Callers
from vgpuctl.controller.clock import ControllerClock
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.engine import Database
from vgpuctl.controller.database.restored_rows import begin_restored
from vgpuctl.controller.database.store import Store, migrate, open_store, upgrade
from vgpuctl.controller.digests import digest_of, header_token, is_header_token
from vgpuctl.controller.model import CallerKind, Entitlement, FleetCaller, Person, Realm, Restored, Right, Role
from vgpuctl.controller.sessions import (
    IDLE_SECONDS,
    SESSION_SECONDS,
    Limit,
    PasswordSignIn,
    TooManyTries,
    WrongPassword,
    check_password,
    network_of,
)
from vgpuctl.controller.sign_in.signed_in import SignInUnavailable
from vgpuctl.errors import Exists, InvalidInput, NotAllowed, NotFound, Stale

PASSWORD = "correct horse battery"
HOME, ELSEWHERE = "192.0.2.7", "198.51.100.9"


class SteppedClock(ControllerClock):
    """A clock that tests move."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def timed(tmp_path: Path, clock: SteppedClock) -> Store:
    url = f"sqlite:///{tmp_path}/timed.db"
    upgrade(url)
    return open_store(url, clock=clock)


def begin(store: Store, name: str = "ada", realm: Realm = Realm.OIDC, groups: tuple[str, ...] = ()) -> FleetCaller:
    """Sign somebody in, and return what he may do."""
    sign_in = PasswordSignIn(store)
    caller = sign_in.caller(sign_in.begin(name, realm, HOME, groups).secret)
    assert caller is not None
    return caller


def entitle(store: Store, who: str, right: Right | Role, pool: str | None = None) -> bool:
    return store.entitlements.put(Entitlement(who, right, pool), "test")


def test_rights_are_ones_own_ones_groups_and_everybodys(store: Store) -> None:
    add_image(store)
    for name in ("office", "lab", "class"):
        add_pool(store, name, names=f"{name}-{{:03}}")
    assert begin(store, groups=("staff",)) == FleetCaller("ada", None, CallerKind.PERSON, {})
    for who, right, pool in (
        ("@staff", Right.OPERATE, "office"), ("ada", Right.USE, "office"), ("everybody", Right.USE, "lab"),
        ("eve", Right.MANAGE, "lab"), ("@others", Right.MANAGE, "class"),
    ):  # fmt: skip
        assert entitle(store, who, right, pool)
        assert not entitle(store, who, right, pool), "it is there already"
    assert begin(store, groups=("staff", "x")).rights == {"office": Right.OPERATE, "lab": Right.USE}
    assert begin(store).rights == {"office": Right.USE, "lab": Right.USE}, "who left the group lost its rights"
    assert begin(store, "eve").rights == {"lab": Right.MANAGE}
    entitle(store, "everybody", Role.VIEWER)
    entitle(store, "@staff", Role.ADMIN)
    assert (begin(store).role, begin(store, groups=("staff",)).role) == (Role.VIEWER, Role.ADMIN)
    assert entitle(store, "eve", Right.USE, "lab"), "it replaces the greater one"
    assert begin(store, "eve").rights == {"lab": Right.USE}
    assert store.entitlements.delete("everybody", None, "test") == Entitlement("everybody", Role.VIEWER)
    assert begin(store, "eve").role is None
    with pytest.raises(NotFound, match="eve has no right of his own on pool office"):
        store.entitlements.delete("eve", "office", "test")
    with pytest.raises(NotFound, match="there is no pool none"):
        entitle(store, "eve", Right.USE, "none")
    assert [(one.who, one.pool) for one in store.entitlements.list("office")] == [
        ("@staff", "office"),
        ("ada", "office"),
    ]
    assert len(store.entitlements.list()) == 6


def test_a_pool_that_is_made_again_has_nobodys_rights(store: Store) -> None:
    add_image(store)
    add_pool(store)
    entitle(store, "ada", Right.MANAGE, "office")
    token = store.tokens.add("ci", None, digest_of("x"), None, "test", right=Right.OPERATE, pools=("office",))
    assert store.tokens.find(digest_of("x")) == token
    store.pools.delete("office", "test")
    store.pools.forget(store.pools.find("office").id)
    add_pool(store)
    assert begin(store).rights == {}
    again = store.tokens.find(digest_of("x"))
    assert again is not None
    assert (again.right, again.pools) == (Right.OPERATE, ())
    assert store.entitlements.list() == ()


def test_who_is_whose_account(store: Store) -> None:
    """A name belongs to whoever signed in with it first, or to whom an admin gave it."""
    assert store.people.put("ada", "test") == (Person("ada", Realm.LOCAL), True)
    assert store.people.put("ada", "test") == (Person("ada", Realm.LOCAL), False)
    with pytest.raises(NotAllowed, match="ada is an account of local, and this is oidc"):
        begin(store)
    begin(store, "eve", Realm.LDAP, ("staff",))
    with pytest.raises(NotAllowed, match="eve signs in by ldap"):
        store.people.set_password("eve", "hash", "test")
    store.people.set_password("ada", "hash", "test")
    assert store.people.password("ada") == "hash"
    changed, _ = store.people.put("ada", "test", realm=Realm.OIDC, groups=("b", "a", "b"))
    assert (changed.realm, changed.has_password, changed.groups) == (Realm.OIDC, False, ("a", "b"))
    assert store.people.password("ada") is None, "another realm's account has no password here"
    begin(store)
    assert store.people.find("ada").groups == (), "the directory's groups are all that count"
    with pytest.raises(Stale):
        store.people.put("ada", "test", disabled=True, if_generation=1)
    store.people.put("ada", "test", disabled=True, if_generation=changed.generation)
    with pytest.raises(NotAllowed, match="the account ada is disabled"):
        begin(store)
    for call in (store.people.find, lambda name: store.people.set_password(name, "h", "test")):
        with pytest.raises(NotFound, match="there is no person bob"):
            call("bob")
    assert [one.name for one in store.people.list(after="ada")] == ["eve"]
    assert [one.name for one in store.people.list(limit=1)] == ["ada"]


def test_who_has_a_desktop_is_a_person_and_is_not_deleted(store: Store) -> None:
    with_desktops(store, 1)
    desktop, _ = store.desktops.assign("office", "ada", "test")
    assert store.people.find("ada") == Person("ada")
    entitle(store, "ada", Right.USE, "office")
    with pytest.raises(Exists, match=f"ada has {desktop.name}"):
        store.people.delete("ada", "test")
    begin(store)
    store.desktops.release(desktop.name, "test")
    store.people.delete("ada", "test")
    assert store.entitlements.list() == ()
    with pytest.raises(NotFound):
        store.people.find("ada")
    with store.database.read() as connection:
        assert connection.execute(select(schema.web_session)).all() == []


def test_an_open_page_is_no_use(timed: Store, clock: SteppedClock) -> None:
    sign_in = PasswordSignIn(timed)
    secret = sign_in.begin("ada", Realm.OIDC, HOME).secret
    for _ in range(3):
        clock.seconds += IDLE_SECONDS / 2 - 1
        caller = sign_in.caller(secret, touches=False)
    assert caller is None


def test_before_a_restore_is_confirmed_nobody_is_admin_by_it(store: Store) -> None:
    entitle(store, "ada", Role.ADMIN)
    callers = Callers(store)
    secret = callers.passwords.begin("ada", Realm.OIDC, HOME).secret
    scope = {"type": "http", "scheme": "http", "server": ("x", 80), "path": "/", "query_string": b"", "method": "GET"}
    request = Request({**scope, "headers": [(b"cookie", f"vgpuctl={secret}".encode())]})
    assert callers.find(request, changes=False).role is Role.ADMIN
    with store.database.write() as connection:
        begin_restored(store.database, connection, Restored(begun_at=store.database.now(connection)))
    assert callers.find(request, changes=False).role is Role.VIEWER


def test_a_session_ends(timed: Store, clock: SteppedClock) -> None:
    sign_in = PasswordSignIn(timed)
    secret = sign_in.begin("ada", Realm.OIDC, HOME).secret
    for _ in range(5):
        clock.seconds += IDLE_SECONDS - 1
        assert sign_in.caller(secret) is not None, "each use lets it go on"
    clock.seconds += IDLE_SECONDS + 1
    assert sign_in.caller(secret) is None
    secret = sign_in.begin("ada", Realm.OIDC, HOME).secret
    for _ in range(int(SESSION_SECONDS / IDLE_SECONDS * 2)):
        assert sign_in.caller(secret) is not None
        clock.seconds += IDLE_SECONDS / 2
    assert sign_in.caller(secret) is None, "however much it was used"
    assert sign_in.caller("x") is None
    secret = sign_in.begin("ada", Realm.OIDC, HOME).secret
    sign_in.sign_out(secret)
    assert sign_in.caller(secret) is None
    with timed.database.read() as connection:
        assert connection.execute(select(schema.web_session)).all() == [], "what is over is deleted"


def with_password(store: Store) -> PasswordSignIn:
    from vgpuctl.controller.sessions import hash_password

    store.people.put("ada", "test")
    store.people.set_password("ada", hash_password(PASSWORD), "test")
    return PasswordSignIn(store)


def fails(sign_in: PasswordSignIn, name: str, address: str, password: str = "wrong") -> str:
    """Return the code of a try that fails."""
    with pytest.raises((WrongPassword, TooManyTries)) as caught:
        sign_in.sign_in(name, password, address)
    return caught.value.code


def test_passwords(timed: Store) -> None:
    sign_in = with_password(timed)
    assert sign_in.sign_in("ada", PASSWORD, HOME).name == "ada"
    begin(timed, "eve", Realm.LDAP)
    for name, password in (("ada", ""), ("ada", PASSWORD + " "), ("bob", PASSWORD), ("eve", ""), ("ada", "x" * 10_000)):
        assert fails(sign_in, name, ELSEWHERE, password) == "wrong-password"
    with timed.database.read() as connection:
        stored = connection.execute(select(schema.person.c.password).where(schema.person.c.name == "ada")).scalar_one()
    assert stored.startswith("$argon2id$")
    assert PASSWORD not in stored


def test_the_log_names_who_exists_and_no_password_in_the_wrong_field(
    timed: Store, caplog: pytest.LogCaptureFixture
) -> None:
    sign_in = with_password(timed)
    caplog.set_level("INFO", "vgpuctl.controller")
    for name in ("Ada", "hunter2hunter2", "no\nname", ""):
        fails(sign_in, name, ELSEWHERE)
    assert caplog.messages == [
        f"a wrong password of {name} from {ELSEWHERE}" for name in ("ada", *["an unknown name"] * 3)
    ]


def test_a_weak_hash_is_replaced(timed: Store) -> None:
    from argon2 import PasswordHasher

    sign_in = with_password(timed)
    weak = PasswordHasher(time_cost=1, memory_cost=1024).hash(PASSWORD)
    timed.people.set_password("ada", weak, "test")
    sign_in.sign_in("ada", PASSWORD, HOME)
    assert timed.people.password("ada") not in (None, weak)
    sign_in.sign_in("ada", PASSWORD, HOME)
    timed.people.rehash("ada", weak, "another")
    assert timed.people.password("ada") != "another", "a password that was changed meanwhile stays"


def test_who_tries_many_passwords_waits(timed: Store, clock: SteppedClock) -> None:
    sign_in = with_password(timed)
    assert [fails(sign_in, "ada", ELSEWHERE) for _ in range(6)] == ["wrong-password"] * 5 + ["too-many-tries"]
    assert fails(sign_in, "ada", ELSEWHERE, PASSWORD) == "too-many-tries", "also with the right one"
    clock.seconds += 31
    sign_in.sign_in("ada", PASSWORD, ELSEWHERE)


def test_many_tries_at_once_count_each(timed: Store) -> None:
    sign_in = with_password(timed)
    codes: list[str] = []
    threads = [
        threading.Thread(target=lambda name=name: codes.append(fails(sign_in, name, ELSEWHERE)))
        for name in ["ada", "ADA", " ada", "Ada "] * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == ["too-many-tries"] * 11 + ["wrong-password"] * 5


def test_a_victim_signs_in_meanwhile(timed: Store, clock: SteppedClock) -> None:
    sign_in = with_password(timed)
    sign_in.sign_in("ada", PASSWORD, HOME)
    for number in range(30):
        fails(sign_in, "ada", f"203.0.113.{number}")
    assert fails(sign_in, "ada", "203.0.113.99", PASSWORD) == "too-many-tries", "from where nobody knows her"
    sign_in.sign_in("ada", PASSWORD, HOME)
    with pytest.raises(TooManyTries) as caught:
        sign_in.sign_in("ada", PASSWORD, "203.0.113.99")
    assert 1 <= caught.value.facts["seconds"] <= 31
    assert f"in {caught.value.facts['seconds']} seconds" in (caught.value.hint or "")


def test_an_address_that_tries_many_names_waits(timed: Store) -> None:
    sign_in = with_password(timed)
    sign_in.sign_in("ada", PASSWORD, "2001:db8::9")
    codes = [fails(sign_in, f"user{number}", "2001:db8::1" if number % 2 else "2001:db8::2") for number in range(61)]
    assert codes == ["wrong-password"] * 60 + ["too-many-tries"]
    sign_in.sign_in("ada", PASSWORD, HOME)
    sign_in.sign_in("ada", PASSWORD, "2001:db8::9")


def test_what_says_nothing_about_a_password_is_no_try(timed: Store) -> None:
    class Away:
        def sign_in(self, name: str, password: str) -> object:
            raise SignInUnavailable("it does not answer")

    sign_in = PasswordSignIn(timed, Away())  # type: ignore[arg-type]
    for _ in range(70):
        with pytest.raises(SignInUnavailable):
            sign_in.sign_in("grace", PASSWORD, HOME)


def test_a_limit_remembers_so_many_keys(clock: SteppedClock) -> None:
    limit = Limit(1, 10.0, clock)
    limit.count("first")
    assert limit.wait("first") == 10.0
    for number in range(20_000):
        limit.count(str(number))
    assert limit.wait("first") == 0.0
    assert limit.wait("19999") == 10.0
    clock.seconds += 4
    assert limit.wait("19999") == pytest.approx(6.0)


def test_a_few_passwords_are_checked_at_a_time(timed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from vgpuctl.controller import sessions

    sign_in = with_password(timed)
    most, now, lock = 0, 0, threading.Lock()
    hasher = sessions._hasher

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(hasher, name)

        def verify(self, digest: str, password: str) -> bool:
            nonlocal most, now
            with lock:
                now += 1
                most = max(most, now)
            try:
                return hasher.verify(digest, password)
            finally:
                with lock:
                    now -= 1

    monkeypatch.setattr(sessions, "_hasher", Counting())
    threads = [
        threading.Thread(target=sign_in.sign_in, args=("ada", PASSWORD, f"192.0.2.{number}")) for number in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 < most <= 3


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("ada", "short"),
        ("ada", "x" * 201),
        ("ada", "with\nnew line in it"),
        ("augusta-king-noel", "Augusta-King-Noel1"),
    ],
)
def test_what_is_no_password(name: str, password: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_password(name, password)
    assert password not in caught.value.message


def test_texts_of_sessions() -> None:
    assert check_password("ada", PASSWORD) == PASSWORD
    assert is_header_token("a", header_token("a"))
    assert not is_header_token("a", header_token("b"))
    assert header_token("a") != digest_of("a"), "what is stored opens nothing"
    assert network_of("2001:db8:0:1:2:3:4:5") == network_of("2001:db8:0:1::9") != network_of("2001:db8:0:2::9")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("x" * 500) == "x" * 100


def test_users_of_a_spec_become_entitlements(url: str) -> None:
    """Those of a database of the version before."""
    database = Database(url)
    try:
        with database.write() as connection:
            migrate(connection, "0004")
            connection.execute(insert(schema.meta).values(key="incarnation", value="x"))
            connection.execute(
                text("INSERT INTO image (id, name, version, path, os, retired, generation)"
                     " VALUES ('i', 'office', '1', '/i', 'linux', :no, 1)"), {"no": False},
            )  # fmt: skip
            for name, users in (("all", "[]"), ("some", '["ada", "eve"]')):
                spec = f'{{"kind": "floating", "image": "office", "names": "{name}-{{:03}}", "maximum": 1'
                spec += f', "users": {users}}}'
                connection.execute(
                    text("INSERT INTO pool (id, name, spec, image_id, state, generation, paused_by_errors)"
                         " VALUES (:name, :name, :spec, 'i', 'active', 1, :no)"),
                    {"name": name, "spec": spec, "no": False},
                )  # fmt: skip
            connection.execute(
                text("INSERT INTO token (name, role, digest, created_at) VALUES ('t', 'viewer', :digest, 1.0)"),
                {"digest": digest_of("x")},
            )
            connection.execute(text("INSERT INTO person (name) VALUES ('ada')"))
    finally:
        database.close()
    assert upgrade(url)
    with opened(url) as store:
        assert {(one.who, one.pool, one.right) for one in store.entitlements.list()} == {
            ("ada", "some", Right.USE), ("eve", "some", Right.USE),
        }  # fmt: skip
        assert store.pools.find("some").spec.maximum == 1
        token = store.tokens.find(digest_of("x"))
        assert token is not None
        assert (token.role, token.right) == (Role.VIEWER, None)
        assert store.people.find("ada") == Person("ada")


def test_a_sign_in_elsewhere_ends_once(timed: Store, clock: SteppedClock) -> None:
    secret, late = (timed.secrets.give_out("oidc", state, 600.0) for state in ("state", "late"))
    assert timed.secrets.take("oidc", "x") is None
    assert timed.secrets.take("console", secret) is None, "a secret of another kind"
    assert timed.secrets.take("oidc", secret) == "state"
    assert timed.secrets.take("oidc", secret) is None
    clock.seconds += 601
    assert timed.secrets.take("oidc", late) is None


def test_a_backup_has_no_password(timed: Store, tmp_path: Path) -> None:
    from vgpuctl.controller.database.backup import restore_backup, write_backup

    with_password(timed)
    timed.people.put("ada", "test", groups=("staff",))
    entitle(timed, "@staff", Role.VIEWER)
    path = tmp_path / "backup"
    write_backup(f"sqlite:///{tmp_path}/timed.db", path)
    assert b"argon2" not in gzip.decompress(path.read_bytes())
    url = f"sqlite:///{tmp_path}/other.db"
    restore_backup(url, path, "test", replace=False)
    with opened(url) as other:
        assert other.people.find("ada") == Person("ada", Realm.LOCAL, ("staff",), generation=3)
        assert other.entitlements.list() == (Entitlement("@staff", Role.VIEWER),)
