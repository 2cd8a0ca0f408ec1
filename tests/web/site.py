# SPDX-License-Identifier: Apache-2.0
"""A controller with thin hosts that serves its pages on a port, in this process; and what a browser would ask of it.

with running_site(tmp_path, hosts=4) as site:
    site.get("/").text
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from lxml import html
from sqlalchemy import event

from tests.controller.thin_host import ThinHosts
from vgpuctl.agent.http_server import StreamProtocol, make_server
from vgpuctl.controller.api import ControllerApi
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.engine import Engine
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import CallerKind, FleetCaller, Role
from vgpuctl.controller.web.live import LiveStreams, LiveTimes

ADMIN = FleetCaller("test", Role.ADMIN, CallerKind.LOCAL)
IMAGE = "/srv/images/ubuntu-24.04.qcow2"
TIMES = LiveTimes(beat=1.0, settle=0.05, idle=0.5, life=60.0)


class Answer:
    """What a browser got."""

    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.text = body.decode()

    @property
    def tree(self) -> Any:
        """The page, parsed."""
        return html.document_fromstring(self.text)


class Site:
    """The controller. `secret`: of an admin's token."""

    def __init__(self, store: Store, hosts: ThinHosts, port: int) -> None:
        self.store = store
        self.hosts = hosts
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.fleet = FleetService(store, hosts.link)
        self.secret = self.fleet.add_token(ADMIN, "browser", "admin").data.secret or ""
        self.headers = {"Authorization": f"Bearer {self.secret}"}
        self.live: LiveStreams | None = None
        self.end_streams: Callable[[], object] = lambda: None

    def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> Answer:
        """Ask for a path."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=self.headers if headers is None else headers)
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        connection.close()
        return answer

    def post(self, path: str, fields: dict[str, str], headers: dict[str, str] | None = None) -> Answer:
        """Send a form, as a page of this site does."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Content-Type": "application/x-www-form-urlencoded", "Sec-Fetch-Site": "same-origin"}
        connection.request("POST", path, urlencode(fields), {**sent, **(self.headers if headers is None else headers)})
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        connection.close()
        return answer

    def counted(self, path: str) -> tuple[Answer, int]:
        """Ask for a path; return also how many queries the API's threads send to the database meanwhile."""
        seen: list[str] = []

        def note(_: Any, __: Any, statement: str, *___: Any) -> None:
            if threading.current_thread().name.startswith("api") and not statement.startswith("BEGIN"):
                seen.append(statement)

        event.listen(self.store.database.engine, "before_cursor_execute", note)
        try:
            answer = self.get(path)
            return answer, len(seen)
        finally:
            event.remove(self.store.database.engine, "before_cursor_execute", note)

    def fill(self, hosts: int, *, maximum: int = 12, spare: int = 4) -> None:
        """Add hosts, an image and pools."""
        for number in range(hosts):
            name = f"gpu{number + 1:02}"
            self.hosts.add(name)
            self.fleet.add_host(ADMIN, name, f"agent:/{name}")
        self.fleet.ensure_image(ADMIN, "office", IMAGE)
        for pool, kind in (("office", "floating"), ("design", "dedicated"), ("training", "floating")):
            spec = {"kind": kind, "image": "office", "names": f"{pool}-{{:03}}", "maximum": maximum, "spare": spare}
            self.fleet.ensure_pool(ADMIN, pool, {**spec, "profile": "A100-4C", "placement": "spread"})
        self.fleet.ensure_person(ADMIN, "zoe", groups=["staff"])
        self.fleet.entitle(ADMIN, "@staff", "use", "office")

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait until something holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
            time.sleep(0.05)

    def ready(self) -> int:
        """Return how many desktops are ready."""
        return int(self.fleet.show_overview(ADMIN).data.counts.get("ready", 0))


async def _serve(server: Any, listening: socket.socket) -> None:
    await server.serve(sockets=[listening])
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _end_connections(server: Any) -> None:
    for connection in list(server.server_state.connections):
        connection.transport.abort()


@contextmanager
def running_site(
    directory: Path,
    *,
    hosts: int = 0,
    gpus: int = 4,
    times: LiveTimes = TIMES,
    engine: bool = True,
    url: str | None = None,
    **more: int,
) -> Iterator[Site]:
    """Yield a controller with so many hosts. `engine`: whether it does anything by itself; `url`: of its database."""
    url = url or f"sqlite:///{directory}/fleet.db"
    upgrade(url)
    store = open_store(url)
    thin = ThinHosts(directory / "hosts", gpus=gpus)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        site = Site(store, thin, listening.getsockname()[1])
        runs = Engine(store, thin.link)
        api = ControllerApi(store, site.fleet, runs)
        api.web.live = site.live = LiveStreams(store.changes, times)
        server = make_server(api.app, StreamProtocol)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=lambda: loop.run_until_complete(_serve(server, listening)))
        thread.start()
        try:
            if hosts:
                site.fill(hosts, **more)
            if engine:
                runs.start()
            site.end_streams = lambda: loop.call_soon_threadsafe(_end_connections, server)
            yield site
        finally:
            if engine:
                runs.stop()
            loop.call_soon_threadsafe(api.web.close)
            server.should_exit = True
            thread.join(30)
            is_stopped = not thread.is_alive()
            api.close()
            with suppress(Exception):
                loop.close()
            store.close()
            assert is_stopped, "a stream keeps the server from its end"
