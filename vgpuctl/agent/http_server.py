# SPDX-License-Identifier: Apache-2.0
"""HTTP servers of the agent: uvicorn without signal handlers of its own, and with limits for connections.

A header must be whole ten seconds after its first byte, and nobody has all connections. A WebSocket counts as the
connection that it was before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vgpuctl.agent.stream_socket import StreamSocket

HEADER_SECONDS = 10.0
"""A request's header is whole within this time after its first byte, and the first byte after the connection."""
MAX_CONNECTIONS = 64
"""So many connections a user who is not root has at once, and a port: the agent keeps descriptors for its work."""
_PEER = struct.Struct("3i")


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 with a limit of time for a header, and of connections for each peer."""

    max_connections: ClassVar[int] = MAX_CONNECTIONS
    """So many a peer has at once."""
    keep_seconds: ClassVar[int] = 5
    """A connection without a request is closed after this time."""
    takes_streams: ClassVar[bool] = True
    """Whether a connection can become a WebSocket."""
    _header_timer: asyncio.TimerHandle | None = None
    _peer: Hashable = None
    _connections: ClassVar[Counter[Hashable]] = Counter()

    def find_peer(self, transport: Any) -> Hashable:
        """Return who is at the other end, for the limit of connections; None for a peer without one.

        All peers of a port are one: whoever has many addresses has no more connections.
        """
        return "port"

    def connection_made(self, transport: Any) -> None:
        """Learn who it is."""
        super().connection_made(transport)
        self._peer = self.find_peer(transport)
        self._connections[self._peer] += 1
        if self._peer is not None and self._connections[self._peer] > self.max_connections:
            transport.abort()
            return
        self._header_timer = self.loop.call_later(HEADER_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        """Take bytes; close the connection if a header does not become whole."""
        super().data_received(data)
        is_within_header = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if not is_within_header:
            self._stop_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self.stop_timers()
        self._give_back()
        super().connection_lost(exc)

    def stop_timers(self) -> None:
        """Stop every timer of the connection."""
        self._stop_timer()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Make the connection a WebSocket."""
        super().handle_websocket_upgrade(event)
        self._hand_over()

    def handle_upgrade(self, event: h11.Request) -> None:
        """Make the connection a WebSocket: what this is called in uvicorn 0.17."""
        super().handle_upgrade(event)  # type: ignore[misc]
        self._hand_over()

    def _hand_over(self) -> None:
        """Let a WebSocket that took the connection end it, and count as this peer's; nothing ran in it yet."""
        stream = self.transport.get_protocol()
        if isinstance(stream, StreamSocket):
            self.stop_timers()
            stream.on_end = self._give_back
            stream.set_client(self.client)

    def _give_back(self) -> None:
        """Count the connection no more."""
        self._connections[self._peer] -= 1
        if not self._connections[self._peer]:
            del self._connections[self._peer]

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class PortProtocol(LimitedProtocol):
    """HTTP on a port, where nobody proves who he is: an answer that is not read in time ends the connection."""

    takes_streams: ClassVar[bool] = False
    answer_seconds: ClassVar[float] = 30.0
    """After a request began, its answer has been sent and read within this time."""
    _answer_timer: asyncio.TimerHandle | None = None
    _timed: object = None

    def data_received(self, data: bytes) -> None:
        """Take bytes; begin to count the time of each request."""
        super().data_received(data)
        if self.cycle is not None and self.cycle is not self._timed:
            self._stop_answer_timer()
            self._timed = self.cycle
            self._answer_timer = self.loop.call_later(self.answer_seconds, self._end_answer)

    def stop_timers(self) -> None:
        """Stop every timer of the connection."""
        super().stop_timers()
        self._stop_answer_timer()

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _end_answer(self) -> None:
        """End a connection whose answer is not sent whole by now; closing it would wait for the peer to read."""
        self._answer_timer = None
        if not self.cycle.response_complete or self.transport.get_write_buffer_size():
            self.transport.abort()


class StreamProtocol(LimitedProtocol):
    """HTTP with answers that go on for a long time: who does not read what waits for him is cut off."""

    max_connections: ClassVar[int] = 512
    unread_seconds: ClassVar[float] = 30.0
    """So long a peer may leave what is sent to it unread, once no more of it can wait."""
    _unread_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Begin to count the time: no more can wait."""
        super().pause_writing()
        self._unread_timer = self.loop.call_later(self.unread_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop to count: the peer has read."""
        super().resume_writing()
        self._stop_unread_timer()

    def stop_timers(self) -> None:
        """Stop every timer of the connection."""
        super().stop_timers()
        self._stop_unread_timer()

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


class PeerProtocol(LimitedProtocol):
    """HTTP on a Unix socket. The scope's `client` is the peer's user id and pid, which the kernel proves.

    A controller asks its hosts more often than it gives up a connection.
    """

    keep_seconds: ClassVar[int] = 120

    def find_peer(self, transport: Any) -> Hashable:
        """Return the peer's user id; None for root, who has no limit."""
        peer = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        pid, uid, _ = _PEER.unpack(peer)
        self.client = (str(uid), pid)
        return None if uid in (0, os.geteuid()) else uid


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: the agent ends streams and operations first."""

    def install_signal_handlers(self) -> None:
        """Do nothing (uvicorn before 0.29)."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


def make_server(app: Any, protocol: type[LimitedProtocol], **tls: Any) -> uvicorn.Server:
    """Return a server of an application. `tls`: uvicorn's settings for a certificate."""
    config = uvicorn.Config(
        app,
        http=protocol,
        ws=StreamSocket if protocol.takes_streams else "none",
        ws_per_message_deflate=False,
        ws_ping_interval=None,  # a guest that does not read would seem to be a peer that does not answer
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=protocol.keep_seconds,
        **tls,
    )
    return _Server(config)
