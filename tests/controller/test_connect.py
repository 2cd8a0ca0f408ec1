# SPDX-License-Identifier: Apache-2.0
"""People who connect to ports of their desktops through a real controller and a real agent; the guests listen."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.agent.guest_network import GuestNetwork, echo, running_with_guests, serving
from tests.controller.conftest import IMAGE, SPEC, opened, wait_until
from tests.controller.controllers import Controller, running_controller
from tests.controller.test_access import OFFICE, kind_of
from tests.controller.test_portal import PASSWORD, Browser, signed_in
from vgpuctl.agent.byte_streams import ConnectionStream
from vgpuctl.agent.stream_client import ClientStream, open_stream
from vgpuctl.controller.desktop_streams import MAX_OF_PERSON
from vgpuctl.controller.routes import API
from vgpuctl.errors import VgpuctlError

Result = TypeVar("Result")

PORT = f"{API}/desktops/office-001/ports/22"


class Site:
    """A controller, and ada, who has the desktop office-001."""

    def __init__(self, controller: Controller, network: GuestNetwork, directory: Path) -> None:
        self.controller = controller
        self.directory = directory
        self._network = network
        self.ada = Browser(controller)

    def ensure_pool(self, **keys: object) -> None:
        spec = self.directory / "office.json"
        spec.write_text(json.dumps({**SPEC, "maximum": 2, "spare": 1, "connect": [22, 5901], **keys}))
        done = self.controller.run("ensure-pool", "office", "-f", str(spec))
        assert done.returncode == 0, done.stderr

    def take(self) -> None:
        """Have ada take a desktop, and wait until it has an address."""
        assert self.controller.run("entitle", "everybody", "use", "--pool", "office").returncode == 0
        wait_until(lambda: self.controller.data("show-pool", "office")["ready"] > 0, "a desktop")
        self.ada = signed_in(self.controller)
        self.ada.open("/my")
        self.ada.press("Take a desktop office")
        wait_until(lambda: self.desktop["address"] is not None, "its address")
        self.ada.open("/my")

    @property
    def desktop(self) -> dict[str, str]:
        """The desktop office-001."""
        data: dict[str, str] = self.controller.data("show-desktop", "office-001")
        return data

    @property
    def page(self) -> dict[str, str]:
        """The headers with which a page of ada's opens a WebSocket."""
        return {"Cookie": self.ada.asking["Cookie"], "Origin": f"http://127.0.0.1:{self.controller.port}"}

    def listen(self, port: int = 22) -> socket.socket:
        """Return a listening socket of the desktop."""
        return self._network.listen(self.desktop["address"], port)

    async def open(self, headers: dict[str, str], path: str = PORT) -> ClientStream:
        """Return a stream to the controller's port, with these headers."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.controller.port)
        host = f"127.0.0.1:{self.controller.port}"
        return await open_stream(ConnectionStream(reader, writer), "the controller", host, path, headers)

    def run(
        self, act: Callable[[ClientStream], Awaitable[Result]], headers: dict[str, str] | None = None, path: str = PORT
    ) -> Result:
        """Do something with a stream, ada's by default, and close it."""

        async def opened() -> Result:
            stream = await self.open(self.page if headers is None else headers, path)
            try:
                async with asyncio.timeout(60):
                    return await act(stream)
            finally:
                await stream.close()

        return asyncio.run(opened())

    def code(self, headers: dict[str, str] | None = None, path: str = PORT) -> str:
        """Return the code of the error with which a stream ends; "" if it brings something."""
        try:
            return "" if self.run(lambda stream: stream.read(), headers, path) else "nothing"
        except VgpuctlError as error:
            return error.code

    def ends(self, act: Callable[[], object], headers: dict[str, str] | None = None) -> str:
        """Do something while a stream is open; return the code of the error with which it ends."""

        async def wait(stream: ClientStream) -> str:
            assert await stream.read()
            await asyncio.to_thread(act)
            try:
                while await stream.read():
                    continue
            except VgpuctlError as error:
                return error.code
            return "closed"

        return self.run(wait, headers)


