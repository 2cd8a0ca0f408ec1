# SPDX-License-Identifier: Apache-2.0
"""The screens of desktops through a real controller and a real agent; the simulator's guests show a colour."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.controller.conftest import wait_until
from tests.controller.test_connect import Site, connecting, site_in
from tests.controller.test_portal import PASSWORD, Browser, signed_in
from vgpuctl.agent.byte_streams import SUBPROTOCOL, ConnectionStream
from vgpuctl.agent.stream_client import ClientStream, open_stream
from vgpuctl.controller.consoles import TICKET
from vgpuctl.controller.desktop_streams import is_input
from vgpuctl.controller.routes import API
from vgpuctl.errors import VgpuctlError
from vgpuctl.sim.screen import BANNER

CONSOLE, SCREEN = f"{API}/desktops/office-001/console", f"{API}/desktops/office-001/screen"
MESSAGES = "events of the simulated guests"


class Console:
    """Opens the console of office-001. `operator`: the headers of a token that operates its pool."""

    def __init__(self, site: Site) -> None:
        self.site = site
        add = ("add-token", "tool", "--right", "operate", "--pool", "office")
        self.operator = {"Authorization": f"Bearer {site.controller.run(*add).stdout.strip()}"}

    def ticket(self, headers: dict[str, str] | None = None, path: str = CONSOLE) -> tuple[int, dict[str, Any]]:
        """Ask for a ticket, ada by default; return the status and the answer."""
        given = self.site.ada.asking if headers is None else headers
        status, body, _ = self.site.controller.request("POST", path, {}, **given)
        return status, body

    def secret(self, headers: dict[str, str] | None = None) -> str:
        """Return a ticket."""
        status, body = self.ticket(headers)
        assert status == 200, body
        return str(body["data"]["ticket"])

    async def open(self, headers: dict[str, str], ticket: str, path: str = SCREEN) -> ClientStream:
        """Return the stream of a screen."""
        port = self.site.controller.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        offered = [SUBPROTOCOL, *([TICKET + ticket] if ticket else [])]
        connection = ConnectionStream(reader, writer)
        return await open_stream(connection, "the controller", f"127.0.0.1:{port}", path, headers, offered)

    def code(self, headers: dict[str, str] | None = None, ticket: str | None = None, path: str = SCREEN) -> str:
        """Return the code of the error with which the stream ends; "" if it shows a screen."""
        given = self.site.page if headers is None else headers
        secret = (self.secret() if headers is None else self.secret(headers)) if ticket is None else ticket

        async def see() -> str:
            stream = await self.open(given, secret, path)
            try:
                async with asyncio.timeout(60):
                    return "" if (await stream.read()).startswith(BANNER) else "nothing"
            except VgpuctlError as error:
                return error.code
            finally:
                await stream.close()

        return asyncio.run(see())

    async def end(self, stream: ClientStream) -> str:
        """Return the code of the error with which a stream that is open ends."""
        try:
            async with asyncio.timeout(60):
                while await stream.read():
                    continue
        except VgpuctlError as error:
            return error.code
        return "closed"

    def ends(self, act: Any, headers: dict[str, str] | None = None) -> str:
        """Do something while a screen is open; return the code of the error with which it ends."""

        async def wait() -> str:
            given = self.site.page if headers is None else headers
            stream = await self.open(given, self.secret(headers))
            try:
                assert (await stream.read()).startswith(BANNER)
                await asyncio.to_thread(act)
                return await self.end(stream)
            finally:
                await stream.close()

        return asyncio.run(wait())

    def events(self) -> list[dict[str, Any]]:
        """Return the journal's entries about consoles."""
        return [one for one in self.site.controller.data("list-events") if one["kind"] == "console-opened"]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A pool whose users have the console, too; no test changes it for others."""
    with site_in(tmp_path_factory.mktemp("console")) as one:
        one.ensure_pool(console=True)
        yield Console(one)


@pytest.fixture
def own_console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """One of the test's own."""
    with site_in(tmp_path_factory.mktemp("own-console")) as one:
        one.ensure_pool(console=True)
        yield Console(one)


