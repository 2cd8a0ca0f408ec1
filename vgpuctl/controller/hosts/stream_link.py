# SPDX-License-Identifier: Apache-2.0
"""Streams to desktops through the agents of their hosts; each has a connection, and so a login, of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from vgpuctl.agent.byte_streams import CHUNK_BYTES, ConnectionStream
from vgpuctl.agent.protocol import API_VERSION
from vgpuctl.agent.stream_client import ClientStream, open_stream

if TYPE_CHECKING:
    from vgpuctl.controller.hosts.link import HostLink
    from vgpuctl.remote.session import AgentSocket


@asynccontextmanager
async def opened_stream(link: HostLink, path: str, threads: Executor) -> AsyncIterator[ClientStream]:
    """Yield the stream at a path of an agent's API, and log out afterwards. `threads`: where the login waits.

    Raises:
        VgpuctlError: as `HostLink.dial` and `open_stream`.
    """
    loop = asyncio.get_running_loop()
    try:
        dialled = await loop.run_in_executor(threads, link.dial)
        connection = dialled if isinstance(dialled, socket.socket) else _bridged(dialled)
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection)
        server = f"the host agent of {link.name}"
        stream = await open_stream(ConnectionStream(reader, writer), server, "agent", f"/{API_VERSION}/{path}", {})
        try:
            yield stream
        finally:
            await stream.close()
    finally:
        await loop.run_in_executor(threads, link.close)


def _bridged(agent: AgentSocket) -> socket.socket:
    """Return a socket that carries the bytes of a channel of SSH, for a loop: two threads wait for the channel."""
    ours, theirs = socket.socketpair()
    agent.settimeout(None)
    threading.Thread(target=_bridge, args=(agent, theirs), name="stream-bridge", daemon=True).start()
    return ours


def _bridge(agent: AgentSocket, bridge: socket.socket) -> None:
    sending = threading.Thread(target=_send, args=(agent, bridge), name="stream-send", daemon=True)
    sending.start()
    with suppress(OSError, EOFError), agent.makefile("rb") as answers:
        while data := answers.read1(CHUNK_BYTES):
            bridge.sendall(data)
    with suppress(OSError):
        bridge.shutdown(socket.SHUT_RDWR)
    sending.join()
    bridge.close()
    agent.close()


def _send(agent: AgentSocket, bridge: socket.socket) -> None:
    with suppress(OSError, EOFError):
        while data := bridge.recv(CHUNK_BYTES):
            agent.sendall(data)
    agent.shutdown(socket.SHUT_RDWR)  # so that the other direction ends
