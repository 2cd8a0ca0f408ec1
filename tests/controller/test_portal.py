# SPDX-License-Identifier: Apache-2.0
"""People in a browser: they sign in, take a desktop, use it, give it back; and what else might send their forms."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from lxml import html

from tests.agent.conftest import RunningAgent
from tests.controller.conftest import IMAGE, SPEC, opened, wait_until
from tests.controller.controllers import Controller, running_controller
from vgpuctl.controller.callers import HEADER
from vgpuctl.controller.planning.phase import PhaseWord
from vgpuctl.controller.web.answers import MAX_FORM_BYTES
from vgpuctl.controller.web.change_views import secret_page
from vgpuctl.controller.web.changes import CHANGES
from vgpuctl.controller.web.forms import ACTIONS, local_path
from vgpuctl.controller.web.parts import Visitor
from vgpuctl.controller.web.portal_views import portal_view
from vgpuctl.controller.web.render import render_page, render_sign_in
from vgpuctl.errors import NotAllowed
from vgpuctl.model.results.people import MyDesktopResult, MyPoolResult
from vgpuctl.value import replace

PASSWORD = "correct horse battery"
FORM = "application/x-www-form-urlencoded"
HOSTILE = '<script>alert("x")</script>\u202e&\'"'


class Browser:
    """What a person does in a browser without JavaScript: follows redirects, keeps a cookie, sends forms."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.cookies: dict[str, str] = {}
        self.status = 0
        self.page: Any = None
        self.headers: Any = None

    def open(self, path: str) -> str:
        return self._send("GET", path)

    def press(self, text: str, **typed: str) -> str:
        """Press the button of a form, with what was typed into its fields."""
        for form in self.page.forms:
            (button,) = form.xpath(".//button")
            if button.text_content().strip() == text:
                fields = {**dict(form.form_values()), **typed}
                if form.method == "GET":
                    return self.open(f"{form.action}?{urlencode(fields)}")
                return self.post(form.action, fields)
        raise AssertionError(f"no button {text!r} in {self.text}")

    def post(self, path: str, fields: dict[str, str], **headers: str) -> str:
        body = urlencode(fields).encode()
        return self._send("POST", path, body, **{"Content_Type": FORM, "Sec_Fetch_Site": "same-origin", **headers})

    @property
    def asking(self) -> dict[str, str]:
        """The headers with which its pages would ask the API."""
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        (token,) = set(self.page.xpath("//form//input[@name='token']/@value"))
        return {"Cookie": cookie, "Sec_Fetch_Site": "same-origin", HEADER.replace("-", "_"): token}

    @property
    def text(self) -> str:
        """What the page says."""
        return " ".join(self.page.text_content().split())

    def keep(self, headers: Any) -> None:
        """Keep the cookies of an answer."""
        for line in headers.get_all("Set-Cookie", []):
            assert "HttpOnly" in line
            assert "SameSite=lax" in line
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
            if "Max-Age=0" in line:
                del self.cookies[name]

    def _send(self, method: str, path: str, body: bytes | None = None, **headers: str) -> str:
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        self.status, document, self.headers = self._controller.request(method, path, body, **headers)
        self.keep(self.headers)
        if self.status == 303:
            return self._send("GET", self.headers["Location"])
        text = document.get("text", "") or json.dumps(document)
        self.page = html.fromstring(text) if text else None
        assert "default-src 'none'" in self.headers.get("Content-Security-Policy", "default-src 'none'")
        return text


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    with running_controller(tmp_path / "controller") as one:
        password = tmp_path / "password"
        password.write_text(PASSWORD)
        for name in ("ada", "eve"):
            assert one.run("ensure-person", name).returncode == 0
            assert one.run("set-password", name, "--password-file", str(password)).returncode == 0
        yield one


def signed_in(controller: Controller, name: str = "ada") -> Browser:
    browser = Browser(controller)
    browser.open("/")
    browser.press("Sign in", user=name, password=PASSWORD)
    return browser