def greet(connection: socket.socket) -> None:
    """Say something, and wait."""
    connection.sendall(b"hello")
    connection.recv(1)


@contextmanager
def site_in(tmp_path: Path) -> Iterator[Site]:
    directory = tmp_path / "agent"
    directory.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
        with _started(directory, tmp_path) as one:
            yield one


@contextmanager
def _started(directory: Path, tmp_path: Path) -> Iterator[Site]:
    with (
        running_with_guests("sim:a100-40", directory) as (agent, network),
        running_controller(tmp_path / "controller") as controller,
    ):
        password = tmp_path / "password"
        password.write_text(PASSWORD)
        for name in ("ada", "eve"):
            assert controller.run("ensure-person", name).returncode == 0
            assert controller.run("set-password", name, "--password-file", str(password)).returncode == 0
        assert controller.run("add-host", "gpu01", f"agent:{agent.path}").returncode == 0
        assert controller.run("ensure-image", "office", "--path", IMAGE).returncode == 0
        one = Site(controller, network, tmp_path)
        one.ensure_pool()
        one.take()
        yield one


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that no test changes for others."""
    with site_in(tmp_path_factory.mktemp("connect")) as one:
        yield one


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    """A site of the test's own."""
    with site_in(tmp_path) as one:
        yield one


def test_a_user_reaches_the_ports_of_the_pool(site: Site) -> None:
    text = os.urandom(1 << 20)

    async def talk(stream: ClientStream) -> bytes:
        sending = asyncio.ensure_future(stream.write(text))
        data = b""
        while len(data) < len(text):
            data += await stream.read()
        await sending
        return data

    with serving(site.listen(), echo):
        assert site.run(talk) == text
    events = [one for one in site.controller.data("list-events") if one["kind"] == "connected"]
    assert [(one["actor"], one["text"], one["user"]) for one in events] == [("ada", "office-001: port 22", "ada")]
    with serving(site.listen(5901), greet):
        assert site.code(path=PORT.replace("22", "5901")) == ""


def test_who_gets_no_stream(site: Site) -> None:
    ada, origin = site.page["Cookie"], site.page["Origin"]
    eve = signed_in(site.controller, "eve")
    eve.open("/my")
    with serving(site.listen(), greet):
        assert site.code() == ""
        assert site.code({}) == "not-signed-in"
        assert site.code({"Authorization": "Bearer vgpuctl_x"}) == "not-signed-in"
        assert site.code({"Cookie": ada}) == "not-allowed", "it does not say which page asks"
        for other in ("http://evil.example", "null", f"{origin}.evil.example", "http://127.0.0.1:1"):
            assert site.code({"Cookie": ada, "Origin": other}) == "not-allowed", other
        assert site.code({"Cookie": eve.asking["Cookie"], "Origin": origin}) == "not-found", "it is ada's"
        for port in ("23", "80", "65535"):
            assert site.code(path=PORT.replace("22", port)) == "not-allowed"
        for port in ("0x16", "-22", "123456"):
            assert site.code(path=PORT.replace("22", port)) == "invalid-input"
        assert site.code(path=PORT.replace("001", "009")) == "not-found"
    assert site.code() == "unreachable", "nobody listens there"


def test_tokens_and_desktops_that_nobody_has(site: Site) -> None:
    add = ("add-token", "tool", "--right", "operate", "--pool", "office")
    tool = {"Authorization": f"Bearer {site.controller.run(*add).stdout.strip()}"}
    viewer = site.controller.run("add-token", "eyes", "--role", "viewer").stdout.strip()
    wait_until(lambda: len(site.controller.data("list-desktops")) == 2, "the next spare desktop")
    with serving(site.listen(), greet):
        assert site.code(tool) == ""
        assert site.code({"Authorization": f"Bearer {viewer}"}) == "not-allowed"
        assert site.code(tool, PORT.replace("001", "002")) == "refused"
        assert site.ends(lambda: site.controller.run("delete-token", "tool", "--yes"), tool) == "not-signed-in"


