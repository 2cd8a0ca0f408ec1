# SPDX-License-Identifier: Apache-2.0
"""A local port that leads to a port of a desktop, through the controller. It is on loopback, so nobody else uses it."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from vgpuctl.agent.byte_streams import SUBPROTOCOL, ConnectionStream, join
from vgpuctl.agent.stream_client import ClientStream, open_stream
from vgpuctl.controller.consoles import TICKET
from vgpuctl.controller.routes import API
from vgpuctl.errors import FileFailed, InvalidInput, Unreachable, VgpuctlError

if TYPE_CHECKING:
    from vgpuctl.controller.client import FleetClient

CONNECT_SECONDS = 20.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def parse_local(text: str) -> tuple[str, int]:
    """Return the address and the port of `--listen`; port 0 is any free one.

    Raises:
        InvalidInput: it is no port on loopback.
    """
    address, colon, port = text.rpartition(":")
    address = address.removeprefix("[").removesuffix("]")
    with suppress(ValueError):
        if colon and 0 <= int(port) <= 65535 and ipaddress.ip_address(address).is_loopback:
            return address, int(port)
    raise InvalidInput(f"--listen {text}: write 127.0.0.1:PORT or [::1]:PORT; other machines must not use it")


class DesktopTunnel:
    """Connects each connection to a local port to a port of a desktop. `on_error`: gets why one of them ends."""

    def __init__(
        self, client: FleetClient, desktop: str, port: int | None, on_error: Callable[[VgpuctlError], None]
    ) -> None:
        """`port`: None for the screen."""
        self._client = client
        self._desktop = desktop
        self._port = port
        self._on_error = on_error
        self._serving: set[asyncio.Task[None]] = set()

    async def run(self, address: str, port: int, on_ready: Callable[[str, int], None]) -> int:
        """Listen there until a signal comes; return its number. `on_ready`: gets where it listens.

        Raises:
            FileFailed: it cannot listen there.
        """
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        received: list[int] = []

        def stop(number: int) -> None:
            received.append(number)
            stopped.set()

        for number in SIGNALS:
            loop.add_signal_handler(number, stop, int(number))
        try:
            server = await asyncio.start_server(self._begin, address, port)
        except OSError as error:
            raise FileFailed(
                f"{address}:{port} cannot be used: {error.strerror or error}", hint="use another port with --listen"
            ) from error
        async with server:
            on_ready(*server.sockets[0].getsockname()[:2])
            await stopped.wait()
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)
        return received[0]

    async def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        local = ConnectionStream(reader, writer)
        try:
            stream = await self._open()
            try:
                await join(local, stream)
            finally:
                await stream.close()
        except VgpuctlError as error:
            self._on_error(error)
        finally:
            self._serving.discard(task)
            await local.close()

    async def _open(self) -> ClientStream:
        parts = urlsplit(self._client.address)
        host = "controller" if self._client.address.startswith("/") else parts.netloc
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self._client.address.startswith("/"):
                    reader, writer = await asyncio.open_unix_connection(self._client.address)
                else:
                    tls = ssl.create_default_context() if parts.scheme == "https" else None
                    port = parts.port or (443 if tls else 80)
                    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls)
        except (OSError, TimeoutError) as error:
            raise Unreachable(
                f"the controller does not answer at {self._client.address}: {error or 'no answer in time'}",
                hint="vgpuctl controller show-fleet",
            ) from error
        connection = ConnectionStream(reader, writer)
        path = f"{API}/desktops/{quote(self._desktop, safe='')}"
        if self._port is not None:
            return await open_stream(
                connection, "the controller", host, f"{path}/ports/{self._port}", self._client.headers
            )
        ticket = await asyncio.to_thread(lambda: self._client.call("open-console", name=self._desktop).data.ticket)
        offered = (SUBPROTOCOL, TICKET + ticket)
        return await open_stream(connection, "the controller", host, f"{path}/screen", self._client.headers, offered)