def test_from_the_first_page_to_a_desktop_and_back(controller: Controller, agent: RunningAgent, tmp_path: Path) -> None:
    run, data = controller.run, controller.data
    assert run("add-host", "gpu01", f"agent:{agent.path}").returncode == 0
    assert run("ensure-image", "office", "--path", IMAGE).returncode == 0
    spec = tmp_path / "office.json"
    spec.write_text(json.dumps(SPEC))
    assert run("ensure-pool", "office", "-f", str(spec)).returncode == 0
    ada = signed_in(controller)
    assert "There is no desktop for you" in ada.text
    assert [one.text for one in ada.page.xpath("//header//nav//a")] == ["My desktops"], "nothing of the fleet"
    assert run("entitle", "everybody", "use", "--pool", "office").returncode == 0
    wait_until(lambda: data("show-pool", "office")["ready"] == 2, "two desktops")
    ada.open("/")
    ada.press("Take a desktop office")
    assert (ada.status, "office-001" in ada.text) == (200, True)
    assert "Take a desktop" not in ada.text, "she has as many as the pool allows"
    assert data("show-desktop", "office-001")["user"] == "ada"
    eve = signed_in(controller, "eve")
    assert "office-001" not in eve.text
    token = eve.page.xpath("//form//input[@name='token']/@value")[0]
    eve.post("/my/start", {"token": token, "name": "office-001"})
    assert (eve.status, "there is no desktop office-001" in eve.text) == (404, True)
    for action in ("stop", "release"):
        eve.open(f"/my/{action}?name=office-001")
        assert (eve.status, "there is no desktop office-001" in eve.text) == (404, True), action
    desktop = data("show-desktop", "office-001")
    ada.open("/desktops/office-001")
    buttons = ada.page.xpath("//p[@class='buttons']/a")
    assert {(one.text, one.get("href").partition("?")[0]) for one in buttons} >= {
        ("Shut down", "/my/stop"), ("Give back", "/my/release"),
    }  # fmt: skip
    assert not any(one.get("href").startswith("/change/") for one in buttons)
    assert not any(text in ada.text for text in (desktop["mac"], desktop["id"], "Profile", "Host", "Release"))
    ada.open("/my")
    ada.press("Shut down office-001")
    assert "not saved is lost" in ada.text
    assert data("show-desktop", "office-001")["power"] == "on", "it asks first"
    ada.press("Shut down")
    assert ada.page.xpath("//*[@role='status'][parent::section]/text()") == ["office-001 shuts down."]
    assert data("show-desktop", "office-001")["power"] == "off"
    wait_until(lambda: data("show-desktop", "office-001")["phase"] == "off", "it is off")
    ada.open("/my")
    ada.press("Start office-001")
    wait_until(lambda: data("show-desktop", "office-001")["address"] is not None, "its address")
    assert data("show-desktop", "office-001")["address"] in ada.open("/my")
    assert "gpu01" not in ada.text, "nothing of its host"
    token = ada.page.xpath("//form//input[@name='token']/@value")[0]
    ada.post("/my/new-password?name=office-001", {"token": token, "once": "1"})
    assert (ada.status, "nobody has an account in office-001" in ada.text) == (400, True)
    ada.open("/my")
    ada.press("Give back office-001")
    ada.open("/my/release?name=office-001")  # as when the page is loaded again
    assert "What is in it is deleted" in ada.text
    assert data("show-desktop", "office-001")["user"] == "ada"
    ada.press("Give back")
    assert "office-001 was given back." in ada.text
    assert data("list-desktops", "--user", "ada") == [], "it may be deleted already, as one too many"
    assert "Take a desktop" in ada.text
    run("pause-pool", "office", "--reason", "new storage")
    ada.open("/my")
    assert "It gives no desktops just now: new storage" in ada.text
    ada.press("Sign out")
    assert "Password" in ada.text
    ada.open("/my")
    assert (ada.status, "Password" in ada.text) == (401, True)