def test_a_ticket_opens_a_screen_once(console: Console) -> None:
    ticket = console.secret()
    assert console.code(ticket=ticket) == ""
    assert console.code(ticket=ticket) == "not-allowed", "it was used"
    assert console.code() == ""
    last = console.events()[-1]
    assert (last["actor"], last["user"], last["text"]) == ("ada", "ada", "office-001")
    assert ticket not in console.site.controller.log


def test_what_a_ticket_is_bound_to(console: Console) -> None:
    ada, origin = console.site.page["Cookie"], console.site.page["Origin"]
    other = signed_in(console.site.controller)
    other.open("/my")
    again = {"Cookie": other.asking["Cookie"], "Origin": origin}
    assert console.code(again, console.secret()) == "not-allowed", "it is of another session of hers"
    assert console.code(console.operator, console.secret()) == "not-allowed", "it is ada's"
    assert console.code(ticket="") == "not-allowed"
    assert console.code(ticket="x" * 43) == "not-allowed"
    assert console.code({}, console.secret()) == "not-signed-in"
    for site in ("http://evil.example", "null", f"{origin}.evil.example"):
        assert console.code({"Cookie": ada, "Origin": site}, console.secret()) == "not-allowed", site
    assert console.code({"Cookie": ada}, console.secret()) == "not-allowed", "it does not say which page asks"
    wait_until(lambda: len(console.site.controller.data("list-desktops")) == 2, "the next spare desktop")
    assert console.code(console.operator, console.secret(console.operator), SCREEN.replace("001", "002")) == (
        "not-allowed"
    ), "it is for another desktop"


def test_who_gets_no_ticket(console: Console) -> None:
    eve = signed_in(console.site.controller, "eve")
    eve.open("/my")
    assert console.ticket(eve.asking)[0] == 404
    assert console.ticket({})[0] == 401
    header = [name for name in console.site.ada.asking if name.lower().endswith("token")]
    without = {name: value for name, value in console.site.ada.asking.items() if name not in header}
    assert console.ticket(without)[0] == 403, "another site's page could ask so"
    assert console.ticket(path=CONSOLE.replace("001", "009"))[0] == 404


def test_a_pool_that_gives_users_no_console(own_console: Console) -> None:
    own_console.site.ensure_pool(console=False)
    status, body = own_console.ticket()
    assert (status, body["error"]["code"]) == (409, "refused")
    assert "gives its users no console" in body["error"]["message"]
    assert own_console.code(own_console.operator) == "", "who operates the pool has it"
    own_console.site.ensure_pool(console=True)
    assert own_console.ends(lambda: own_console.site.ensure_pool(console=False)) == "refused"


def test_a_desktop_that_restarts_and_is_off(own_console: Console) -> None:
    run = own_console.site.controller.run
    wait_until(lambda: own_console.site.desktop["phase"] == "assigned", "it runs")
    done = run("restart-desktop", "office-001", "--now")
    assert done.returncode == 0, done.stderr
    assert "restart" in {one["kind"] for one in own_console.site.controller.data("list-events")}
    wait_until(lambda: own_console.site.desktop["phase"] == "assigned", "it was reset")
    assert own_console.code() == ""
    assert own_console.ends(lambda: run("stop-desktop", "office-001", "--yes")) in ("refused", "closed")
    wait_until(lambda: own_console.site.desktop["phase"] == "off", "it is off")
    status, body = own_console.ticket()
    assert (status, "office-001 does not run" in body["error"]["message"]) == (409, True)


def test_it_ends_with_what_it_follows_from(own_console: Console) -> None:
    site, run = own_console.site, own_console.site.controller.run
    assert own_console.ends(lambda: site.ada.press("Sign out")) == "not-signed-in"
    site.ada = signed_in(site.controller)
    site.ada.open("/my")
    tool = own_console.operator
    assert own_console.ends(lambda: run("delete-token", "tool", "--yes"), tool) == "not-signed-in"
    ended = own_console.ends(lambda: run("release", "office-001", "--yes"))
    assert ended in ("not-found", "refused", "stale", "closed"), "closed: its VM was off before that"
    assert own_console.ticket()[0] == 404