def test_a_stream_ends_with_what_it_follows_from(own_site: Site) -> None:
    run = own_site.controller.run
    with serving(own_site.listen(), greet):
        assert own_site.ends(lambda: own_site.ensure_pool(connect=[5901])) == "not-allowed"
        own_site.ensure_pool()
        assert own_site.ends(lambda: run("ensure-person", "ada", "--disabled")) == "not-signed-in"
        run("ensure-person", "ada", "--enabled")
        own_site.ada = signed_in(own_site.controller)
        own_site.ada.open("/my")
        assert own_site.ends(lambda: own_site.ada.press("Sign out")) == "not-signed-in"
        own_site.ada = signed_in(own_site.controller)
        own_site.ada.open("/my")
        assert own_site.ends(lambda: run("release", "office-001", "--yes")) in ("not-found", "stale", "refused")
        assert own_site.code() in ("not-found", "refused")


def test_so_many_of_one_person_at_once(site: Site) -> None:
    async def open_more(first: ClientStream) -> list[str]:
        streams = [first, *[await site.open(site.page) for _ in range(MAX_OF_PERSON)]]
        codes = []
        for stream in streams:
            try:
                codes.append("" if await stream.read() else "nothing")
            except VgpuctlError as error:
                codes.append(error.code)
        for stream in streams[1:]:
            await stream.close()
        return codes

    with serving(site.listen(), greet):
        codes = site.run(open_more)
        assert sorted(codes) == [*[""] * MAX_OF_PERSON, "too-many"]
        for _ in range(MAX_OF_PERSON + 1):
            wait_until(lambda: site.code() == "", "the end of one before")


def test_streams_end_with_the_controller(own_site: Site) -> None:
    with serving(own_site.listen(), greet):
        assert own_site.ends(own_site.controller.stop) in ("stopping", "closed")
    assert "Traceback" not in own_site.controller.log


def test_who_may_is_who_may_make_the_call(site: Site) -> None:
    """The WebSocket asks the same policy as the call connect-desktop, of which test_access has the whole table."""
    secrets = {
        role: site.controller.run("add-token", role, "--role", role).stdout.strip()
        for role in ("viewer", "operator", "admin")
    }
    with serving(site.listen(), greet):
        for role, secret in secrets.items():
            header = {"Authorization": f"Bearer {secret}"}
            status, body, _ = site.controller.request("GET", f"{API}/desktops/office-001/ports", **header)
            is_allowed = kind_of(status, body, "office") == "made"
            assert is_allowed is (role in OFFICE["connect-desktop"])
            assert site.code(header) == ("" if is_allowed else "not-allowed"), role