def test_ones_own_password(controller: Controller) -> None:
    ada, other = signed_in(controller), signed_in(controller)
    assert ada.page.xpath("//a[@href='/my/password']/text()") == ["Your password"]
    given = {"old": PASSWORD, "new": "another good one", "again": "another good one"}
    for wrong, problem in (
        ({"old": "x"}, "the old password is wrong"), ({"again": "x"}, "the two new passwords differ"),
        ({"new": "short", "again": "short"}, "12 to 200 characters"),
        ({"new": PASSWORD, "again": PASSWORD}, "the new password is the old one"),
    ):  # fmt: skip
        ada.open("/my/password")
        text = ada.press("Change the password", **{**given, **wrong})
        assert (ada.status, problem in ada.text) == (400, True), problem
        assert PASSWORD not in text
        assert "another good one" not in text
    other.open("/my")
    assert other.status == 200
    token = ada.page.xpath("//form//input[@name='token']/@value")[0]
    for headers in ({"Sec_Fetch_Site": "cross-site"}, {}):
        ada.post("/my/password", {**given, "token": token if headers else "x"}, **headers)
        assert ada.status == 403
    ada.open("/my/password")
    ada.press("Change the password", **given)
    assert "Your password was changed." in ada.text
    other.open("/my")
    assert other.status == 401, "her other sessions end"
    assert signed_in(controller).status == 401, "the old one is no longer good"
    events = [one for one in controller.data("list-events") if one["kind"] == "password-set"]
    assert [(one["actor"], one["actor_kind"]) for one in events if one["user"] == "ada"][-1] == ("ada", "person")


def test_a_password_is_changed_in_a_session_alone_and_guessed_no_faster(controller: Controller) -> None:
    path, request = "/api/v1/me/password", controller.request
    given = {"old": PASSWORD, "new": "another good one"}
    eve = signed_in(controller, "eve")
    asking = eve.asking
    status, body, _ = request("POST", "/api/v1/me/tokens", {"name": "laptop"}, **asking)
    assert status == 200
    laptop = {"Authorization": f"Bearer {body['data']['secret']}"}
    tool = {"Authorization": f"Bearer {controller.run('add-token', 'tool', '--role', 'admin').stdout.strip()}"}
    assert [request("POST", path, given, **one)[0] for one in (laptop, tool, {})] == [403, 403, 401]
    for wrong in ({}, {"old": PASSWORD}, {**given, "new": 7}, {**given, "name": "ada"}):
        assert request("POST", path, wrong, **asking)[0] == 400, wrong
    for _ in range(5):
        assert request("POST", path, {**given, "old": "wrong"}, **asking)[0] == 401
    status, body, _ = request("POST", path, given, **asking)
    assert (status, body["error"]["code"]) == (429, "too-many-tries")
    ada = signed_in(controller).asking
    assert controller.run("set-password", "ada").returncode == 0, "an admin was faster"
    assert request("POST", path, given, **ada)[0] == 401
    with opened(f"sqlite:///{controller.directory}/state/fleet.db") as store, store.database.write() as connection:
        connection.exec_driver_sql("UPDATE person SET realm = 'oidc' WHERE name = 'eve'")
    eve.open("/my")
    assert (eve.status, "Your password" in eve.text) == (200, False)
    eve.open("/my/password")
    assert (eve.status, "Your directory has it" in eve.text) == (404, True)
    status, body, _ = request("POST", path, given, **asking)
    assert (status, "you sign in by oidc" in body["error"]["message"]) == (403, True)
    with opened(f"sqlite:///{controller.directory}/state/fleet.db") as store, pytest.raises(NotAllowed, match="ended"):
        store.people.set_password("ada", "x", "ada", session="another one's")


def test_signing_in(controller: Controller) -> None:
    browser = Browser(controller)
    browser.open("/desktops?user=x")
    assert browser.status == 401
    browser.press("Sign in", user="ada", password="wrong")
    assert browser.status == 401
    assert "the name or the password is wrong" in browser.text
    assert browser.page.xpath("//input[@name='user']/@value") == ["ada"], "what was typed stays"
    assert browser.page.xpath("//input[@name='path']/@value") == ["/desktops?user=x"]
    assert PASSWORD not in browser.press("Sign in", user="ada", password=PASSWORD)
    assert browser.status == 403, "she is signed in, and sees no pools"
    assert "signed in as ada" in browser.text.replace("  ", " ")
    other = Browser(controller)
    for _ in range(6):
        other.post("/sign-in", {"user": "ada", "password": "wrong"})
    assert (other.status, "the next try is heard in" in other.text) == (429, True)
    assert controller.run("entitle", "eve", "viewer").returncode == 0
    eve = Browser(controller)
    eve.post("/sign-in", {"user": "eve", "password": PASSWORD, "path": "//evil.example/"})
    assert (eve.status, "This fleet has no host yet" in eve.text) == (200, True)
    assert "My desktops" in eve.text


