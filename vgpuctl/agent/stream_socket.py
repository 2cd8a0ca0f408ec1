# SPDX-License-Identifier: Apache-2.0
"""WebSockets that carry bytes, on uvicorn's with wsproto: where a message begins and ends means nothing.

What has arrived is passed on at once, and nothing more is read until the application took it: of each peer at most
256 KiB wait, which is what asyncio reads at a time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto import events

CLOSE_SECONDS = 5.0
"""So long a peer may take to read what was sent before the end."""
MAX_WAITING_PONGS = 64 << 10
"""While more than so many bytes wait to be read, no ping is answered."""
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A minute after a peer vanished, such as a notebook that sleeps, its connection ends."""


class StreamSocket(WSProtocol):
    """A WebSocket. `on_end` is called when its connection has ended."""

    on_end: Callable[[], None] | None = None

    def connection_made(self, transport: Any) -> None:
        """Take a connection."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def set_client(self, client: Any) -> None:
        """Say who is at the other end, before the application runs; a Unix socket does not say it."""
        self.client = client
        if getattr(self, "scope", None) is not None:  # uvicorn has none for a request that is no handshake
            self.scope["client"] = client

    def connection_lost(self, exc: Exception | None) -> None:
        """End: the application reads that, with uvicorn 0.17 too, which does not say it."""
        super().connection_lost(exc)
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        self.writable.set()
        if self.on_end is not None:
            self.on_end()

    def handle_events(self) -> None:
        """Take what has arrived; uvicorn's own keeps a message until it is whole."""
        for event in self.conn.events():
            if isinstance(event, events.CloseConnection):
                self.handle_close(event)
            elif self.close_sent:
                continue
            elif isinstance(event, events.Request):
                self.handle_connect(event)
            elif isinstance(event, events.BytesMessage):
                self._take(bytes(event.data))
            elif isinstance(event, events.Ping):
                self.handle_ping(event)
            elif isinstance(event, events.TextMessage):
                self._refuse_text()

    def handle_ping(self, event: events.Ping) -> None:
        """Answer a ping, unless many answers wait already: who pings and does not read is no reason to keep them."""
        if self.transport.get_write_buffer_size() <= MAX_WAITING_PONGS:
            super().handle_ping(event)

    def handle_close(self, event: events.CloseConnection) -> None:
        """End with the peer: nothing can be sent any more, which uvicorn 0.17 does not know."""
        super().handle_close(event)
        self.close_sent = True

    def _take(self, data: bytes) -> None:
        if not data:
            return
        self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def _refuse_text(self) -> None:
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1003})
        self.transport.write(self.conn.send(events.CloseConnection(code=1003, reason="send binary frames")))
        self.transport.close()

    async def run_asgi(self) -> None:
        """Run the application; then end the connection, also one whose peer does not read what it is sent."""
        try:
            await super().run_asgi()
        finally:
            self.loop.call_later(CLOSE_SECONDS, self.transport.abort)
