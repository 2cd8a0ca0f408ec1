# SPDX-License-Identifier: Apache-2.0
"""Connects people to their desktops over WebSockets: to a port, or to the screen, which is the console.

`GET /api/v1/desktops/{name}/ports/{port}` and `GET /api/v1/desktops/{name}/screen`. Who may is what the calls
connect-desktop and open-console say. It is asked again while a stream runs: a stream ends within seconds when the
session or the token ends, the right is revoked, or the desktop is somebody else's. Each has a connection of its own to
the host's agent. A browser must say that the page is ours: other sites can open WebSockets with its cookie. A screen
needs a ticket from open-console besides, as a subprotocol: a browser sends no other header of a page's choice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute

from vgpuctl.agent.byte_streams import ServerStream, StreamEndpoint, join
from vgpuctl.agent.protocol import Stopping, TooMany
from vgpuctl.controller.consoles import TICKET
from vgpuctl.controller.database.rows import About
from vgpuctl.controller.hosts.stream_link import opened_stream
from vgpuctl.controller.model import CallerKind
from vgpuctl.controller.routes import API, CALLS
from vgpuctl.errors import Busy, HostCannot, HostKeyRefused, InvalidInput, NotAllowed, Refused, Temporary, Unreachable

if TYPE_CHECKING:
    from vgpuctl.agent.stream_client import ClientStream
    from vgpuctl.controller.callers import Callers
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.desktop_ports import DesktopStream
    from vgpuctl.controller.fleet import FleetService
    from vgpuctl.controller.model import FleetCaller

Result = TypeVar("Result")
Find = Callable[["FleetCaller", HTTPConnection], "DesktopStream"]
Follow = Callable[["FleetCaller", "DesktopStream", "DesktopStream"], None]

log = logging.getLogger("vgpuctl.controller")

MAX_STREAMS, MAX_OF_PERSON = 100, 4
CHECK_SECONDS = 5.0
THREADS = 16
_INPUT = (4, 5, 6, 255)
"""With what a client's messages of RFB begin that its user caused: a key, the pointer, text, QEMU's form of a key."""


class DesktopStreams:
    """The streams of one controller."""

    def __init__(self, store: Store, fleet: FleetService, callers: Callers) -> None:
        self._store = store
        self._fleet = fleet
        self._callers = callers
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="stream")
        self._stopping = asyncio.Event()
        self._running: Counter[str] = Counter()

    def routes(self) -> list[WebSocketRoute]:
        """Return the routes."""
        path = f"{API}/desktops/{{name}}"
        return [
            WebSocketRoute(f"{path}/ports/{{port}}", StreamEndpoint("port", self._serve_port)),
            WebSocketRoute(f"{path}/screen", StreamEndpoint("screen", self._serve_screen)),
        ]

    def stop(self) -> None:
        """End all streams, and begin none."""
        self._stopping.set()

    def close(self) -> None:
        """Do nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _serve_port(self, connection: HTTPConnection, stream: ServerStream) -> None:
        caller = await self._in_thread(lambda: self._find_caller(connection, touches=True))
        port = await self._in_thread(lambda: self._find_port(caller, connection))
        async with self._opened(caller, port) as desktop:
            await self._in_thread(lambda: self._note(caller, port))
            await join(stream, desktop, self._watch(connection, stream, port, self._find_port))

    async def _serve_screen(self, connection: HTTPConnection, stream: ServerStream) -> None:
        caller = await self._in_thread(lambda: self._find_caller(connection, touches=True))
        screen = await self._in_thread(lambda: self._find_screen(caller, connection))
        await self._in_thread(lambda: self._fleet.take_ticket(caller, screen.desktop, _ticket_of(connection)))
        stream.is_use = is_input
        async with self._opened(caller, screen) as desktop:
            first = await desktop.read()  # or why there is none: somebody else has it
            opened_at = await self._in_thread(lambda: self._fleet.begin_console(caller, screen))
            try:
                await stream.write(first)
                watch = self._watch(connection, stream, screen, self._find_screen, self._fleet.follow_console)
                await join(stream, desktop, watch)
            finally:
                with suppress(RuntimeError):  # the controller ends
                    self._threads.submit(self._fleet.end_console, caller, screen, opened_at)

    async def _in_thread(self, act: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    def _find_caller(self, connection: HTTPConnection, *, touches: bool) -> FleetCaller:
        """Return who asks.

        Raises:
            NotSignedIn: nobody that is known. NotAllowed: a page of another site.
        """
        caller = self._callers.find(connection, changes=False, touches=touches)
        try:
            origin = urlsplit(connection.headers.get("origin", "")).netloc
        except ValueError:
            origin = ""
        if caller.kind is CallerKind.PERSON and caller.token is None and origin != connection.headers.get("host"):
            raise NotAllowed("another site's page asks for this stream", rule="origin")
        return caller

    def _find_port(self, caller: FleetCaller, connection: HTTPConnection) -> DesktopStream:
        """Return the port that a request names, if its caller may use it."""
        name, text = connection.path_params["name"], connection.path_params["port"]
        CALLS["connect-desktop"].check(self._fleet, caller, {"name": name})
        if not text.isascii() or not text.isdigit() or len(text) > 5:
            raise InvalidInput(f"{text[:60]!a} is not a port between 1 and 65535")
        return self._fleet.find_port(caller, name, int(text))

    def _find_screen(self, caller: FleetCaller, connection: HTTPConnection) -> DesktopStream:
        """Return the screen that a request names, if its caller may see it."""
        name = connection.path_params["name"]
        CALLS["open-console"].check(self._fleet, caller, {"name": name})
        return self._fleet.find_screen(caller, name)

    @contextmanager
    def _counted(self, caller: FleetCaller) -> Iterator[None]:
        """Count a stream while it runs.

        Raises:
            Stopping: the controller stops. TooMany: there are enough.
        """
        if self._stopping.is_set():
            raise Stopping("the controller stops", hint="connect again in a minute")
        own, total = self._running[caller.key], self._running.total()
        if (caller.kind is CallerKind.PERSON and own >= MAX_OF_PERSON) or total >= MAX_STREAMS:
            raise TooMany(
                f"{own} connections of {caller.name} run already, {total} of all",
                hint=f"a person has {MAX_OF_PERSON} at once, a controller {MAX_STREAMS}: close others first",
                running=own,
            )
        self._running[caller.key] += 1
        try:
            yield
        finally:
            self._running[caller.key] -= 1
            if not self._running[caller.key]:
                del self._running[caller.key]

    @asynccontextmanager
    async def _opened(self, caller: FleetCaller, wanted: DesktopStream) -> AsyncIterator[ClientStream]:
        stack = AsyncExitStack()
        with self._counted(caller):
            try:
                person = caller.name if caller.kind is CallerKind.PERSON else f"{caller.name} ({caller.kind})"
                link, path = self._fleet.link_to(wanted.host), wanted.path(person)
                stream = await stack.enter_async_context(opened_stream(link, path, self._threads))
            except (HostCannot, HostKeyRefused, Unreachable) as error:  # its text names the host
                if wanted.sees_host:
                    raise
                log.warning("%s is not connected to %s: %s", caller.name, wanted.desktop.name, error.message)
                raise Busy("the host of your desktop does not answer just now", hint="try again in a minute") from None
            async with stack:
                yield stream

    def _note(self, caller: FleetCaller, stream: DesktopStream) -> None:
        about = About(pool=stream.pool, desktop=stream.desktop.name, user=stream.desktop.user)
        with self._store.changes.made_by(caller):
            self._store.journal.add("connected", f"{stream.desktop.name}: port {stream.port}", caller.name, about)

    async def _watch(
        self, connection: HTTPConnection, stream: ServerStream, before: DesktopStream, find: Find,
        follow: Follow = lambda *_: None,
    ) -> None:  # fmt: skip
        """Wait until a stream must end, and say why by an error. `follow`: gets what changed since the last check."""
        while True:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._stopping.wait()
                raise Stopping("the controller stops", hint="connect again in a minute")
            except TimeoutError:
                touches, stream.is_used = stream.is_used, False
                check = partial(self._check_again, connection, before, find, follow, touches=touches)
                before = await self._in_thread(check)

    def _check_again(
        self, connection: HTTPConnection, before: DesktopStream, find: Find, follow: Follow, *, touches: bool
    ) -> DesktopStream:
        """Refuse a stream that runs if its caller may not have it now; a database that is away ends none.

        `touches`: its user did something since the last time, so his session goes on.
        """
        try:
            caller = self._find_caller(connection, touches=touches)
            now = find(caller, connection)
        except Temporary:
            return before
        old, new = before.desktop, now.desktop
        if (old.id, old.generation, old.user) != (new.id, new.generation, new.user):
            raise Refused(f"{old.name} was given to somebody else, or is made again", desktop=old.name)
        follow(caller, before, now)
        return now


def _ticket_of(connection: HTTPConnection) -> str:
    """Return the ticket that a request carries; empty: none."""
    offered = (one for one in connection.scope["subprotocols"] if one.startswith(TICKET))
    return next(offered, "").removeprefix(TICKET)


def is_input(data: bytes) -> bool:
    """Return whether a user caused a message of RFB: his screen asks for the next picture by itself."""
    return data[:1] != b"" and data[0] in _INPUT