def test_one_at_a_time(console: Console) -> None:
    """Another one is refused, and reads who looks; who opens it again himself has it here, and not there."""

    async def act() -> tuple[str, str, bytes]:
        first = await console.open(console.site.page, await asyncio.to_thread(console.secret))
        await first.read()
        other = await console.open(console.operator, await asyncio.to_thread(console.secret, console.operator))
        try:
            await other.read()
            refused = ""
        except VgpuctlError as error:
            refused = error.message
        second = await console.open(console.site.page, await asyncio.to_thread(console.secret))
        ended, shown = await console.end(first), await second.read()
        for stream in (first, other, second):
            await stream.close()
        return refused, ended, shown

    before = len(console.events())
    refused, ended, shown = asyncio.run(act())
    assert [one["actor"] for one in console.events()[before:]] == ["ada", "ada"], "what was refused is none"
    assert refused == "ada has the screen of office-001 open"
    assert ended == "refused"
    assert shown.startswith(BANNER)


def test_a_user_sees_who_saw_her_screen(console: Console) -> None:
    """On her page; the simulator's guests have no helper, so the journal says that no message was shown there."""
    site = console.site

    def card() -> dict[str, Any]:
        (one,) = site.controller.request("GET", f"{API}/me/desktops", **site.ada.asking)[1]["data"]
        return {name: one[name] for name in ("watched_by", "watched_at", "watched_until")}

    status, body, _ = site.controller.request("GET", CONSOLE, **console.operator)
    assert (status, body["data"]["user"], body["data"]["is_watched"]) == (200, "ada", True)
    assert console.code(console.operator) == ""
    last = console.events()[-1]
    assert (last["actor"], last["user"], last["pool"]) == ("tool", "ada", "office")
    wait_until(lambda: card()["watched_until"] is not None, "its end")
    shown = card()
    assert (shown["watched_by"], shown["watched_at"]) == ("tool", last["time"])
    closed = [one for one in site.controller.data("list-events") if one["kind"] == "console-closed"][-1]
    assert (closed["actor"], closed["time"]) == ("tool", shown["watched_until"])
    assert console.code() == ""
    assert card() == shown, "that was her own screen"


def test_the_command(console: Console) -> None:
    """A VNC viewer would connect to the local port."""
    site, url = console.site, f"http://127.0.0.1:{console.site.controller.port}"
    ada = ("--user", "ada", "--password-file", str(site.directory / "password"))
    for words, env in ((), {}), (ada, {"VGPUCTL_CONTROLLER": url}):
        with connecting(site, "--screen", *words, **env) as (process, port):
            for _ in range(2):
                with socket.create_connection(("127.0.0.1", port), 30) as viewer:
                    assert viewer.recv(len(BANNER)) == BANNER
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
    done = site.controller.run("connect-desktop", "office-001", "--screen", "--port", "22")
    assert (done.returncode, "omit --port" in done.stderr) == (2, True)
    wait_until(lambda: len(site.controller.data("list-desktops")) == 2, "the next spare desktop")
    done = site.controller.run("connect-desktop", "office-009", "--screen")
    assert (done.returncode, "there is no desktop office-009" in done.stderr) == (2, True)


def test_what_a_page_asks_by_itself_keeps_no_session(console: Console) -> None:
    """Only keys, the pointer and the clipboard are a use of the session."""
    assert [is_input(bytes([kind, 0])) for kind in (*range(7), 255)] == [False] * 4 + [True] * 4
    assert not is_input(b"")


def test_a_person_who_may_not_has_no_page(console: Console) -> None:
    eve = Browser(console.site.controller)
    page = "/desktops/office-001/console"
    eve.open(page)
    assert eve.status == 401
    eve = signed_in(console.site.controller, "eve")
    assert (eve.open(page), eve.status)[1] == 404
    console.site.ada.open(page)
    assert console.site.ada.status == 200
    assert "img-src 'self' data:" in console.site.ada.headers["Content-Security-Policy"]
    console.site.ada.open("/my")
    assert json.dumps(PASSWORD) not in console.site.controller.log