def test_forms_that_nobody_pressed(controller: Controller) -> None:
    ada = signed_in(controller)
    token = ada.page.xpath("//form//input[@name='token']/@value")[0]
    good = {"token": token, "pool": "office"}
    for fields, headers in (
        ({"pool": "office"}, {}), ({**good, "token": "x"}, {}), (good, {"Sec_Fetch_Site": "cross-site"}),
        (good, {"Sec_Fetch_Site": "same-site"}), (good, {"Sec_Fetch_Site": "none"}),
    ):  # fmt: skip
        ada.post("/my/take", fields, **headers)
        assert ada.status == 403, (fields, headers)
        ada.post("/sign-out", fields, **headers)
        assert ada.status == 403, (fields, headers)
        ada.post("/my/release?name=office-001", {**fields, "once": "1"}, **headers)
        assert (ada.status, "office-001" in ada.text) == (403, False), (fields, headers)
    ada.post("/my/take", good)
    assert (ada.status, "there is no pool office" in ada.text) == (404, True)
    ada.post("/my/take", good, Content_Type="application/json")
    assert ada.status == 400
    for body, status in (
        (b"token=a&token=b", 400), (b"\xff=%ff", 400), (b"a=" + b"x" * MAX_FORM_BYTES, 413),
        (b"&".join(b"f%d=1" % number for number in range(30)), 400), (b"", 403),
    ):  # fmt: skip
        ada._send("POST", "/my/take", body, Content_Type=FORM, Sec_Fetch_Site="same-origin")
        assert ada.status == status, body[:40]
    ada.open("/my")
    assert ada.status == 200, "she is still signed in"


@pytest.mark.parametrize(
    "text", ["//evil.example", "/\\evil.example", "https://evil.example/", "", "x", "/a\r\nb", "/sign-out", "/" * 3000]
)
def test_where_nobody_is_sent(text: str) -> None:
    assert local_path(text) == "/"


def test_what_is_typed_or_named_is_text() -> None:
    pool = MyPoolResult(HOSTILE, "floating", "paused", HOSTILE, 0, 1)
    desktop = MyDesktopResult(HOSTILE, HOSTILE, "assigned", None, "on", HOSTILE, None, "2026-11-29T00:00:00Z")
    page = render_page(portal_view([pool], [desktop], "token"), Visitor(HOSTILE, (), "token"), None)
    for text in (
        page,
        render_sign_in(HOSTILE, HOSTILE, HOSTILE),
        render_page(secret_page(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), "/my"), Visitor(), None),
    ):
        assert "<script>alert" not in text
        assert "\u202e" not in text
        assert "‹U+202E›" in text or "&lt;script&gt;" in text
    assert "2026-11-29" in page


def test_each_button_is_a_call() -> None:
    desktop = MyDesktopResult("d-1", "office", "off", None, "off", None, None, None, None, "dedicated", "local")
    running = replace(desktop, name="d-2", phase="assigned", power="on")
    pool = MyPoolResult("office", "dedicated", "active", None, 2, 3)
    page = html.fromstring(render_page(portal_view([pool], [desktop, running], "token"), Visitor(), None))
    floating = portal_view([pool], [replace(running, kind="floating")], "token")
    page2 = html.fromstring(render_page(floating, Visitor(), None))
    assert {form.action for form in page.forms} == {
        *(f"/my/{action}" for action in ACTIONS), "/my/new-password", "/my/restart", "/my/stop",
    }  # fmt: skip
    assert "The restart failed" not in page.text_content()
    failed = portal_view([pool], [replace(running, restart_failed=True)], "token")
    assert "The restart failed" in render_page(failed, Visitor(), None)
    assert "/my/release" in {form.action for form in page2.forms}
    asking = {form.action for form in (*page.forms, *page2.forms) if form.method == "GET"}
    assert asking == {"/my/release", "/my/restart", "/my/stop", "/my/new-password"} <= CHANGES.keys()