@contextmanager
def connecting(site: Site, *words: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run connect-desktop; yield it with its port."""
    argv = [sys.executable, "-m", "vgpuctl", "controller", "connect-desktop", "office-001", *words]
    environment = {**os.environ, "VGPUCTL_CONTROLLER": str(site.controller.socket), **env}
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        what = "the screen" if "--screen" in words else "port 22"
        assert f"leads to {what} of office-001" in line, line + process.stderr.read()
        yield process, int(line.partition(" ")[0].rpartition(":")[2])
    finally:
        process.kill()
        process.communicate()


def exchange(port: int) -> bytes:
    """Send something to a local port; return what comes back."""
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall(b"hello")
        return connection.recv(5)


def test_the_command(site: Site) -> None:
    with serving(site.listen(), echo), connecting(site) as (process, port):
        assert [exchange(port) for _ in range(3)] == [b"hello"] * 3
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def sessions(site: Site) -> int:
    """Return how many sessions ada has."""
    with opened(f"sqlite:///{site.controller.directory}/state/fleet.db") as store, store.database.read() as connection:
        statement = "SELECT count(*) FROM web_session WHERE person = 'ada'"
        return int(connection.exec_driver_sql(statement).scalar() or 0)


def test_the_command_for_a_person(site: Site) -> None:
    file, url = site.directory / "password", f"http://127.0.0.1:{site.controller.port}"
    words, before = ("--user", "ada", "--password-file", str(file)), sessions(site)
    with serving(site.listen(), echo), connecting(site, *words, VGPUCTL_CONTROLLER=url) as (process, port):
        assert exchange(port) == b"hello"
        assert sessions(site) == before + 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert sessions(site) == before, "it signs out"


def test_a_token_of_ones_own_connects(site: Site) -> None:
    request, url = site.controller.request, f"http://127.0.0.1:{site.controller.port}"
    status, body, _ = request("POST", f"{API}/me/tokens", {"name": "laptop"}, **site.ada.asking)
    assert status == 200, body
    file, secret = site.directory / "laptop.token", body["data"]["secret"]
    file.write_text(secret + "\n")
    words = ("--token-file", str(file))
    with serving(site.listen(), echo), connecting(site, *words, VGPUCTL_CONTROLLER=url) as (process, port):
        assert exchange(port) == b"hello"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    headers = {"Authorization": f"Bearer {secret}"}

    def delete() -> None:
        assert site.controller.run("delete-token", "laptop", "--person", "ada").returncode == 0

    with serving(site.listen(), greet):
        assert site.ends(delete, headers) == "not-signed-in"
    assert [one["kind"] for one in site.controller.data("list-events")][-1] == "token-deleted"


def test_the_command_that_ones_page_shows(site: Site) -> None:
    site.ada.open("/my")
    shown = [str(one) for one in site.ada.page.xpath("//details//pre/code/text()")]
    file, url = site.directory / "password", f"http://127.0.0.1:{site.controller.port}"
    start = "vgpuctl controller connect-desktop office-001 --port"
    assert shown == [f"{start} {port} --user ada --controller {url}" for port in (22, 5901)]
    words = shown[0].partition(" office-001 ")[2].split()
    with serving(site.listen(), echo), connecting(site, *words, "--password-file", str(file)) as (process, port):
        assert exchange(port) == b"hello"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    site.ensure_pool(connect=[22])
    site.ada.open("/my")
    assert len(site.ada.page.xpath("//details//pre")) == 1
    site.ensure_pool()


def test_what_the_command_refuses(site: Site) -> None:
    def refused(*words: str, **env: str) -> str:
        done = site.controller.run("connect-desktop", "office-001", *words, **env)
        assert "Traceback" not in done.stderr
        return f"{done.returncode} {done.stderr.partition('hint')[0]}"

    url = f"http://127.0.0.1:{site.controller.port}"
    wrong = site.directory / "wrong"
    wrong.write_text("another password")
    assert "3 vgpuctl: office-001 can be reached at 22, 5901, not at 23" in refused("--port", "23")
    assert "2 vgpuctl: --listen 0.0.0.0:22" in refused("--listen", "0.0.0.0:22")
    assert "2 vgpuctl: --listen 22" in refused("--listen", "22")
    assert "where nobody signs in" in refused("--user", "ada", "--password-file", str(wrong))
    assert "wrong-password" in refused("--user", "ada", "--password-file", str(wrong), VGPUCTL_CONTROLLER=url)
    assert "no terminal" in refused("--user", "ada", VGPUCTL_CONTROLLER=url)
    assert "needs a token" in refused(VGPUCTL_CONTROLLER=url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port} cannot be used" in refused("--listen", f"127.0.0.1:{port}")


def test_a_pool_that_connects_nobody(site: Site) -> None:
    site.ensure_pool(connect=None)
    done = site.controller.run("connect-desktop", "office-001")
    assert (done.returncode, "connects nobody to its desktops" in done.stderr) == (3, True)
    assert site.code() == "refused"
    site.ada.open("/my")
    assert site.ada.page.xpath("//details") == []
    site.ensure_pool()
