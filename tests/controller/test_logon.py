# SPDX-License-Identifier: Apache-2.0
"""Who may log on in a desktop: the helper's own program in the guests of a simulated host with a real agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.conftest import RunningAgent
from tests.agent.test_guest_helpers import state_directory
from tests.controller.conftest import IMAGE, SPEC, add_pool, opened, wait_until
from tests.controller.controllers import Controller, running_controller
from tests.controller.guests import DesktopGuests, quick_helpers
from tests.controller.test_engine import ADMIN, is_ready, phase, vms, with_pool, working
from tests.controller.test_portal import Browser
from vgpuctl.agent.client import connect
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.desktop_ports import DesktopStream
from vgpuctl.controller.model import CallerKind, Desktop, FleetCaller, PoolState, Right
from vgpuctl.controller.routes import API
from vgpuctl.errors import InvalidInput, Refused
from vgpuctl.model.controller_service import DATABASE_FILE
from vgpuctl.value import replace

__all__ = ("quick_helpers",)
BAD_ACCOUNTS = ("a b", "-x", "--help", "ALL", "all", "Ada", "CORP\\ada", "ada@corp.example", "a'b", 'a"b', "a" * 33,
                "a" * 300, "$(id)", "a;b", "../a")  # fmt: skip


@contextmanager
def guests_of(
    store: Store, tmp_path: Path, accounts: set[str] | None = None, *, has_access: bool = True
) -> Iterator[DesktopGuests]:
    guests = DesktopGuests(state_directory(), tmp_path / "guests", accounts, has_access=has_access)
    with guests.running(lambda: store):
        yield guests


def handed_out(store: Store, name: str = "office-001") -> bool:
    return store.desktops.find(name).handed_out


def events(store: Store, kind: str) -> list[str]:
    return [event.text for event in store.journal.list(0, 1000) if event.kind == kind]


@pytest.mark.usefixtures("quick_helpers")
def test_only_its_user_is_let_in(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    store = own_store
    with guests_of(store, tmp_path) as guests:
        with_pool(store, agent, spare=1, maximum=1, logon="domain")
        with working(store) as service:
            wait_until(is_ready(store, 1), "a spare desktop")
            guest = guests.of(store, "office-001")
            assert guest.let_in() == [], "a spare lets nobody in"
            service.assign(ADMIN, "office", "CORP\\ada")
            wait_until(lambda: handed_out(store), "the assignment")
            assert guest.let_in() == ["CORP\\ada"]
            guest.log_on("ada")
            wait_until(lambda: phase(service, "office-001") == "connected", "her log-on")
            assert events(store, "other-logon") == [], "ada is CORP\\ada"
            guest.log_on("eve")
            wait_until(lambda: bool(events(store, "other-logon")), "the log-on of somebody else")
            assert events(store, "other-logon") == ["office-001: eve logged on, and it is CORP\\ada's"]
            service.pause_pool(ADMIN, "office")
            service.release(ADMIN, "office-001")
            wait_until(lambda: guest.let_in() == [], "a paused pool refreshes nothing, and lets nobody in")
            assert (vms(agent)["office-001"].desktop.user, vms(agent)["office-001"].desktop.dirty) == (
                "CORP\\ada",
                True,
            )
            service.resume_pool(ADMIN, "office")
            wait_until(lambda: phase(service, "office-001") == "ready", "its refresh")
            assert guest.let_in() == []
            service.assign(ADMIN, "office", "bob")
            wait_until(lambda: handed_out(store), "the next user")
            assert guest.let_in() == ["bob"]


@pytest.mark.usefixtures("quick_helpers")
def test_a_user_whom_the_guest_does_not_know_gets_no_address(
    own_store: Store, agent: RunningAgent, tmp_path: Path
) -> None:
    store = own_store
    with guests_of(store, tmp_path, {"ada"}) as guests:
        with_pool(store, agent, spare=1, maximum=1, logon="domain")
        with working(store) as service:
            wait_until(is_ready(store, 1), "a spare desktop")
            service.assign(ADMIN, "office", "eve")
            wait_until(lambda: service.show_desktop(ADMIN, "office-001").data.code == "logon-refused", "the refusal")
            shown = service.show_desktop(ADMIN, "office-001").data
            assert "this guest has no user eve" in (shown.error or "")
            assert (shown.address, handed_out(store), shown.phase in ("starting", "failed")) == (None, False, True)
            assert store.pools.find("office").state is PoolState.ACTIVE
            guests.of(store, "office-001").programs.users = {"ada", "eve"}
            wait_until(lambda: handed_out(store), "eve's account in the directory")
            assert service.show_desktop(ADMIN, "office-001").data.code is None


@pytest.mark.usefixtures("quick_helpers")
def test_an_image_that_lets_everybody_in_pauses_its_pool(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    with guests_of(own_store, tmp_path, has_access=False):
        with_pool(own_store, agent, spare=3, maximum=3, logon="domain")
        with working(own_store) as service:
            wait_until(lambda: own_store.pools.find("office").state is PoolState.PAUSED, "three errors")
            assert "account required pam_access.so" in (own_store.pools.find("office").reason or "")
            with pytest.raises(Refused, match="pam_access"):
                service.assign(ADMIN, "office", "ada")


@pytest.mark.usefixtures("quick_helpers")
def test_a_pool_that_gets_and_loses_logon(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    store = own_store
    with guests_of(store, tmp_path) as guests:
        with_pool(store, agent, spare=1, maximum=1)
        with working(store):
            wait_until(is_ready(store, 1), "a spare desktop")
            guest = guests.of(store, "office-001")
            assert guest.let_in() is None
            add_pool(store, spare=1, maximum=1, logon="domain")
            wait_until(lambda: guest.let_in() == [], "nobody")
            wait_until(is_ready(store, 1), "it is ready again")
            first = guest.root
            add_pool(store, spare=1, maximum=1)
            wait_until(lambda: store.desktops.find("office-001").report.let_in is None, "a new disk")  # type: ignore[union-attr]
            assert guest.root == first, "the same generation: the simulated guest keeps its tree"


def desktop(store: Store) -> Desktop:
    return store.desktops.find("office-001")


@pytest.mark.usefixtures("quick_helpers")
def test_a_local_account_has_a_password_that_is_shown_once(
    own_store: Store, agent: RunningAgent, tmp_path: Path
) -> None:
    store = own_store
    with guests_of(store, tmp_path, {"root"}) as guests:
        with_pool(store, agent, spare=1, maximum=2, logon="local")
        with working(store) as service:
            wait_until(is_ready(store, 1), "a spare desktop")
            for user in BAD_ACCOUNTS:
                with pytest.raises(InvalidInput):
                    service.assign(ADMIN, "office", user)
            assert desktop(store).user is None
            for user in ("ada", "root"):
                service.ensure_person(ADMIN, user)
            given = service.assign(ADMIN, "office", "ada")
            guest, password = guests.of(store, "office-001"), given.data.password
            assert password is not None
            assert (given.warnings, desktop(store).handed_out, guest.let_in()) == ((), True, ["ada"])
            assert guest.programs.stdin == f"ada:{password}\n"
            assert ("chage", "--lastday", "0", "ada") in guest.programs.ran
            assert not [words for words in guest.programs.ran if password in " ".join(words)]
            again = service.assign(ADMIN, "office", "ada")
            assert (again.changed, again.data.password) == (False, None)
            other = service.assign(ADMIN, "office", "ada", new_password=True)
            assert other.data.password not in (None, password)
            assert guest.programs.stdin == f"ada:{other.data.password}\n"
            assert not hasattr(service.show_desktop(ADMIN, "office-001").data, "password")
            assert events(store, "password-set") == ["office-001: a one-time password for ada"] * 2
            guest.programs.failing.add("chpasswd")
            with pytest.raises(Refused, match="chpasswd failed"):
                service.assign(ADMIN, "office", "ada", new_password=True)
            wait_until(is_ready(store, 2), "another spare")
            root = service.assign(ADMIN, "office", "root")
            assert (root.changed, root.data.password, root.data.address) == (True, None, None)
            assert "an account root of its own" in root.warnings[0]
            assert "vgpuctl controller assign office root --new-password" in root.warnings[0]
            with pytest.raises(Refused, match="an account root of its own"):
                service.assign(ADMIN, "office", "root", new_password=True)


@pytest.mark.usefixtures("quick_helpers")
def test_without_local_accounts_there_are_no_passwords(own_store: Store, agent: RunningAgent) -> None:
    service = with_pool(own_store, agent, spare=0)
    with pytest.raises(InvalidInput, match="no accounts in their desktops"):
        service.assign(ADMIN, "office", "ada", new_password=True)


def files_with(directory: Path, text: str) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def as_ada(controller: Controller, directory: Path) -> Browser:
    """Return the browser in which ada has signed in."""
    password = directory / "password-of-ada"
    password.write_text("correct horse battery")
    assert controller.run("ensure-person", "ada").returncode == 0
    assert controller.run("set-password", "ada", "--password-file", str(password)).returncode == 0
    assert controller.run("entitle", "ada", "use", "--pool", "office").returncode == 0
    browser = Browser(controller)
    browser.post("/sign-in", {"user": "ada", "password": "correct horse battery", "path": "/my"})
    return browser


def assigned(controller: Controller, *words: str) -> tuple[str, str]:
    """Assign by the command line; return the password and what was written to stderr."""
    done = controller.run("assign", "office", "ada", *words)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("one-time password: "))
    return line.removeprefix("one-time password: "), done.stderr


@pytest.mark.usefixtures("quick_helpers")
def test_a_password_is_nowhere_but_in_its_answer(
    agent: RunningAgent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_controller(tmp_path / "controller") as controller:
        with opened(f"sqlite:///{tmp_path}/controller/state/{DATABASE_FILE}") as store:
            guests = DesktopGuests(state_directory(), tmp_path / "guests", {"root"}, has_access=True)
            with guests.running(lambda: store):
                spec = tmp_path / "office.yaml"
                spec.write_text(json.dumps({**SPEC, "spare": 1, "maximum": 2, "logon": "local"}))
                for line in (
                    f"add-host gpu01 agent:{agent.path}",
                    f"ensure-image office --path {IMAGE}",
                    f"ensure-pool office -f {spec}",
                ):
                    assert controller.run(*line.split()).returncode == 0
                assert "logon: local" in controller.run("show-pool", "office").stdout
                wait_until(lambda: controller.data("show-pool", "office")["ready"] == 1, "a spare desktop")
                dry = controller.run("assign", "office", "ada", "--new-password", "--dry-run")
                assert (dry.returncode, "password" in dry.stdout) == (0, False)
                first, stderr = assigned(controller)
                assert "shown this once" in stderr
                second, _ = assigned(controller, "--new-password")
                token = controller.run("add-token", "op", "--role", "operator").stdout.strip()
                asked = {"Authorization": f"Bearer {token}", "Idempotency_Key": "k1"}
                path, body = "/api/v1/pools/office/desktops", {"user": "ada", "new_password": True}
                status, answer, _ = controller.request("POST", path, body, **asked)
                third = answer["data"]["password"]
                assert (status, answer["changed"], len({first, second, third})) == (200, True, 3)
                again = controller.request("POST", path, body, **asked)[1]
                assert again["data"] == {**answer["data"], "password": None}, "the answer is kept without it"
                mine = as_ada(controller, tmp_path)
                path, more = f"{API}/me/pools/office/desktop", {**mine.asking, "Idempotency_Key": "k2"}
                answer = controller.request("POST", path, {"new_password": True}, **more)[1]
                fourth = answer["data"]["password"]
                assert (answer["data"]["name"], fourth in (first, second, third, None)) == ("office-001", False)
                again = controller.request("POST", path, {"new_password": True}, **more)[1]
                assert again["data"] == {**answer["data"], "password": None}
                mine.open("/my")
                mine.press("New password office-001")
                mine.press("New password")
                (fifth,) = mine.page.xpath("//main//pre/code/text()")
                assert fifth not in mine.open("/my"), "it is shown once"
                seen = [
                    controller.run("show-desktop", "office-001").stdout,
                    controller.run("list-desktops", "--json").stdout,
                    controller.run("list-events", "--json").stdout,
                    agent.ask("GET", "/v1/operations").text,
                    json.dumps([str(entry) for entry in connect(f"agent:{agent.path}").log().data]),
                    caplog.text,
                ]
        controller.stop()
    assert "set-password" in seen[3]
    assert "password=***" in seen[4], "the host's audit journal has the request without it"
    assert files_with(tmp_path, "set-password"), "what these files are searched for is found there"
    for password in (first, second, third, fourth, fifth):
        assert not [text for text in (*seen, controller.log) if password in text]
        assert files_with(tmp_path, password) == []


@pytest.mark.usefixtures("quick_helpers")
def test_a_text_is_shown_to_the_users_of_a_pool(own_store: Store, agent: RunningAgent, tmp_path: Path) -> None:
    store = own_store
    with guests_of(store, tmp_path) as guests:
        with_pool(store, agent, spare=2, maximum=2, logon="domain")
        with working(store) as service:
            wait_until(is_ready(store, 2), "two spare desktops")
            assert service.message_pool(ADMIN, "office", "hello").data.reached == 0
            for user in ("ada", "eve"):
                service.assign(ADMIN, "office", user)
            wait_until(lambda: handed_out(store, "office-001") and handed_out(store, "office-002"), "both")
            ada = guests.of(store, "office-001")
            ada.log_on("ada")
            wait_until(lambda: desktop(store).report.guest_users == ("ada",), "her log-on is seen")
            done = service.message_pool(ADMIN, "office", "save your work")
            assert (done.changed, done.data.reached, done.data.failed) == (True, 1, {})
            assert ("wall",) in ada.programs.ran
            assert "save your work" in str(ada.programs.stdin)
            assert events(store, "message") == ["office: shown in 1 desktops: save your work"]
            for text in ("", "a\nb", "x" * 1001):
                with pytest.raises(InvalidInput, match="1 to 1000 printable characters"):
                    service.message_pool(ADMIN, "office", text)
            own, pool = FleetCaller("ada", None, CallerKind.PERSON, {"office": Right.USE}), store.pools.find("office")
            host = store.hosts.list()[0]
            screens = [
                DesktopStream(store.desktops.find(name), pool.name, host, None, None, sees_host=True)
                for name in ("office-001", "office-002")
            ]
            opened_at = service.begin_console(ADMIN, screens[0])
            assert "test opened the screen of this desktop at " in str(ada.programs.stdin)
            service.end_console(ADMIN, screens[0], opened_at)
            assert "test closed the screen of this desktop at " in str(ada.programs.stdin)
            assert store.consoles.watched([one.desktop for one in screens])[screens[0].desktop.id].person == "test"
            ran = len(ada.programs.ran)
            service.end_console(own, screens[0], service.begin_console(own, screens[0]))
            assert len(ada.programs.ran) == ran, "she sees her own screen"
            service.begin_console(ADMIN, screens[1])
            guests.of(store, "office-001").programs.failing.add("wall")
            service.begin_console(ADMIN, screens[0])
            assert events(store, "console-opened") == ["office-001", "office-001", "office-002", "office-001"]
            (problem,) = events(store, "console-unannounced")
            assert problem.startswith("test opened the screen of this desktop at ")
            guests.of(store, "office-001").programs.failing.clear()
            empty = replace(screens[0].desktop, report=replace(screens[0].desktop.report, guest_users=()))
            service.follow_console(ADMIN, replace(screens[0], desktop=empty), screens[0])
            assert "test has the screen of this desktop open" in str(ada.programs.stdin), "who logs on meanwhile"
            ran = len(ada.programs.ran)
            service.follow_console(ADMIN, screens[0], screens[0])
            assert len(ada.programs.ran) == ran
            guests.of(store, "office-001").programs.failing.add("wall")
            refused = service.message_pool(ADMIN, "office", "again")
            assert (refused.data.reached, list(refused.data.failed)) == (0, ["office-001"]), refused