@pytest.mark.parametrize("phase", list(PhaseWord))
def test_what_is_shown_of_a_desktop_that_runs_or_does_not(phase: str) -> None:
    """What is off or goes away has nothing to open, and each phase that its user sees has its sentence."""
    seen = MyDesktopResult("d-1", "office", phase, None, "on", "10.0.0.7", None, None, opens="rdp", connect=(22,))
    page = html.fromstring(render_page(portal_view([], [seen], "token"), Visitor(), None))
    is_usable = phase in ("ready", "assigned", "connected", "unknown", "failed")
    assert bool(page.xpath("//a[starts-with(@href, '/my/open')]")) is is_usable
    assert bool(page.xpath("//pre[@class='command']")) is is_usable
    text = page.text_content()
    assert ("10.0.0.7" in text) is is_usable
    assert ("Open downloads a file" in text) is is_usable
    assert page.xpath("//li/h3/following-sibling::p[1]")[0].text.startswith(("It ", "Its ", "You "))
    badge = page.xpath("//li//span[contains(@class, 'badge')]/text()")
    assert badge == ["ready" if phase == "assigned" else phase]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("done=release&name=office-001", 200), ("done=x&name=office-001", 200), ("done=release", 200),
        ("done=release&name=Call+0123", 400), ("done=release&name=%3Cb%3E", 400), ("done=a&done=b", 400),
    ],
)  # fmt: skip
def test_what_was_done_is_no_free_text(controller: Controller, query: str, status: int) -> None:
    ada = signed_in(controller)
    ada.open(f"/my?{query}")
    assert ada.status == status
    assert ("office-001 was given back." in ada.text) is (query == "done=release&name=office-001")


def test_ones_own_page_is_about_ones_own_desktops_and_gives_one_at_a_time(
    controller: Controller, agent: RunningAgent, tmp_path: Path
) -> None:
    """An operator's stale buttons do nothing to the desktop that somebody else has by now."""
    run, data = controller.run, controller.data
    assert run("add-host", "gpu01", f"agent:{agent.path}").returncode == 0
    assert run("ensure-image", "office", "--path", IMAGE).returncode == 0
    spec = tmp_path / "office.json"
    spec.write_text(json.dumps({**SPEC, "maximum": 3, "spare": 3, "per_user": 3}))
    assert run("ensure-pool", "office", "-f", str(spec)).returncode == 0
    for words in (("everybody", "use", "--pool", "office"), ("ada", "operator")):
        assert run("entitle", *words).returncode == 0
    wait_until(lambda: data("show-pool", "office")["ready"] == 3, "three desktops")
    ada = signed_in(controller)
    ada.open("/my")
    (form,) = [one for one in ada.page.forms if one.action == "/my/take"]
    fields = dict(form.form_values())
    for _ in range(2):
        ada.post("/my/take", fields)
        assert ada.status == 200
    assert [one["name"] for one in data("list-desktops", "--user", "ada")] == ["office-001"], "pressed twice"
    ada.open("/my/release?name=office-001")
    assert "What is in it is deleted" in ada.text
    (form,) = [one for one in ada.page.forms if one.method == "POST" and "release" in one.action]
    stale, address = dict(form.form_values()), form.action
    assert run("release", "office-001", "--yes").returncode == 0
    wait_until(lambda: data("show-desktop", "office-001")["phase"] == "ready", "its refresh")
    for name in ("office-001", "office-002"):
        ada.post("/my/start", {"token": fields["token"], "name": name})
        assert (ada.status, f"there is no desktop {name}" in ada.text) == (404, True)
        for action in ("stop", "release"):
            ada.post(f"/my/{action}?name={name}", {"token": fields["token"], "once": action})
            assert ada.status == 404
            ada.open(f"/my/{action}?name={name}")
            assert ada.status == 404
    for _ in range(3):
        assert run("assign", "office", "eve").returncode == 0
    (given,) = [one for one in data("list-desktops", "--user", "eve") if one["name"] == "office-001"]
    ada.post(address, stale)
    assert ada.status in (404, 412)
    assert (given["user"], data("show-desktop", "office-001")["user"]) == ("eve", "eve")
    assert data("show-desktop", "office-001")["power"] == "on"
