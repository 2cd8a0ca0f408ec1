# SPDX-License-Identifier: Apache-2.0
"""People whom a directory knows sign in to a controller: by an OIDC issuer, and by an LDAP server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controller.certificates import Authority
from tests.controller.controllers import Controller
from tests.controller.directory_server import READER_DN, READER_PASSWORD, SUFFIX, DirectoryServer, free_port
from tests.controller.lying_issuer import CLIENT, SECRET, LyingIssuer
from tests.controller.test_ldap import PASSWORD, USER_FILTER, _readable
from tests.controller.test_portal import PASSWORD as LOCAL_PASSWORD
from tests.controller.test_portal import Browser


@pytest.fixture(scope="module")
def issuer() -> Iterator[LyingIssuer]:
    one = LyingIssuer()
    yield one
    one.stop()


@pytest.fixture(scope="module")
def server() -> Iterator[DirectoryServer]:
    with tempfile.TemporaryDirectory(prefix="vgpuctl-ldap-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        authority = Authority(folder)
        certificate, key = authority.sign("server", ("localhost",))
        (folder / "slapd").mkdir()
        one = DirectoryServer(folder / "slapd", authority.path, *_readable(folder / "slapd", certificate, key))
        try:
            one.add_group("Café, (Nord)", one.add_person("grace", PASSWORD, displayName="Grace Hopper"))
            one.add_person("eve", PASSWORD)
            yield one
        finally:
            one.stop()


@pytest.fixture(scope="module")
def controller(
    tmp_path_factory: pytest.TempPathFactory, issuer: LyingIssuer, server: DirectoryServer
) -> Iterator[Controller]:
    directory = tmp_path_factory.mktemp("ways")
    for name, secret in (("oidc", SECRET), ("ldap", READER_PASSWORD)):
        (directory / name).touch(0o600)
        (directory / name).write_text(secret)
    one = Controller(directory / "controller", free_port())
    settings = {
        "oidc": {
            "issuer": issuer.url, "client_id": CLIENT, "client_secret_file": str(directory / "oidc"),
            "address": f"http://127.0.0.1:{one.port}",
        },
        "ldap": {
            "url": server.url, "base_dn": SUFFIX, "bind_dn": READER_DN, "bind_password_file": str(directory / "ldap"),
            "user_filter": USER_FILTER, "name_attribute": "uid",
        },
    }  # fmt: skip
    file = directory / "sign-in.yaml"
    file.write_text(json.dumps(settings))
    one.start("--listen", f"127.0.0.1:{one.port}", "--sign-in", str(file))
    try:
        password = directory / "password"
        password.write_text(LOCAL_PASSWORD)
        assert one.run("ensure-person", "root1").returncode == 0
        assert one.run("set-password", "root1", "--password-file", str(password)).returncode == 0
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.stop()


class Away(Browser):
    """A browser that stops where another site begins."""

    def go(self, path: str) -> str:
        """Follow a link of the controller to the issuer; return where that is."""
        status, _, headers = self._controller.request("GET", path)
        assert status == 303
        self.keep(headers)
        return str(headers["Location"])

    def come_back(self, query: dict[str, str]) -> str:
        from urllib.parse import urlencode

        return self.open(f"/sign-in/oidc/done?{urlencode(query)}")


def through(controller: Controller, issuer: LyingIssuer, path: str = "/my") -> Away:
    """Sign in at the issuer, as ada."""
    browser = Away(controller)
    browser.open(path)
    (link,) = browser.page.xpath("//main//a[contains(@class, 'button')]/@href")
    assert "Sign in with localhost" in browser.text
    browser.come_back(issuer.log_in(browser.go(link)))
    return browser


def test_by_an_issuer(controller: Controller, issuer: LyingIssuer) -> None:
    issuer.reset()
    ada = through(controller, issuer)
    assert (ada.status, "There is no desktop for you" in ada.text) == (200, True), "signing in gives no right"
    person = controller.data("show-person", "ada")
    assert (person["realm"], person["groups"], person["shown"]) == ("oidc", ["designers"], "Ada Lovelace")
    assert controller.run("entitle", "@designers", "viewer").returncode == 0
    assert ada.open("/hosts")
    assert ada.status == 200
    issuer.claims = lambda claims: claims.update(groups=["others"])
    assert through(controller, issuer, "/hosts").status == 403, "who left the group"
    assert ada.open("/hosts")
    assert ada.status == 403, "also where she was signed in"
    issuer.reset()
    assert through(controller, issuer, "/hosts").status == 200
    again = Browser(controller)
    again.post("/sign-in", {"user": "ada", "password": PASSWORD})
    assert again.status == 401, "her password is the issuer's"


def test_who_did_not_begin_or_is_not_who_he_says(controller: Controller, issuer: LyingIssuer) -> None:
    issuer.reset()
    browser = Away(controller)
    query = issuer.log_in(browser.go("/sign-in/oidc?path=/my"))
    stranger = Away(controller)
    stranger.come_back(query)
    assert (stranger.status, "did not begin in this browser" in stranger.text) == (403, True)
    browser.come_back({**query, "state": "x"})
    assert (browser.status, "belongs to another sign-in" in browser.text) == (403, True)
    browser.come_back(query)
    assert browser.status == 403, "it was used up"
    for claims, words in (
        (lambda c: c.update(nonce="x"), "nonce"), (lambda c: c.update(aud="other"), "it is for other"),
        (lambda c: c.update(preferred_username="a b"), "not the name of a user"),
        (lambda c: c.update(preferred_username="root1"), "root1 is an account of local"),
    ):  # fmt: skip
        issuer.reset()
        issuer.claims = claims
        refused = through(controller, issuer)
        assert refused.status == 403, words
        assert words in refused.text
    issuer.reset()
    assert controller.run("ensure-person", "ada", "--disabled", "--realm", "oidc").returncode == 0
    assert "the account ada is disabled" in through(controller, issuer).text
    assert controller.run("ensure-person", "ada", "--enabled").returncode == 0


def test_by_ldap_beside_local_accounts(controller: Controller, server: DirectoryServer) -> None:
    grace = Browser(controller)
    for password in ("", "wrong", LOCAL_PASSWORD):
        grace.post("/sign-in", {"user": "grace", "password": password})
        assert (grace.status, "the name or the password is wrong" in grace.text) == (401, True), password
    grace.post("/sign-in", {"user": "GRACE", "password": PASSWORD, "path": "/my"})
    assert (grace.status, "There is no desktop for you" in grace.text) == (200, True)
    person = controller.data("show-person", "grace")
    assert (person["realm"], person["groups"]) == ("ldap", ["Café, (Nord)"])
    assert controller.run("entitle", "@Café, (Nord)", "viewer").returncode == 0
    grace.open("/hosts")
    assert grace.status == 200
    root = Browser(controller)
    root.post("/sign-in", {"user": "root1", "password": LOCAL_PASSWORD})
    assert root.status == 200, "a local account needs no server"
    status, body, _ = controller.request("POST", "/api/v1/session", {"user": "eve", "password": PASSWORD})
    assert (status, body["user"]) == (200, "eve")
    assert controller.run("ensure-person", "eve", "--disabled").returncode == 0
    status, body, _ = controller.request("POST", "/api/v1/session", {"user": "eve", "password": PASSWORD})
    assert (status, body["error"]["message"]) == (403, "the account eve is disabled")


def test_a_stranger_begins_a_few_times(controller: Controller, issuer: LyingIssuer) -> None:
    issuer.reset()
    statuses = {controller.request("GET", "/sign-in/oidc")[0] for _ in range(330)}
    assert statuses == {303, 429}


def test_servers_that_are_away(controller: Controller, issuer: LyingIssuer, server: DirectoryServer) -> None:
    """This is the last one: the server stays away."""
    issuer.reset()
    words = ("doctor", "sign-in", "secrets", "--state", str(controller.directory / "state"), "--json", "--sign-in")
    file = str(controller.directory.parent / "sign-in.yaml")

    def doctor() -> dict[str, Any]:
        return {one["id"]: one for one in json.loads(controller.run(*words, file).stdout)["data"]["checks"]}

    assert doctor()["sign-in"]["verdict"] == "ok"
    assert server.url in doctor()["sign-in"]["evidence"][0]
    (controller.directory.parent / "ldap").chmod(0o644)
    assert doctor()["sign-in"]["verdict"] == "fail", "others may read a secret"
    (controller.directory.parent / "ldap").chmod(0o600)
    server.stop()
    assert (doctor()["sign-in"]["verdict"], doctor()["secrets"]["verdict"]) == ("fail", "ok")
    grace = Browser(controller)
    grace.post("/sign-in", {"user": "grace", "password": PASSWORD})
    assert grace.status == 503
    assert grace.page.xpath("//input[@name='user']/@value") == ["grace"]
    assert PASSWORD not in grace.text
    root = Browser(controller)
    root.post("/sign-in", {"user": "root1", "password": LOCAL_PASSWORD})
    assert root.status == 200


def test_a_file_that_is_wrong_ends_the_controller_before_it_begins(tmp_path: Path) -> None:
    file = tmp_path / "sign-in.yaml"
    file.write_text("oidc:\n  issuer: http://sso.example.org\n  client_id: x\n")
    one = Controller(tmp_path / "controller", 0)
    done = one.run("run", "--state", str(tmp_path / "state"), "--socket", str(tmp_path / "s"), "--sign-in", str(file))
    assert done.returncode == 2
    assert f"{file}:2:11: oidc.issuer: " in done.stderr
    assert "oidc.address: is missing" in done.stderr or "address" in done.stderr
    assert not (tmp_path / "s").exists()
